//! A guest process: what all its threads share.
//! Not a thread, and not the machine it runs on.
//! Source: execve(2), proc(5).

pub(crate) mod fork;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use longma_loongarch::State;

use crate::memory::{AddressSpace, GuestMemory};
use crate::signals::Dispositions;
use crate::{Engine, Thread};

/// Where the tracer or the diagnostics write: called with one line without its end.
pub type Sink = Arc<dyn Fn(&str) + Send + Sync>;

/// What to load and how.
#[derive(Clone, Default)]
pub struct ProcessConfig {
    /// The program: a path as the guest sees it (inside `root`, if there is one).
    pub program: PathBuf,
    /// Its arguments, the first its name.
    pub arguments: Vec<OsString>,
    /// Its environment, `NAME=VALUE`.
    pub environment: Vec<OsString>,
    /// The directory the guest sees as `/`; none: the host's.
    pub root: Option<PathBuf>,
    /// Where to look for the interpreter of a dynamic program if it is not at its own path.
    pub library_root: Option<PathBuf>,
    /// The main thread's stack in bytes; 0 means 8 MiB.
    pub stack_bytes: u64,
    /// Where each system call is traced to, if anywhere.
    pub tracer: Option<Sink>,
    /// Where oddities are told, once each (calls that are missing).
    pub diagnostics: Option<Sink>,
    /// Arguments that start this emulator again, the program being the first (`longma run --`); the new program's path, then its
    /// arguments, are appended. Empty: execve of guest programs fails.
    pub reexec: Vec<OsString>,
}

/// A program that cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The host refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Host {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

/// A guest process.
pub struct Process {
    pub(crate) space: AddressSpace,
    pub(crate) engine: OnceLock<Arc<dyn Engine>>,
    pub(crate) dispositions: Dispositions,
    pub(crate) config: ProcessConfig,
    /// Numbers of missing calls that have been named.
    pub(crate) told: Mutex<BTreeSet<u64>>,
    /// The guest address of the code that a handler returns to, in the vDSO.
    pub(crate) signal_return: AtomicU64,
    /// The guest threads alive.
    pub(crate) threads: AtomicU32,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("program", &self.config.program).finish_non_exhaustive()
    }
}

impl Process {
    /// Loads a program: its memory, its first thread and that thread's registers.
    ///
    /// # Errors
    /// The program is missing, not a LoongArch64 ELF, malformed, or does not fit.
    pub fn load(config: ProcessConfig) -> Result<(Arc<Self>, Thread, State), LoadError> {
        let path = config.program.clone();
        let host = |action| move |source| LoadError::Host { action, path, source };
        let memory = GuestMemory::reserve().map_err(host("reserve memory for"))?;
        let space = AddressSpace::new(memory);
        let process = Arc::new(Self {
            space,
            engine: OnceLock::new(),
            dispositions: Dispositions::inherited(),
            config,
            told: Mutex::default(),
            signal_return: AtomicU64::new(0),
            threads: AtomicU32::new(1),
        });
        let thread = Thread::first(process.clone());
        Ok((process, thread, State::default()))
    }

    /// Sets who executes the process; must be called once, before any guest code runs.
    pub fn set_engine(&self, engine: Arc<dyn Engine>) {
        let teller = Arc::downgrade(&engine);
        self.space.on_code_change(Box::new(move |range| {
            if let Some(engine) = teller.upgrade() {
                engine.invalidate(range);
            }
        }));
        // Only the first counts: threads may already run on it.
        let _ = self.engine.set(engine);
    }

    pub(crate) fn signal_return_address(&self) -> u64 {
        self.signal_return.load(Ordering::Relaxed)
    }

    /// The process's address space.
    pub fn address_space(&self) -> &AddressSpace {
        &self.space
    }

    /// The process's memory.
    pub fn memory(&self) -> &GuestMemory {
        self.space.memory()
    }
}
