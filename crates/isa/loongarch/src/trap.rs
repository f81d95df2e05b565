//! Why an instruction did not complete.
//! Not signals: what Linux makes of a trap is the `linux` crate's matter.
//! Source: LoongArch Reference Manual, volume 1, section 6.1 (exceptions).

use crate::environment::Fault;

/// Why an instruction did not complete. The program counter still names it, and no register or memory has changed but
/// (for floating-point exceptions) the cause bits of FCSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trap {
    /// `syscall code`.
    #[error("system call (code {0})")]
    Syscall(u32),
    /// `break code`.
    #[error("break {0}")]
    Break(u32),
    /// The word is no instruction (INE).
    #[error("illegal instruction")]
    IllegalInstruction,
    /// The instruction is the kernel's (IPE).
    #[error("privileged instruction")]
    PrivilegedInstruction,
    /// A load, store or fetch failed.
    #[error(transparent)]
    Memory(#[from] Fault),
    /// An address check of a bound-checking instruction failed (BCE).
    #[error("address bound check failed")]
    BoundCheck,
    /// An enabled floating-point exception happened (FPE); FCSR's cause bits say which.
    #[error("floating-point exception")]
    FloatingPoint,
}
