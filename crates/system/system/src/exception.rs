//! Exceptions and interrupts by number. Source: LoongArch Reference Manual, volume 1, sections 6.1 (interrupts), 6.2
//! (exceptions), table 21 (exception encoding).

use longma_loongarch::Access;

/// An exception or interrupt that makes the core enter its handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exception {
    /// INT: an interrupt, with the number of its line.
    Interrupt(u32),
    /// PIL, PIS, PIF: the page of a load, store or fetch is invalid.
    PageInvalid(Access),
    /// PME: a store to a page that is not dirty.
    PageModified,
    /// PNR: a load from a page that is not readable.
    NotReadable,
    /// PNX: a fetch from a page that is not executable.
    NotExecutable,
    /// PPI: the privilege level is not permitted to access the page.
    PagePrivilege,
    /// ADEF, ADEM: the address is invalid, or neither memory nor a device responds.
    AddressError(Access),
    /// ALE: the address is not aligned.
    Misaligned,
    /// BCE: the check of a bound-checking instruction failed.
    BoundCheck,
    /// SYS: a system call.
    Syscall,
    /// BRK: a breakpoint.
    Break,
    /// INE: the word is not a valid instruction.
    IllegalInstruction,
    /// IPE: the privilege level does not permit the instruction.
    PrivilegedInstruction,
    /// FPD: floating point is disabled.
    FloatDisabled,
    /// SXD: 128-bit vectors are disabled.
    Vector128Disabled,
    /// ASXD: 256-bit vectors are disabled.
    Vector256Disabled,
    /// FPE: an enabled floating-point exception occurred.
    FloatingPoint,
    /// VFPE: the same for vectors.
    VectorFloatingPoint,
    /// BTD: the binary-translation extension is disabled.
    TranslationDisabled,
    /// TLBR: no TLB entry matches.
    TlbRefill,
}

impl Exception {
    /// Ecode and EsubCode in ESTAT. Interrupts have code 0. A TLB refill has code 0x3f, which ESTAT does not record.
    pub fn code(self) -> (u64, u64) {
        match self {
            Self::Interrupt(_) => (0, 0),
            Self::PageInvalid(Access::Read) => (1, 0),
            Self::PageInvalid(Access::Write) => (2, 0),
            Self::PageInvalid(Access::Execute) => (3, 0),
            Self::PageModified => (4, 0),
            Self::NotReadable => (5, 0),
            Self::NotExecutable => (6, 0),
            Self::PagePrivilege => (7, 0),
            Self::AddressError(Access::Execute) => (8, 0),
            Self::AddressError(_) => (8, 1),
            Self::Misaligned => (9, 0),
            Self::BoundCheck => (0xa, 0),
            Self::Syscall => (0xb, 0),
            Self::Break => (0xc, 0),
            Self::IllegalInstruction => (0xd, 0),
            Self::PrivilegedInstruction => (0xe, 0),
            Self::FloatDisabled => (0xf, 0),
            Self::Vector128Disabled => (0x10, 0),
            Self::Vector256Disabled => (0x11, 0),
            Self::FloatingPoint => (0x12, 0),
            Self::VectorFloatingPoint => (0x12, 1),
            Self::TranslationDisabled => (0x14, 0),
            Self::TlbRefill => (0x3f, 0),
        }
    }

    /// The number that selects the handler's entry when ECFG.VS is not 0: the exception's code, or 64 plus the number
    /// of the interrupt's line.
    pub fn vector(self) -> u64 {
        match self {
            Self::Interrupt(line) => 64 + u64::from(line),
            _ => self.code().0,
        }
    }

    /// Whether it concerns a page, so that TLBEHI records the address.
    pub fn is_about_page(self) -> bool {
        matches!(
            self,
            Self::PageInvalid(_)
                | Self::PageModified
                | Self::NotReadable
                | Self::NotExecutable
                | Self::PagePrivilege
        )
    }

    /// Whether BADV records an address.
    pub fn has_bad_address(self) -> bool {
        self.is_about_page() || matches!(self, Self::AddressError(_) | Self::Misaligned | Self::BoundCheck)
    }
}

/// The interrupt lines: their numbers are bit positions in ESTAT.IS and ECFG.LIE.
pub mod line {
    /// A mask of the software interrupts, lines 0 and 1.
    pub const SOFTWARE: u64 = 0b11;
    /// HWI0. HWI0 to HWI7 are lines 2 to 9.
    pub const HARDWARE: u32 = 2;
    /// The timer (TI).
    pub const TIMER: u32 = 11;
    /// The inter-processor interrupt (IPI).
    pub const IPI: u32 = 12;
    /// A mask of all lines.
    pub const ALL: u64 = 0x1fff;
}
