//! TAGE predictor: tagged tables indexed by histories of increasing length. The matching entry with the longest history
//! provides the prediction. Unlike TAGE-SC-L, it has no statistical corrector and no loop predictor.
//!
//! Source: Seznec and Michaud, A Case for (Partially) Tagged Geometric History Length Branch Prediction (JILP 8, 2006).

use std::hint::select_unpredictable;

use super::{Counters, Predict, ResolvedBranch};

/// Number of tagged tables.
const TABLES: usize = 6;
/// Shortest history of a tagged table, branches (the paper's five to eight components start at 2 to 5).
const MIN_HISTORY: f64 = 4.0;
/// Default length of the longest history. The paper uses 200 for its eight-component predictor; here it is limited to
/// 128.
const DEFAULT_HISTORY_BITS: u32 = 128;
/// Maximum history length.
const MAX_HISTORY_BITS: u32 = 128;
/// Bits of a tag (the paper's: 8 to 11).
const TAG_BITS: u32 = 10;
/// Maximum number of counters: an index into a table must fit into a lane.
pub(super) const MAX_ENTRIES: u32 = 8 << LANE_BITS;
/// Usable bits of a lane.
const LANE_BITS: u32 = u16::BITS - 1;
/// Branches between two agings of the useful counters (256 K in the paper).
const AGING_PERIOD: u32 = 256 * 1024;

/// An entry of a tagged table: tag in bits 9:0, three-bit counter in bits 12:10 (4 to 7 mean taken), two-bit useful
/// counter in bits 14:13. Small, so that all tables fit into the host's first-level cache.
#[derive(Clone, Copy, Debug)]
struct Entry(u16);

/// Counters are 0 to 7 instead of the paper's -4 to 3.
const WEAKLY_TAKEN: u32 = 4;
const TAG_MASK: u32 = (1 << TAG_BITS) - 1;
const COUNTER_SHIFT: u32 = TAG_BITS;
const USEFUL_SHIFT: u32 = COUNTER_SHIFT + 3;

impl Entry {
    /// An unused entry; its counter is the paper's 0.
    const EMPTY: Self = Self::new(0, WEAKLY_TAKEN, 0);

    const fn new(tag: u32, counter: u32, useful: u32) -> Self {
        Self((tag | counter << COUNTER_SHIFT | useful << USEFUL_SHIFT) as u16)
    }

    fn tag(self) -> u32 {
        u32::from(self.0) & TAG_MASK
    }

    fn counter(self) -> u32 {
        u32::from(self.0) >> COUNTER_SHIFT & 7
    }

    fn taken(self) -> bool {
        self.counter() >= WEAKLY_TAKEN
    }

    fn useful(self) -> u32 {
        u32::from(self.0) >> USEFUL_SHIFT
    }

    /// Returns the trained entry after its branch was `taken`. If it and its alternative `differ`, the useful counter
    /// goes up if the entry was `right` and down otherwise.
    #[inline(always)]
    fn learnt(self, taken: bool, differ: bool, right: bool) -> Self {
        let state = usize::from(self.0 >> COUNTER_SHIFT);
        let event = usize::from(taken) | usize::from(differ) << 1 | usize::from(right) << 2;
        Self(self.0 & TAG_MASK as u16 | LEARNT[(state << 3 | event) % LEARNT.len()])
    }

    /// Returns whether the entry is new and not yet confident.
    #[inline(always)]
    fn is_weak(self) -> bool {
        self.useful() == 0 && matches!(self.counter(), 3 | 4)
    }
}

/// Moves a counter with maximum `max` by one step, saturating.
const fn step(counter: u32, max: u32, up: bool) -> u32 {
    match up {
        true if counter < max => counter + 1,
        false if counter > 0 => counter - 1,
        _ => counter,
    }
}

/// The trained counters for each state and each event of [`Entry::learnt`], as a table, because branches and
/// comparisons would take the host longer.
static LEARNT: [u16; 32 << 3] = {
    let mut table = [0; 32 << 3];
    let mut at = 0;
    while at < table.len() {
        let (taken, differ, right) = (at & 1 != 0, at & 2 != 0, at & 4 != 0);
        let (counter, useful) = (at as u32 >> 3 & 7, at as u32 >> 6);
        let useful = if differ { step(useful, 3, right) } else { useful };
        table[at] = Entry::new(0, step(counter, 7, taken), useful).0;
        at += 1;
    }
    table
};

/// Lanes of the arrays with one value per tagged table: a power of two, for vectorization.
const LANES: usize = 8;
type Lanes = [u16; LANES];

/// The histories of all tables, each folded to a few bits by XOR and updated incrementally with every branch.
#[derive(Clone, Copy, Debug)]
struct Folded {
    values: Lanes,
    bits: u32,
    /// For each history, the bit at which its oldest outcome leaves.
    out: Lanes,
}

impl Folded {
    fn new(history_bits: &[u32; LANES], bits: u32) -> Self {
        let mut result = [0; LANES];
        result.iter_mut().zip(history_bits).for_each(|(result, n)| *result = 1 << (n % bits));
        Self { values: [0; LANES], bits, out: result }
    }

    /// Adds an outcome. `leaving` is all ones for each history whose leaving outcome was taken.
    #[inline(always)]
    fn push(&mut self, newest: u16, leaving: &Lanes) {
        let mask = ((1u32 << self.bits) - 1) as u16;
        let highest = self.bits - 1;
        for (lane, leaving) in leaving.iter().enumerate() {
            // A left shift would lose the highest of 16 bits, so it is a rotation.
            let value = self.values[lane];
            let rotated = (value << 1 | value >> highest) & mask;
            self.values[lane] = rotated ^ newest ^ (self.out[lane] & leaving);
        }
    }
}

/// A ring of the last outcomes, all ones for taken. The ring is stored twice, one copy after the other, so that reads
/// need no wraparound.
#[derive(Clone, Debug)]
struct History {
    rings: [u16; 2 * RING],
    newest: usize,
}

const RING: usize = MAX_HISTORY_BITS as usize;

impl History {
    const EMPTY: Self = Self { rings: [0; _], newest: 0 };

    #[inline(always)]
    fn push(&mut self, taken: bool) {
        self.newest = self.newest.wrapping_sub(1) % RING;
        let mask = 0u16.wrapping_sub(taken.into());
        self.rings[self.newest] = mask;
        self.rings[self.newest + RING] = mask;
    }

    /// For each lane, all ones if the branch `ago` branches ago (counted from 1) was taken.
    #[inline(always)]
    fn masks_of(&self, ago: &[u8; LANES]) -> Lanes {
        let mut masks = [0; LANES];
        let recent = &self.rings[self.newest % RING..][..RING];
        for lane in 0..LANES {
            masks[lane] = recent[usize::from(ago[lane] - 1) % RING];
        }
        masks
    }
}

/// A TAGE predictor.
#[derive(Debug)]
pub(super) struct Tage {
    base: Counters,
    /// All tables one after another, followed by a dummy entry that no lookup matches. Training writes to it when no
    /// table matches.
    entries: Box<[Entry]>,
    size: usize,
    history_bits: [u8; LANES],
    index: Folded,
    tag: [Folded; 2],
    history: History,
    /// If not negative, the alternative prediction is more reliable than that of a new, weak entry.
    use_alternative: i8,
    branches: u32,
    random: u32,
}

/// The key of a lookup: the position in each table and the tag there.
struct LookupKey {
    positions: Lanes,
    tags: Lanes,
}

/// An entry and its index in one word, so that the host selects both at once.
#[derive(Clone, Copy, Debug)]
struct IndexedEntry(u64);

impl IndexedEntry {
    #[inline(always)]
    fn new(index: usize, entry: Entry) -> Self {
        Self((index as u64) << 16 | u64::from(entry.0))
    }

    #[inline(always)]
    fn entry(self) -> Entry {
        Entry(self.0 as u16)
    }

    #[inline(always)]
    fn index(self) -> usize {
        (self.0 >> 16) as usize
    }
}

/// The result of a lookup. If no table matches, both entries represent the base predictor.
struct Lookup {
    /// The matching entry with the longest history.
    provider: IndexedEntry,
    provider_taken: bool,
    /// Prediction of the matching entry with the next shorter history.
    alternative_taken: bool,
    weak: bool,
    predicted: bool,
}

impl Tage {
    /// Creates a predictor with `entries` counters in total, at most [`MAX_ENTRIES`]: a quarter in the base predictor,
    /// the rest in the tagged tables.
    pub fn new(entries: u32, history_bits: Option<u32>) -> Self {
        let longest = history_bits.unwrap_or(DEFAULT_HISTORY_BITS).clamp(8, MAX_HISTORY_BITS);
        let size = 1usize << (entries / 8).max(2).ilog2().min(LANE_BITS);
        let ratio = (f64::from(longest) / MIN_HISTORY).powf(1.0 / (TABLES - 1) as f64);
        let history_bits: [u32; LANES] =
            std::array::from_fn(|i| ((MIN_HISTORY * ratio.powi(i as i32)).round() as u32).min(longest));
        Self {
            base: Counters::new(entries / 4),
            entries: vec![Entry::EMPTY; TABLES * size + 1].into(),
            size,
            index: Folded::new(&history_bits, size.ilog2()),
            tag: [Folded::new(&history_bits, TAG_BITS), Folded::new(&history_bits, TAG_BITS - 1)],
            history_bits: history_bits.map(|bits| bits as u8),
            history: History::EMPTY,
            use_alternative: 0,
            branches: 0,
            random: 0x2545_f491,
        }
    }

    #[inline(always)]
    fn key(&self, address: u64) -> LookupKey {
        let address = (address >> 2) as u32;
        let hash = (address ^ address >> self.index.bits) as u16;
        let (mut positions, mut tags) = ([0; LANES], [0; LANES]);
        let last = (self.size - 1) as u16;
        for lane in 0..LANES {
            positions[lane] = (hash ^ self.index.values[lane]) & last;
            let tag = address as u16 ^ self.tag[0].values[lane] ^ self.tag[1].values[lane] << 1;
            tags[lane] = tag & TAG_MASK as u16;
        }
        LookupKey { positions, tags }
    }

    /// The index of a branch's entry in `table`.
    #[inline(always)]
    fn index(&self, key: &LookupKey, table: usize) -> usize {
        table * self.size + usize::from(key.positions[table])
    }

    #[inline(always)]
    fn lookup(&self, address: u64) -> Lookup {
        let key = self.key(address);
        let counter = if self.base.predicts_taken(address >> 2) { WEAKLY_TAKEN } else { WEAKLY_TAKEN - 1 };
        let base = IndexedEntry::new(self.entries.len() - 1, Entry::new(0, counter, 0));
        let (mut provider, mut alternative) = (base, base);
        // A chain of conditional moves instead of branches: the host cannot predict which tables match, and the
        // training depends only on their result.
        for table in 0..TABLES {
            let index = self.index(&key, table);
            let entry = self.entries[index];
            let knows = entry.tag() == u32::from(key.tags[table]);
            alternative = select_unpredictable(knows, provider, alternative);
            provider = select_unpredictable(knows, IndexedEntry::new(index, entry), provider);
        }
        let provider_taken = provider.entry().taken();
        let alternative_taken = alternative.entry().taken();
        let weak = provider.entry().is_weak();
        let use_alternative = weak & (self.use_alternative >= 0);
        let predicted = select_unpredictable(use_alternative, alternative_taken, provider_taken);
        Lookup { provider, provider_taken, alternative_taken, weak, predicted }
    }

    #[inline(always)]
    fn learn(&mut self, lookup: &Lookup, outcome: ResolvedBranch) {
        let taken = outcome.taken;
        let right = lookup.provider_taken == taken;
        let differ = lookup.provider_taken != lookup.alternative_taken;
        let learnt = lookup.provider.entry().learnt(taken, differ, right);
        // If no table matches, this is the dummy entry.
        self.entries[lookup.provider.index()] = learnt;
        if differ && lookup.weak {
            self.use_alternative = (self.use_alternative + if right { -1 } else { 1 }).clamp(-8, 7);
        }
        // An entry that has not proved useful may be replaced, so keep its replacement, the base prediction, up to
        // date.
        self.base.learn_if(learnt.useful() == 0, outcome.address >> 2, taken);
        if lookup.predicted != taken && !(lookup.weak && right) {
            self.allocate(lookup.provider.index(), outcome);
        }
        self.branches += 1;
        if self.branches == AGING_PERIOD {
            self.age();
        }
    }

    /// Allocates an entry for the branch in one table with a longer history than that of the entry at `provider`.
    #[cold]
    fn allocate(&mut self, provider: usize, outcome: ResolvedBranch) {
        let key = self.key(outcome.address);
        let (size, none) = (self.size, self.entries.len() - 1);
        let longer = |table: &usize| provider == none || *table > provider / size;
        let useless = |table: &usize| self.entries[self.index(&key, *table)].useful() == 0;
        let mut free = (0..TABLES).filter(longer).filter(useless).fold(0u32, |free, table| free | 1 << table);
        if free == 0 {
            for table in (0..TABLES).filter(longer) {
                let index = self.index(&key, table);
                self.entries[index].0 -= 1 << USEFUL_SHIFT;
            }
            return;
        }
        // Shorter histories are twice as likely to be chosen, so that one branch does not fill every table at once.
        while self.next_random() & 1 == 0 && free & (free - 1) != 0 {
            free &= free - 1;
        }
        let table = free.trailing_zeros() as usize;
        let counter = if outcome.taken { WEAKLY_TAKEN } else { WEAKLY_TAKEN - 1 };
        let index = self.index(&key, table);
        self.entries[index] = Entry::new(key.tags[table].into(), counter, 0);
    }

    #[cold]
    fn age(&mut self) {
        self.branches = 0;
        self.entries.iter_mut().for_each(|e| *e = Entry::new(e.tag(), e.counter(), e.useful() >> 1));
    }

    /// Xorshift (Marsaglia, 2003) from a fixed seed, for reproducible runs.
    fn next_random(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random
    }

    #[inline(always)]
    fn remember(&mut self, taken: bool) {
        let leaving = self.history.masks_of(&self.history_bits);
        self.index.push(taken.into(), &leaving);
        self.tag[0].push(taken.into(), &leaving);
        self.tag[1].push(taken.into(), &leaving);
        self.history.push(taken);
    }
}

impl Predict for Tage {
    fn resolve(&mut self, outcome: ResolvedBranch) -> bool {
        let lookup = self.lookup(outcome.address);
        self.learn(&lookup, outcome);
        self.remember(outcome.taken);
        lookup.predicted
    }
}
