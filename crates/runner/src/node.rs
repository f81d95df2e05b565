//! One process from its first instruction to its end.
//! Not how its threads run (see `run.rs`), nor what it prints: that goes through the guest's own file descriptors.

use std::{io, path::PathBuf, sync::Arc};

use longma_core::{ConfigurationWords, Core, Execution};
use longma_guest::host::faults;
use longma_linux::{LoadError, Process, ProcessConfig, Thread};
use longma_loongarch::State;
use longma_translate::parts::Parts;

use crate::{
    checkpoint::{Checkpoint, CheckpointError},
    cores::Cores,
    ending::Ending,
    engine::{self, NodeEngine},
    gdb::{self, Debugger},
    report::Report,
    run::{Shared, end, run_thread},
    schedule::Simulated,
    translated::{Room, Translation, translation_of},
};

/// What to run and how.
pub struct NodeConfig {
    /// The program and what it sees; its scheduler and its devices are those of `simulated`, if that is there.
    pub process: ProcessConfig,
    /// What `cpucfg` tells the program of the core.
    pub words: ConfigurationWords,
    /// How it is executed.
    pub execution: Execution,
    /// With which parts it is translated, if it is for another architecture.
    pub parts: Parts,
    /// In how many bytes of room for what it becomes; all there is if left out.
    pub translated_bytes: Option<u64>,
    /// The folder in which what it becomes is kept for later runs, and found of earlier ones; `None` for nowhere.
    pub translation_cache: Option<PathBuf>,
    /// Who runs it in simulated time, if it does.
    pub simulated: Option<Simulated>,
}

impl NodeConfig {
    /// Where code is told apart by its address, that stays what it is.
    fn room(&self) -> Room {
        let Execution { counting, tracing, .. } = self.execution;
        Room {
            bytes: self.translated_bytes,
            is_used_again: !counting && !tracing,
            cache: self.translation_cache.clone(),
            root: self.process.root.clone(),
        }
    }

    /// The process is told of who runs it.
    fn connect(&mut self) {
        if let Some(simulated) = &self.simulated {
            simulated.enter_into(&mut self.process);
        }
    }
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
}

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
    pub fn load(mut config: NodeConfig) -> Result<Self, NodeError> {
        faults::install();
        faults::prepare_thread();
        config.connect();
        let room = config.room();
        let (process, thread, state) = Process::load(config.process)?;
        let translated = translation_of(&process, config.parts, room);
        Self::of(
            (process, translated),
            vec![(thread, state)],
            config.words,
            config.execution,
            config.simulated,
        )
    }

    /// Brings a saved process back. `config.simulated` has the scheduler that the checkpoint made; of `config.process` count where it
    /// traces to, and the root.
    ///
    /// # Errors
    /// The process cannot be brought back here.
    pub fn restore(mut config: NodeConfig, checkpoint: &Checkpoint) -> Result<Self, NodeError> {
        faults::install();
        faults::prepare_thread();
        config.connect();
        let room = config.room();
        let (process, threads) = checkpoint.process(config.process)?;
        let translated = translation_of(&process, config.parts, room);
        Self::of((process, translated), threads, config.words, config.execution, config.simulated)
    }

    fn of(
        (process, translated): (Arc<Process>, Option<Arc<dyn Translation>>),
        mut threads: Vec<(Thread, State)>,
        words: ConfigurationWords,
        execution: Execution,
        simulated: Option<Simulated>,
    ) -> Result<Self, NodeError> {
        if let Some(translated) = &translated {
            threads.iter_mut().for_each(|(_, state)| translated.begin(state));
        }
        let cores = Cores::of(process, words, execution, simulated).map_err(NodeError::Host)?;
        let shared = Arc::new(Shared::new(Arc::new(cores), translated));
        if let Some(translated) = shared.translated() {
            translated.take_up_kept(&shared.cores);
        }
        shared.cores.process().set_engine(Arc::new(NodeEngine(Arc::downgrade(&shared))));
        let threads = threads.into_iter().map(|(thread, state)| Ok((thread, shared.cores.make(state)?)));
        let threads = threads.collect::<io::Result<_>>().map_err(NodeError::Host)?;
        Ok(Self { shared, threads })
    }

    /// Stops the process before its first instruction and lets a debugger steer it from there on.
    ///
    /// # Errors
    /// The host lacks descriptors or threads, or the process is in simulated time, which would not stand still while a debugger
    /// looks.
    pub fn debug(&mut self, debugger: Debugger) -> io::Result<()> {
        if self.shared.cores.simulated().is_some() {
            return Err(io::Error::other(
                "a debugger cannot steer a process in simulated time; run it at level functional",
            ));
        }
        let session = self.shared.begin_session(gdb::session()?);
        gdb::serve(debugger, session, self.shared.cores.clone(), self.shared.translated().cloned())
    }

    /// Runs the process to its end and this program with it. `finish` is called once, on whichever thread sees the end.
    pub fn run(self, finish: impl Fn(Ending, &Report) + Send + Sync + 'static) -> ! {
        let Self { shared, threads } = self;
        shared.tell_at_end(Box::new(finish));
        if let Some(simulated) = shared.cores.simulated()
            && simulated.scheduler.start(shared.cores.process()).is_err()
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
            if let Some(simulated) = shared.cores.simulated() {
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
