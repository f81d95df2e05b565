//! What a device sees of the machine: memory at bus addresses, in time, and interrupt lines.
//! Not how the machine does it: the node implements [`Bus`] over its memory model; [`PlainBus`] is for tests and examples.

mod attachment;
mod plain;

pub use attachment::{Attachment, AttachmentState, Behind};
pub use plain::{Area, PlainBus};

use longma_sim::Time;
use serde::{Deserialize, Serialize};

/// What answers at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Memory, reached coherently through the shared cache.
    Memory,
    /// The in-core store of some core, of this chip or of another.
    InCoreStore,
}

/// Where a write's lines should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// To memory. Cached copies are invalidated or, if locked, updated.
    Memory,
    /// Into the shared cache (direct cache access), lines not yet there into `ways` of its ways only; `None`: as many as the
    /// machine allows devices.
    SharedCache {
        /// The bound.
        ways: Option<u32>,
    },
    /// Into the shared cache if the line is locked there, else to memory.
    LockedLines,
}

/// Why an access was not done. None of it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BusFault {
    /// Nothing answers at an address.
    #[error("nothing answers at bus address {address:#x}")]
    Unmapped {
        /// The first such address.
        address: u64,
    },
    /// Something answers but may not be accessed so.
    #[error("bus address {address:#x} may not be written")]
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

/// The machine as one device sees it. Addresses are those that software gives the device; the machine translates them.
///
/// An access at `at` takes effect at some moment between `at` and the time it returns. Calls come nearly in the order of `at`: one
/// that follows from another is made with it, for the time at which that one is over.
/// An access that cannot be done as a whole is not done at all.
pub trait Bus {
    /// What answers at `address`; `None` if nothing does.
    fn region(&self, address: u64) -> Option<Region>;

    /// Reads from `address` on; says when the last byte is at the device.
    ///
    /// # Errors
    /// If part of it cannot be read; `into` is then unchanged.
    fn read(&mut self, address: u64, into: &mut [u8], at: Time) -> Result<Time, BusFault>;

    /// Writes `bytes` from `address` on; says when the last of them is visible to every core.
    ///
    /// # Errors
    /// If part of it cannot be written; nothing is then written.
    fn write(&mut self, address: u64, bytes: &[u8], placement: Placement, at: Time)
    -> Result<Time, BusFault>;

    /// When a write that is ready at `at` can begin to leave the device. On a bus that carries one transfer at a time that may be later; a
    /// write is then taken as beginning when it can.
    fn free(&self, at: Time) -> Time {
        at
    }

    /// Sets the level of one of the device's interrupt lines.
    fn interrupt(&mut self, line: u32, asserted: bool, at: Time);

    /// Opens or closes a lock window of the shared cache: a line is inside if `(address ^ base) & mask == 0`. For the cache's own
    /// control registers; machines without a lock ignore it.
    fn lock_window(&mut self, window: u32, to: Option<(u64, u64)>) {
        let _ = (window, to);
    }
}
