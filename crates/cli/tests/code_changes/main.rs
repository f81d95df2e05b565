//! Tests that programs which change their own code run the new code afterwards, for every way of changing code.
//! Source: LoongArch Reference Manual, volume 1, section 2.2.8 (DBAR, IBAR); mmap(2), memfd_create(2), fork(2).

#[path = "../programs/mod.rs"]
mod programs;

mod assembler;
mod campaign;
mod directed;
mod plan;
