//! A LoongArch64 machine that an operating system can run on: one core with its privileged architecture, memory,
//! interrupt controllers and a few devices, executed by a deterministic interpreter.
//!
//! Software on the machine may be hostile: any use of CSRs, addresses and devices, with any values, affects only the
//! modelled machine, and [`Machine::run`] returns after the cycles that it was given.

pub mod boot;
mod core;
pub mod csr;
mod exception;
mod machine;
mod memory;
mod platform;
pub mod tlb;
mod translation;

pub use core::{COUNTER_HZ, CYCLES_PER_TICK};
pub use exception::{Exception, line};
pub use machine::{Configuration, Machine, Stop};
pub use memory::{Memory, MemoryError};
pub use platform::{POWER_OFF, RESET, map};
