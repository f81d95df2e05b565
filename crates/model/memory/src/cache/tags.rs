//! The tag array of a cache. It is packed so that a lookup touches few cache lines of the host.

use super::{Index, Line, Origin, Policy};
use crate::host;
use longma_plugin::{CacheAccess, PluginError};

/// State bits of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u8);

impl Flags {
    /// No other cache holds the line, so it can be written without a request (E or M of MESI; without this flag, S).
    pub const WRITABLE: Self = Self(1);
    /// The line is newer than the copy in the level below (M of MESI, together with `WRITABLE`).
    pub const DIRTY: Self = Self(1 << 1);
    /// The line is inside a lock window and must not be evicted.
    pub const LOCKED: Self = Self(1 << 2);
    /// Fetched by a prefetcher and not yet used by a demand access.
    pub const PREFETCHED: Self = Self(1 << 3);
    /// Written by a device and not yet used by a core.
    pub const DEVICE: Self = Self(1 << 4);
    /// In a directory: the only sharer may have modified the line.
    pub const OWNED: Self = Self(1 << 5);
    /// A clean, shared line.
    pub const NONE: Self = Self(0);

    /// Returns whether every flag of `other` is set.
    #[inline]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union with the flags of `other`.
    #[inline]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns these flags without those of `other`.
    #[inline]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns these flags if `condition` holds, otherwise none.
    #[inline]
    pub const fn when(self, condition: bool) -> Self {
        if condition { self } else { Self::NONE }
    }

    /// Returns only the coherence state: `WRITABLE` and `DIRTY`.
    #[inline]
    pub const fn state(self) -> Self {
        Self(self.0 & (Self::WRITABLE.0 | Self::DIRTY.0))
    }
}

/// The position of a line in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    set: u32,
    way: u32,
}

impl Slot {
    /// The set number.
    pub const fn set(self) -> usize {
        self.set as usize
    }
}

/// A line evicted by a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evicted {
    /// The line number.
    pub line: Line,
    /// Its flags.
    pub flags: Flags,
    /// The cores that held it according to the directory in the tags, one bit each.
    pub sharers: u64,
}

/// Maximum number of sharers that fit into a line's word. Caches below more cores keep the sharers in a separate array.
const NARROW: u32 = 12;
const LINE_SHIFT: u32 = 20;
const SHARER_SHIFT: u32 = 8;
const SHARER_MASK: u64 = ((1 << NARROW) - 1) << SHARER_SHIFT;

/// Assumed cache line length of the host. Affects only performance.
const HOST_LINE_BYTES: usize = 64;

/// Sets of at most this many ways are compared word by word; larger sets compare digests first.
const FEW_WAYS: usize = 4;

/// Number of digests compared at a time.
const LANES: usize = 8;

/// An access as plug-ins observe it.
fn access(set: usize, line: Line, Origin { instruction, kind }: Origin) -> CacheAccess {
    CacheAccess { set: set as u32, line: line.0, instruction, kind }
}

/// A 16-bit hash of the line number. Never 0, which marks an empty way. Equal lines have equal digests.
#[inline]
fn digest(line: Line) -> u16 {
    ((line.hash() >> 48) as u16).max(1)
}

/// Maximum number of ways of a set: a mask of ways is one word.
pub(crate) const MAX_WAYS: u64 = 64;

/// The tags of one cache.
///
/// Each line is one word: flags in bits 7:0, sharers in bits 19:8, and the line number plus one above them. An empty
/// way is 0 and never matches. A separate array holds a 16-bit digest for each way, so that a lookup that misses rarely
/// reads a word.
#[derive(Debug)]
pub(crate) struct Tags {
    index: Index,
    ways: usize,
    /// Length of a set in `ages`, a power of two because tree PLRU needs one.
    stride: usize,
    words: Vec<u64>,
    /// Digests of all sets, each set padded to whole groups of [`LANES`]; empty for caches with few ways.
    digests: Vec<[u16; LANES]>,
    /// Groups of digests of a set.
    groups: usize,
    ages: Vec<u8>,
    wide_sharers: Vec<u64>,
    policy: Policy,
    random: u64,
}

impl Tags {
    /// Creates an empty cache of `ways` ways (at most 64) with a directory for `sharers` cores. `seed` affects only
    /// random replacement.
    pub fn new(index: Index, ways: usize, policy: Policy, sharers: usize, seed: u64) -> Self {
        let stride = ways.next_power_of_two();
        let lines = index.sets() * ways;
        let mut ages = vec![0; index.sets() * stride];
        ages.chunks_mut(stride).for_each(|set| policy.reset(set, ways));
        let wide_sharers = if sharers > NARROW as usize { vec![0; lines] } else { Vec::new() };
        // The generator's state must not be 0, its fixed point.
        let random = Line(seed).hash() | 1;
        let groups = if ways > FEW_WAYS { ways.div_ceil(LANES) } else { 0 };
        let digests = vec![[0; LANES]; index.sets() * groups];
        Self {
            index,
            ways,
            stride,
            words: vec![0; lines],
            digests,
            groups,
            ages,
            wide_sharers,
            policy,
            random,
        }
    }

    /// The index function.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The mask of all ways.
    pub fn all_ways(&self) -> u64 {
        u64::MAX >> (u64::BITS as usize - self.ways)
    }

    #[inline]
    fn at(&self, slot: Slot) -> usize {
        slot.set as usize * self.ways + slot.way as usize
    }

    /// Returns the slot's index in this cache: unique, and less than [`len`](Self::len).
    #[inline]
    pub fn number(&self, slot: Slot) -> usize {
        self.at(slot)
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Prefetches the set of `line` into the host's caches: the tags of a large cache rarely fit into them.
    #[inline]
    pub fn prefetch_host(&self, line: Line) {
        let set = self.index.set(line);
        let words = &self.words[set * self.ways..(set + 1) * self.ways];
        words.chunks(HOST_LINE_BYTES / size_of::<u64>()).for_each(|line| host::prefetch(&line[0]));
        host::prefetch(&self.ages[set * self.stride]);
        if self.groups > 0 {
            host::prefetch(&self.digests[set * self.groups]);
        }
    }

    /// Returns the mask of ways in `set` whose digest is `digest`. Only for caches that keep digests.
    #[inline]
    fn ways_with_digest(&self, set: usize, digest: u16) -> u64 {
        let groups = &self.digests[set * self.groups..(set + 1) * self.groups];
        groups.iter().enumerate().fold(0, |ways, (n, group)| ways | host::equal(group, digest) << (n * LANES))
    }

    #[inline]
    fn set_digest(&mut self, set: usize, way: usize, digest: u16) {
        if self.groups > 0 {
            self.digests[set * self.groups + way / LANES][way % LANES] = digest;
        }
    }

    /// Looks up `line`.
    #[inline]
    pub fn find(&self, line: Line) -> Option<Slot> {
        let set = self.index.set(line);
        let from = set * self.ways;
        let tag = line.0 + 1;
        let words = &self.words[from..from + self.ways];
        let is = |word: &u64| word >> LINE_SHIFT == tag;
        let way = match words {
            // Branchless: a branch for each way would cost the host more than the comparisons.
            [a, b, c, d] => {
                let ways =
                    u32::from(is(a)) | u32::from(is(b)) << 1 | u32::from(is(c)) << 2 | u32::from(is(d)) << 3;
                (ways != 0).then(|| ways.trailing_zeros() as usize)
            }
            words if self.groups == 0 => words.iter().position(is),
            words => {
                let mut ways = self.ways_with_digest(set, digest(line));
                loop {
                    let way = ways.trailing_zeros() as usize;
                    match words.get(way) {
                        None => break None,
                        Some(word) if is(word) => break Some(way),
                        Some(_) => ways &= ways - 1,
                    }
                }
            }
        };
        way.map(|way| Slot { set: set as u32, way: way as u32 })
    }

    /// The flags of the line in `slot`.
    #[inline]
    pub fn flags(&self, slot: Slot) -> Flags {
        Flags(self.words[self.at(slot)] as u8)
    }

    /// Changes the flags of the line in `slot`.
    #[inline]
    pub fn set_flags(&mut self, slot: Slot, flags: Flags) {
        let at = self.at(slot);
        self.words[at] = self.words[at] & !0xff | u64::from(flags.0);
    }

    /// Adds flags to the line in `slot`.
    #[inline]
    pub fn add_flags(&mut self, slot: Slot, flags: Flags) {
        self.set_flags(slot, self.flags(slot).with(flags));
    }

    /// The cores that may hold the line in `slot`, one bit each.
    #[inline]
    pub fn sharers(&self, slot: Slot) -> u64 {
        let at = self.at(slot);
        if self.wide_sharers.is_empty() {
            (self.words[at] & SHARER_MASK) >> SHARER_SHIFT
        } else {
            self.wide_sharers[at]
        }
    }

    /// Sets the cores that may hold the line in `slot`.
    #[inline]
    pub fn set_sharers(&mut self, slot: Slot, sharers: u64) {
        let at = self.at(slot);
        if self.wide_sharers.is_empty() {
            self.words[at] = self.words[at] & !SHARER_MASK | sharers << SHARER_SHIFT;
        } else {
            self.wide_sharers[at] = sharers;
        }
    }

    /// Why the replacement policy has failed; `None` if it has not.
    pub fn failure(&self) -> Option<&PluginError> {
        self.policy.failure()
    }

    /// Records a use of the line in `slot` for the replacement policy.
    #[inline]
    pub fn touch(&mut self, slot: Slot, origin: Origin) {
        if let Policy::Plugin(_) = self.policy {
            return self.touch_plugin(slot, origin);
        }
        let from = slot.set as usize * self.stride;
        self.policy.touched(&mut self.ages[from..from + self.stride], slot.way as usize);
    }

    #[cold]
    #[inline(never)]
    fn touch_plugin(&mut self, slot: Slot, origin: Origin) {
        let line = Line((self.words[self.at(slot)] >> LINE_SHIFT) - 1);
        if let Policy::Plugin(plugin) = &mut self.policy {
            plugin.used(slot.way, access(slot.set as usize, line, origin));
        }
    }

    /// Inserts `line`, which must not be present, into one of the ways in `allowed`. Returns its slot and the line
    /// evicted for it, or `None` if `allowed` is empty.
    pub fn insert(
        &mut self,
        line: Line,
        flags: Flags,
        allowed: u64,
        origin: Origin,
    ) -> Option<(Slot, Option<Evicted>)> {
        let set = self.index.set(line);
        let from = set * self.ways;
        let allowed = allowed & self.all_ways();
        if allowed == 0 {
            return None;
        }
        let empty = self.empty_ways(set) & allowed;
        let ages = &mut self.ages[set * self.stride..(set + 1) * self.stride];
        let way = match (empty, &mut self.policy) {
            (0, Policy::Plugin(plugin)) => plugin.victim(allowed, access(set, line, origin)) as usize,
            (0, policy) => policy.victim(&mut ages[..], self.ways, allowed, &mut self.random),
            _ => empty.trailing_zeros() as usize,
        };
        match &mut self.policy {
            Policy::Plugin(plugin) => plugin.filled(way as u32, access(set, line, origin)),
            policy => policy.filled(ages, way),
        }
        self.set_digest(set, way, digest(line));
        let tag = (line.0 + 1) << LINE_SHIFT | u64::from(flags.0);
        let word = std::mem::replace(&mut self.words[from + way], tag);
        let slot = Slot { set: set as u32, way: way as u32 };
        let mut sharers = (word & SHARER_MASK) >> SHARER_SHIFT;
        if !self.wide_sharers.is_empty() {
            sharers = std::mem::take(&mut self.wide_sharers[from + way]);
        }
        let evicted = (word != 0).then(|| Evicted {
            line: Line((word >> LINE_SHIFT) - 1),
            flags: Flags(word as u8),
            sharers,
        });
        Some((slot, evicted))
    }

    /// Returns the mask of empty ways of `set`. Bits beyond the last way may be set too.
    #[inline]
    fn empty_ways(&self, set: usize) -> u64 {
        if self.groups > 0 {
            return self.ways_with_digest(set, 0);
        }
        let words = &self.words[set * self.ways..(set + 1) * self.ways];
        words.iter().enumerate().fold(0, |ways, (way, word)| ways | u64::from(*word == 0) << way)
    }

    /// Removes the line in `slot` and returns its flags.
    pub fn remove(&mut self, slot: Slot) -> Flags {
        let at = self.at(slot);
        if let Policy::Plugin(plugin) = &mut self.policy {
            plugin.removed(slot.set, slot.way);
        }
        self.set_digest(slot.set as usize, slot.way as usize, 0);
        if !self.wide_sharers.is_empty() {
            self.wide_sharers[at] = 0;
        }
        Flags(std::mem::take(&mut self.words[at]) as u8)
    }

    /// Returns the mask of ways with locked lines in the set of `line`.
    pub fn locked_ways(&self, line: Line) -> u64 {
        let from = self.index.set(line) * self.ways;
        let locked = |word: &u64| Flags(*word as u8).has(Flags::LOCKED) && *word != 0;
        let words = self.words[from..from + self.ways].iter().enumerate();
        words.filter(|(_, word)| locked(word)).fold(0, |mask, (way, _)| mask | 1 << way)
    }

    /// Iterates over all valid lines, set by set.
    pub fn lines(&self) -> impl Iterator<Item = (Line, Slot)> + '_ {
        let filled = self.words.iter().enumerate().filter(|(_, word)| **word != 0);
        filled.map(|(at, word)| {
            let slot = Slot { set: (at / self.ways) as u32, way: (at % self.ways) as u32 };
            (Line((word >> LINE_SHIFT) - 1), slot)
        })
    }
}
