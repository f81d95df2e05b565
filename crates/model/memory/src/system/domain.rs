//! Cores that share a last-level cache, with that cache and the directory of what the cores hold.
//! Not the protocol: `request` and `home` move lines.
//! Source: AMD's core complex (CCX) and Arm's cluster are such groups; in most other chips it is the whole chip or NUMA node.

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
    /// Its number in the host's layout.
    pub instance: usize,
    /// 2 or 3.
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
    /// What it moves a second.
    pub port: Resource,
    pub registers: Option<MissRegisters>,
}

/// Where the directory of a domain is.
#[derive(Debug)]
pub(crate) enum Directory {
    /// Beside the tags of an inclusive last-level cache. It may name cores that gave up a clean line silently.
    InTags,
    /// On its own, exact: for caches that do not hold all that is above them, and for cores that watch a bus.
    Beside(LineTable),
}

/// A coherence domain.
#[derive(Debug)]
pub(crate) struct Domain {
    /// Its cores, numbered over the host.
    pub cores: Vec<usize>,
    /// Its NUMA node: that of its first core.
    pub node: usize,
    pub chip: usize,
    /// How long a probe from outside looks, picoseconds.
    pub look_ps: u64,
    pub shared: Option<Shared>,
    pub directory: Directory,
    /// Whether a miss is shown to every core's caches (a bus) rather than to those the directory names.
    pub snoops: bool,
}

impl Domain {
    /// The cores, as bits of the domain, that may have `line`, which is in `slot` of the shared cache if it is there.
    pub fn sharers(&self, line: Line, slot: Option<Slot>) -> u64 {
        match (&self.directory, &self.shared, slot) {
            (Directory::Beside(table), ..) => table.get(line).mask(),
            (Directory::InTags, Some(shared), Some(slot)) => shared.tags.sharers(slot),
            (Directory::InTags, ..) => 0,
        }
    }
}

impl Shared {
    /// True if lines come only from the private caches above.
    #[inline]
    pub fn takes_victims(&self) -> bool {
        matches!(self.inclusion, Inclusion::Victim | Inclusion::Exclusive)
    }

    /// The directory's word on the line in `slot`: sharers, and which of them may have written it.
    #[inline]
    pub fn holders(&self, slot: Slot) -> (u64, Option<usize>) {
        let sharers = self.tags.sharers(slot);
        let owned = self.tags.flags(slot).has(Flags::OWNED) && sharers != 0;
        (sharers, owned.then(|| sharers.trailing_zeros() as usize))
    }
}
