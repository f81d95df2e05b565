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

/// An entry of a tagged table.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    tag: u16,
    /// Three bits, -4 to 3: taken if not negative.
    counter: i8,
    /// Two bits.
    useful: u8,
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
    tables: [Box<[Entry]>; TABLES],
    history_bits: Lanes,
    index: Folded,
    tag: [Folded; 2],
    history: History,
    /// Not negative: a new entry's weak prediction is worse than the alternative's.
    use_alternative: i8,
    branches: u32,
    random: u32,
}

/// The tables that know a branch.
struct Lookup {
    positions: Lanes,
    tags: Lanes,
    provider: Option<usize>,
    provider_taken: bool,
    alternative_taken: bool,
    /// The provider's entry is new and not yet sure.
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
            tables: std::array::from_fn(|_| vec![Entry::default(); size].into()),
            index: Folded::new(&history_bits, size.ilog2()),
            tag: [Folded::new(&history_bits, TAG_BITS), Folded::new(&history_bits, TAG_BITS - 1)],
            history_bits,
            history: History::default(),
            use_alternative: 0,
            branches: 0,
            random: 0x2545_f491,
        }
    }

    fn entry(&self, table: usize, positions: &Lanes) -> Entry {
        let entries = &self.tables[table];
        entries[positions[table] as usize & (entries.len() - 1)]
    }

    fn entry_mut(&mut self, table: usize, positions: &Lanes) -> &mut Entry {
        let entries = &mut self.tables[table];
        let position = positions[table] as usize & (entries.len() - 1);
        &mut entries[position]
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
        let base_taken = self.base.predicts_taken(address.into());
        // Gathered without a branch: which tables know the branch is what a host cannot predict either.
        let mut known = 0u32;
        for (table, tag) in tags.iter().enumerate().take(TABLES) {
            known |= u32::from(u32::from(self.entry(table, &positions).tag) == *tag) << table;
        }
        let provider = known.checked_ilog2().map(|table| table as usize);
        let others = known & !known.checked_ilog2().map_or(0, |table| 1 << table);
        let taken_by = |table: Option<u32>| {
            table.map_or(base_taken, |table| self.entry(table as usize, &positions).counter >= 0)
        };
        let (provider_taken, alternative_taken) =
            (taken_by(known.checked_ilog2()), taken_by(others.checked_ilog2()));
        let newest = self.entry(provider.unwrap_or(0), &positions);
        let weak = provider.is_some() && newest.useful == 0 && matches!(newest.counter, -1 | 0);
        let predicted = if weak && self.use_alternative >= 0 { alternative_taken } else { provider_taken };
        Lookup { positions, tags, provider, provider_taken, alternative_taken, weak, predicted }
    }

    fn learn(&mut self, found: &Lookup, outcome: Outcome) {
        let taken = outcome.taken;
        match found.provider {
            None => self.base.learn(outcome.address >> 2, taken),
            Some(table) => {
                let entry = self.entry_mut(table, &found.positions);
                entry.counter = if taken { (entry.counter + 1).min(3) } else { (entry.counter - 1).max(-4) };
                if found.provider_taken != found.alternative_taken {
                    let right = found.provider_taken == taken;
                    entry.useful =
                        if right { (entry.useful + 1).min(3) } else { entry.useful.saturating_sub(1) };
                    if found.weak {
                        let step = if right { -1 } else { 1 };
                        self.use_alternative = (self.use_alternative + step).clamp(-8, 7);
                    }
                }
                // An entry that has not proved useful may go: keep what would predict in its place up to date.
                if self.entry(table, &found.positions).useful == 0 {
                    self.base.learn(outcome.address >> 2, taken);
                }
            }
        }
        if found.predicted != taken && !(found.weak && found.provider_taken == taken) {
            self.allocate(found, taken);
        }
        self.age();
    }

    /// Gives the branch an entry in one table of a longer history.
    fn allocate(&mut self, found: &Lookup, taken: bool) {
        let first = found.provider.map_or(0, |i| i + 1);
        let free =
            |tage: &Self, from: usize| (from..TABLES).find(|i| tage.entry(*i, &found.positions).useful == 0);
        let Some(mut table) = free(self, first) else {
            for i in first..TABLES {
                let entry = self.entry_mut(i, &found.positions);
                entry.useful = entry.useful.saturating_sub(1);
            }
            return;
        };
        // Shorter histories are twice as likely to be chosen, so that one branch does not fill every table at once.
        while self.next_random() & 1 == 0 {
            let Some(longer) = free(self, table + 1) else { break };
            table = longer;
        }
        let counter = if taken { 0 } else { -1 };
        *self.entry_mut(table, &found.positions) =
            Entry { tag: found.tags[table] as u16, counter, useful: 0 };
    }

    fn age(&mut self) {
        self.branches += 1;
        if self.branches == AGING_PERIOD {
            self.branches = 0;
            self.tables.iter_mut().flatten().for_each(|entry| entry.useful >>= 1);
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
