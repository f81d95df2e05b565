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

/// A history folded to a few bits by exclusive or, kept up to date branch by branch.
#[derive(Clone, Copy, Debug)]
struct Folded {
    value: u32,
    bits: u32,
    /// Where the outcome that leaves the history comes out.
    out: u32,
}

impl Folded {
    fn new(history_bits: u32, bits: u32) -> Self {
        Self { value: 0, bits, out: history_bits % bits }
    }

    fn push(&mut self, newest: u32, leaving: u32) {
        let value = self.value << 1 | newest;
        let value = value ^ leaving << self.out;
        self.value = (value ^ value >> self.bits) & ((1 << self.bits) - 1);
    }
}

#[derive(Debug)]
struct Table {
    entries: Box<[Entry]>,
    history_bits: u32,
    index: Folded,
    tag: [Folded; 2],
}

impl Table {
    fn position(&self, address: u64) -> usize {
        let bits = self.entries.len().ilog2();
        let address = (address >> 2) as u32;
        (address ^ address >> bits ^ self.index.value) as usize & (self.entries.len() - 1)
    }

    fn tag(&self, address: u64) -> u16 {
        let hash = (address >> 2) as u32 ^ self.tag[0].value ^ self.tag[1].value << 1;
        (hash & ((1 << TAG_BITS) - 1)) as u16
    }
}

/// A TAGE predictor.
#[derive(Debug)]
pub(super) struct Tage {
    base: Counters,
    tables: [Table; TABLES],
    history: u128,
    /// Not negative: a new entry's weak prediction is worse than the alternative's.
    use_alternative: i8,
    branches: u32,
    random: u32,
}

/// The tables that know a branch.
struct Lookup {
    positions: [usize; TABLES],
    tags: [u16; TABLES],
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
        let table = |i: usize| {
            let history_bits = ((SHORTEST_HISTORY * ratio.powi(i as i32)).round() as u32).min(longest);
            Table {
                entries: vec![Entry::default(); size].into(),
                history_bits,
                index: Folded::new(history_bits, size.ilog2()),
                tag: [Folded::new(history_bits, TAG_BITS), Folded::new(history_bits, TAG_BITS - 1)],
            }
        };
        Self {
            base: Counters::new(entries / 4),
            tables: std::array::from_fn(table),
            history: 0,
            use_alternative: 0,
            branches: 0,
            random: 0x2545_f491,
        }
    }

    fn look_up(&self, address: u64) -> Lookup {
        let positions = std::array::from_fn(|i| self.tables[i].position(address));
        let tags = std::array::from_fn(|i| self.tables[i].tag(address));
        let knows = |i: &usize| self.tables[*i].entries[positions[*i]].tag == tags[*i];
        let mut knowing = (0..TABLES).rev().filter(knows);
        let provider = knowing.next();
        let base_taken = self.base.predicts_taken(address >> 2);
        let counter_of = |i: usize| self.tables[i].entries[positions[i]].counter;
        let alternative_taken = knowing.next().map_or(base_taken, |i| counter_of(i) >= 0);
        let provider_taken = provider.map_or(base_taken, |i| counter_of(i) >= 0);
        let weak = provider.is_some_and(|i| {
            let entry = self.tables[i].entries[positions[i]];
            entry.useful == 0 && matches!(entry.counter, -1 | 0)
        });
        let predicted = if weak && self.use_alternative >= 0 { alternative_taken } else { provider_taken };
        Lookup { positions, tags, provider, provider_taken, alternative_taken, weak, predicted }
    }

    fn learn(&mut self, found: &Lookup, outcome: Outcome) {
        let taken = outcome.taken;
        match found.provider {
            None => self.base.learn(outcome.address >> 2, taken),
            Some(table) => {
                let entry = &mut self.tables[table].entries[found.positions[table]];
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
                if self.tables[table].entries[found.positions[table]].useful == 0 {
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
        let is_free = |tables: &[Table; TABLES], i: usize| tables[i].entries[found.positions[i]].useful == 0;
        let Some(mut table) = (first..TABLES).find(|i| is_free(&self.tables, *i)) else {
            for i in first..TABLES {
                let entry = &mut self.tables[i].entries[found.positions[i]];
                entry.useful = entry.useful.saturating_sub(1);
            }
            return;
        };
        // Shorter histories are twice as likely to be chosen, so that one branch does not fill every table at once.
        while self.next_random() & 1 == 0 {
            let Some(longer) = (table + 1..TABLES).find(|i| is_free(&self.tables, *i)) else { break };
            table = longer;
        }
        let counter = if taken { 0 } else { -1 };
        self.tables[table].entries[found.positions[table]] =
            Entry { tag: found.tags[table], counter, useful: 0 };
    }

    fn age(&mut self) {
        self.branches += 1;
        if self.branches == AGING_PERIOD {
            self.branches = 0;
            self.tables.iter_mut().flat_map(|t| &mut t.entries).for_each(|entry| entry.useful >>= 1);
        }
    }

    /// Xorshift (Marsaglia, 2003), from a fixed seed: the same run predicts the same.
    fn next_random(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random
    }

    fn remember(&mut self, taken: bool) {
        for table in &mut self.tables {
            let leaving = (self.history >> (table.history_bits - 1)) as u32 & 1;
            table.index.push(taken.into(), leaving);
            table.tag.iter_mut().for_each(|tag| tag.push(taken.into(), leaving));
        }
        self.history = self.history << 1 | u128::from(taken);
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
