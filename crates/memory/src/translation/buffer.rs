//! One TLB: which entries it holds, and which goes next.
//! Not what the entries map to: the page table knows that.
//! Source: exact LRU by order of use; makers seldom say what they do.

/// No entry, or no neighbour in a list.
const NONE: u32 = u32::MAX;
const EMPTY: u64 = u64::MAX;

/// Sets of more ways than this are searched by a hash instead of way by way.
const MOST_SCANNED_WAYS: usize = 16;

/// One TLB. An entry stands for a group of neighbouring pages.
#[derive(Clone, Debug)]
pub(super) struct Buffer {
    group_shift: u32,
    entries: Entries,
}

/// How entries are found and aged.
#[derive(Clone, Debug)]
enum Entries {
    Scanned(Scanned),
    Listed(Listed),
}

impl Buffer {
    /// A TLB of `entries` entries in sets of `ways` (all in one if `None`), each for `pages` pages, rounded up to a power of two.
    pub(super) fn new(entries: u32, ways: Option<u32>, pages: u32) -> Self {
        let entries = entries.max(1) as usize;
        let ways = ways.map_or(entries, |w| (w as usize).clamp(1, entries));
        let group_shift = pages.max(1).next_power_of_two().trailing_zeros();
        let entries = match ways {
            ..=MOST_SCANNED_WAYS => Entries::Scanned(Scanned::new(entries / ways, ways)),
            _ => Entries::Listed(Listed::new(entries / ways, ways)),
        };
        Self { group_shift, entries }
    }

    /// Notes that the entry in `slot` is used.
    #[inline]
    pub(super) fn use_again(&mut self, slot: u32) {
        match &mut self.entries {
            Entries::Scanned(entries) => entries.use_again(slot),
            Entries::Listed(entries) => entries.use_again(slot),
        }
    }

    /// The slot of the entry for `key`, which counts as used by that.
    pub(super) fn find(&mut self, key: u64) -> Option<u32> {
        let slot = self.slot(key)?;
        self.use_again(slot);
        Some(slot)
    }

    /// True if there is an entry for `key`.
    pub(super) fn has(&self, key: u64) -> bool {
        self.slot(key).is_some()
    }

    /// Puts in an entry that is not there: its slot, and the group that had to go for it, if any.
    pub(super) fn insert(&mut self, key: u64) -> (u32, Option<u64>) {
        let group = key >> self.group_shift;
        let (slot, evicted) = match &mut self.entries {
            Entries::Scanned(entries) => entries.insert(group),
            Entries::Listed(entries) => entries.insert(group),
        };
        (slot, (evicted != EMPTY).then_some(evicted))
    }

    /// Takes the entry for `key` out; its group.
    pub(super) fn remove(&mut self, key: u64) -> Option<u64> {
        let slot = self.slot(key)?;
        match &mut self.entries {
            Entries::Scanned(entries) => entries.remove(slot),
            Entries::Listed(entries) => entries.remove(slot),
        }
        Some(key >> self.group_shift)
    }

    pub(super) fn clear(&mut self) {
        match &mut self.entries {
            Entries::Scanned(entries) => *entries = Scanned::new(entries.sets as usize, entries.ways),
            Entries::Listed(entries) => *entries = Listed::new(entries.oldest.len(), entries.ways),
        }
    }

    /// The keys of a group.
    pub(super) fn pages_of(&self, group: u64) -> std::ops::Range<u64> {
        let first = group << self.group_shift;
        first..first + (1 << self.group_shift)
    }

    fn slot(&self, key: u64) -> Option<u32> {
        let group = key >> self.group_shift;
        match &self.entries {
            Entries::Scanned(entries) => entries.slot(group),
            Entries::Listed(entries) => entries.slot(group),
        }
    }
}

/// Sets of few ways: searched one by one, the oldest found by the time of use.
#[derive(Clone, Debug)]
struct Scanned {
    /// The group of each entry, set after set.
    groups: Vec<u64>,
    /// When each was used last; 0 for an empty one.
    used: Vec<u64>,
    ways: usize,
    sets: u64,
    now: u64,
}

impl Scanned {
    fn new(sets: usize, ways: usize) -> Self {
        Self { groups: vec![EMPTY; sets * ways], used: vec![0; sets * ways], ways, sets: sets as u64, now: 0 }
    }

    fn first_of(&self, group: u64) -> usize {
        let mask = self.sets - 1;
        let set = if self.sets & mask == 0 { group & mask } else { group % self.sets };
        set as usize * self.ways
    }

    fn slot(&self, group: u64) -> Option<u32> {
        let first = self.first_of(group);
        let found = self.groups[first..first + self.ways].iter().position(|g| *g == group)?;
        Some((first + found) as u32)
    }

    fn use_again(&mut self, slot: u32) {
        self.now += 1;
        self.used[slot as usize] = self.now;
    }

    fn insert(&mut self, group: u64) -> (u32, u64) {
        let first = self.first_of(group);
        let ages = self.used[first..first + self.ways].iter().enumerate();
        let oldest = first + ages.min_by_key(|(_, used)| **used).map_or(0, |(way, _)| way);
        self.use_again(oldest as u32);
        (oldest as u32, std::mem::replace(&mut self.groups[oldest], group))
    }

    fn remove(&mut self, slot: u32) {
        (self.groups[slot as usize], self.used[slot as usize]) = (EMPTY, 0);
    }
}

/// Sets of many ways: found by a hash, aged by the time of use and by a list. The list is in the order of the times that its
/// entries had when they were put into it; a use only changes the time, and whoever looks for the oldest entry moves those that were used
/// since.
#[derive(Clone, Debug)]
struct Listed {
    entries: Vec<ListedEntry>,
    /// The first entry of each hash value's chain.
    chains: Vec<u32>,
    /// The first and the last entry of each set's list.
    oldest: Vec<u32>,
    newest: Vec<u32>,
    ways: usize,
    now: u64,
}

#[derive(Clone, Copy, Debug)]
struct ListedEntry {
    group: u64,
    /// The next entry with this hash value.
    chain: u32,
    older: u32,
    newer: u32,
    set: u32,
    /// When it was used last; 0 for an empty one.
    used: u64,
    /// Of that, what its place in the list is by: never later than `used`.
    placed: u64,
}

impl Listed {
    fn new(sets: usize, ways: usize) -> Self {
        let link = |slot: usize| {
            let (set, way) = (slot / ways, slot % ways);
            let older = if way > 0 { slot as u32 - 1 } else { NONE };
            let newer = if way + 1 < ways { slot as u32 + 1 } else { NONE };
            ListedEntry { group: EMPTY, chain: NONE, older, newer, set: set as u32, used: 0, placed: 0 }
        };
        Self {
            entries: (0..sets * ways).map(link).collect(),
            chains: vec![NONE; (2 * sets * ways).next_power_of_two()],
            oldest: (0..sets).map(|set| (set * ways) as u32).collect(),
            newest: (0..sets).map(|set| (set * ways + ways - 1) as u32).collect(),
            ways,
            now: 0,
        }
    }

    fn chain_of(&self, group: u64) -> usize {
        // Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, 6.4).
        let hash = group.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        hash as usize & (self.chains.len() - 1)
    }

    fn slot(&self, group: u64) -> Option<u32> {
        let mut slot = self.chains[self.chain_of(group)];
        while slot != NONE && self.entries[slot as usize].group != group {
            slot = self.entries[slot as usize].chain;
        }
        (slot != NONE).then_some(slot)
    }

    #[inline]
    fn use_again(&mut self, slot: u32) {
        self.now += 1;
        self.entries[slot as usize].used = self.now;
    }

    /// The entry of `set` that was used longest ago.
    fn oldest(&mut self, set: usize) -> u32 {
        loop {
            let slot = self.oldest[set];
            let ListedEntry { used, placed, .. } = self.entries[slot as usize];
            // Nobody's time is before that of his place, and places are in order: so this one is the oldest.
            if used == placed {
                return slot;
            }
            self.place(slot);
        }
    }

    /// Moves an entry to its place in the order of times, which is nearer to the newest.
    fn place(&mut self, slot: u32) {
        let ListedEntry { used, set, .. } = self.entries[slot as usize];
        let set = set as usize;
        self.unlink(slot);
        let (mut before, mut after) = (self.newest[set], NONE);
        while before != NONE && self.entries[before as usize].placed > used {
            after = before;
            before = self.entries[before as usize].older;
        }
        self.entries[slot as usize].placed = used;
        self.join(set, before, slot);
        self.join(set, slot, after);
    }

    fn insert(&mut self, group: u64) -> (u32, u64) {
        let sets = self.oldest.len();
        let set = if sets == 1 { 0 } else { (group % sets as u64) as usize };
        let slot = self.oldest(set);
        let evicted = self.entries[slot as usize].group;
        if evicted != EMPTY {
            self.unchain(slot);
        }
        let chain = self.chain_of(group);
        self.entries[slot as usize].group = group;
        self.entries[slot as usize].chain = std::mem::replace(&mut self.chains[chain], slot);
        self.use_again(slot);
        self.place(slot);
        (slot, evicted)
    }

    /// Empties an entry, which is the next to be filled then.
    fn remove(&mut self, slot: u32) {
        self.unchain(slot);
        self.entries[slot as usize].group = EMPTY;
        (self.entries[slot as usize].used, self.entries[slot as usize].placed) = (0, 0);
        self.unlink(slot);
        let set = self.entries[slot as usize].set as usize;
        let after = self.oldest[set];
        self.join(set, NONE, slot);
        self.join(set, slot, after);
    }

    /// Takes an entry out of its set's list; sets have at least two entries.
    fn unlink(&mut self, slot: u32) {
        let ListedEntry { older, newer, set, .. } = self.entries[slot as usize];
        self.join(set as usize, older, newer);
    }

    /// Makes two entries neighbours; `NONE` is the end of the list on its side.
    fn join(&mut self, set: usize, older: u32, newer: u32) {
        match older {
            NONE => self.oldest[set] = newer,
            _ => self.entries[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest[set] = older,
            _ => self.entries[newer as usize].older = older,
        }
    }

    fn unchain(&mut self, slot: u32) {
        let ListedEntry { group, chain, .. } = self.entries[slot as usize];
        let first = self.chain_of(group);
        let mut before = self.chains[first];
        if before == slot {
            self.chains[first] = chain;
            return;
        }
        while before != NONE {
            let next = self.entries[before as usize].chain;
            if next == slot {
                self.entries[before as usize].chain = chain;
                return;
            }
            before = next;
        }
    }
}
