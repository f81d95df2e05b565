//! The table of translated regions, by the guest addresses they were translated from.

use std::{collections::hash_map::Entry, ops::Range};

use rustc_hash::{FxHashMap, FxHashSet};
use slab::Slab;

use super::{allocation::Allocation, interpreter_call::InterpreterCalls, links::LinkNumber};

/// Size of the guest memory pages that index the regions.
const PAGE_BYTES: u64 = 4096;

/// The index of a region.
pub(super) type RegionNumber = usize;

/// The data that a region's code uses and that removing the region needs.
pub(crate) struct Retained {
    pub allocation: Allocation,
    /// The guest address range and the host address of each block.
    pub blocks: Vec<(Range<u64>, u64)>,
    /// The guest addresses of its entry points.
    pub entries: Vec<u64>,
    /// Its host code. Pieces after the first are entry points added later.
    pub pieces: Vec<Range<u64>>,
    pub links: Vec<LinkNumber>,
    /// The interpreter calls, whose addresses the code contains.
    pub interpreter_calls: InterpreterCalls,
}

impl Retained {
    fn pages(&self) -> FxHashSet<u64> {
        self.blocks.iter().flat_map(|(guest, _)| pages_of(guest)).collect()
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.blocks.iter().any(|(guest, _)| guest.start < range.end && range.start < guest.end)
    }
}

/// The pages that overlap a range of guest addresses.
fn pages_of(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES)
}

/// All active regions. The cost of an operation does not depend on the number of regions.
#[derive(Default)]
pub(super) struct Regions {
    retained: Slab<Retained>,
    by_page: FxHashMap<u64, Vec<RegionNumber>>,
    /// Blocks inside regions: `(host address, region)`, the newest for each guest address.
    blocks: FxHashMap<u64, (u64, RegionNumber)>,
    /// The number of regions that contain a block, by its guest address.
    copies: FxHashMap<u64, u32>,
}

impl Regions {
    pub fn add(&mut self, region: Retained) -> RegionNumber {
        let (pages, entry) = (region.pages(), self.retained.vacant_entry());
        let number = entry.key();
        for page in pages {
            self.by_page.entry(page).or_default().push(number);
        }
        for (guest, host) in &region.blocks {
            self.blocks.insert(guest.start, (*host, number));
            *self.copies.entry(guest.start).or_default() += 1;
        }
        entry.insert(region);
        number
    }

    /// The block at a guest address: its host address, valid in the mapping of its region, and the region.
    pub fn block(&mut self, pc: u64) -> Option<(u64, &mut Retained)> {
        let &(host, number) = self.blocks.get(&pc)?;
        Some((host, &mut self.retained[number]))
    }

    /// The number of regions that contain the block at a guest address.
    pub fn copies(&self, pc: u64) -> u32 {
        self.copies.get(&pc).copied().unwrap_or_default()
    }

    /// All regions.
    pub fn all(&self) -> impl Iterator<Item = &Retained> {
        self.retained.iter().map(|(_, region)| region)
    }

    /// Removes and returns the regions with code from `range`.
    pub fn remove(&mut self, range: &Range<u64>) -> Vec<Retained> {
        let overlapping = pages_of(range);
        let mut numbers: Vec<RegionNumber> =
            if overlapping.end - overlapping.start > self.by_page.len() as u64 {
                let pages = self.by_page.iter().filter(|(page, _)| overlapping.contains(page));
                pages.flat_map(|(_, numbers)| numbers.iter().copied()).collect()
            } else {
                overlapping.filter_map(|page| self.by_page.get(&page)).flatten().copied().collect()
            };
        numbers.sort_unstable();
        numbers.dedup();
        numbers.retain(|number| self.retained[*number].overlaps(range));
        numbers.into_iter().map(|number| self.take(number)).collect()
    }

    fn take(&mut self, number: RegionNumber) -> Retained {
        let region = self.retained.remove(number);
        for page in region.pages() {
            let Some(numbers) = self.by_page.get_mut(&page) else { continue };
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.by_page.remove(&page);
            }
        }
        for (guest, _) in &region.blocks {
            if self.blocks.get(&guest.start).is_some_and(|(_, of)| *of == number) {
                self.blocks.remove(&guest.start);
            }
            if let Entry::Occupied(mut copies) = self.copies.entry(guest.start) {
                *copies.get_mut() -= 1;
                if *copies.get() == 0 {
                    copies.remove();
                }
            }
        }
        region
    }
}
