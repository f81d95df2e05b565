//! A process in simulated time as plain data. Memory contents are read and written separately ([`contents`]). The
//! `runner` crate defines the file format. [`ImageError`] lists the state that cannot be captured. Source: proc(5).

mod capture;
mod files;
mod pages;
mod restore;
mod threads;

use longma_guest::Errno;
use serde::{Deserialize, Serialize};

pub use crate::process::Arrivals;
pub use files::{FileImage, FileKind};
pub use pages::{PAGE_RUN_BYTES, contents};
pub use restore::RestoredProcess;
pub use threads::{KernelState, ThreadImage};

pub use crate::simulated::timers::TimerImage;

/// A process without its memory contents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessImage {
    /// The absolute path of the program file in the guest.
    pub executable: Vec<u8>,
    /// The SHA-256 of the program file in hexadecimal.
    pub program_hash: String,
    /// The arguments of the program.
    pub arguments: Vec<Vec<u8>>,
    /// Its environment, `NAME=VALUE`.
    pub environment: Vec<Vec<u8>>,
    /// The working directory on the host.
    pub working_directory: Vec<u8>,
    /// The initial working directory on the host, if it has a constant name in the guest; otherwise empty.
    pub started_in: Vec<u8>,
    /// The host path of the program for which constant names were created, if another one has replaced it; otherwise
    /// empty.
    #[serde(default)]
    pub first_program: Vec<u8>,
    /// The stored limits ([`StoredLimit`](crate::StoredLimit)): resource, soft and hard limit.
    pub limits: Vec<(u32, u64, u64)>,
    /// The limit of open files: soft and hard.
    pub open_files: (u64, u64),
    /// The file mode creation mask.
    pub umask: u32,
    /// The end of the guest's address space.
    pub limit: u64,
    /// The address below which mappings without a requested address are placed.
    pub top: u64,
    /// The start and the end of the heap.
    pub heap: (u64, u64),
    /// The initial stack: pointer, argument and environment addresses, and the auxiliary vector.
    pub stack: (u64, (u64, u64), (u64, u64), Vec<u8>),
    /// The address range of the program.
    pub program_range: (u64, u64),
    /// The address of the signal trampoline.
    pub signal_return: u64,
    /// The mappings in address order.
    pub mappings: Vec<MappingImage>,
    /// For each signal: handler, flags, mask.
    pub actions: Vec<[u64; 3]>,
    /// The open files in descriptor order.
    pub files: Vec<FileImage>,
    /// The live threads.
    pub threads: Vec<ThreadImage>,
    /// The number of threads created so far.
    pub threads_made: u32,
    /// The state of the random number generator that provides random bytes in simulated time.
    pub random: u64,
    /// The latest time that a clock has returned, in picoseconds of simulated time.
    pub shown_ps: u64,
    /// The existing timers.
    pub timers: Vec<TimerImage>,
    /// The number of timers created so far.
    pub timers_made: i32,
}

/// One mapping.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MappingImage {
    /// The first address.
    pub start: u64,
    /// The address after the last byte.
    pub end: u64,
    /// The permissions: read 1, write 2, execute 4.
    pub protection: u8,
    /// Whether it is shared (MAP_SHARED).
    pub shared: bool,
    /// The origin: name, device, inode, and whether it is a file.
    pub origin: (String, u64, u64, bool),
    /// The file offset of its first byte.
    pub offset: u64,
    /// Whether a forked child reads zeros here (MADV_WIPEONFORK).
    #[serde(rename = "wiped_in_children")]
    pub wipe_on_fork: bool,
    /// Whether a forked child does not inherit this mapping (MADV_DONTFORK).
    #[serde(default, rename = "left_out_of_children")]
    pub dont_fork: bool,
    /// The bits of its [`longma_guest::Marks`].
    #[serde(default)]
    pub marks: u8,
}

const CLOSE: &str = "save before it is opened or after it is closed";
const CLOSE_DEVICE: &str =
    "save before it is opened, or after it is closed and unmapped, and reopen it after that";
const ONE_VIEW: &str = "save before the second mapping or after it is unmapped";
const SAVE_BEFORE: &str = "save before that";
const OTHER_TIME: &str = "save slightly earlier or later";
const WITHOUT_CHILDREN: &str = "save before it forks or after it has waited for them";
const WITHOUT_TIMER: &str = "save before it is opened";
const SAME_FILE: &str = "restore with the same file";

/// Why a process cannot be captured or restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The process is not in simulated time.
    #[error("only a process in simulated time can be saved: run it at level cache or timing")]
    NotSimulated,
    /// The program is for another architecture, whose translation is not captured.
    #[error(
        "only a program for LoongArch can be saved: a checkpoint does not contain the translation of other architectures"
    )]
    Translated,
    /// A descriptor refers to an unsupported file.
    #[error("descriptor {descriptor} refers to {what}, which a checkpoint cannot contain; {CLOSE}")]
    File {
        /// The descriptor.
        descriptor: i32,
        /// The file.
        what: String,
    },
    /// A device of the machine is in use.
    #[error("{name} is {use_of}, and a checkpoint cannot contain devices; {CLOSE_DEVICE}")]
    Device {
        /// The name of its file.
        name: String,
        /// How it is used.
        use_of: String,
    },
    /// A mapping is not supported.
    #[error(
        "the mapping at {start:#x} ({name}) is shared with a file or with other processes, which a checkpoint cannot contain"
    )]
    Mapping {
        /// Its address.
        start: u64,
        /// The name of its origin.
        name: String,
    },
    /// Shared memory is mapped at two addresses.
    #[error(
        "the memory at {start:#x} is also mapped at {other:#x}, and a checkpoint would turn it into two copies; {ONE_VIEW}"
    )]
    Views {
        /// Its address.
        start: u64,
        /// The other address.
        other: u64,
    },
    /// The process has unsupported kernel state.
    #[error("the process has {0}, which a checkpoint cannot contain; {SAVE_BEFORE}")]
    UnsupportedState(&'static str),
    /// A thread cannot be captured in its current state.
    #[error("thread {number} {what}; {OTHER_TIME}")]
    Thread {
        /// Its number.
        number: u32,
        /// The reason.
        what: String,
    },
    /// The process has children that run or have not been waited for.
    #[error(
        "the process has children that run or have not been waited for, which a checkpoint cannot contain; {WITHOUT_CHILDREN}"
    )]
    Children,
    /// A timerfd is open.
    #[error("a timerfd is open, which a checkpoint cannot contain; {WITHOUT_TIMER}")]
    Timer,
    /// The host refused an operation.
    #[error("cannot {action}: {source}")]
    Host {
        /// The operation.
        action: String,
        /// Why it failed.
        source: Errno,
    },
    /// The image is inconsistent.
    #[error("the checkpoint is inconsistent: {0}")]
    Inconsistent(&'static str),
    /// The program file has changed.
    #[error("{path} is no longer the program that was saved (its SHA-256 differs); {SAME_FILE}")]
    OtherProgram {
        /// The path of the program.
        path: String,
    },
}

impl ImageError {
    /// Advice on how to solve the problem. The error message ends with it, after a semicolon.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            Self::File { .. } => Some(CLOSE),
            Self::Device { .. } => Some(CLOSE_DEVICE),
            Self::Views { .. } => Some(ONE_VIEW),
            Self::UnsupportedState(_) => Some(SAVE_BEFORE),
            Self::Thread { .. } => Some(OTHER_TIME),
            Self::Children => Some(WITHOUT_CHILDREN),
            Self::Timer => Some(WITHOUT_TIMER),
            Self::OtherProgram { .. } => Some(SAME_FILE),
            Self::NotSimulated
            | Self::Translated
            | Self::Mapping { .. }
            | Self::Host { .. }
            | Self::Inconsistent(_) => None,
        }
    }

    fn host(action: impl Into<String>, source: impl Into<Errno>) -> Self {
        Self::Host { action: action.into(), source: source.into() }
    }
}
