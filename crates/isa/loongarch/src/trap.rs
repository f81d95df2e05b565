//! The reasons why an instruction does not complete. Source: LoongArch Reference Manual, volume 1, section 6.1
//! (exceptions).

use crate::environment::Fault;

/// Why an instruction did not complete. The program counter still points to it. Registers and memory are unchanged,
/// except that a floating-point exception sets the cause bits of FCSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trap {
    /// `syscall code`.
    #[error("system call (code {0})")]
    Syscall(u32),
    /// `break code`.
    #[error("break {0}")]
    Break(u32),
    /// The word is not an instruction (INE).
    #[error("illegal instruction")]
    IllegalInstruction,
    /// The instruction is privileged (IPE).
    #[error("privileged instruction")]
    PrivilegedInstruction,
    /// A load, store or fetch failed.
    #[error(transparent)]
    Memory(#[from] Fault),
    /// An address check of a bound-checking instruction failed (BCE).
    #[error("address bound check failed")]
    BoundCheck,
    /// An enabled floating-point exception occurred (FPE). The cause bits of FCSR identify it.
    #[error("floating-point exception")]
    FloatingPoint,
}
