//! One TLB: which entries it holds, and which goes next.
//! Not what the entries map to: the page table knows that.
//! Source: exact LRU by time of use; maker's policies are seldom known.

/// No entry.
const EMPTY: u64 = u64::MAX;

/// One TLB. An entry stands for a group of neighbouring pages.
#[derive(Clone, Debug)]
pub(super) struct Buffer {
    /// The group of each entry, set after set.
    groups: Vec<u64>,
    /// When each was used last.
    used: Vec<u64>,
    ways: usize,
    sets: u64,
    /// Sets - 1 if that is a mask, else 0.
    set_mask: u64,
    group_shift: u32,
    now: u64,
}

impl Buffer {
    /// A TLB of `entries` entries in sets of `ways` (all in one if `None`), each for `pages` pages, rounded up to a power of two.
    pub(super) fn new(entries: u32, ways: Option<u32>, pages: u32) -> Self {
        let entries = entries.max(1) as usize;
        let ways = ways.map_or(entries, |w| (w as usize).clamp(1, entries));
        let sets = (entries / ways) as u64;
        Self {
            groups: vec![EMPTY; sets as usize * ways],
            used: vec![0; sets as usize * ways],
            ways,
            sets,
            set_mask: if sets.is_power_of_two() { sets - 1 } else { 0 },
            group_shift: pages.max(1).next_power_of_two().trailing_zeros(),
            now: 0,
        }
    }

    /// Notes that the entry in `slot` is used.
    #[inline]
    pub(super) fn use_again(&mut self, slot: u32) {
        self.now += 1;
        self.used[slot as usize] = self.now;
    }

    /// The slot of the entry for `key`, which is thereby used.
    pub(super) fn find(&mut self, key: u64) -> Option<u32> {
        let slot = self.slot(key)?;
        self.use_again(slot);
        Some(slot)
    }

    /// Puts in an entry that is not there; the group that had to go for it, if any.
    pub(super) fn insert(&mut self, key: u64) -> Option<u64> {
        let group = key >> self.group_shift;
        let first = self.first_of(group);
        // The oldest; empty slots were never used.
        let oldest = (first..first + self.ways).min_by_key(|slot| self.used[*slot])?;
        let evicted = std::mem::replace(&mut self.groups[oldest], group);
        self.use_again(oldest as u32);
        (evicted != EMPTY).then_some(evicted)
    }

    /// Takes the entry for `key` out; its group.
    pub(super) fn remove(&mut self, key: u64) -> Option<u64> {
        let slot = self.slot(key)? as usize;
        self.used[slot] = 0;
        Some(std::mem::replace(&mut self.groups[slot], EMPTY))
    }

    pub(super) fn clear(&mut self) {
        self.groups.fill(EMPTY);
        self.used.fill(0);
    }

    /// The keys of a group.
    pub(super) fn pages_of(&self, group: u64) -> std::ops::Range<u64> {
        let first = group << self.group_shift;
        first..first + (1 << self.group_shift)
    }

    fn slot(&self, key: u64) -> Option<u32> {
        let group = key >> self.group_shift;
        let first = self.first_of(group);
        let found = self.groups[first..first + self.ways].iter().position(|g| *g == group)?;
        Some((first + found) as u32)
    }

    fn first_of(&self, group: u64) -> usize {
        let set = if self.set_mask > 0 { group & self.set_mask } else { group % self.sets };
        set as usize * self.ways
    }
}
