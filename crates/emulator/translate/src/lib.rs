//! Dynamic binary translation to LoongArch: the engine, which is independent of the guest's instruction set, and the
//! traits that front ends and their users implement. The front ends are separate crates. `longma-runner` executes the
//! translated code on `longma-core`. Source: Hu Weiwu et al., "Loongson Instruction Set Architecture Technology", 2022.

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
