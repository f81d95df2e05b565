//! The private state of one core: first-level caches, an optional second level, TLBs and page walkers.

use super::core_port::LastPage;
use super::promised::PromisedLines;
use crate::cache::{Counters, Filter, Flags, InFlight, Line, MissRegisters, Slot, Tags};
use crate::placement::SpaceId;
use crate::prefetch::Prefetcher;
use crate::translation::Tlbs;
use longma_sim::{Calendar, Clock, Duration, Time};
use longma_topology::parts::Inclusion;

/// A first-level cache.
#[derive(Debug)]
pub(crate) struct Level1 {
    pub tags: Tags,
    pub filter: Filter,
    /// For each slot, the first cycle at which the line can be used.
    pub ready: Vec<u64>,
    /// For each slot of a writable line, the cycle at which the write permission arrives.
    pub writable_at: Vec<u64>,
    pub registers: MissRegisters,
    pub prefetcher: Option<Prefetcher>,
    pub counters: Counters,
    /// Load-to-use latency, cycles; 0 without timing.
    pub latency: u64,
    /// Additional cycles of this cache compared with the data cache. Latencies of further levels are stated for loads,
    /// that is, through the data cache.
    pub slower: i64,
    pub write_through: bool,
}

/// A private second-level cache.
#[derive(Debug)]
pub(crate) struct Level2 {
    pub tags: Tags,
    pub in_flight: InFlight,
    pub registers: MissRegisters,
    pub prefetcher: Option<Prefetcher>,
    pub counters: Counters,
    /// Load-to-use latency, cycles; 0 without timing.
    pub latency: u64,
    pub inclusion: Inclusion,
    pub write_through: bool,
    /// The banks, if the machine file states their bandwidth; otherwise it is unlimited.
    pub banks: Option<PrivateBanks>,
}

/// The banks of a private cache. Their calendars count cycles of the core in place of picoseconds.
#[derive(Debug)]
pub(crate) struct PrivateBanks {
    calendars: Vec<Calendar>,
    /// Cycles in which a bank transfers a line, and a word of a store that is written through.
    line_cycles: u64,
    word_cycles: u64,
}

impl PrivateBanks {
    /// Bytes of a store that is written through: a register.
    const WORD_BYTES: u64 = 8;
    /// Width of the calendars' buckets. Their 128 buckets are more than the reorder buffer of a core spans.
    const BUCKET_CYCLES: u64 = 64;

    /// Creates `banks` banks that transfer `bytes_per_second` each at a clock of `hz`.
    pub fn new(banks: u32, line_bytes: u64, bytes_per_second: u64, hz: u64) -> Self {
        let cycles = |bytes: u64| {
            let cycles = (u128::from(bytes) * u128::from(hz)).div_ceil(bytes_per_second.max(1).into());
            cycles.min(1 << 20) as u64
        };
        let calendar = || Calendar::new(Duration::from_ps(Self::BUCKET_CYCLES));
        Self {
            calendars: std::iter::repeat_with(calendar).take(banks.max(1) as usize).collect(),
            line_cycles: cycles(line_bytes),
            word_cycles: cycles(Self::WORD_BYTES),
        }
    }

    fn take(&mut self, line: Line, cycles: u64, at: u64) -> u64 {
        let bank = line.0 as usize % self.calendars.len();
        self.calendars[bank].take(Time::from_ps(at), Duration::from_ps(cycles)).waited.ps()
    }

    /// Transfers a line at `at` and returns the cycles that it waits for its bank.
    pub fn take_line(&mut self, line: Line, at: u64) -> u64 {
        self.take(line, self.line_cycles, at)
    }

    /// Writes a word at `at` and returns the cycles that it waits for its bank.
    pub fn take_word(&mut self, line: Line, at: u64) -> u64 {
        self.take(line, self.word_cycles, at)
    }
}

/// The caches and TLBs of one core.
#[derive(Debug)]
pub(crate) struct Private {
    pub clock: Clock,
    /// Instruction cache. Without one, instructions are fetched through `data`.
    pub fetch: Option<Level1>,
    pub data: Level1,
    pub second: Option<Level2>,
    /// Lines in flight to `data` that are promised to another core.
    pub promised: PromisedLines,
    /// Index of the core's domain.
    pub domain: usize,
    /// Index of the core in the domain.
    pub bit: usize,
    /// NUMA node of the core.
    pub node: usize,
    /// Time that a probe of another core takes to look up all of these caches, ps.
    pub probe_ps: u64,
    pub line_bits: u32,
    pub page_bits: u32,
    pub tlbs: Tlbs,
    /// Page walkers: each refill of a translation holds one.
    pub walkers: MissRegisters,
    /// Whether TLBs are refilled by an exception handler; only with timing.
    pub refills_by_exception: bool,
    /// Address space of the running program.
    pub space: SpaceId,
    /// Last translated page of each side, indexed by `Unit`.
    pub last_page: [LastPage; 2],
    /// Loads and stores, and those that missed in the private caches, at the last call of `misses_often`.
    pub counted: [u64; 2],
}

/// Selects a first-level cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Fetch,
    Data,
}

impl Level2 {
    /// Returns whether the second level holds only lines evicted from the first level.
    #[inline]
    pub fn takes_victims(&self) -> bool {
        matches!(self.inclusion, Inclusion::Victim | Inclusion::Exclusive)
    }

    /// Removes a line that a probe invalidates.
    pub fn remove(&mut self, slot: Slot) {
        let flags = self.tags.remove(slot);
        self.counters.removed(flags);
    }
}

impl Level1 {
    /// Converts the time `ready` at which loads would get a line to the time at which this cache gets it.
    #[inline]
    pub fn arrives(&self, ready: u64) -> u64 {
        ready.saturating_add_signed(self.slower)
    }

    /// Removes a line and returns its flags.
    pub fn remove(&mut self, slot: Slot) -> Flags {
        self.filter.invalidate_set(slot.set());
        let flags = self.tags.remove(slot);
        self.counters.removed(flags);
        flags
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

    /// Invalidates the translations cached outside the TLBs.
    pub fn forget_translations(&mut self) {
        self.last_page = [LastPage::NONE; 2];
        self.data.filter.clear();
        self.fetch.iter_mut().for_each(|l1| l1.filter.clear());
    }

    /// Returns whether any of the caches holds `line`.
    pub fn has(&self, line: Line) -> bool {
        self.data.tags.find(line).is_some()
            || self.fetch.as_ref().is_some_and(|l1| l1.tags.find(line).is_some())
            || self.second.as_ref().is_some_and(|l2| l2.tags.find(line).is_some())
    }
}
