//! Counters read around a load: the kernel's, and the hardware's where available.

mod hardware;
mod kernel;
mod second_level;

pub use hardware::{Hardware, HardwareCounts, MAX_EVENTS};
pub use kernel::{CpuShares, KernelCounts, Reading};
