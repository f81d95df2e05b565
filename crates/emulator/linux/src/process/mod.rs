//! A guest process and its threads: their kernel state and their engine. Source: execve(2), proc(5).

pub(crate) mod dispositions;
mod engine;
mod limits;
mod socket_names;
mod thread;
mod thread_signals;
mod vfork;

use longma_locks::IgnorePoison;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub use engine::{Areas, Engine, NextProgram, Outcome};
pub use limits::StoredLimit;
pub(crate) use limits::{Limits, is_emulated_only, soft_of};
pub use thread::Thread;
pub(crate) use thread::{Completion, Interrupted, StartupActions, host_id, is_own_task};
pub use thread_signals::Arrivals;
pub(crate) use thread_signals::{AlternateStack, ThreadSignals};
pub(crate) use vfork::{VforkChild, VforkParent};

use crate::fixed_identity::FixedIdentity;
use crate::root::Root;
use crate::simulated::identity::Ids;
use crate::simulated::{Simulation, SimulationConfig};
use crate::{DeviceFile, open_files};
use dispositions::Dispositions;
use longma_guest::elf::Architecture;
use longma_guest::elf::stack::{self, StackContents};
use longma_guest::host::masks::{SignalSet, set_of};
use longma_guest::host::{locks::Mutex, resources};
use longma_guest::{AddressSpace, GuestMemory, Window};
use socket_names::SocketNames;

/// Receives lines of the tracer or of diagnostics, without line ends.
pub type Sink = Arc<dyn Fn(&str) + Send + Sync>;

/// The configuration of a process.
#[derive(Clone, Default)]
pub struct ProcessConfig {
    /// The program's path in the guest (inside `root`, if there is one).
    pub program: PathBuf,
    /// The arguments, starting with the program's name.
    pub arguments: Vec<OsString>,
    /// Its environment, `NAME=VALUE`.
    pub environment: Vec<OsString>,
    /// The directory that the guest sees as `/`; by default the host's.
    pub root: Option<PathBuf>,
    /// Where to search for the dynamic linker if it is not at its own path.
    pub library_root: Option<PathBuf>,
    /// The size of the main thread's stack in bytes; 0 means RLIMIT_STACK, or 8 MiB with `fixed_identity`.
    pub stack_bytes: u64,
    /// The initial file mode creation mask; by default unchanged.
    pub umask: Option<u32>,
    /// Limits that the previous program had set and the emulator stores.
    pub limits: Vec<StoredLimit>,
    /// Receives a trace of each system call.
    pub tracer: Option<Sink>,
    /// Receives diagnostics, such as missing system calls, once each.
    pub diagnostics: Option<Sink>,
    /// AT_HWCAP (HWCAP_LOONGARCH_ bits); by default all capabilities.
    pub capabilities: Option<u64>,
    /// The flags in /proc/cpuinfo of an x86-64 program.
    pub x86_flags: String,
    /// The arguments that start this emulator again, beginning with its program (`longma run --root DIRECTORY`). Execve
    /// appends `--argv0=NAME --environment-from=DESCRIPTOR --open-files=SOFT:HARD -- PATH ARGUMENTS`. NAME is the
    /// program's name, which may differ from PATH. The open file DESCRIPTOR holds the program's environment, each
    /// variable terminated by a zero byte. SOFT and HARD are the limit of open files, see
    /// [`longma_guest::host::descriptors::begin`]. `--kept-limit=RESOURCE:SOFT:HARD` for each of `limits`,
    /// `--earlier-programs=DESCRIPTOR` if [`Engine::before_execve`] returns something, and `--named-after=PROGRAM
    /// --named-in=DIRECTORY` for `named_after` precede `--`. If empty, execve of guest programs fails.
    pub reexec: Vec<OsString>,
    /// Use constant names for the program, its directories, its user and its system, and constant initial random bytes,
    /// so that runs are equal on all hosts.
    pub fixed_identity: bool,
    /// Program and working directory of the first program, to which the constant names refer, if this program was
    /// started by execve.
    pub named_after: Option<(PathBuf, PathBuf)>,
    /// How much lower the stack starts, in bytes, rounded to 16.
    pub stack_offset: u64,
    /// The simulated time, if any.
    pub simulation: Option<SimulationConfig>,
    /// The devices in /dev/longma.
    pub devices: Arc<[DeviceFile]>,
}

/// A guest process.
pub struct Process {
    pub(crate) space: AddressSpace,
    pub(crate) engine: OnceLock<Arc<dyn Engine>>,
    pub(crate) dispositions: Dispositions,
    pub(crate) config: ProcessConfig,
    pub(crate) root: Root,
    /// Its constant names, if it has them.
    pub(crate) fixed_identity: Option<FixedIdentity>,
    /// The program file, absolute: a guest path inside a root, otherwise a host path.
    pub(crate) executable: PathBuf,
    /// The program's arguments. For a script, they start with the interpreter.
    pub(crate) arguments: Vec<Vec<u8>>,
    pub(crate) stack: StackContents,
    pub(crate) limits: Limits,
    /// The address range of the program.
    pub(crate) program_range: Range<u64>,
    /// Numbers of missing calls that have been reported.
    pub(crate) reported_calls: Mutex<BTreeSet<u64>>,
    /// Changes that a checkpoint does not contain, in simulated time.
    pub(crate) uncaptured: Mutex<BTreeSet<&'static str>>,
    /// Other diagnostics that have been reported.
    reported: Mutex<BTreeSet<&'static str>>,
    /// The guest address of the signal trampoline in the vDSO.
    pub(crate) signal_return: AtomicU64,
    pub(crate) socket_names: SocketNames,
    /// The commands by which the program registered for memory barriers (membarrier).
    pub(crate) barriers: AtomicU32,
    /// The number of live guest threads.
    pub(crate) threads: AtomicU32,
    /// The number of guest threads created so far.
    pub(crate) threads_made: AtomicU32,
    /// The emulator's own descriptors at the start.
    pub(crate) own_descriptors: Vec<i32>,
    /// The translator's address ranges, if the program is translated.
    pub(crate) areas: Option<Areas>,
    pub(crate) standard_files: [Option<(u64, u64)>; 3],
    /// Additional state in simulated time.
    pub(crate) simulation: Option<Arc<Simulation>>,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("program", &self.config.program).finish_non_exhaustive()
    }
}

/// MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, PRIVATE_EXPEDITED, PRIVATE_EXPEDITED_SYNC_CORE and PRIVATE_EXPEDITED_RSEQ.
pub(crate) const BARRIER_REGISTRATIONS: u32 = 4 | 16 | 64 | 256;

/// The parts of a process other than its configuration.
pub(crate) struct Parts {
    pub space: AddressSpace,
    pub fixed_identity: Option<FixedIdentity>,
    pub executable: PathBuf,
    pub arguments: Vec<Vec<u8>>,
    pub stack: StackContents,
    pub program_range: Range<u64>,
    pub signal_return: u64,
    pub threads: u32,
    pub threads_made: u32,
    /// The emulator's own descriptors.
    pub own_descriptors: Vec<i32>,
    /// The translator's address ranges, if the program is translated.
    pub areas: Option<Areas>,
}

impl Process {
    /// Assembles a process from its parts.
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
            fixed_identity: parts.fixed_identity,
            executable: parts.executable,
            arguments: parts.arguments,
            stack: parts.stack,
            program_range: parts.program_range,
            config,
            reported_calls: Mutex::default(),
            limits,
            signal_return: AtomicU64::new(parts.signal_return),
            socket_names: SocketNames::default(),
            barriers: AtomicU32::new(0),
            threads: AtomicU32::new(parts.threads),
            threads_made: AtomicU32::new(parts.threads_made),
            own_descriptors: parts.own_descriptors,
            areas: parts.areas,
            standard_files: open_files::standard(),
            simulation,
            reported: Mutex::default(),
            uncaptured: Mutex::default(),
        })
    }

    /// Sets the engine. Call it once, before guest code runs.
    pub fn set_engine(&self, engine: Arc<dyn Engine>) {
        let teller = Arc::downgrade(&engine);
        self.space.on_code_change(Box::new(move |range| {
            if let Some(engine) = teller.upgrade() {
                engine.invalidate(range);
            }
        }));
        // Only the first call has an effect, because threads may already use the engine.
        let _ = self.engine.set(engine);
    }

    pub(crate) fn signal_return_address(&self) -> u64 {
        self.signal_return.load(Ordering::Relaxed)
    }

    /// The name by which the program was started, truncated as in the kernel. For a link or script, this is not the name of
    /// its target or interpreter.
    pub(crate) fn short_name(&self) -> String {
        let name = self.config.program.file_name().map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_default().chars().take(15).collect()
    }

    /// The additional state in simulated time; `None` outside it and in a forked child.
    pub fn simulation(&self) -> Option<&Arc<Simulation>> {
        self.simulation.as_ref().filter(|simulation| simulation.is_enabled())
    }

    /// A random number for instructions: from the seed in simulated time, otherwise from the host.
    pub fn random(&self) -> u64 {
        match self.simulation() {
            Some(simulation) => simulation.random(),
            None => stack::random_bytes()[..8].iter().fold(0, |all, byte| all << 8 | u64::from(*byte)),
        }
    }

    /// Translates the process ids among the arguments of a call, `ids`, for a forked child of a simulated process. The
    /// child may have learned the simulated id of the original process from its parent.
    pub(crate) fn translate_child_ids(&self, ids: &Ids, arguments: [u64; 6]) -> [u64; 6] {
        match &self.simulation {
            Some(parent) => parent.identities.translate_processes(ids, arguments),
            None => arguments,
        }
    }

    /// Records a change that a checkpoint does not contain.
    pub(crate) fn record_uncaptured(&self, state: &'static str) {
        if self.simulation().is_some() {
            self.uncaptured.lock().ignore_poison().insert(state);
        }
    }

    /// A change that a checkpoint does not contain, if there is one.
    pub(crate) fn uncaptured(&self) -> Option<&'static str> {
        self.uncaptured.lock().ignore_poison().first().copied()
    }

    /// Reports a diagnostic.
    pub fn report(&self, text: &str) {
        if let Some(sink) = &self.config.diagnostics {
            sink(text);
        }
    }

    /// Reports a diagnostic once.
    pub fn report_once(&self, text: &'static str) {
        let mut warned = self.reported.lock().ignore_poison();
        if warned.insert(text) {
            self.report(text);
        }
    }

    /// Reports a trap at `address` in a forked child if it was a device register access, which no device answers there.
    pub fn report_orphaned_access(&self, address: u64) {
        if matches!(self.memory().window_at(address), Some((Window::Registers(_), ..))) {
            self.report_once(crate::devices::CHILD_ACCESSES);
        }
    }

    /// The architecture of the program.
    pub fn architecture(&self) -> Architecture {
        self.areas.as_ref().map_or(Architecture::LoongArch64, |areas| areas.architecture)
    }

    /// The translator's address ranges; `None` if the program is not translated. If there are such ranges, this crate
    /// uses program counters of the original program.
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

    /// The initial auxiliary vector: pairs of 64-bit words.
    pub fn auxiliary_vector(&self) -> &[u8] {
        &self.stack.auxiliary
    }

    /// Sets whether a fatal signal is delivered to a thread first, see [`crate::Thread::next_signal`], or terminates
    /// the process at once. For debuggers.
    pub fn intercept_signals(&self, intercepted: bool) {
        self.dispositions.intercept(if intercepted { SignalSet::MAX } else { 0 });
    }

    /// Delivers SIGINT to a thread before it ends the process, so that the process ends in an orderly way.
    pub fn intercept_interrupt(&self) {
        self.dispositions.intercept(set_of(libc::SIGINT));
    }

    /// The program file, absolute: a guest path inside a root, otherwise a host path.
    pub fn executable(&self) -> &Path {
        &self.executable
    }

    /// The guest's name of the program file, absolute. In simulated time, it does not depend on the host.
    pub fn guest_executable(&self) -> PathBuf {
        match &self.fixed_identity {
            Some(names) => names.of_program(&self.executable),
            None => self.executable.clone(),
        }
    }

    /// The guest's name of a mapping called `name`.
    pub(crate) fn shown(&self, name: &str) -> String {
        let names = self.fixed_identity.as_ref().filter(|_| name.starts_with('/'));
        names.map_or_else(
            || name.into(),
            |names| names.of_file(Path::new(name)).to_string_lossy().into_owned(),
        )
    }

    /// Opens the file at a path of the guest, or one below the library root, for reading.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open_guest_path(&self, name: &Path) -> io::Result<File> {
        match &self.config.library_root {
            Some(root) if name.starts_with(root) => File::open(name),
            _ => self.root.open_to_read(name),
        }
    }
}
