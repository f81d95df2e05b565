//! Programs of other architectures as LoongArch code: the engine, which knows no source architecture, and what it asks of one.
//! Not the architectures, which are crates of their own, nor the execution: LoongArch code runs on a `longma-core` as any other does; `longma-runner` puts the two together.
//! Source: Hu Weiwu et al., "Loongson Instruction Set Architecture Technology", 2022; the front ends name their own.

mod areas;
mod asleep;
pub mod assembler;
pub mod calls;
pub mod debug;
pub mod engine;
pub mod front_end;
mod heat;
pub mod kept;
pub mod parts;
mod positions;
pub mod process_frame;
mod reading;
