//! One process from its first instruction to its end.
//! Not what it prints: that goes through the guest's own file descriptors.
//! Source: our own.

use std::{
    io,
    sync::{Arc, OnceLock},
};

use longma_core::{ConfigurationWords, Core, Executed, Execution, SharedCode, Stop};
use longma_guest::host::{attention::register_attention, faults};
use longma_linux::{LoadError, Outcome, Process, ProcessConfig, Thread};
use longma_loongarch::{Fault, FaultCause, State, Trap};

use crate::{
    checkpoint::{Checkpoint, CheckpointError},
    engine::{self, CodePages, Cores, NodeEngine},
    gdb::{self, Debugger, Follower, Session},
    schedule::{self, Simulated},
    symbols::Symbols,
    translated::{TranslatedError, Translation, listing::ListedUnit, translation_of},
};

/// What to run and how.
pub struct NodeConfig {
    /// The program and what it sees.
    pub process: ProcessConfig,
    /// What `cpucfg` tells the program of the core.
    pub words: ConfigurationWords,
    /// How it is executed.
    pub execution: Execution,
    /// Who runs it in simulated time, if it does; the scheduler is that of the process's configuration.
    pub simulated: Option<Simulated>,
}

/// A process that cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The program cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The host has no memory for translated code or for a core.
    #[error(
        "the host gives no memory for translated code: {0}; check `ulimit -v` and whether executable memory is forbidden"
    )]
    Host(#[source] io::Error),
    /// It is for another architecture, and what is asked for goes with LoongArch only.
    #[error(transparent)]
    Translated(#[from] TranslatedError),
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this status.
    Exit(i32),
    /// This signal killed it.
    Signal(i32),
}

/// What the cores of a process share.
pub(crate) struct Shared {
    process: Arc<Process>,
    pub code: SharedCode,
    pub cores: Cores,
    words: ConfigurationWords,
    simulated: Option<Simulated>,
    translated: Option<Box<dyn Translation>>,
    finish: OnceLock<Box<Finish>>,
    session: OnceLock<Arc<Session>>,
}

impl Shared {
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// A core for a thread that begins with `state`.
    ///
    /// # Errors
    /// The host has no memory to give.
    pub fn core(&self, state: State) -> io::Result<Core> {
        Core::new(state, self.process.memory().clone(), self.words.clone(), self.code.clone())
    }

    /// Who runs it in simulated time, as long as it is; a forked child is not.
    pub fn in_time(&self) -> Option<&Simulated> {
        self.simulated.as_ref().filter(|_| self.process.simulation().is_some())
    }

    /// What is translated, if the program is for another architecture.
    pub fn translated(&self) -> Option<&dyn Translation> {
        self.translated.as_deref()
    }

    /// The debugging session, if there ever was one.
    pub fn session(&self) -> Option<&Arc<Session>> {
        self.session.get()
    }
}

/// What there is to say of a process that has ended.
pub struct Report<'a>(&'a Shared);

impl Report<'_> {
    /// What was executed.
    pub fn code(&self) -> &SharedCode {
        &self.0.code
    }

    /// Whether the program is for another architecture than LoongArch.
    pub fn is_translated(&self) -> bool {
        self.0.translated().is_some()
    }

    /// The architecture of a program that is not for LoongArch and was translated, and how many of its own instructions these blocks have
    /// executed: each round of a repeated one counts.
    pub fn source(&self, executed: &[Executed]) -> Option<(&'static str, u64)> {
        let translated = self.0.translated()?;
        Some((translated.name(), translated.source_instructions(executed)))
    }

    /// The program's own address of what stands at `address`: another one where it is translated.
    pub fn source_address(&self, address: u64) -> u64 {
        self.0.translated().map_or(address, |translated| translated.source_address(address))
    }

    /// These blocks, each at the program's own address of its first instruction.
    pub fn at_source(&self, executed: &[Executed]) -> Vec<Executed> {
        executed.iter().map(|block| Executed { start: self.source_address(block.start), ..*block }).collect()
    }

    /// What a program for another architecture was translated to, as far as these blocks have executed it.
    pub fn listing(&self, executed: &[Executed]) -> Vec<ListedUnit> {
        self.0.translated().map_or_else(Vec::new, |translated| translated.listing(self.0, executed))
    }

    /// The functions of the files that are mapped at the end.
    pub fn symbols(&self) -> Symbols {
        Symbols::of(&self.0.process)
    }
}

/// Told once how the process ended.
type Finish = dyn Fn(Ending, &Report) + Send + Sync;

/// A loaded process.
pub struct Node {
    shared: Arc<Shared>,
    /// The threads it begins with; the first one runs on the caller's host thread.
    threads: Vec<(Thread, Core)>,
}

impl Node {
    /// Loads the program.
    ///
    /// # Errors
    /// The program cannot be loaded, or the host lacks memory.
    pub fn load(config: NodeConfig) -> Result<Self, NodeError> {
        faults::install();
        faults::prepare_thread();
        let (process, thread, state) = Process::load(config.process)?;
        Self::of(process, vec![(thread, state)], config.words, config.execution, config.simulated)
    }

    /// Brings a saved process back. `config.simulated` has the scheduler that the checkpoint made; of `config.process` count who
    /// schedules it, where it traces to, and the root.
    ///
    /// # Errors
    /// The process cannot be brought back here.
    pub fn restore(config: NodeConfig, checkpoint: &Checkpoint) -> Result<Self, NodeError> {
        faults::install();
        faults::prepare_thread();
        let (process, threads) = checkpoint.process(config.process)?;
        Self::of(process, threads, config.words, config.execution, config.simulated)
    }

    fn of(
        process: Arc<Process>,
        mut threads: Vec<(Thread, State)>,
        words: ConfigurationWords,
        execution: Execution,
        simulated: Option<Simulated>,
    ) -> Result<Self, NodeError> {
        let translated = translation_of(&process);
        if let Some(translated) = &translated {
            threads.iter_mut().for_each(|(_, state)| translated.begin(state));
        }
        let watch = Arc::new(CodePages(Arc::downgrade(&process)));
        let code = SharedCode::new(process.memory(), execution, watch).map_err(NodeError::Host)?;
        let shared = Arc::new(Shared {
            process,
            code,
            cores: Cores::default(),
            words,
            simulated,
            translated,
            finish: OnceLock::new(),
            session: OnceLock::new(),
        });
        shared.process.set_engine(Arc::new(NodeEngine(Arc::downgrade(&shared))));
        let threads = threads.into_iter().map(|(thread, state)| Ok((thread, shared.core(state)?)));
        let threads = threads.collect::<io::Result<_>>().map_err(NodeError::Host)?;
        Ok(Self { shared, threads })
    }

    /// Stops the process before its first instruction and lets a debugger steer it from there on.
    ///
    /// # Errors
    /// The host lacks descriptors or threads, or the process is in simulated time, which would not stand still while a debugger
    /// looks.
    pub fn debug(&mut self, debugger: Debugger) -> io::Result<()> {
        if self.shared.simulated.is_some() {
            return Err(io::Error::other(
                "a debugger cannot steer a process in simulated time; run it at level functional",
            ));
        }
        if self.shared.translated.is_some() {
            return Err(io::Error::other(TranslatedError::Debugged));
        }
        let session = gdb::session()?;
        // There is one debugger: a second session would find the process's threads taken.
        #[expect(clippy::disallowed_methods, reason = "it is made already: no fork can come in between")]
        let session = self.shared.session.get_or_init(|| session).clone();
        gdb::serve(debugger, session, self.shared.clone())
    }

    /// Runs the process to its end and this program with it. `finish` is called once, on whichever thread sees the end.
    pub fn run(self, finish: impl Fn(Ending, &Report) + Send + Sync + 'static) -> ! {
        let Self { shared, threads } = self;
        let _ = shared.finish.set(Box::new(finish));
        if let Some(simulated) = &shared.simulated
            && simulated.scheduler.start(&shared.process).is_err()
        {
            end(&shared, Ending::Signal(libc::SIGKILL));
        }
        let mut threads = threads.into_iter();
        if let Some((mut thread, mut core)) = threads.next() {
            thread.begin(&mut core.cpu().state);
            for (other, core) in threads {
                if engine::spawn(shared.clone(), other, core).is_err() {
                    end(&shared, Ending::Signal(libc::SIGKILL));
                }
            }
            if let Some(simulated) = &shared.simulated {
                simulated.scheduler.begin();
            }
            run_thread(&shared, thread, core);
        }
        // The main thread is over and others go on; the last of them ends the program.
        loop {
            std::thread::park();
        }
    }
}

/// Runs one guest thread on this host thread until it or the process ends.
pub(crate) fn run_thread(shared: &Arc<Shared>, mut thread: Thread, mut core: Core) {
    // SAFETY: the core, and its flag in it, stay where they are until the registration is taken back below.
    let listed = unsafe {
        let flag = &raw const core.cpu().attention;
        register_attention(flag);
        shared.cores.list(flag)
    };
    let mut simulated = shared.in_time();
    let mut follower = Follower::of(shared, thread.tid(), &core.cpu().state);
    if follower.is_some() || shared.translated.is_some() {
        thread.leave_signals_pending();
    }
    loop {
        let outcome = match (&mut follower, simulated) {
            // After a fork the child goes on without simulated time.
            (None, Some(_)) => {
                simulated.take().map_or(Outcome::Continue, |s| run_in_time(shared, s, &mut core, &mut thread))
            }
            (None, None) => match &shared.translated {
                None => run_to_stop(&mut core, &mut thread),
                Some(translated) => translated.run(shared, &mut core, &mut thread),
            },
            (Some(follower), _) => run_under_debugger(&mut core, &mut thread, follower),
        };
        match outcome {
            Outcome::Continue => {}
            // The last thread's end is an `ExitProcess`.
            Outcome::ExitThread(_) => break,
            Outcome::ExitProcess(status) => end(shared, Ending::Exit(status)),
            Outcome::KilledBy(signal) => end(shared, Ending::Signal(signal)),
        }
    }
    drop(follower);
    drop(listed);
    // SAFETY: null is always valid.
    unsafe { register_attention(std::ptr::null()) };
}

fn run_in_time(shared: &Shared, simulated: &Simulated, core: &mut Core, thread: &mut Thread) -> Outcome {
    schedule::run_thread(simulated, core, thread, |core, thread| match shared.translated() {
        None => simulated.turn(core, thread),
        Some(translated) => translated.run(shared, core, thread),
    })
}

fn run_to_stop(core: &mut Core, thread: &mut Thread) -> Outcome {
    match core.run() {
        Stop::Trap(Trap::Syscall(_)) => thread.syscall(&mut core.cpu().state),
        Stop::Trap(trap) => {
            if let Trap::Memory(Fault { address, cause: FaultCause::BeyondFile, .. }) = trap {
                thread.process().note_orphaned_access(address);
            }
            thread.raise(&mut core.cpu().state, trap)
        }
        Stop::Attention => {
            core.cpu().attention.clear();
            thread.deliver_pending(&mut core.cpu().state)
        }
        Stop::Quantum | Stop::Magic(_) => {
            core.clear_trace();
            Outcome::Continue
        }
    }
}

fn run_under_debugger(core: &mut Core, thread: &mut Thread, follower: &mut Follower) -> Outcome {
    match follower.run(core) {
        Stop::Trap(trap) => follower.raise(thread, &mut core.cpu().state, trap),
        Stop::Attention => {
            core.cpu().attention.clear();
            follower.deliver(thread, &mut core.cpu().state)
        }
        Stop::Quantum | Stop::Magic(_) => {
            core.clear_trace();
            Outcome::Continue
        }
    }
}

/// Ends the program as the guest ended.
fn end(shared: &Shared, ending: Ending) -> ! {
    if let Some(finish) = shared.finish.get() {
        finish(ending, &Report(shared));
    }
    if let Some(session) = shared.session() {
        session.end(ending);
    }
    match ending {
        // SAFETY: ends the process at once; the guest's threads have no destructors of ours to wait for.
        Ending::Exit(status) => unsafe { libc::_exit(status) },
        Ending::Signal(signal) => longma_guest::host::die_by(signal),
    }
}
