//! ITTAGE predictor: TAGE with targets in place of counters. The matching entry with the longest history provides the
//! target; the base predictor is the branch's last target.
//!
//! Source: Seznec and Michaud, A Case for (Partially) Tagged Geometric History Length Branch Prediction (JILP 8, 2006),
//! section 4; Seznec, A 64-Kbytes ITTAGE Indirect Branch Predictor (CBP-3, 2011), for targets in the history.

use super::{TargetBuffer, mix, word};
use crate::branch::ones;

/// Number of tagged tables, as in `tage.rs`.
const TABLES: usize = 6;
/// History that an indirect branch adds, bits.
const TARGET_BITS: u32 = 10;
/// Shortest history of a tagged table, bits: one indirect branch.
const MIN_HISTORY: f64 = TARGET_BITS as f64;
/// Words of the history.
const WORDS: usize = 4;
/// Bits of a tag (the paper's: 9 to 15).
const TAG_BITS: u32 = 12;
/// Highest value of a confidence and of a useful counter, which have two bits.
const COUNTER_MAX: u8 = 3;
/// Indirect branches between two agings of the useful counters, as in `tage.rs`.
const AGING_PERIOD: u32 = 256 * 1024;

/// An entry of a tagged table.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    tag: u16,
    /// The target is replaced only if the confidence is 0.
    confidence: u8,
    useful: u8,
    target: u32,
}

/// An ITTAGE predictor.
#[derive(Debug)]
pub(super) struct Ittage {
    base: TargetBuffer,
    /// All tables one after another.
    entries: Box<[Entry]>,
    size: usize,
    history_bits: [u32; TABLES],
    /// Outcomes of conditional branches and bits of indirect targets, the newest in the lowest bit of the first word.
    history: [u64; WORDS],
    /// If not negative, the alternative prediction is more reliable than that of a new entry.
    use_alternative: i8,
    branches: u32,
    random: u32,
}

impl Ittage {
    /// Creates a predictor with at most `entries` targets: a quarter in the base predictor, the rest in the tagged
    /// tables. `longest` is the length of the longest history: 10 to 256 bits.
    pub fn new(entries: u32, longest: u32) -> Self {
        let size = (entries as usize / 8).max(1);
        let ratio = (f64::from(longest) / MIN_HISTORY).powf(1.0 / (TABLES - 1) as f64);
        let length = |table: usize| (MIN_HISTORY * ratio.powi(table as i32)).round() as u32;
        Self {
            base: TargetBuffer::new(entries / 4),
            entries: vec![Entry::default(); TABLES * size].into(),
            size,
            history_bits: std::array::from_fn(|table| length(table).min(longest)),
            history: [0; WORDS],
            use_alternative: 0,
            branches: 0,
            random: 0x2545_f491,
        }
    }

    /// Predicts the target of `branch`, then trains with the actual `target`. Returns whether the prediction was right.
    pub fn resolve(&mut self, branch: u64, target: u64) -> bool {
        let to = word(target);
        let base_right = self.base.resolve(branch, target);
        let keys: [(usize, u16); TABLES] = std::array::from_fn(|table| self.key(table, word(branch)));
        let mut matching = (0..TABLES).rev().filter(|t| self.entries[keys[*t].0].tag == keys[*t].1);
        let (provider, alternative) = (matching.next(), matching.next());
        let right_in = |table: usize| self.entries[keys[table].0].target == to;
        let alternative_right = alternative.map_or(base_right, right_in);
        let provider_right = provider.is_some_and(right_in);
        let right = match provider {
            Some(table) => self.learn(keys[table].0, to, alternative_right),
            None => base_right,
        };
        if !right && !provider_right {
            self.allocate(&keys[provider.map_or(0, |table| table + 1)..], to);
        }
        self.push(u64::from(to ^ to >> TARGET_BITS), TARGET_BITS);
        self.branches += 1;
        if self.branches == AGING_PERIOD {
            self.branches = 0;
            self.entries.iter_mut().for_each(|entry| entry.useful >>= 1);
        }
        right
    }

    /// Adds the outcome of a conditional branch to the history.
    #[inline]
    pub fn note_conditional(&mut self, taken: bool) {
        self.push(taken.into(), 1);
    }

    /// The index of a branch's entry in `table`, and its tag.
    fn key(&self, table: usize, branch: u32) -> (usize, u16) {
        let mut key = mix(u64::from(branch) << 3 | table as u64);
        let mut left = self.history_bits[table];
        for word in self.history {
            key = mix(key ^ word & ones(left));
            left = left.saturating_sub(u64::BITS);
            if left == 0 {
                break;
            }
        }
        // An unused entry has tag 0.
        let tag = (key as u16 & ones(TAG_BITS) as u16).max(1);
        (table * self.size + (key >> 32) as usize % self.size, tag)
    }

    /// Trains the entry that provides the prediction and returns whether the prediction was right.
    fn learn(&mut self, provider: usize, to: u32, alternative_right: bool) -> bool {
        let entry = &mut self.entries[provider];
        let provider_right = entry.target == to;
        let is_new = entry.confidence == 0;
        let differ = provider_right != alternative_right;
        let right = if is_new && self.use_alternative >= 0 { alternative_right } else { provider_right };
        if is_new && differ {
            self.use_alternative = (self.use_alternative + if provider_right { -1 } else { 1 }).clamp(-8, 7);
        }
        if differ {
            entry.useful = if provider_right {
                (entry.useful + 1).min(COUNTER_MAX)
            } else {
                entry.useful.saturating_sub(1)
            };
        }
        match (provider_right, is_new) {
            (true, _) => entry.confidence = (entry.confidence + 1).min(COUNTER_MAX),
            (false, true) => entry.target = to,
            (false, false) => entry.confidence -= 1,
        }
        right
    }

    /// Allocates an entry at one of `keys`, which are ordered by length of history.
    #[cold]
    fn allocate(&mut self, keys: &[(usize, u16)], to: u32) {
        let mut free = keys.iter().filter(|(at, _)| self.entries[*at].useful == 0).peekable();
        let mut random = self.random;
        while let Some((at, tag)) = free.next() {
            random = xorshift(random);
            // Shorter histories are twice as likely to be chosen, so that one branch does not fill every table at once.
            if random & 1 == 0 && free.peek().is_some() {
                continue;
            }
            self.random = random;
            self.entries[*at] = Entry { tag: *tag, confidence: 0, useful: 0, target: to };
            return;
        }
        keys.iter().for_each(|(at, _)| self.entries[*at].useful -= 1);
    }

    /// Adds the lowest `count` bits, less than 64, to the history.
    #[inline]
    fn push(&mut self, bits: u64, count: u32) {
        for at in (1..WORDS).rev() {
            self.history[at] = self.history[at] << count | self.history[at - 1] >> (u64::BITS - count);
        }
        self.history[0] = self.history[0] << count | bits & ones(count);
    }
}

/// Xorshift (Marsaglia, 2003), for reproducible runs.
fn xorshift(mut state: u32) -> u32 {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    state
}
