//! State of one cache: tags, line states, replacement, locking and partitioning. `system` adds the timing.
//!
//! Source: Hennessy and Patterson, Computer Architecture, 6th edition, appendix B.

mod counters;
mod filter;
mod in_flight;
mod index;
mod lock;
mod miss;
mod partition;
mod replacement;
mod tags;

pub(crate) use counters::{Counters, Kind};
pub(crate) use filter::Filter;
pub(crate) use in_flight::InFlight;
pub(crate) use index::Index;
pub(crate) use lock::LineLock;
pub use lock::LockWindow;
pub(crate) use miss::MissRegisters;
pub(crate) use partition::Partition;
pub use partition::Requester;
pub(crate) use replacement::Policy;
pub(crate) use tags::{Evicted, Flags, MAX_WAYS, Slot, Tags};

use longma_plugin::AccessKind;

/// Why a line is used or filled. Only plug-ins distinguish origins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// Address of the instruction; 0 if there is none.
    pub instruction: u64,
    pub kind: AccessKind,
}

impl Origin {
    /// A line that moves here from a cache above.
    pub const WRITE_BACK: Self = Self { instruction: 0, kind: AccessKind::WriteBack };
    /// An access of a device.
    pub const DEVICE: Self = Self { instruction: 0, kind: AccessKind::Device };

    /// An access by the instruction at `instruction`.
    #[inline]
    pub fn new(kind: Kind, instruction: u64) -> Self {
        Self { instruction, kind: kind.into() }
    }
}

/// A physical line number: the physical address divided by the line length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Line(pub u64);

impl Line {
    /// Returns the line `n` lines away, or `None` outside the address range.
    pub fn offset(self, n: i64) -> Option<Self> {
        self.0.checked_add_signed(n).map(Self)
    }

    /// Hashes the line number. The multiplier is 2^64 divided by the golden ratio (Knuth, The Art of Computer
    /// Programming, volume 3, section 6.4).
    #[inline]
    pub fn hash(self) -> u64 {
        let mixed = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 29
    }
}
