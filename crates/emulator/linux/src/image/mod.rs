//! A process in simulated time as plain data: everything but its memory's contents, which are read and written beside.
//! Not a file format: that is `node`'s.
//! Source: proc(5); what is not kept is listed with [`ImageError`].

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

/// A process but for its memory's contents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessImage {
    /// The program's file as the guest names it, absolute.
    pub executable: Vec<u8>,
    /// SHA-256 of the program's file, hexadecimal.
    pub program_hash: String,
    /// The arguments the program got.
    pub arguments: Vec<Vec<u8>>,
    /// Its environment, `NAME=VALUE`.
    pub environment: Vec<Vec<u8>>,
    /// The working directory on the host.
    pub working_directory: Vec<u8>,
    /// The one that it was started in, which it knows by a constant name; empty if it knows none.
    pub started_in: Vec<u8>,
    /// Its limits as far as it has set them: resource, soft and hard.
    pub limits: Vec<(u32, u64, u64)>,
    /// Its limit of open files, soft and hard.
    pub open_files: (u64, u64),
    /// The file mode creation mask.
    pub umask: u32,
    /// The first guest address that is out of range.
    pub limit: u64,
    /// The address below which mappings go that do not say where.
    pub top: u64,
    /// Where the heap begins and ends.
    pub heap: (u64, u64),
    /// The initial stack: pointer, where arguments and environment are, and the auxiliary vector.
    pub stack: (u64, (u64, u64), (u64, u64), Vec<u8>),
    /// Where the program was loaded.
    pub program_range: (u64, u64),
    /// The code that signal handlers return to.
    pub signal_return: u64,
    /// What is mapped, in order.
    pub mappings: Vec<MappingImage>,
    /// For each signal: handler, flags, mask.
    pub actions: Vec<[u64; 3]>,
    /// The open files, by descriptor.
    pub files: Vec<FileImage>,
    /// The threads that are alive.
    pub threads: Vec<ThreadImage>,
    /// How many threads there have been.
    pub threads_made: u32,
    /// What the next random bytes come from.
    pub random: u64,
    /// The latest time a clock has shown, picoseconds.
    pub shown_ps: u64,
    /// Timers that are set or could be.
    pub timers: Vec<TimerImage>,
    /// How many timers there have been.
    pub timers_made: i32,
}

/// One mapping.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MappingImage {
    /// Its first address.
    pub start: u64,
    /// The address behind its last.
    pub end: u64,
    /// Read 1, write 2, execute 4.
    pub protection: u8,
    /// MAP_SHARED.
    pub shared: bool,
    /// What is behind it: name, device, inode, whether that is a file.
    pub origin: (String, u64, u64, bool),
    /// Where in the file it begins.
    pub offset: u64,
    /// Forked children find zeros there.
    pub wiped_in_children: bool,
    /// Forked children have no such mapping.
    #[serde(default)]
    pub left_out_of_children: bool,
}

/// Why a process cannot be saved or brought back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The process is not in simulated time.
    #[error("only a process in simulated time can be saved: run it at level cache or timing")]
    NotSimulated,
    /// The program is for another architecture, and what its code became is not kept.
    #[error(
        "a program for another architecture cannot be saved: its translation is not part of a checkpoint; save a program for LoongArch"
    )]
    Translated,
    /// A descriptor is open on something that is not kept.
    #[error(
        "descriptor {descriptor} is open on {what}, which a checkpoint does not keep; save before it is opened or after it is closed"
    )]
    File {
        /// The descriptor.
        descriptor: i32,
        /// On what.
        what: String,
    },
    /// A device of the machine is in use.
    #[error(
        "{name} is {use_of}, and a checkpoint keeps no devices; save before it is opened, or after it is closed and unmapped, and open it anew afterwards"
    )]
    Device {
        /// Its file.
        name: String,
        /// How it is in use.
        use_of: String,
    },
    /// A mapping is not kept.
    #[error(
        "the mapping at {start:#x} ({name}) is shared with a file or with other processes, which a checkpoint does not keep"
    )]
    Mapping {
        /// Its address.
        start: u64,
        /// What is behind it.
        name: String,
    },
    /// Memory is mapped twice.
    #[error(
        "the memory at {start:#x} can be seen at {other:#x}, too, and a checkpoint would make two of it; save before it is mapped again or after it is unmapped"
    )]
    Views {
        /// Its address.
        start: u64,
        /// The other address.
        other: u64,
    },
    /// The process has something of the kernel's that is not kept.
    #[error("the process has {0}, which a checkpoint does not keep; save before that")]
    Unkept(&'static str),
    /// A thread cannot be saved where it is.
    #[error("thread {number} {what}; save a little earlier or later")]
    Thread {
        /// Its number.
        number: u32,
        /// What it does.
        what: String,
    },
    /// There are other processes that its threads could wait for.
    #[error(
        "the process has children, alive or not waited for, which a checkpoint does not keep; save before it forks or after it has waited for them"
    )]
    Children,
    /// A timer is not kept.
    #[error("a timerfd is open, which a checkpoint does not keep; save before it is opened")]
    Timer,
    /// The host refused something.
    #[error("cannot {action}: {source}")]
    Host {
        /// What was tried.
        action: String,
        /// Why it failed.
        source: Errno,
    },
    /// The image does not fit together.
    #[error("the checkpoint is not consistent: {0}")]
    Inconsistent(&'static str),
    /// The program's file is another one.
    #[error(
        "{path} is no longer the program that was saved (its SHA-256 differs); restore with the same file"
    )]
    OtherProgram {
        /// The program.
        path: String,
    },
}

impl ImageError {
    fn host(action: impl Into<String>, source: impl Into<Errno>) -> Self {
        Self::Host { action: action.into(), source: source.into() }
    }
}
