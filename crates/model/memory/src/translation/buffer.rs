//! One TLB: which entries it holds, and which goes next.
//! Not what the entries map to: the page table knows that.
//! Source: exact LRU by order of use; makers seldom say what they do.

/// No entry.
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
            Entries::Listed(entries) => *entries = Listed::new(entries.sets.len(), entries.ways),
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

/// Sets of many ways: found by a hash, aged by the time of use. A set's entries are put into the order of their times now and then: until
/// then, whichever was used since comes behind all that were not, so the oldest is the next of the order that was not used.
#[derive(Clone, Debug)]
struct Listed {
    entries: Vec<ListedEntry>,
    /// The first entry of each hash value's chain.
    chains: Vec<u32>,
    sets: Vec<ListedSet>,
    ways: usize,
    now: u64,
}

#[derive(Clone, Copy, Debug)]
struct ListedEntry {
    group: u64,
    /// The next entry with this hash value.
    chain: u32,
    /// When it was used last.
    used: u64,
}

#[derive(Clone, Debug)]
struct ListedSet {
    /// Entries that hold nothing; the last is the next to be filled.
    empty: Vec<u32>,
    /// The others in the order of their times as they were at `ordered_at`, those still to be looked at from `next` on.
    order: Vec<u32>,
    next: usize,
    ordered_at: u64,
}

impl Listed {
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

    /// An empty entry of the set numbered `number`, or the one that was used longest ago. It is no longer in the order.
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

    /// Empties an entry, which is the next to be filled then.
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
