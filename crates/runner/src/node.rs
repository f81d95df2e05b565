//! Setup and execution of one process, from a program or a checkpoint.

use std::{io, path::PathBuf, sync::Arc};

use longma_core::{ConfigurationWords, Core, Execution};
use longma_guest::host::faults;
use longma_linux::{LoadError, Process, ProcessConfig, Thread};
use longma_translate::optimizations::Optimizations;

use crate::{
    checkpoint::{Checkpoint, CheckpointError},
    ending::Ending,
    engine,
    gdb::{self, Debugger},
    report::Report,
    schedule::SimulatedProcess,
    shared::{Callbacks, ProgramConfig, Shared},
    thread_loop::{end, run_thread},
    translated::CodeAreaConfig,
};

/// The configuration of a process.
pub struct NodeConfig {
    /// The program and its environment. If `simulated` is set, it replaces the scheduler and the devices.
    pub process: ProcessConfig,
    /// The result of `cpucfg`.
    pub words: ConfigurationWords,
    /// The execution options of the cores.
    pub execution: Execution,
    /// The optimizations of the translation, for programs that are not for LoongArch.
    pub optimizations: Optimizations,
    /// The size of the area for translated code in bytes; as large as possible if `None`.
    pub translated_bytes: Option<u64>,
    /// The directory of the translation cache; `None` disables the cache.
    pub translation_cache: Option<PathBuf>,
    /// The instructions, or simulated nanoseconds, between two samples of call stacks; `None` for no samples.
    pub stack_period: Option<u64>,
    /// Simulated time, if the process runs in it.
    pub simulated: Option<SimulatedProcess>,
}

impl NodeConfig {
    /// The area may be reused only if no statistics identify code by its address. Cold code may be interpreted only if
    /// neither statistics nor samples of call stacks are required.
    fn code_area(&self) -> CodeAreaConfig {
        let Execution { counting, tracing, .. } = self.execution;
        CodeAreaConfig {
            bytes: self.translated_bytes,
            is_reused: !counting && !tracing,
            may_interpret: !counting && !tracing && self.stack_period.is_none(),
            cache: self.translation_cache.clone(),
            root: self.process.root.clone(),
        }
    }

    /// Connects the process to its scheduler and devices. Returns the process's configuration and that of its programs.
    fn connect(mut self) -> (ProcessConfig, ProgramConfig) {
        if let Some(simulated) = &self.simulated {
            simulated.enter_into(&mut self.process);
        }
        let code_area = self.code_area();
        let program = ProgramConfig {
            words: self.words,
            execution: Execution { metered: self.stack_period.is_some(), ..self.execution },
            stack_period: self.stack_period,
            optimizations: self.optimizations,
            code_area,
            simulated: self.simulated.map(Arc::new),
            run_thread,
        };
        (self.process, program)
    }
}

/// Why a process cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The program cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The host cannot provide memory for translated code or for a core.
    #[error("cannot allocate memory for translated code: {0}; {CHECK_LIMITS}")]
    Host(#[source] io::Error),
}

const CHECK_LIMITS: &str = "check `ulimit -v` and whether executable memory is forbidden";

impl NodeError {
    /// Advice on how to solve the problem. The error message ends with it, after a semicolon.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            Self::Load(error) => error.advice(),
            Self::Checkpoint(error) => error.advice(),
            Self::Host(_) => Some(CHECK_LIMITS),
        }
    }
}

/// A loaded process.
pub struct Node {
    shared: Arc<Shared>,
    /// The initial threads. The first one runs on the caller's host thread.
    threads: Vec<(Thread, Core)>,
}

impl Node {
    /// Loads a program.
    ///
    /// # Errors
    /// The program cannot be loaded, or the host lacks memory.
    pub fn load(config: NodeConfig) -> Result<Self, NodeError> {
        faults::install();
        faults::prepare_thread();
        let (process, program) = config.connect();
        let (process, thread, state) = Process::load(process)?;
        let (shared, threads) = program.begin(process, vec![(thread, state)]).map_err(NodeError::Host)?;
        Ok(Self { shared, threads })
    }

    /// Restores a process from a checkpoint. `config.simulated` must contain the scheduler that the checkpoint created.
    /// Of `config.process`, only the trace sink and the root are used.
    ///
    /// # Errors
    /// The process cannot be restored on this host.
    pub fn restore(config: NodeConfig, checkpoint: &Checkpoint) -> Result<Self, NodeError> {
        faults::install();
        faults::prepare_thread();
        let (process, program) = config.connect();
        let (process, threads) = checkpoint.process(process)?;
        let (shared, threads) = program.begin(process, threads).map_err(NodeError::Host)?;
        Ok(Self { shared, threads })
    }

    /// Stops the process before its first instruction and attaches a debugger.
    ///
    /// # Errors
    /// The host lacks descriptors or threads, or the process runs in simulated time, which cannot be stopped.
    pub fn debug(&mut self, debugger: Debugger) -> io::Result<()> {
        if self.shared.cores.simulated().is_some() {
            return Err(io::Error::other(
                "debugging is not supported in simulated time; run at level functional",
            ));
        }
        let session = self.shared.begin_session(gdb::session()?);
        gdb::serve(debugger, session, self.shared.cores.clone(), self.shared.translated().cloned())
    }

    /// Runs the process to its end, and ends the host process with it. `finish` is called once, on any thread.
    pub fn run(self, finish: impl Fn(Ending, &Report) + Send + Sync + 'static) -> ! {
        self.run_with(Callbacks { finish: Box::new(finish), executes: Box::new(|_, _| None) })
    }

    /// Like [`Self::run`], and notifies the caller when the process executes another program.
    pub fn run_with(self, callbacks: Callbacks) -> ! {
        let Self { shared, threads } = self;
        shared.set_callbacks(Arc::new(callbacks));
        if let Some(simulated) = shared.cores.simulated() {
            // Intercept SIGINT, so that an interrupted run reports its statistics.
            shared.cores.process().intercept_interrupt();
            if simulated.scheduler.start(shared.cores.process()).is_err() {
                end(&shared, Ending::Signal(libc::SIGKILL));
            }
        }
        let mut threads = threads.into_iter();
        if let Some((mut thread, mut core)) = threads.next() {
            thread.begin(&mut core.cpu().state);
            for (other, core) in threads {
                if engine::spawn(shared.clone(), other, core).is_err() {
                    end(&shared, Ending::Signal(libc::SIGKILL));
                }
            }
            if let Some(simulated) = shared.cores.simulated() {
                simulated.scheduler.begin();
            }
            run_thread(shared, thread, core);
        }
        // The main thread has exited. The last of the other threads ends the host process.
        loop {
            std::thread::park();
        }
    }
}
