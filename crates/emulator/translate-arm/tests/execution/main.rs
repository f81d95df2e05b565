//! A64 instructions, translated and interpreted as LoongArch code, against `qemu-aarch64` (Debian: `qemu-user`).

mod cases;
mod encodings;
mod faults;
mod instructions;
mod machine;
mod sequences;
