//! The errors of loading a program, and advice on how to solve them.

use std::{fmt, io, path::PathBuf};

use longma_guest::{Errno, elf::ElfError};

const SET_ROOT: &str =
    "set the root or the library root to a directory with the files of the program's system";
const OVERLAP: &str = "its addresses overlap another mapping, or the host is short of memory";
const PASS_FEWER: &str = "pass fewer";

/// An operation of the host that loading needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostOperation {
    /// Reserves the guest's address space.
    ReserveAddressSpace,
    /// Opens the directory that the program sees as `/`.
    UseRoot,
    /// Opens a file.
    Open,
    /// Reads a file's metadata.
    Examine,
    /// Reads a file.
    Read,
}

impl fmt::Display for HostOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReserveAddressSpace => "reserve an address space for",
            Self::UseRoot => "use as the root",
            Self::Open => "open",
            Self::Examine => "examine",
            Self::Read => "read",
        })
    }
}

/// Why a program cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The host refused an operation.
    #[error("cannot {operation} {}: {source}", path.display())]
    Host {
        /// The operation.
        operation: HostOperation,
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The program is a directory or another special file.
    #[error("cannot run {}: it is not a regular file", .0.display())]
    NotRegular(PathBuf),
    /// The file is not a supported program.
    #[error("cannot run {}: {source}", path.display())]
    Program {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: ElfError,
    },
    /// The dynamic linker of the program is missing.
    #[error(
        "cannot open {}, the dynamic linker of {}: {source}; {SET_ROOT}",
        interpreter.display(), path.display()
    )]
    Interpreter {
        /// The program.
        path: PathBuf,
        /// The dynamic linker.
        interpreter: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A script has no valid interpreter, or scripts are nested too deeply.
    #[error("cannot run the script {}: {why}", path.display())]
    Script {
        /// The script.
        path: PathBuf,
        /// The reason.
        why: &'static str,
    },
    /// The file does not fit into the address space.
    #[error("cannot map {}: {source}; {OVERLAP}", path.display())]
    Map {
        /// The file.
        path: PathBuf,
        /// The error of the mapping.
        source: Errno,
    },
    /// The arguments and the environment are too large.
    #[error(
        "the arguments and the environment take {bytes} bytes, more than the limit of {limit}; {PASS_FEWER}"
    )]
    Arguments {
        /// Their size in bytes.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
}

impl LoadError {
    /// Advice on how to solve the problem. The error message ends with it, after a semicolon.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            Self::Program { source, .. } => source.advice(),
            Self::Interpreter { .. } => Some(SET_ROOT),
            Self::Map { .. } => Some(OVERLAP),
            Self::Arguments { .. } => Some(PASS_FEWER),
            Self::Host { .. } | Self::NotRegular(_) | Self::Script { .. } => None,
        }
    }
}
