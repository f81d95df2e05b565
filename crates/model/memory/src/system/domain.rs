//! A coherence domain: cores that share a last-level cache, the cache, and the directory of the cores' lines.
//!
//! Source: AMD's core complex (CCX) and Arm's cluster are such groups; in most other chips the domain is the whole chip
//! or NUMA node.

use crate::cache::{Counters, Flags, InFlight, Line, LineLock, MissRegisters, Partition, Slot, Tags};
use crate::coherence::LineTable;
use crate::prefetch::Prefetcher;
use longma_sim::Resource;
use longma_topology::parts::Inclusion;

/// The last-level cache of a domain.
#[derive(Debug)]
pub(crate) struct Shared {
    pub tags: Tags,
    pub inclusion: Inclusion,
    /// Index in the host's layout.
    pub instance: usize,
    /// Cache level, 2 or 3.
    pub level: u32,
    pub banks: Vec<Bank>,
    pub in_flight: InFlight,
    pub prefetcher: Option<Prefetcher>,
    pub partition: Partition,
    pub lock: Option<LineLock>,
    pub counters: Counters,
}

/// A bank of a shared cache.
#[derive(Debug)]
pub(crate) struct Bank {
    /// Bandwidth of the bank.
    pub port: Resource,
    pub registers: Option<MissRegisters>,
}

/// The directory of a domain.
#[derive(Debug)]
pub(crate) enum Directory {
    /// In the tags of an inclusive last-level cache. It may name cores that evicted a clean line silently.
    InTags,
    /// Separate from the tags, and exact: for caches that are not inclusive, and for cores that snoop a bus.
    Separate(LineTable),
}

/// A coherence domain.
#[derive(Debug)]
pub(crate) struct Domain {
    /// Its cores, by index in the host.
    pub cores: Vec<usize>,
    /// NUMA node of its first core.
    pub node: usize,
    pub chip: usize,
    /// Time that a probe from outside takes to look up a line, picoseconds.
    pub lookup_ps: u64,
    pub shared: Option<Shared>,
    pub directory: Directory,
    /// Whether a miss is broadcast to every core's caches (a bus) instead of only to those in the directory.
    pub snoops: bool,
}

impl Domain {
    /// Returns a mask of the cores of the domain that may hold `line`. `slot` is its position in the shared cache, if
    /// present.
    pub fn sharers(&self, line: Line, slot: Option<Slot>) -> u64 {
        match (&self.directory, &self.shared, slot) {
            (Directory::Separate(table), ..) => table.get(line).mask(),
            (Directory::InTags, Some(shared), Some(slot)) => shared.tags.sharers(slot),
            (Directory::InTags, ..) => 0,
        }
    }
}

impl Shared {
    /// Returns whether only lines evicted from the private caches are inserted.
    #[inline]
    pub fn takes_victims(&self) -> bool {
        matches!(self.inclusion, Inclusion::Victim | Inclusion::Exclusive)
    }

    /// Removes a line and returns its flags.
    pub fn remove(&mut self, slot: Slot) -> Flags {
        let flags = self.tags.remove(slot);
        self.counters.removed(flags);
        flags
    }

    /// Returns the sharers of the line in `slot` according to the directory, and the sharer that may have modified it.
    #[inline]
    pub fn holders(&self, slot: Slot) -> (u64, Option<usize>) {
        let sharers = self.tags.sharers(slot);
        let owned = self.tags.flags(slot).has(Flags::OWNED) && sharers != 0;
        (sharers, owned.then(|| sharers.trailing_zeros() as usize))
    }
}
