//! Programs of other architectures as LoongArch code: MIPS64 (n64, little endian), x86-64 and AArch64.
//! Not their execution: LoongArch code runs on a `longma-core` as any other does; `longma-node` puts the two together.
//! Source: Hu Weiwu et al., "Loongson Instruction Set Architecture Technology", 2022; the front ends name their own.

pub mod arm;
pub mod assembler;
pub mod engine;
pub mod front_end;
pub mod mips;
pub mod x86;
