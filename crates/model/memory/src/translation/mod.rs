//! A core's TLBs and CAM table. Page tables are in `placement`; a caller that must walk one performs the load itself.
//!
//! Source: structure and latencies from machine files; LoongArch Reference Manual volume 1, section 5.4, for entries
//! that hold a pair of pages.

mod buffer;
mod cam;

pub use cam::{Cam, CamEntry, CamError, CamHit};

use crate::placement::{PhysicalPage, SpaceId};
use buffer::Buffer;
use longma_sim::{Statistics, StatisticsError};
use longma_topology::parts::{Core, Tlb, TlbKind};

/// Default cost of a hit in a second or further level, cycles: Sandy Bridge's (Intel 64 and IA-32 Optimization
/// Reference Manual, 2.3.5.1: 7 cycles).
const FURTHER_LEVEL_CYCLES: u32 = 7;

/// Cost of a page walk in addition to the load of the last-level entry, cycles. An estimate: the upper levels hit in
/// the walker's own cache (Barr, Cox and Rixner, Translation Caching, ISCA 2010), so the remaining cost is that of
/// starting the walk and refilling the TLB.
const WALK_CYCLES: u32 = 10;

/// The type of address that is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Instruction addresses.
    Instruction,
    /// Addresses of loads and stores.
    Data,
}

/// Where a lookup found a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// In the first level, at no additional cost, or the core has no TLB.
    FirstLevel,
    /// In a further level.
    FurtherLevel,
    /// In no level; the machine file states the cost of a miss, which is included.
    Missed,
    /// In no level; the caller must load the page table entry from memory (`AddressSpaces::entry_address`) in addition
    /// to the cycles included.
    Walk,
}

/// The result of a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The physical page.
    pub page: PhysicalPage,
    /// Where the translation was found.
    pub found: Found,
    /// Cycles of the core's clock by which the translation delays the access.
    pub extra_cycles: u32,
    /// When the first level got the entry, as set by [`Tlbs::set_arrival`].
    pub arrival: Arrival,
}

/// When an entry was inserted into a TLB, cycles; 0 if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// When an access first requested it.
    pub requested_at: u64,
    /// When it became available.
    pub available_at: u64,
}

impl Arrival {
    /// Returns how long an access at `at` waits for the entry, cycles. An access with an earlier time than the request,
    /// as an out-of-order core may issue, would have had to make the request itself, so it waits for the full duration.
    pub fn wait(self, at: u64) -> u64 {
        self.available_at.saturating_sub(at.max(self.requested_at))
    }
}

/// Entries of each side's filter of translations known to be in the first level.
const FILTER: usize = 64;

/// A translation that is in the first-level TLB.
#[derive(Clone, Copy, Debug)]
struct FilterEntry {
    key: u64,
    page: u64,
    /// Slot of the entry in the first level.
    slot: u32,
    arrival: Arrival,
}

const EMPTY: FilterEntry =
    FilterEntry { key: u64::MAX, page: 0, slot: 0, arrival: Arrival { requested_at: 0, available_at: 0 } };

/// The TLBs of one core, with exact LRU replacement. A filter in front of the first level answers most hits. It holds
/// only pages whose entry is in the first level and records every use, so it does not affect results.
#[derive(Clone, Debug)]
pub struct Tlbs {
    buffers: Vec<Buffer>,
    /// For each TLB, when each entry was inserted.
    arrivals: Vec<Vec<Arrival>>,
    sides: [SideLevels; 2],
}

/// The TLBs that one side uses.
#[derive(Clone, Debug)]
struct SideLevels {
    filter: Box<[FilterEntry; FILTER]>,
    /// Index of the TLB of each level, first level first.
    levels: Vec<usize>,
    /// Cost of a hit in each level, cycles.
    hit_cycles: Vec<u32>,
    /// Cost of a miss in all levels, cycles; `None` for a page walk.
    miss_cycles: Option<u32>,
    counts: TlbCounts,
}

/// Event counts of one side's TLBs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TlbCounts {
    /// Translations requested.
    pub lookups: u64,
    /// Of these, misses in the first level.
    pub first_level_misses: u64,
    /// Of these, misses in all levels.
    pub misses: u64,
}

impl Tlbs {
    /// Creates the TLBs of a core of type `core`, for pages of `page_bytes`. Omits TLBs that do not support that page
    /// size.
    pub fn new(core: &Core, page_bytes: u64) -> Self {
        let holds = |tlb: &&Tlb| {
            tlb.page_sizes.is_empty() || tlb.page_sizes.iter().any(|size| size.bytes() == page_bytes)
        };
        let mut used: Vec<&Tlb> = core.tlbs.iter().filter(holds).collect();
        used.sort_by_key(|tlb| tlb.level);
        let buffers = used.iter().map(|t| Buffer::new(t.entries, t.ways, t.pages_per_entry)).collect();
        let arrivals = used.iter().map(|t| vec![Arrival::default(); t.entries.max(1) as usize]).collect();
        let side = |kind| SideLevels::new(core, &used, kind);
        Self { buffers, arrivals, sides: [side(TlbKind::Instruction), side(TlbKind::Data)] }
    }

    /// No TLBs: every translation is free.
    pub fn none() -> Self {
        let side = || SideLevels {
            filter: Box::new([EMPTY; FILTER]),
            levels: Vec::new(),
            hit_cycles: Vec::new(),
            miss_cycles: None,
            counts: TlbCounts::default(),
        };
        Self { buffers: Vec::new(), arrivals: Vec::new(), sides: [side(), side()] }
    }

    /// Translates `virtual_page` of `space`. `resolve` looks the page up in the page table, which must contain it.
    #[inline]
    pub fn translate(
        &mut self,
        side: Side,
        space: SpaceId,
        virtual_page: u64,
        resolve: impl FnOnce() -> PhysicalPage,
    ) -> Translation {
        if let Some((page, arrival)) = self.lookup_fast(side, space, virtual_page) {
            return Translation { page, found: Found::FirstLevel, extra_cycles: 0, arrival };
        }
        self.sides[side as usize].counts.lookups += 1;
        self.look_up(side as usize, key(space, virtual_page), resolve())
    }

    /// Sets the arrival time of the entry of a page that was just [translated](Self::translate) and missed in the first
    /// level.
    pub fn set_arrival(&mut self, side: Side, space: SpaceId, virtual_page: u64, arrival: Arrival) {
        let key = key(space, virtual_page);
        let levels = &mut self.sides[side as usize];
        let cached = &mut levels.filter[slot_of(key)];
        if cached.key == key {
            cached.arrival = arrival;
        }
        if let Some(first) = levels.levels.first()
            && let Some(slot) = self.buffers[*first].find(key)
        {
            self.arrivals[*first][slot as usize] = arrival;
        }
    }

    /// Fast path: returns the translation of a recently used page that hits in the first level, and its arrival time.
    /// `None` if the filter does not hold the page, without any change of state.
    #[inline]
    pub fn lookup_fast(
        &mut self,
        side: Side,
        space: SpaceId,
        virtual_page: u64,
    ) -> Option<(PhysicalPage, Arrival)> {
        let key = key(space, virtual_page);
        let levels = &mut self.sides[side as usize];
        let cached = levels.filter[slot_of(key)];
        if cached.key != key {
            return None;
        }
        levels.counts.lookups += 1;
        if let Some(first) = levels.levels.first() {
            self.buffers[*first].use_again(cached.slot);
        }
        Some((PhysicalPage(cached.page), cached.arrival))
    }

    /// Returns whether the filter holds the page, which means that the first level does, without a search.
    #[inline(always)]
    pub fn filter_has(&self, side: Side, space: SpaceId, virtual_page: u64) -> bool {
        let key = key(space, virtual_page);
        self.sides[side as usize].filter[slot_of(key)].key == key
    }

    /// Returns whether some level holds the page's entry, without counting a lookup or a use.
    pub fn has(&self, side: Side, space: SpaceId, virtual_page: u64) -> bool {
        let key = key(space, virtual_page);
        let levels = &self.sides[side as usize];
        self.filter_has(side, space, virtual_page)
            || levels.levels.is_empty()
            || levels.levels.iter().any(|level| self.buffers[*level].has(key))
    }

    fn look_up(&mut self, side: usize, key: u64, page: PhysicalPage) -> Translation {
        let SideLevels { levels, hit_cycles, miss_cycles, counts, .. } = &mut self.sides[side];
        let mut slot = 0;
        let mut find = |level: &usize| match self.buffers[*level].find(key) {
            Some(found) => {
                slot = found;
                true
            }
            None => false,
        };
        let hit = levels.iter().position(&mut find);
        let (found, extra_cycles) = match hit {
            Some(0) => (Found::FirstLevel, hit_cycles[0]),
            Some(level) => (Found::FurtherLevel, hit_cycles[level]),
            None if levels.is_empty() => (Found::FirstLevel, 0),
            None => match *miss_cycles {
                Some(cycles) => (Found::Missed, cycles),
                None => (Found::Walk, WALK_CYCLES),
            },
        };
        counts.first_level_misses += u64::from(found != Found::FirstLevel);
        counts.misses += u64::from(matches!(found, Found::Missed | Found::Walk));
        // The first level is filled last, so `slot` ends as the slot in that level.
        for level in (0..hit.unwrap_or(levels.len())).rev() {
            let buffer = self.sides[side].levels[level];
            let (filled, evicted) = self.buffers[buffer].insert(key);
            slot = filled;
            if let Some(evicted) = evicted {
                self.forget(buffer, evicted);
            }
        }
        let arrival = self.sides[side].levels.first().map_or(Arrival::default(), |first| {
            let arrival = &mut self.arrivals[*first][slot as usize];
            if found != Found::FirstLevel {
                *arrival = Arrival::default();
            }
            *arrival
        });
        // The filter is used only if a first-level hit costs nothing.
        if self.sides[side].hit_cycles.first().is_none_or(|cycles| *cycles == 0) {
            self.sides[side].filter[slot_of(key)] = FilterEntry { key, page: page.0, slot, arrival };
        }
        Translation { page, found, extra_cycles, arrival }
    }

    /// Removes the pages of an entry evicted from `buffer` from the filters.
    fn forget(&mut self, buffer: usize, group: u64) {
        let pages = self.buffers[buffer].pages_of(group);
        for side in &mut self.sides {
            if side.levels.first() == Some(&buffer) {
                side.forget(pages.clone());
            }
        }
    }

    /// Invalidates a page, for example when it is unmapped, together with the pages that share its entry.
    pub fn invalidate(&mut self, space: SpaceId, virtual_page: u64) {
        let key = key(space, virtual_page);
        for buffer in 0..self.buffers.len() {
            if let Some(group) = self.buffers[buffer].remove(key) {
                self.forget(buffer, group);
            }
        }
        // Without any TLB, only the filter holds the page.
        self.sides.iter_mut().for_each(|side| side.forget(key..key + 1));
    }

    /// Invalidates all pages of all address spaces.
    pub fn flush(&mut self) {
        self.buffers.iter_mut().for_each(Buffer::clear);
        self.sides.iter_mut().for_each(|side| side.filter.fill(EMPTY));
    }

    /// Event counts of one side's TLBs.
    pub const fn counts(&self, side: Side) -> TlbCounts {
        self.sides[side as usize].counts
    }

    /// Resets the statistics but not the entries.
    pub fn clear_statistics(&mut self) {
        self.sides.iter_mut().for_each(|side| side.counts = TlbCounts::default());
    }

    /// Adds the statistics under `name`.
    ///
    /// # Errors
    /// If a name is malformed or already in use.
    pub fn report(&self, statistics: &mut Statistics, name: &str) -> Result<(), StatisticsError> {
        for (side, levels) in ["itlb", "dtlb"].iter().zip(&self.sides) {
            let TlbCounts { lookups, first_level_misses, misses } = levels.counts;
            let name = format!("{name}.{side}");
            statistics.count(
                &format!("{name}.lookups"),
                lookups,
                "translations",
                "translations requested",
            )?;
            let description = "translations not in the first level";
            let key = format!("{name}.first_level_misses");
            statistics.count(&key, first_level_misses, "translations", description)?;
            statistics.count(
                &format!("{name}.misses"),
                misses,
                "translations",
                "translations in no level",
            )?;
        }
        Ok(())
    }
}

impl SideLevels {
    /// Chooses one TLB per level: a separate one for this side if there is one, else the joint one.
    fn new(core: &Core, used: &[&Tlb], kind: TlbKind) -> Self {
        let mut levels: Vec<usize> = Vec::new();
        for (index, tlb) in used.iter().enumerate() {
            let same_level = levels.last().filter(|last| used[**last].level == tlb.level).copied();
            match same_level {
                _ if tlb.kind != kind && tlb.kind != TlbKind::Joint => {}
                None => levels.push(index),
                Some(other) if used[other].kind == TlbKind::Joint && tlb.kind == kind => {
                    levels.pop();
                    levels.push(index);
                }
                Some(_) => {}
            }
        }
        let cycles = |latency: longma_topology::units::Latency| {
            u32::try_from(latency.cycles(core.clock)).unwrap_or(u32::MAX)
        };
        let hit = |(level, index): (usize, &usize)| {
            let otherwise = if level == 0 { 0 } else { FURTHER_LEVEL_CYCLES };
            used[*index].latency.map_or(otherwise, cycles)
        };
        let hit_cycles = levels.iter().enumerate().map(hit).collect();
        let miss_cycles = levels.last().and_then(|last| used[*last].miss).map(cycles);
        let counts = TlbCounts::default();
        Self { filter: Box::new([EMPTY; FILTER]), levels, hit_cycles, miss_cycles, counts }
    }

    fn forget(&mut self, pages: std::ops::Range<u64>) {
        // An entry usually covers few pages. For a large one, scanning the filter is faster.
        if pages.end - pages.start <= FILTER as u64 {
            for key in pages {
                let cached = &mut self.filter[slot_of(key)];
                if cached.key == key {
                    *cached = EMPTY;
                }
            }
        } else {
            self.filter.iter_mut().filter(|k| pages.contains(&k.key)).for_each(|k| *k = EMPTY);
        }
    }
}

/// Combines page and address space into one word. An address space has at most 2^48 pages.
#[inline]
fn key(space: SpaceId, virtual_page: u64) -> u64 {
    u64::from(space.0) << 48 | (virtual_page & 0xffff_ffff_ffff)
}

#[inline]
fn slot_of(key: u64) -> usize {
    key as usize % FILTER
}
