//! Programs that change their own code, in every way that there is: what runs afterwards is the new code.
//! Not what the changed code computes: the functions return numbers.
//! Source: LoongArch Reference Manual, volume 1, section 2.2.8 (DBAR, IBAR); mmap(2), memfd_create(2), fork(2).

#[path = "../programs/mod.rs"]
mod programs;

mod assembler;
mod campaign;
mod directed;
mod plan;
