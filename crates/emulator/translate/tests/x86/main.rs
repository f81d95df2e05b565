//! Instructions of x86-64, single ones and sequences, on random states: executed by this host's own processor, and translated and
//! interpreted as LoongArch code. Registers, vectors, memory and the flags that the manual defines must be the same; of a NaN only that it is one.

#![cfg(target_arch = "x86_64")]

mod host;
mod instructions;
mod machine;
#[path = "../parts/mod.rs"]
mod parts;
mod random;
mod sequences;
mod x87;
