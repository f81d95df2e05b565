//! Dynamic binary translation to LoongArch: the engine, which is independent of the guest's instruction set, and the
//! traits that front ends and their users implement. The front ends are separate crates. `longma-runner` executes the
//! translated code on `longma-core`.
//!
//! *Source* refers to the translated program (source instruction, source address), *host* to the LoongArch code (host
//! address: an address in the code area).
//!
//! Source: Hu Weiwu et al., "Loongson Instruction Set Architecture Technology", 2022.

mod areas;
pub mod assembler;
mod cached_units;
pub mod calls;
pub mod cold_blocks;
pub mod debug;
pub mod engine;
pub mod front_end;
mod hotness;
pub mod interpretation;
mod links;
mod modes;
pub mod optimizations;
pub mod persistent_cache;
mod positions;
pub mod process_frame;
mod provenance;
