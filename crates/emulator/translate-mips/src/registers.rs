//! Where the registers of MIPS64 are while a program runs as LoongArch code.
//! Not the code.
//! Source: the n64 calling convention for what programs leave to the kernel (k0, k1).

pub use longma_translate::front_end::{SCRATCH, STACK_POINTER};
/// Added to a source address, it gives the address of its entry in the table of targets.
pub const TABLE: u8 = 29;

/// The binary-translation scratch registers: lo, hi, the thread pointer, and what must survive a delay slot.
pub const LOW: u8 = 0;
/// See [`LOW`].
pub const HIGH: u8 = 1;
/// See [`LOW`].
pub const THREAD_POINTER: u8 = 2;
/// See [`LOW`].
pub const SPARE: u8 = 3;

/// The LoongArch register of a general register: the same number wherever possible. k0 and k1 are the kernel's, which changes them at
/// any interrupt: they read as zero here.
pub const fn general(number: u8) -> u8 {
    match number {
        1 => 26,
        3 => 27,
        26 | 27 => 0,
        29 => STACK_POINTER,
        _ => number,
    }
}
