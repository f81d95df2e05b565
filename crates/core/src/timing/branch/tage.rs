//! Tables with tags, indexed by ever longer histories; the longest that knows the branch predicts.
//! Not TAGE-SC-L: no statistical corrector and no loop predictor.
//! Source: Seznec and Michaud, A Case for (Partially) Tagged Geometric History Length Branch Prediction (JILP 8, 2006).

use super::{Counters, Outcome, Predict};

/// Tagged tables.
const TABLES: usize = 6;
/// The shortest history of a tagged table, branches (the paper's five to eight components start at 2 to 5).
const SHORTEST_HISTORY: f64 = 4.0;
/// The longest history if the machine file does not say: the paper's for its eight-component predictor is 200; one word's here.
const DEFAULT_HISTORY_BITS: u32 = 128;
/// The longest history that is kept.
const MOST_HISTORY_BITS: u32 = 128;
/// Bits of a tag (the paper's: 8 to 11).
const TAG_BITS: u32 = 10;
/// Branches between two agings of the useful counters (the paper's 256 K).
const AGING_PERIOD: u32 = 256 * 1024;

/// An entry of a tagged table in a word: the tag in bits 15:0; the counter in bits 18:16, three bits of which 4 to 7 mean taken; and
/// the useful counter in bits 25:24, two bits.
#[derive(Clone, Copy, Debug)]
struct Entry(u32);

/// What the paper counts from -4 to 3 is 0 to 7 here.
const WEAKLY_TAKEN: u32 = 4;

impl Entry {
    /// Of no branch: its counter is the paper's 0.
    const EMPTY: Self = Self::new(0, WEAKLY_TAKEN, 0);

    const fn new(tag: u32, counter: u32, useful: u32) -> Self {
        Self(tag | counter << 16 | useful << 24)
    }

    fn tag(self) -> u32 {
        self.0 & 0xffff
    }

    fn counter(self) -> u32 {
        self.0 >> 16 & 7
    }

    fn taken(self) -> bool {
        self.counter() >= WEAKLY_TAKEN
    }

    fn useful(self) -> u32 {
        self.0 >> 24
    }

    /// New and not yet sure.
    fn is_weak(self) -> bool {
        self.useful() == 0 && matches!(self.counter(), 3 | 4)
    }
}

/// A counter of `most` at most one step on.
#[inline]
fn step(counter: u32, most: u32, up: bool) -> u32 {
    // Both are computed: which way is what the host cannot predict either.
    let (more, less) = ((counter + 1).min(most), counter.saturating_sub(1));
    if up { more } else { less }
}

/// Lanes of the arrays that hold a value for each tagged table: a power of two, so that all are computed at once.
const LANES: usize = 8;
type Lanes = [u32; LANES];

/// The histories of all tables, each folded to a few bits by exclusive or and kept up to date branch by branch.
#[derive(Clone, Copy, Debug)]
struct Folded {
    values: Lanes,
    bits: u32,
    /// The bit where the outcome that leaves each history comes out.
    out: Lanes,
}

impl Folded {
    fn new(history_bits: &Lanes, bits: u32) -> Self {
        Self { values: [0; LANES], bits, out: history_bits.map(|n| 1 << (n % bits)) }
    }

    /// `leaving` has every bit set where the outcome that leaves a history was taken.
    #[inline]
    fn push(&mut self, newest: u32, leaving: &Lanes) {
        let (bits, mask) = (self.bits, (1 << self.bits) - 1);
        for ((value, out), leaving) in self.values.iter_mut().zip(&self.out).zip(leaving) {
            let longer = (*value << 1 | newest) ^ (out & leaving);
            *value = (longer ^ longer >> bits) & mask;
        }
    }
}

/// Outcomes of the last branches, newest in the lowest bit.
#[derive(Clone, Copy, Debug, Default)]
struct History([u64; 2]);

impl History {
    #[inline]
    fn push(&mut self, taken: bool) {
        self.0 = [self.0[0] << 1 | u64::from(taken), self.0[1] << 1 | self.0[0] >> 63];
    }

    /// All ones if the branch `ago` branches ago was taken, counted from 1.
    #[inline]
    fn mask_of(&self, ago: u32) -> u32 {
        let bit = ago - 1;
        0u32.wrapping_sub((self.0[(bit >> 6) as usize & 1] >> (bit & 63)) as u32 & 1)
    }
}

/// A TAGE predictor.
#[derive(Debug)]
pub(super) struct Tage {
    base: Counters,
    /// Every table, one after another; behind them one that no branch finds, which learns where no table knows the branch.
    entries: Box<[Entry]>,
    size: usize,
    history_bits: Lanes,
    index: Folded,
    tag: [Folded; 2],
    history: History,
    /// Not negative: a new entry's weak prediction is worse than the alternative's.
    use_alternative: i8,
    branches: u32,
    random: u32,
}

/// What the tables say of a branch.
struct Lookup {
    /// The branch's place in each table.
    places: [usize; TABLES],
    tags: Lanes,
    /// Tables whose entry here is not useful, a bit each.
    free: u32,
    /// Tables up to and including the one that predicts.
    tried: u32,
    /// The entry of the longest history that knows the branch, if one does, and where it is.
    provider: Entry,
    provider_place: usize,
    known: bool,
    provider_taken: bool,
    alternative_taken: bool,
    weak: bool,
    predicted: bool,
}

impl Tage {
    /// With `entries` counters in all: a quarter without tags, the rest shared by the tagged tables.
    pub fn new(entries: u32, history_bits: Option<u32>) -> Self {
        let longest = history_bits.unwrap_or(DEFAULT_HISTORY_BITS).clamp(8, MOST_HISTORY_BITS);
        let size = 1usize << (entries / 8).max(2).ilog2();
        let ratio = (f64::from(longest) / SHORTEST_HISTORY).powf(1.0 / (TABLES - 1) as f64);
        let history_bits: Lanes =
            std::array::from_fn(|i| ((SHORTEST_HISTORY * ratio.powi(i as i32)).round() as u32).min(longest));
        Self {
            base: Counters::new(entries / 4),
            entries: vec![Entry::EMPTY; TABLES * size + 1].into(),
            size,
            index: Folded::new(&history_bits, size.ilog2()),
            tag: [Folded::new(&history_bits, TAG_BITS), Folded::new(&history_bits, TAG_BITS - 1)],
            history_bits,
            history: History::default(),
            use_alternative: 0,
            branches: 0,
            random: 0x2545_f491,
        }
    }

    #[inline]
    fn look_up(&self, address: u64) -> Lookup {
        let address = (address >> 2) as u32;
        let hash = address ^ address >> self.index.bits;
        let (mut positions, mut tags) = ([0; LANES], [0; LANES]);
        for lane in 0..LANES {
            positions[lane] = hash ^ self.index.values[lane];
            let tag = address ^ self.tag[0].values[lane] ^ self.tag[1].values[lane] << 1;
            tags[lane] = tag & ((1 << TAG_BITS) - 1);
        }
        let places: [usize; TABLES] =
            std::array::from_fn(|table| table * self.size + (positions[table] as usize & (self.size - 1)));
        let entries = places.map(|place| self.entries[place]);
        // Gathered without a branch: which tables know the branch is what a host cannot predict either.
        let (mut known, mut free) = (0u32, 0u32);
        for (table, entry) in entries.iter().enumerate() {
            known |= u32::from(entry.tag() == tags[table]) << table;
            free |= u32::from(entry.useful() == 0) << table;
        }
        let base_taken = self.base.predicts_taken(address.into());
        let longest = |known: u32| (known | 1).ilog2() as usize;
        let provider_table = longest(known);
        let tried = if known == 0 { 0 } else { (2 << provider_table) - 1 };
        let others = known & tried >> 1;
        let provider = entries[provider_table];
        let provider_taken = if known == 0 { base_taken } else { provider.taken() };
        let alternative_taken = if others == 0 { base_taken } else { entries[longest(others)].taken() };
        let weak = known != 0 && provider.is_weak();
        let predicted = if weak && self.use_alternative >= 0 { alternative_taken } else { provider_taken };
        let provider_place = if known == 0 { self.entries.len() - 1 } else { places[provider_table] };
        let known = known != 0;
        Lookup {
            places,
            tags,
            free,
            tried,
            provider,
            provider_place,
            known,
            provider_taken,
            alternative_taken,
            weak,
            predicted,
        }
    }

    #[inline]
    fn learn(&mut self, found: &Lookup, outcome: Outcome) {
        let taken = outcome.taken;
        let right = found.provider_taken == taken;
        let differ = found.known && found.provider_taken != found.alternative_taken;
        let provider = found.provider;
        let counter = step(provider.counter(), 7, taken);
        let useful = if differ { step(provider.useful(), 3, right) } else { provider.useful() };
        self.entries[found.provider_place] = Entry::new(provider.tag(), counter, useful);
        let choice = (self.use_alternative + if right { -1 } else { 1 }).clamp(-8, 7);
        self.use_alternative = if differ && found.weak { choice } else { self.use_alternative };
        // An entry that has not proved useful may go: keep what would predict in its place up to date.
        self.base.learn_if(!found.known || useful == 0, outcome.address >> 2, taken);
        if found.predicted != taken && !(found.weak && right) {
            self.allocate(found, taken);
        }
        self.age();
    }

    /// Gives the branch an entry in one table of a longer history.
    fn allocate(&mut self, found: &Lookup, taken: bool) {
        let longer = ((1 << TABLES) - 1) & !found.tried;
        let mut free = found.free & longer;
        if free == 0 {
            for table in 0..TABLES {
                let entry = &mut self.entries[found.places[table]];
                let less = u32::from(longer >> table & 1 == 1 && entry.useful() > 0) << 24;
                entry.0 -= less;
            }
            return;
        }
        // Shorter histories are twice as likely to be chosen, so that one branch does not fill every table at once.
        while self.next_random() & 1 == 0 && free & (free - 1) != 0 {
            free &= free - 1;
        }
        let table = free.trailing_zeros() as usize;
        let counter = if taken { WEAKLY_TAKEN } else { WEAKLY_TAKEN - 1 };
        self.entries[found.places[table]] = Entry::new(found.tags[table], counter, 0);
    }

    fn age(&mut self) {
        self.branches += 1;
        if self.branches == AGING_PERIOD {
            self.branches = 0;
            self.entries.iter_mut().for_each(|e| *e = Entry::new(e.tag(), e.counter(), e.useful() >> 1));
        }
    }

    /// Xorshift (Marsaglia, 2003), from a fixed seed: the same run predicts the same.
    fn next_random(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random
    }

    #[inline]
    fn remember(&mut self, taken: bool) {
        let leaving = self.history_bits.map(|bits| self.history.mask_of(bits));
        self.index.push(taken.into(), &leaving);
        self.tag.iter_mut().for_each(|tag| tag.push(taken.into(), &leaving));
        self.history.push(taken);
    }
}

impl Predict for Tage {
    fn resolve(&mut self, outcome: Outcome) -> bool {
        let found = self.look_up(outcome.address);
        self.learn(&found, outcome);
        self.remember(outcome.taken);
        found.predicted
    }
}
