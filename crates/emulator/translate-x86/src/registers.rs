//! The mapping of x86-64 registers and flags to LoongArch registers, which the interpreter shares.

pub use longma_interpret_x86::registers::*;
