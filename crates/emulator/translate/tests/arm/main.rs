//! A64 instructions, translated and interpreted as LoongArch code, against `qemu-aarch64` (Debian: `qemu-user`).
//! Not whole programs: `longma-runner` and the command's tests run those.

mod cases;
mod decode;
mod faults;
mod instructions;
mod machine;
#[path = "../parts/mod.rs"]
mod parts;
mod sequences;
