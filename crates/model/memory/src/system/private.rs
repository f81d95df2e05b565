//! The caches of one core: first level for instructions and data, and a second level if it has one of its own.
//! Not what happens on a miss: `access` follows a line through them.

use super::core_port::LastPage;
use super::given::GivenAway;
use crate::cache::{Counters, Filter, InFlight, Line, MissRegisters, Slot, Tags};
use crate::placement::SpaceId;
use crate::prefetch::Prefetcher;
use crate::translation::Tlbs;
use longma_sim::Clock;
use longma_topology::parts::Inclusion;

/// A first-level cache.
#[derive(Debug)]
pub(crate) struct Level1 {
    pub tags: Tags,
    pub filter: Filter,
    /// When the line of each slot can be used first, cycles.
    pub ready: Vec<u64>,
    /// When the right to write the line of each slot has come, cycles; of lines with that right alone.
    pub writable_at: Vec<u64>,
    pub registers: MissRegisters,
    pub prefetcher: Option<Prefetcher>,
    pub counters: Counters,
    /// Load to use, cycles; 0 if times are not wanted.
    pub latency: u64,
    /// How much longer its own look takes than that of the cache for data, whose loads the latencies of further levels are stated for, cycles.
    pub slower: i64,
    pub write_through: bool,
}

/// A second-level cache of one core's own.
#[derive(Debug)]
pub(crate) struct Level2 {
    pub tags: Tags,
    pub in_flight: InFlight,
    pub registers: MissRegisters,
    pub prefetcher: Option<Prefetcher>,
    pub counters: Counters,
    /// Load to use, cycles; 0 if times are not wanted.
    pub latency: u64,
    pub inclusion: Inclusion,
}

/// Everything one core has to itself.
#[derive(Debug)]
pub(crate) struct Private {
    pub clock: Clock,
    /// For instructions; without it, they come through `data`.
    pub fetch: Option<Level1>,
    pub data: Level1,
    pub second: Option<Level2>,
    /// What of `data` others get when it has come.
    pub given_away: GivenAway,
    /// The domain of cores that share a last-level cache.
    pub domain: usize,
    /// Its number inside the domain.
    pub bit: usize,
    /// Its NUMA node.
    pub node: usize,
    /// How long a look into all of these caches takes, for another core's probe, ps.
    pub probe_ps: u64,
    pub line_bits: u32,
    pub page_bits: u32,
    pub tlbs: Tlbs,
    /// What fetches translations that no TLB has.
    pub walkers: MissRegisters,
    /// The core's refill exception does so, if times are wanted.
    pub refills_by_exception: bool,
    /// The address space of the running program.
    pub space: SpaceId,
    /// By side.
    pub last_page: [LastPage; 2],
    /// Loads and stores, and those that went beyond these caches, when `misses_often` was asked last.
    pub counted: [u64; 2],
}

/// Which of the first-level caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Fetch,
    Data,
}

impl Level2 {
    /// True if a line is either here or in the first level.
    #[inline]
    pub fn takes_victims(&self) -> bool {
        matches!(self.inclusion, Inclusion::Victim | Inclusion::Exclusive)
    }
}

impl Level1 {
    /// When a line is here that loads would have at `ready`.
    #[inline]
    pub fn arrives(&self, ready: u64) -> u64 {
        ready.saturating_add_signed(self.slower)
    }

    /// Takes a line out and returns its flags.
    pub fn remove(&mut self, slot: Slot) -> crate::cache::Flags {
        self.filter.forget_set(slot.set());
        self.tags.remove(slot)
    }
}

impl Private {
    /// The first-level cache for `unit`.
    #[inline]
    pub fn level1(&mut self, unit: Unit) -> &mut Level1 {
        match (unit, &mut self.fetch) {
            (Unit::Fetch, Some(fetch)) => fetch,
            _ => &mut self.data,
        }
    }

    /// Virtual addresses mean something else from now on, as far as is remembered outside of the TLBs.
    pub fn forget_translations(&mut self) {
        self.last_page = [LastPage::NONE; 2];
        self.data.filter.clear();
        self.fetch.iter_mut().for_each(|l1| l1.filter.clear());
    }

    /// True if any of the caches has `line`.
    pub fn has(&self, line: Line) -> bool {
        self.data.tags.find(line).is_some()
            || self.fetch.as_ref().is_some_and(|l1| l1.tags.find(line).is_some())
            || self.second.as_ref().is_some_and(|l2| l2.tags.find(line).is_some())
    }
}
