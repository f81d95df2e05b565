//! The machine as seen by a device: memory at bus addresses, and interrupt lines. The runner implements [`Bus`] for the
//! memory model; [`PlainBus`] is for tests and examples.

mod attachment;
mod plain;

pub use attachment::{AttachedBus, Attachment, AttachmentState};
pub use plain::{Area, PlainBus};

use longma_sim::Time;
use serde::{Deserialize, Serialize};

/// The type of target at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Memory, accessed coherently through the shared cache.
    Memory,
    /// The in-core store of a core of this or another chip.
    InCoreStore,
}

/// The destination of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// Memory. Cached copies are invalidated or, if locked, updated.
    Memory,
    /// The shared cache (direct cache access). Lines that are not present are allocated in at most `ways` ways; `None`
    /// for as many as the machine allows devices.
    SharedCache {
        /// Maximum number of ways.
        ways: Option<u32>,
    },
    /// The shared cache if the line is locked there, otherwise memory.
    LockedLines,
}

/// An access that failed. A failed access has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BusFault {
    /// The address is not mapped.
    #[error("bus address {address:#x} is not mapped")]
    Unmapped {
        /// The first such address.
        address: u64,
    },
    /// The address is mapped but does not permit the access.
    #[error("bus address {address:#x} is not writable")]
    Denied {
        /// The first such address.
        address: u64,
    },
}

impl BusFault {
    /// The first address that could not be accessed.
    pub const fn address(self) -> u64 {
        match self {
            Self::Unmapped { address } | Self::Denied { address } => address,
        }
    }
}

/// The bus as seen by one device. Addresses are those that software programs into the device; the machine translates
/// them.
///
/// An access at `at` takes effect between `at` and the time returned, and either completes as a whole or has no effect.
/// Calls are nearly ordered by `at`: a device issues a dependent access immediately after the access it depends on,
/// with the end time of that access as `at`.
pub trait Bus {
    /// The type of target at `address`; `None` if it is not mapped.
    fn region(&self, address: u64) -> Option<Region>;

    /// Reads from `address` on. Returns the time at which the last byte reaches the device.
    ///
    /// # Errors
    /// If part of the range cannot be read; `into` is then unchanged.
    fn read(&mut self, address: u64, into: &mut [u8], at: Time) -> Result<Time, BusFault>;

    /// Writes `bytes` from `address` on. Returns the time at which the last byte is visible to every core.
    ///
    /// # Errors
    /// If part of the range cannot be written; memory is then unchanged.
    fn write(&mut self, address: u64, bytes: &[u8], placement: Placement, at: Time)
    -> Result<Time, BusFault>;

    /// The earliest time, `at` or later, at which a write can start. It is later than `at` if the bus carries one
    /// transfer at a time and is busy. A write issued before that time waits for it.
    fn free(&self, at: Time) -> Time {
        at
    }

    /// Sets the level of one of the device's interrupt lines.
    fn interrupt(&mut self, line: u32, asserted: bool, at: Time);

    /// Opens or closes a lock window of the shared cache: a line is inside if `(address ^ base) & mask == 0`. Used by
    /// the cache's own control registers; machines without a lock ignore it.
    fn lock_window(&mut self, window: u32, to: Option<(u64, u64)>) {
        let _ = (window, to);
    }
}
