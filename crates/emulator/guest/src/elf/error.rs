//! The errors of loading an ELF file, and advice on how to solve them.

use std::fmt;

/// The supported architectures, as error messages list them.
pub const SUPPORTED_ARCHITECTURES: &str = "LoongArch64, x86-64, AArch64 or MIPS64";

const GIVE_A_PROGRAM: &str = "give a Linux program for LoongArch64, x86-64, AArch64 or MIPS64";
const BUILD: &str = "build it for LoongArch64, x86-64, AArch64 or MIPS64";
const CLASS_AND_ORDER: &str = "a program has 2 (64-bit) and 1 (little-endian)";
const TRUNCATED: &str = "the file is truncated";
const LINK: &str = "link it as an executable (type 2) or a PIE (type 3)";
const DAMAGED: &str = "the file is damaged or was linked for another system";

/// A problem with a program file, and advice on how to solve it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The problem.
    pub what: &'static str,
    /// The remedy.
    pub advice: &'static str,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.advice)
    }
}

/// Why a file cannot be loaded. The error message ends with [`ElfError::advice`].
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    /// The file cannot be read.
    #[error("it cannot be read: {0}")]
    Read(#[from] std::io::Error),
    /// The file is empty.
    #[error("it is empty; {GIVE_A_PROGRAM}")]
    NoBytes,
    /// The file does not start with the ELF magic.
    #[error("it is not an ELF file: it starts with {0:02x?}; {GIVE_A_PROGRAM}")]
    Magic([u8; 4]),
    /// The file is shorter than the ELF magic.
    #[error("it is not an ELF file: it has {0} bytes; {GIVE_A_PROGRAM}")]
    Short(u64),
    /// The file ends before a structure that its header describes.
    #[error("it ends inside {what}, which needs {needs} bytes from offset {offset:#x}; {TRUNCATED}")]
    Truncated {
        /// The structure.
        what: &'static str,
        /// Its file offset.
        offset: u64,
        /// Its length in bytes.
        needs: u64,
    },
    /// The file is not 64-bit little-endian.
    #[error("its class is {class} and its byte order {order}; {CLASS_AND_ORDER}")]
    Class {
        /// EI_CLASS.
        class: u8,
        /// EI_DATA.
        order: u8,
    },
    /// The file is for an unsupported machine.
    #[error(
        "it is a program for {name} (e_machine {number}), which is not supported; {BUILD}",
        name = machine_name(*.0), number = .0
    )]
    Machine(u16),
    /// A MIPS program of an unsupported kind.
    #[error("it is a program for MIPS but {0}")]
    Mips(Reason),
    /// An AArch64 program of an unsupported kind.
    #[error("it is a program for AArch64 but {0}")]
    Arm(Reason),
    /// An x86 program of an unsupported kind.
    #[error("it is a program for x86 but {0}")]
    X86(Reason),
    /// The file is neither an executable nor a PIE.
    #[error("its type is {0}, which cannot be run; {LINK}")]
    Type(u16),
    /// A header field has an invalid value.
    #[error("{what} is {value:#x}, {why}; {DAMAGED}")]
    Field {
        /// The name of the field.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Why the value is invalid.
        why: &'static str,
    },
    /// A segment is invalid.
    #[error("program header {index} ({start:#x}..{end:#x}) {why}")]
    Segment {
        /// The index of its program header.
        index: usize,
        /// Its first address.
        start: u64,
        /// The first address after it.
        end: u64,
        /// The problem.
        why: Reason,
    },
    /// The file has no PT_LOAD segment.
    #[error("it has no loadable segment")]
    Empty,
}

impl ElfError {
    /// Advice on how to solve the problem. The error message ends with it, after a semicolon.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            Self::NoBytes | Self::Magic(_) | Self::Short(_) => Some(GIVE_A_PROGRAM),
            Self::Truncated { .. } => Some(TRUNCATED),
            Self::Class { .. } => Some(CLASS_AND_ORDER),
            Self::Machine(_) => Some(BUILD),
            Self::Mips(why) | Self::Arm(why) | Self::X86(why) | Self::Segment { why, .. } => Some(why.advice),
            Self::Type(_) => Some(LINK),
            Self::Field { .. } => Some(DAMAGED),
            Self::Read(_) | Self::Empty => None,
        }
    }
}

fn machine_name(machine: u16) -> &'static str {
    match machine {
        3 => "i386",
        8 => "MIPS",
        40 => "Arm",
        62 => "x86-64",
        183 => "AArch64",
        243 => "RISC-V",
        _ => "another machine",
    }
}
