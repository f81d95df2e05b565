//! A LoongArch64 machine that an operating system can run on: cores with their privileged architecture, memory,
//! interrupt controllers and a few devices, executed by a deterministic interpreter.
//!
//! Software on the machine may be hostile: any use of CSRs, addresses and devices, with any values, affects only the
//! modelled machine, and [`Machine::run`] returns after the cycles that it was given.

pub mod boot;
pub mod checkpoint;
mod checkpoint_file;
mod core;
pub mod csr;
mod exception;
mod gdb;
mod machine;
mod memory;
pub mod net;
mod pace;
mod platform;
pub mod script;
pub mod tlb;
mod translation;

pub use core::observed::{CodePages, CoreEvent, Executed, ObservedCode, Timing};
pub use core::{COUNTER_HZ, CYCLES_PER_TICK};
pub use exception::{Exception, line};
pub use gdb::{Debugger, Turn};
pub use longma_share::{Access, Share, ShareError};
pub use machine::{BusFull, Configuration, ConfigurationError, MAX_CORES, Machine, Stop};
pub use memory::{Memory, MemoryError};
pub use pace::Pace;
pub use platform::{
    Disk, DiskError, DiskOptions, Format as ImageFormat, POWER_OFF, RESET, SharedFolder, TagError, map,
};
