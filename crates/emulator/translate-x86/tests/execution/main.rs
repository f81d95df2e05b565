//! Single x86-64 instructions and sequences on random states: executed by the host's processor, and translated and
//! interpreted as LoongArch code. Registers, vectors, memory and defined flags must be equal; NaNs may differ in their
//! payload.

#![cfg(target_arch = "x86_64")]

mod exceptions;
mod faults;
mod flags;
mod host;
mod instructions;
mod listed;
mod machine;
mod random;
mod sequences;
mod stack_pointer;
mod texts;
mod x87;
