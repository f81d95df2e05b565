//! A core's translation look-aside buffers, and its CAM table.
//! Not page tables: see `placement`. Not memory that a page walk loads from: whoever asks does the load.
//! Source: shapes and latencies from machine files; LoongArch Reference Manual volume 1, section 5.4, for pairs of pages in an
//! entry.

mod buffer;
mod cam;

pub use cam::{Cam, CamEntry, CamError, CamHit};

use crate::placement::{PhysicalPage, SpaceId};
use buffer::Buffer;
use longma_sim::{Statistics, StatisticsError};
use longma_topology::parts::{Core, Tlb, TlbKind};

/// What a hit in a second or further level costs where the file does not say, cycles: Sandy Bridge's (Intel 64 and IA-32
/// Optimization Reference Manual, 2.3.5.1: 7 cycles).
const FURTHER_LEVEL_CYCLES: u32 = 7;

/// What a page walk costs beside loading the last level's entry, cycles. An estimate: the upper levels hit in the walker's own
/// cache (Barr, Cox and Rixner, Translation Caching, ISCA 2010), which leaves starting the walk and refilling the TLB.
const WALK_CYCLES: u32 = 10;

/// What is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Addresses of instructions.
    Instruction,
    /// Addresses of loads and stores.
    Data,
}

/// Where a translation was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// In the first level, which costs nothing extra (or the core has no TLB).
    FirstLevel,
    /// In a further level.
    FurtherLevel,
    /// Nowhere, and what that costs is stated and counted.
    Missed,
    /// Nowhere, and a page walk loads the entry from memory (`AddressSpaces::entry_address`): whoever asked does that, in
    /// addition to the cycles counted.
    Walk,
}

/// A translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The physical page.
    pub page: PhysicalPage,
    /// Where it was found.
    pub found: Found,
    /// How much later the access is because of it, cycles of the core's clock.
    pub extra_cycles: u32,
    /// When the first level got the entry, as [`Tlbs::arrives`] was told.
    pub arrival: Arrival,
}

/// When an entry came into a TLB, cycles; 0 if nobody said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// When an access first needed it.
    pub asked_at: u64,
    /// When it was there.
    pub there_at: u64,
}

impl Arrival {
    /// How long an access at `at` waits for the entry, cycles. One that comes before whoever asked, as a core that executes out of order
    /// makes them, would have had to ask itself.
    pub fn wait(self, at: u64) -> u64 {
        self.there_at.saturating_sub(at.max(self.asked_at))
    }
}

/// Translations that are known to be in the first level, by page: 64 for each side.
const FILTER: usize = 64;

/// A page whose entry is in the first level.
#[derive(Clone, Copy, Debug)]
struct Known {
    key: u64,
    page: u64,
    /// Which entry of the first level.
    slot: u32,
    arrival: Arrival,
}

const NOBODY: Known =
    Known { key: u64::MAX, page: 0, slot: 0, arrival: Arrival { asked_at: 0, there_at: 0 } };

/// The TLBs of one core, each with exact LRU replacement. In front of the first level is a filter that answers most hits; it
/// holds only pages whose entry is there, and notes each use, so it changes nothing but the host's time.
#[derive(Clone, Debug)]
pub struct Tlbs {
    buffers: Vec<Buffer>,
    /// When each entry of each came.
    arrivals: Vec<Vec<Arrival>>,
    sides: [SideLevels; 2],
}

/// The TLBs that one side looks into.
#[derive(Clone, Debug)]
struct SideLevels {
    filter: Box<[Known; FILTER]>,
    /// Index of each level's TLB, the first level first.
    levels: Vec<usize>,
    /// What a hit in each level costs, cycles.
    hit_cycles: Vec<u32>,
    /// What it costs to miss all, cycles; `None`: a page walk.
    miss_cycles: Option<u32>,
    counts: TlbCounts,
}

/// What one side's TLBs did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TlbCounts {
    /// Translations asked for.
    pub lookups: u64,
    /// Of these, not in the first level.
    pub first_level_misses: u64,
    /// Of these, in no level.
    pub misses: u64,
}

impl Tlbs {
    /// The TLBs of a core of type `core`, for pages of `page_bytes`. TLBs that do not hold such pages are left out.
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

    /// Translates `virtual_page` of `space`; `resolve` looks the page up in the page table, where it must be.
    #[inline]
    pub fn translate(
        &mut self,
        side: Side,
        space: SpaceId,
        virtual_page: u64,
        resolve: impl FnOnce() -> PhysicalPage,
    ) -> Translation {
        if let Some((page, arrival)) = self.again(side, space, virtual_page) {
            return Translation { page, found: Found::FirstLevel, extra_cycles: 0, arrival };
        }
        self.sides[side as usize].counts.lookups += 1;
        self.look_up(side as usize, key(space, virtual_page), resolve())
    }

    /// Says when the entry of a page comes that was just [translated](Self::translate) and not found in the first level.
    pub fn arrives(&mut self, side: Side, space: SpaceId, virtual_page: u64, arrival: Arrival) {
        let key = key(space, virtual_page);
        let levels = &mut self.sides[side as usize];
        let known = &mut levels.filter[slot_of(key)];
        if known.key == key {
            known.arrival = arrival;
        }
        if let Some(first) = levels.levels.first()
            && let Some(slot) = self.buffers[*first].find(key)
        {
            self.arrivals[*first][slot as usize] = arrival;
        }
    }

    /// The translation of a page that hits in the first level and was looked up not long ago, at little cost to the host, and when it
    /// came; `None` says nothing, and nothing has happened.
    #[inline]
    pub fn again(
        &mut self,
        side: Side,
        space: SpaceId,
        virtual_page: u64,
    ) -> Option<(PhysicalPage, Arrival)> {
        let key = key(space, virtual_page);
        let levels = &mut self.sides[side as usize];
        let known = levels.filter[slot_of(key)];
        if known.key != key {
            return None;
        }
        levels.counts.lookups += 1;
        if let Some(first) = levels.levels.first() {
            self.buffers[*first].use_again(known.slot);
        }
        Some((PhysicalPage(known.page), known.arrival))
    }

    /// True if some level is known to have the page's entry, without a search.
    #[inline(always)]
    pub fn has_at_hand(&self, side: Side, space: SpaceId, virtual_page: u64) -> bool {
        let key = key(space, virtual_page);
        self.sides[side as usize].filter[slot_of(key)].key == key
    }

    /// True if some level has the page's entry. Nothing is counted, and nothing used.
    pub fn has(&self, side: Side, space: SpaceId, virtual_page: u64) -> bool {
        let key = key(space, virtual_page);
        let levels = &self.sides[side as usize];
        self.has_at_hand(side, space, virtual_page)
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
        // The first level is filled last, so `slot` ends as the page's place there.
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
        // A first level that costs something is asked each time.
        if self.sides[side].hit_cycles.first().is_none_or(|cycles| *cycles == 0) {
            self.sides[side].filter[slot_of(key)] = Known { key, page: page.0, slot, arrival };
        }
        Translation { page, found, extra_cycles, arrival }
    }

    /// Takes the pages of an entry that left `buffer` out of the filters.
    fn forget(&mut self, buffer: usize, group: u64) {
        let pages = self.buffers[buffer].pages_of(group);
        for side in &mut self.sides {
            if side.levels.first() == Some(&buffer) {
                side.forget(pages.clone());
            }
        }
    }

    /// Forgets a page, as when it is unmapped; pages that share its entry go too.
    pub fn invalidate(&mut self, space: SpaceId, virtual_page: u64) {
        let key = key(space, virtual_page);
        for buffer in 0..self.buffers.len() {
            if let Some(group) = self.buffers[buffer].remove(key) {
                self.forget(buffer, group);
            }
        }
        // Without any TLB the filter alone knows the page.
        self.sides.iter_mut().for_each(|side| side.forget(key..key + 1));
    }

    /// Forgets all pages of all spaces.
    pub fn flush(&mut self) {
        self.buffers.iter_mut().for_each(Buffer::clear);
        self.sides.iter_mut().for_each(|side| side.filter.fill(NOBODY));
    }

    /// What one side's TLBs did.
    pub const fn counts(&self, side: Side) -> TlbCounts {
        self.sides[side as usize].counts
    }

    /// Forgets the statistics, not the entries.
    pub fn clear_statistics(&mut self) {
        self.sides.iter_mut().for_each(|side| side.counts = TlbCounts::default());
    }

    /// Adds statistics below `name`.
    ///
    /// # Errors
    /// If a name is malformed or taken.
    pub fn report(&self, statistics: &mut Statistics, name: &str) -> Result<(), StatisticsError> {
        for (side, levels) in ["itlb", "dtlb"].iter().zip(&self.sides) {
            let TlbCounts { lookups, first_level_misses, misses } = levels.counts;
            let name = format!("{name}.{side}");
            statistics.count(
                &format!("{name}.lookups"),
                lookups,
                "translations",
                "translations asked for",
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
    /// One TLB a level: that of the kind alone if there is one, else the joint one.
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
        Self { filter: Box::new([NOBODY; FILTER]), levels, hit_cycles, miss_cycles, counts }
    }

    fn forget(&mut self, pages: std::ops::Range<u64>) {
        // Entries hold a few pages; for one that holds very many, going through the filter is shorter.
        if pages.end - pages.start <= FILTER as u64 {
            for key in pages {
                let known = &mut self.filter[slot_of(key)];
                if known.key == key {
                    *known = NOBODY;
                }
            }
        } else {
            self.filter.iter_mut().filter(|k| pages.contains(&k.key)).for_each(|k| *k = NOBODY);
        }
    }
}

/// Page and address space in one word: a space has 2^48 pages at most.
#[inline]
fn key(space: SpaceId, virtual_page: u64) -> u64 {
    u64::from(space.0) << 48 | (virtual_page & 0xffff_ffff_ffff)
}

#[inline]
fn slot_of(key: u64) -> usize {
    key as usize % FILTER
}
