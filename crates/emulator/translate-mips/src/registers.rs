//! The mapping of MIPS64 registers to LoongArch registers. Source: the n64 calling convention for the registers
//! reserved for the kernel (k0, k1).

pub use longma_translate::front_end::{SCRATCH, STACK_POINTER};
/// Offset from a source address to its entry in the lookup table.
pub const TABLE: u8 = 29;

/// The binary-translation scratch registers: lo, hi, the thread pointer, and a spare one for values that must survive a
/// delay slot.
pub const LOW: u8 = 0;
/// See [`LOW`].
pub const HIGH: u8 = 1;
/// See [`LOW`].
pub const THREAD_POINTER: u8 = 2;
/// See [`LOW`].
pub const SPARE: u8 = 3;

/// The LoongArch register of a general-purpose register: the same number if possible. k0 and k1 read as zero: they are
/// reserved for the kernel, which overwrites them at any interrupt.
pub const fn general(number: u8) -> u8 {
    match number {
        1 => 26,
        3 => 27,
        26 | 27 => 0,
        29 => STACK_POINTER,
        _ => number,
    }
}
