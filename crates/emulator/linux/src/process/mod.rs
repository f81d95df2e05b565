//! A guest process and its threads: what the kernel knows of them, and who executes them.
//! Not how a process comes to be, nor what system calls make of it; not the machine it runs on.
//! Source: execve(2), proc(5).

mod borrow;
pub(crate) mod dispositions;
mod engine;
mod limits;
mod socket_names;
mod thread;
mod thread_signals;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};

pub(crate) use borrow::{Borrowed, Waiting};
pub use engine::{Areas, Engine, Outcome};
pub use limits::KeptLimit;
pub(crate) use limits::{Limits, is_never_the_hosts, soft_of};
pub use thread::Thread;
pub(crate) use thread::{Birth, Completion, Interrupted, host_id, is_own_task};
pub use thread_signals::Arrivals;
pub(crate) use thread_signals::{AlternateStack, ThreadSignals};

use crate::root::Root;
use crate::simulated::identity::Ids;
use crate::simulated::{Simulation, SimulationConfig};
use crate::stack::StackContents;
use crate::surroundings::Surroundings;
use crate::{DeviceFile, open_files};
use dispositions::Dispositions;
use longma_guest::elf::Architecture;
use longma_guest::host::{locks::Mutex, resources};
use longma_guest::{AddressSpace, GuestMemory, Window};
use socket_names::SocketNames;

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
    /// The main thread's stack in bytes; 0 means what RLIMIT_STACK says, or 8 MiB with `constant_surroundings`.
    pub stack_bytes: u64,
    /// The file mode creation mask that it begins with; none: as it is.
    pub umask: Option<u32>,
    /// Limits that the program before has set and the host does not enforce.
    pub limits: Vec<KeptLimit>,
    /// Where each system call is traced to, if anywhere.
    pub tracer: Option<Sink>,
    /// Where oddities are told, once each (calls that are missing).
    pub diagnostics: Option<Sink>,
    /// What AT_HWCAP says the processor can do (HWCAP_LOONGARCH_ bits); none: everything there is.
    pub capabilities: Option<u64>,
    /// Arguments that start this emulator again, the program being the first (`longma run --root DIRECTORY`). Execve appends
    /// `--argv0=NAME --environment-from=DESCRIPTOR --open-files=SOFT:HARD -- PATH ARGUMENTS`, where NAME is what the program is to be
    /// called and may differ from PATH, the open file DESCRIPTOR holds the program's environment, each variable ended by a zero byte,
    /// and SOFT and HARD are the program's limit of open files, see [`longma_guest::host::descriptors::begin`]. Before `--` comes
    /// `--kept-limit=RESOURCE:SOFT:HARD` for each of `limits`.
    /// Empty: execve of guest programs fails.
    pub reexec: Vec<OsString>,
    /// The program finds the same names of itself, its folders, its user and its system wherever and by whomever it is run, and the
    /// same random bytes at its start.
    pub constant_surroundings: bool,
    /// How much lower the stack begins, in bytes, rounded to 16.
    pub stack_offset: u64,
    /// Who keeps the time, if it is simulated.
    pub simulation: Option<SimulationConfig>,
    /// The devices that the program sees in /dev/longma.
    pub devices: Arc<[DeviceFile]>,
}

/// A guest process.
pub struct Process {
    pub(crate) space: AddressSpace,
    pub(crate) engine: OnceLock<Arc<dyn Engine>>,
    pub(crate) dispositions: Dispositions,
    pub(crate) config: ProcessConfig,
    pub(crate) root: Root,
    /// By which names it knows itself, if they are constant.
    pub(crate) surroundings: Option<Surroundings>,
    /// The program's file, absolute: as the guest names it inside a root, otherwise as the host does.
    pub(crate) executable: PathBuf,
    /// The arguments the program got; a script's interpreter comes first.
    pub(crate) arguments: Vec<Vec<u8>>,
    pub(crate) stack: StackContents,
    pub(crate) limits: Limits,
    /// Where the program was loaded.
    pub(crate) program_range: Range<u64>,
    /// Numbers of missing calls that have been named.
    pub(crate) told: Mutex<BTreeSet<u64>>,
    /// What it has done, in simulated time, that a checkpoint does not keep.
    pub(crate) unkept: Mutex<BTreeSet<&'static str>>,
    /// Other oddities that have been told.
    said: Mutex<BTreeSet<&'static str>>,
    /// The guest address of the code that a handler returns to, in the vDSO.
    pub(crate) signal_return: AtomicU64,
    pub(crate) socket_names: SocketNames,
    /// The guest threads alive.
    pub(crate) threads: AtomicU32,
    /// The guest threads there have been.
    pub(crate) threads_made: AtomicU32,
    /// Descriptors that are this program's own, and what the standard ones were at the start.
    pub(crate) own_descriptors: Vec<i32>,
    /// What the program does not have, if it is translated.
    pub(crate) areas: Option<Areas>,
    pub(crate) standard_files: [Option<(u64, u64)>; 3],
    /// What it has besides in simulated time.
    pub(crate) simulation: Option<Arc<Simulation>>,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("program", &self.config.program).finish_non_exhaustive()
    }
}

/// What a process consists of besides its configuration.
pub(crate) struct Parts {
    pub space: AddressSpace,
    pub surroundings: Option<Surroundings>,
    pub executable: PathBuf,
    pub arguments: Vec<Vec<u8>>,
    pub stack: StackContents,
    pub program_range: Range<u64>,
    pub signal_return: u64,
    pub threads: u32,
    pub threads_made: u32,
    /// Descriptors that are this program's own.
    pub own_descriptors: Vec<i32>,
    /// What the program does not have, if it is translated.
    pub areas: Option<Areas>,
}

impl Process {
    /// A process from its parts.
    pub(crate) fn assemble(
        config: ProcessConfig,
        root: Root,
        simulation: Option<Arc<Simulation>>,
        parts: Parts,
    ) -> Arc<Self> {
        let limits = Limits::inherited(&config.limits);
        let soft = |resource| soft_of(&limits.lock(), resource);
        parts.space.set_quota(soft(resources::AS), soft(resources::DATA));
        Arc::new(Self {
            space: parts.space,
            root,
            engine: OnceLock::new(),
            dispositions: Dispositions::inherited(),
            surroundings: parts.surroundings,
            executable: parts.executable,
            arguments: parts.arguments,
            stack: parts.stack,
            program_range: parts.program_range,
            config,
            told: Mutex::default(),
            limits,
            signal_return: AtomicU64::new(parts.signal_return),
            socket_names: SocketNames::default(),
            threads: AtomicU32::new(parts.threads),
            threads_made: AtomicU32::new(parts.threads_made),
            own_descriptors: parts.own_descriptors,
            areas: parts.areas,
            standard_files: open_files::standard(),
            simulation,
            said: Mutex::default(),
            unkept: Mutex::default(),
        })
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

    /// What the program is called, as the kernel shortens it.
    pub(crate) fn short_name(&self) -> String {
        let name = self.executable.file_name().map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_default().chars().take(15).collect()
    }

    /// What the process has in simulated time; `None` if it runs in the host's, as a forked child does.
    pub fn simulation(&self) -> Option<&Arc<Simulation>> {
        self.simulation.as_ref().filter(|simulation| simulation.is_on())
    }

    /// The arguments, of which `ids` are ids, of a call of a process that may be a forked child of a simulated one: what its parent has told it of the
    /// process that they both come from is the model's id.
    pub(crate) fn arguments_of_child(&self, ids: &Ids, arguments: [u64; 6]) -> [u64; 6] {
        match &self.simulation {
            Some(parent) => parent.identities.translate_processes(ids, arguments),
            None => arguments,
        }
    }

    /// The process has done something whose effect a checkpoint does not keep.
    pub(crate) fn note_unkept(&self, what: &'static str) {
        if self.simulation().is_some() {
            self.unkept.lock().unwrap_or_else(PoisonError::into_inner).insert(what);
        }
    }

    /// Something that it has done and a checkpoint does not keep.
    pub(crate) fn unkept(&self) -> Option<&'static str> {
        self.unkept.lock().unwrap_or_else(PoisonError::into_inner).first().copied()
    }

    /// Says something to whoever has started the program.
    pub fn say(&self, text: &str) {
        if let Some(sink) = &self.config.diagnostics {
            sink(text);
        }
    }

    /// Says something odd where the diagnostics go, once.
    pub fn say_once(&self, text: &'static str) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.insert(text) {
            self.say(text);
        }
    }

    /// An access to `address` has trapped, and nobody answers for devices: in a forked child. Says so if it was a device's register.
    pub fn note_orphaned_access(&self, address: u64) {
        if matches!(self.memory().window_at(address), Some((Window::Registers(_), ..))) {
            self.say_once(crate::devices::CHILD_ACCESSES);
        }
    }

    /// Whose instructions its program consists of.
    pub fn architecture(&self) -> Architecture {
        self.areas.as_ref().map_or(Architecture::LoongArch64, |areas| areas.architecture)
    }

    /// Where an engine puts what it makes of a program for another architecture; `None` if that is not needed. Everything that this
    /// crate knows of such a process's program counters are then addresses of that program.
    pub fn areas(&self) -> Option<&Areas> {
        self.areas.as_ref()
    }

    /// The process's address space.
    pub fn address_space(&self) -> &AddressSpace {
        &self.space
    }

    /// The process's memory.
    pub fn memory(&self) -> &GuestMemory {
        self.space.memory()
    }

    /// The auxiliary vector as the program got it: pairs of 64-bit words.
    pub fn auxiliary_vector(&self) -> &[u8] {
        &self.stack.auxiliary
    }

    /// Whether a signal that would end the process arrives at one of its threads first, see [`crate::Thread::next_signal`], or ends it
    /// at once. For a debugger.
    pub fn intercept_signals(&self, intercepted: bool) {
        self.dispositions.intercept(intercepted);
    }

    /// The program's file, absolute: as the guest names it inside a root, otherwise as the host does.
    pub fn executable(&self) -> &Path {
        &self.executable
    }

    /// What the guest calls its program's file, absolute.
    pub(crate) fn shown_executable(&self) -> PathBuf {
        match &self.surroundings {
            Some(names) => names.of_program(&self.executable),
            None => self.executable.clone(),
        }
    }

    /// What the guest calls a mapping that is named `name`.
    pub(crate) fn shown(&self, name: &str) -> String {
        let names = self.surroundings.as_ref().filter(|_| name.starts_with('/'));
        names.map_or_else(
            || name.into(),
            |names| names.of_program(Path::new(name)).to_string_lossy().into_owned(),
        )
    }

    /// Opens a file that a mapping names, for reading: one of the guest's, or one that was loaded from the library root.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open_mapped_file(&self, name: &Path) -> io::Result<File> {
        match &self.config.library_root {
            Some(root) if name.starts_with(root) => File::open(name),
            _ => self.root.open_to_read(name),
        }
    }
}
