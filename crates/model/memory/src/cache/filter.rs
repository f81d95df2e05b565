//! A filter in front of a first-level cache that remembers, by virtual address, the most recently used line of each
//! set. It answers repeated hits without a lookup in the tags or the TLB. Every entry is also in the first-level cache,
//! and a hit leaves the cache in the state that a full lookup would.
//!
//! Source: the filter cache of ZSim (Sanchez and Kozyrakis, ISCA 2013, section 3.2.1).

/// The most recently used line of a set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Virtual line number; all ones for an empty entry.
    pub key: u64,
    /// First cycle at which the line can be used.
    pub ready: u64,
    /// Slot number of the line in the cache.
    slot: u32,
    /// Set of the line.
    set: u32,
    /// Whether a store leaves the line's state unchanged because it is already modified.
    pub writable: bool,
}

const NONE: Entry = Entry { key: u64::MAX, ready: 0, slot: 0, set: 0, writable: false };

/// The filter, with one entry a set. Using the most recently used line again does not change the state of any
/// replacement policy (see `Policy::touched`), so the entry is sufficient to answer such a hit.
#[derive(Debug)]
pub(crate) struct Filter {
    entries: Vec<Entry>,
    /// For each set of the cache, the index of its entry. The two differ where the virtual and the physical index
    /// differ.
    entry_of_set: Vec<u32>,
    mask: u64,
}

impl Filter {
    /// Creates an empty filter for a cache of `sets` sets.
    pub fn new(sets: usize) -> Self {
        let entries = sets.next_power_of_two();
        Self { entries: vec![NONE; entries], entry_of_set: vec![0; sets], mask: entries as u64 - 1 }
    }

    /// Returns the entry that `virtual_line` maps to. It is a hit if its key matches.
    #[inline]
    pub fn lookup(&self, virtual_line: u64) -> Option<&Entry> {
        // The mask keeps the index in bounds, but the compiler cannot prove it.
        self.entries.get((virtual_line & self.mask) as usize)
    }

    /// Records that the line in `slot` of `set` is now the most recently used of its set.
    pub fn record(&mut self, virtual_line: u64, set: usize, slot: usize, ready: u64, writable: bool) {
        let at = (virtual_line & self.mask) as usize;
        let before = std::mem::replace(&mut self.entry_of_set[set], at as u32) as usize;
        if before != at && self.entries[before].set == set as u32 {
            self.entries[before] = NONE;
        }
        self.entries[at] = Entry { key: virtual_line, ready, slot: slot as u32, set: set as u32, writable };
    }

    /// Invalidates the entry of `set`, because another line of the set was used or filled or because the set's contents
    /// changed.
    #[inline]
    pub fn invalidate_set(&mut self, set: usize) {
        let entry = &mut self.entries[self.entry_of_set[set] as usize];
        if entry.set == set as u32 {
            *entry = NONE;
        }
    }

    /// Empties the filter after a change of the virtual-to-physical mapping.
    pub fn clear(&mut self) {
        self.entries.fill(NONE);
    }

    /// Iterates over the valid entries: the slot number, and whether a store leaves the line's state unchanged. For
    /// consistency checks.
    pub fn claims(&self) -> impl Iterator<Item = (usize, bool)> + '_ {
        self.entries.iter().filter(|e| e.key != u64::MAX).map(|e| (e.slot as usize, e.writable))
    }
}
