//! MIPS64 instructions and sequences, translated and interpreted as LoongArch code.

mod instructions;
mod sequences;
