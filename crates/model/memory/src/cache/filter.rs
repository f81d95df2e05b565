//! What was used last in each set, by virtual address: answers repeated hits without a look into tags or TLB.
//! Not a cache of its own: everything in it is in the first level too, and a hit here leaves the cache as a full look-up would.
//! Source: the filter cache of ZSim (Sanchez and Kozyrakis, ISCA 2013, section 3.2.1).

/// A line that was used last in its set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Its virtual line number; all ones if there is none.
    pub key: u64,
    /// When it can be used first, cycles.
    pub ready: u64,
    /// Its number as a slot of the cache.
    slot: u32,
    /// Its set.
    set: u32,
    /// Whether a store changes nothing: it is modified already.
    pub writable: bool,
}

const NONE: Entry = Entry { key: u64::MAX, ready: 0, slot: 0, set: 0, writable: false };

/// One entry a set. Using a set's last used line again changes no policy's state (see `Policy::touched`), so such a hit needs no
/// more than this.
#[derive(Debug)]
pub(crate) struct Filter {
    entries: Vec<Entry>,
    /// For each set of the cache, the entry that speaks for it. Differs from the set where virtual and physical index do.
    speaker: Vec<u32>,
    mask: u64,
}

impl Filter {
    /// A filter for a cache of `sets` sets.
    pub fn new(sets: usize) -> Self {
        let entries = sets.next_power_of_two();
        Self { entries: vec![NONE; entries], speaker: vec![0; sets], mask: entries as u64 - 1 }
    }

    /// The entry where `virtual_line` would be; it is a hit if the key says so.
    #[inline]
    pub fn look(&self, virtual_line: u64) -> Option<&Entry> {
        // The mask keeps it inside; the compiler does not know that.
        self.entries.get((virtual_line & self.mask) as usize)
    }

    /// The line in `slot` of `set` was used last in its set.
    pub fn note(&mut self, virtual_line: u64, set: usize, slot: usize, ready: u64, writable: bool) {
        let at = (virtual_line & self.mask) as usize;
        let before = std::mem::replace(&mut self.speaker[set], at as u32) as usize;
        if before != at && self.entries[before].set == set as u32 {
            self.entries[before] = NONE;
        }
        self.entries[at] = Entry { key: virtual_line, ready, slot: slot as u32, set: set as u32, writable };
    }

    /// Another line of `set` was used or put in than by the core's own addresses, or the set's lines changed.
    #[inline]
    pub fn forget_set(&mut self, set: usize) {
        let entry = &mut self.entries[self.speaker[set] as usize];
        if entry.set == set as u32 {
            *entry = NONE;
        }
    }

    /// Virtual addresses mean something else from now on.
    pub fn clear(&mut self) {
        self.entries.fill(NONE);
    }

    /// Entries that claim to be in the cache: slot number, and whether a store changes nothing.
    pub fn claims(&self) -> impl Iterator<Item = (usize, bool)> + '_ {
        self.entries.iter().filter(|e| e.key != u64::MAX).map(|e| (e.slot as usize, e.writable))
    }
}
