//! One TLB: its entries and their replacement, which is exact LRU. Vendors rarely publish their policy.

/// Marks the end of a chain.
const NONE: u32 = u32::MAX;
const EMPTY: u64 = u64::MAX;

/// Sets with more ways than this use a hash table instead of a scan.
const MAX_SCANNED_WAYS: usize = 16;

/// One TLB. An entry covers a group of adjacent pages.
#[derive(Clone, Debug)]
pub(super) struct Buffer {
    group_shift: u32,
    entries: Entries,
}

/// The data structure for lookups and ages.
#[derive(Clone, Debug)]
enum Entries {
    Scanned(Scanned),
    Hashed(Hashed),
}

impl Buffer {
    /// Creates a TLB of `entries` entries in sets of `ways` (fully associative if `None`). Each entry covers `pages`
    /// pages, rounded up to a power of two.
    pub(super) fn new(entries: u32, ways: Option<u32>, pages: u32) -> Self {
        let entries = entries.max(1) as usize;
        let ways = ways.map_or(entries, |w| (w as usize).clamp(1, entries));
        let group_shift = pages.max(1).next_power_of_two().trailing_zeros();
        let entries = match ways {
            ..=MAX_SCANNED_WAYS => Entries::Scanned(Scanned::new(entries / ways, ways)),
            _ => Entries::Hashed(Hashed::new(entries / ways, ways)),
        };
        Self { group_shift, entries }
    }

    /// Records a use of the entry in `slot`.
    #[inline]
    pub(super) fn use_again(&mut self, slot: u32) {
        match &mut self.entries {
            Entries::Scanned(entries) => entries.use_again(slot),
            Entries::Hashed(entries) => entries.use_again(slot),
        }
    }

    /// Looks up `key` and records the use. Returns its slot.
    pub(super) fn find(&mut self, key: u64) -> Option<u32> {
        let slot = self.slot(key)?;
        self.use_again(slot);
        Some(slot)
    }

    /// Returns whether there is an entry for `key`.
    pub(super) fn has(&self, key: u64) -> bool {
        self.slot(key).is_some()
    }

    /// Inserts an entry that is not present. Returns its slot, and the group that was evicted, if any.
    pub(super) fn insert(&mut self, key: u64) -> (u32, Option<u64>) {
        let group = key >> self.group_shift;
        let (slot, evicted) = match &mut self.entries {
            Entries::Scanned(entries) => entries.insert(group),
            Entries::Hashed(entries) => entries.insert(group),
        };
        (slot, (evicted != EMPTY).then_some(evicted))
    }

    /// Removes the entry for `key` and returns its group.
    pub(super) fn remove(&mut self, key: u64) -> Option<u64> {
        let slot = self.slot(key)?;
        match &mut self.entries {
            Entries::Scanned(entries) => entries.remove(slot),
            Entries::Hashed(entries) => entries.remove(slot),
        }
        Some(key >> self.group_shift)
    }

    pub(super) fn clear(&mut self) {
        match &mut self.entries {
            Entries::Scanned(entries) => *entries = Scanned::new(entries.sets as usize, entries.ways),
            Entries::Hashed(entries) => *entries = Hashed::new(entries.sets.len(), entries.ways),
        }
    }

    /// The pages of a group.
    pub(super) fn pages_of(&self, group: u64) -> std::ops::Range<u64> {
        let first = group << self.group_shift;
        first..first + (1 << self.group_shift)
    }

    fn slot(&self, key: u64) -> Option<u32> {
        let group = key >> self.group_shift;
        match &self.entries {
            Entries::Scanned(entries) => entries.slot(group),
            Entries::Hashed(entries) => entries.slot(group),
        }
    }
}

/// Sets with few ways: lookup and victim selection scan the set.
#[derive(Clone, Debug)]
struct Scanned {
    /// The group of each entry, set by set.
    groups: Vec<u64>,
    /// Time of the last use of each entry; 0 for an empty one.
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
        let position = self.groups[first..first + self.ways].iter().position(|g| *g == group)?;
        Some((first + position) as u32)
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

/// Sets with many ways: lookup by hash table, victim by time of last use. Each set keeps its entries sorted by the time
/// of last use as of `ordered_at`. Entries used since then are younger than all others, so the LRU entry is the next in
/// this order that has not been used since. When all entries of this order have been examined, the entries are sorted
/// again.
#[derive(Clone, Debug)]
struct Hashed {
    entries: Vec<ListedEntry>,
    /// First entry of each hash chain.
    chains: Vec<u32>,
    sets: Vec<ListedSet>,
    ways: usize,
    now: u64,
}

#[derive(Clone, Copy, Debug)]
struct ListedEntry {
    group: u64,
    /// Next entry of the hash chain.
    chain: u32,
    /// Time of the last use.
    used: u64,
}

#[derive(Clone, Debug)]
struct ListedSet {
    /// Empty entries; the last of them is filled next.
    empty: Vec<u32>,
    /// The other entries, sorted by last use as of `ordered_at`. Entries before `next` have been examined.
    order: Vec<u32>,
    next: usize,
    ordered_at: u64,
}

impl Hashed {
    fn new(sets: usize, ways: usize) -> Self {
        let slots = |set: usize| (set * ways) as u32..((set + 1) * ways) as u32;
        let set = |set| ListedSet {
            empty: slots(set).rev().collect(),
            order: Vec::with_capacity(ways),
            next: 0,
            ordered_at: 0,
        };
        Self {
            entries: vec![ListedEntry { group: EMPTY, chain: NONE, used: 0 }; sets * ways],
            chains: vec![NONE; (2 * sets * ways).next_power_of_two()],
            sets: (0..sets).map(set).collect(),
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

    /// Returns an empty entry of set `number`, or its LRU entry, removed from the order.
    fn oldest(&mut self, number: usize) -> u32 {
        let Self { entries, sets, ways, now, .. } = self;
        let set = &mut sets[number];
        if let Some(slot) = set.empty.pop() {
            return slot;
        }
        loop {
            while let Some(slot) = set.order.get(set.next).copied() {
                set.next += 1;
                let entry = &entries[slot as usize];
                if entry.used <= set.ordered_at && entry.group != EMPTY {
                    return slot;
                }
            }
            set.order.clear();
            set.order.extend((number * *ways) as u32..((number + 1) * *ways) as u32);
            set.order.sort_unstable_by_key(|slot| entries[*slot as usize].used);
            (set.next, set.ordered_at) = (0, *now);
        }
    }

    fn set_of(&self, group: u64) -> usize {
        let sets = self.sets.len();
        if sets == 1 { 0 } else { (group % sets as u64) as usize }
    }

    fn insert(&mut self, group: u64) -> (u32, u64) {
        let slot = self.oldest(self.set_of(group));
        let evicted = self.entries[slot as usize].group;
        if evicted != EMPTY {
            self.unchain(slot);
        }
        let chain = self.chain_of(group);
        self.entries[slot as usize].group = group;
        self.entries[slot as usize].chain = std::mem::replace(&mut self.chains[chain], slot);
        self.use_again(slot);
        (slot, evicted)
    }

    /// Removes an entry; it is the next to be filled.
    fn remove(&mut self, slot: u32) {
        self.unchain(slot);
        self.entries[slot as usize].group = EMPTY;
        let set = slot as usize / self.ways;
        self.sets[set].empty.push(slot);
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
