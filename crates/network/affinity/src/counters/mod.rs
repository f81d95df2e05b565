//! What a host counted while a load ran: by the kernel, always; by the hardware, where it counts.
//! Not the load's own rate: that is `load`.

mod hardware;
mod kernel;
mod second_level;

pub use hardware::{Hardware, HardwareCounts, MOST_EVENTS};
pub use kernel::{CpuShares, KernelCounts, Reading};
