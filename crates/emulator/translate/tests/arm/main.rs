//! A64 instructions, translated and interpreted as LoongArch code, against `qemu-aarch64` (Debian: `qemu-user`).

mod cases;
mod decode;
mod faults;
mod instructions;
mod machine;
#[path = "../parts/mod.rs"]
mod parts;
mod sequences;
