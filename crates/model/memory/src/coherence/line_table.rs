//! A directory separate from the tags: a hash table of the holders of each cached line. It grows as needed, so unlike a
//! sparse hardware directory it never evicts lines.
//!
//! Source: open addressing with linear probing and deletion without tombstones (Knuth, volume 3, section 6.4, algorithm
//! R).

use crate::cache::Line;
use crate::host;

/// The holders of a line, one bit each, and whether a single holder has write permission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holders(u64);

/// Maximum number of holders in a directory.
pub(crate) const MAX_HOLDERS: usize = 63;
const ALONE: u64 = 1 << MAX_HOLDERS;

impl Holders {
    /// Creates the holders in `mask`. `alone` means that there is one holder and it may write the line.
    pub fn new(mask: u64, alone: bool) -> Self {
        Self(mask | if alone { ALONE } else { 0 })
    }

    /// The mask, with one bit for each holder.
    pub fn mask(self) -> u64 {
        self.0 & !ALONE
    }

    /// The holder with write permission, if any.
    pub fn owner(self) -> Option<usize> {
        (self.0 & ALONE != 0).then(|| self.mask().trailing_zeros() as usize)
    }

    /// Returns the holders without `holder`.
    pub fn without(self, holder: usize) -> Self {
        let mask = self.mask() & !(1 << holder);
        Self::new(mask, self.0 & ALONE != 0 && mask != 0)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// The line number plus one; 0 for an empty entry.
    key: u64,
    holders: Holders,
}

/// Holders by line. The order of entries never affects results.
#[derive(Debug)]
pub(crate) struct LineTable {
    entries: Vec<Entry>,
    used: usize,
}

const FIRST_ENTRIES: usize = 1 << 10;

/// Number of consecutive lines whose home entries are adjacent, in one cache line of the host: programs access
/// consecutive lines one after another.
const NEIGHBOURS: usize = 4;

impl Default for LineTable {
    fn default() -> Self {
        Self { entries: vec![Entry::default(); FIRST_ENTRIES], used: 0 }
    }
}

impl LineTable {
    #[inline]
    fn home(&self, key: u64) -> usize {
        let neighbours = NEIGHBOURS as u64;
        let group = (Line(key / neighbours).hash() >> 20) as usize;
        (group * NEIGHBOURS + (key % neighbours) as usize) & (self.entries.len() - 1)
    }

    /// Prefetches the entry of `line` into the host's caches.
    #[inline]
    pub fn prefetch_host(&self, line: Line) {
        host::prefetch(&self.entries[self.home(line.0.wrapping_add(1))]);
    }

    /// Returns the index of the entry of `key`, or of the empty entry where it belongs.
    #[inline]
    fn find_slot(&self, key: u64) -> usize {
        let mut at = self.home(key);
        while self.entries[at].key != key && self.entries[at].key != 0 {
            at = (at + 1) & (self.entries.len() - 1);
        }
        at
    }

    /// Returns the holders of `line`.
    #[inline]
    pub fn get(&self, line: Line) -> Holders {
        // An empty entry has no holders.
        self.entries[self.find_slot(line.0 + 1)].holders
    }

    /// Sets the holders of `line`. An empty set removes the entry.
    pub fn set(&mut self, line: Line, holders: Holders) {
        let key = line.0 + 1;
        let at = self.find_slot(key);
        if holders.mask() == 0 {
            if self.entries[at].key == key {
                self.used -= 1;
                self.remove_entry(at);
            }
            return;
        }
        if self.entries[at].key == 0 {
            self.used += 1;
        }
        self.entries[at] = Entry { key, holders };
        // Keep the table at most half full: probe sequences get long beyond that.
        if self.used * 2 > self.entries.len() {
            self.grow();
        }
    }

    fn grow(&mut self) {
        let doubled = vec![Entry::default(); self.entries.len() * 2];
        for entry in std::mem::replace(&mut self.entries, doubled).into_iter().filter(|e| e.key != 0) {
            let at = self.find_slot(entry.key);
            self.entries[at] = entry;
        }
    }

    /// Removes an entry and moves later entries of the probe sequence into the hole, so that lookups still find them.
    fn remove_entry(&mut self, mut hole: usize) {
        let mask = self.entries.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let entry = self.entries[at];
            if entry.key == 0 {
                break;
            }
            // Distances from the entry's home, modulo the table size.
            let home = self.home(entry.key);
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.entries[hole] = entry;
                hole = at;
            }
        }
        self.entries[hole] = Entry::default();
    }

    /// Iterates over all lines and their holders, in unspecified order.
    pub fn iter(&self) -> impl Iterator<Item = (Line, Holders)> + '_ {
        self.entries.iter().filter(|e| e.key != 0).map(|e| (Line(e.key - 1), e.holders))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn it_matches_an_ordered_map(changes in prop::collection::vec((0u64..4000, 0u64..8, any::<bool>()), 0..6000)) {
            let mut table = LineTable::default();
            let mut reference = BTreeMap::new();
            for (line, mask, alone) in changes {
                let holders = Holders::new(mask, alone && mask.count_ones() == 1);
                table.set(Line(line), holders);
                if mask == 0 { reference.remove(&line); } else { reference.insert(line, holders); }
                prop_assert_eq!(table.get(Line(line)).mask(), mask);
            }
            let entries: BTreeMap<_, _> = table.iter().map(|(line, holders)| (line.0, holders)).collect();
            prop_assert_eq!(entries, reference);
        }
    }
}
