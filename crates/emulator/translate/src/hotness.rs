//! Visit counts and executed-code maps, which decide when code is hot and how much of it to translate. Source: tiered
//! compilation in virtual machines. Among binary translators, Embra (Witchel and Rosenblum) and LATX translate at the
//! first execution; FX!32 uses a profile.

use std::collections::BTreeSet;
use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

use crate::front_end::{InterpretableBlock, Unit};

/// The granularity of change tracking and of the executed-code maps, in bytes.
pub(crate) const PAGE: u64 = 4096;

/// Execution statistics of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Hotness {
    /// The number of visits through the engine after which code is hot. If it is 1, all code is hot at once.
    hot: u32,
    /// Visits by source address.
    visits: FxHashMap<u64, u32>,
    /// The executed bytes, by page number.
    executed: FxHashMap<u64, Executed>,
    /// Presumed starts of functions, from calls and indirect jumps.
    functions: BTreeSet<u64>,
    /// Return addresses of calls.
    return_addresses: FxHashSet<u64>,
}

/// A bitmap with one bit for each byte of a page.
type Executed = [[u64; 32]; 2];

/// The indices of the bitmap word that holds an address's bit.
fn word_of(address: u64) -> (usize, usize) {
    let word = (address % PAGE / 64) as usize;
    (word / 32, word % 32)
}

/// The maximum distance of code from the start of its function, in bytes.
const MAX_FUNCTION_BYTES: u64 = 1 << 16;

/// Code is warm after the hot threshold divided by this number.
const WARM_DIVISOR: u32 = 8;

impl Hotness {
    /// Creates empty statistics. Code becomes hot after `hot` visits.
    pub fn new(hot: u32) -> Self {
        Self {
            hot: hot.max(1),
            visits: FxHashMap::default(),
            executed: FxHashMap::default(),
            functions: BTreeSet::new(),
            return_addresses: FxHashSet::default(),
        }
    }

    /// Imports the statistics of another process that ran the same program, except visit counts. They are only
    /// heuristics.
    pub fn import(&mut self, other: Self) {
        *self = Self { hot: self.hot, visits: FxHashMap::default(), ..other };
    }

    /// The statistics that another process can import.
    pub fn export(&self) -> Self {
        Self {
            hot: self.hot,
            visits: FxHashMap::default(),
            executed: self.executed.clone(),
            functions: self.functions.clone(),
            return_addresses: self.return_addresses.clone(),
        }
    }

    /// Whether code is cold at first.
    pub fn is_two_stage(&self) -> bool {
        self.hot > 1
    }

    /// Counts a visit to `pc` through the engine. Returns true if `pc` is hot. `is_translated` states whether the
    /// function that begins at an address has been translated. Retranslation of such a function requires twice as many
    /// visits; higher thresholds leave loops cold for too long.
    pub fn visit(&mut self, pc: u64, is_translated: impl Fn(u64) -> bool) -> bool {
        if self.hot == 1 {
            return true;
        }
        let visits = self.visits.entry(pc).or_default();
        *visits = visits.saturating_add(1);
        let visits = *visits;
        self.is_hot_after(visits, pc, is_translated)
    }

    /// Whether `pc` is hot after this number of visits; see [`Self::visit`].
    pub fn is_hot_after(&self, visits: u32, pc: u64, is_translated: impl Fn(u64) -> bool) -> bool {
        visits >= self.hot && {
            let is_again = self.function_of(pc).is_some_and(|function| is_translated(function.start));
            visits >= self.hot.saturating_mul(1 + u32::from(is_again))
        }
    }

    /// Whether code is likely to become hot.
    pub fn is_warm_after(&self, visits: u32) -> bool {
        visits >= self.hot / WARM_DIVISOR
    }

    /// Records a block that is about to be executed.
    pub fn note<S, P>(&mut self, Unit { sources, called, return_addresses, .. }: &Unit<S, P>) {
        self.functions.extend(called);
        self.return_addresses.extend(return_addresses);
        self.mark_executed(sources);
    }

    /// Records a block that is about to be interpreted.
    pub fn note_interpreted<S>(&mut self, start: u64, block: &InterpretableBlock<S>) {
        self.functions.extend(block.called);
        self.return_addresses.extend(block.return_address);
        self.mark_executed(&[(start, block.bytes)]);
    }

    /// Marks ranges (start address, length in bytes) as executed.
    pub fn mark_executed(&mut self, ranges: &[(u64, u64)]) {
        for (first, bytes) in ranges {
            let (mut at, end) = (*first, first.saturating_add(*bytes));
            while at < end {
                // The part of the range within one bitmap word.
                let count = (64 - at % 64).min(end - at);
                let page = self.executed.entry(at / PAGE).or_default();
                page[word_of(at).0][word_of(at).1] |= (u64::MAX >> (64 - count)) << (at % 64);
                at += count;
            }
        }
    }

    /// Whether the code at `pc` has been executed. Code that was not executed so far is rarely executed later. Always
    /// true without two-stage translation.
    pub fn has_executed(&self, pc: u64) -> bool {
        let is_executed = |page: &Executed| page[word_of(pc).0][word_of(pc).1] >> (pc % 64) & 1 != 0;
        self.hot == 1 || self.executed.get(&(pc / PAGE)).is_some_and(is_executed)
    }

    /// Records `pc` as the target of an indirect jump, an indirect call or a return.
    pub fn note_indirect(&mut self, pc: u64) {
        if self.hot > 1 && !self.return_addresses.contains(&pc) {
            self.functions.insert(pc);
        }
    }

    /// The range from the presumed start of the function that contains `pc` to the next function, if its start has been
    /// executed.
    pub fn function_of(&self, pc: u64) -> Option<Range<u64>> {
        let begin = *self.functions.range(..=pc).next_back()?;
        let end = self
            .functions
            .range(pc + 1..)
            .next()
            .copied()
            .unwrap_or(u64::MAX)
            .min(begin + MAX_FUNCTION_BYTES);
        (pc < end && self.hot > 1 && self.has_executed(begin)).then_some(begin..end)
    }

    /// Resets the statistics after all code was discarded. Function starts stay known.
    pub fn reset(&mut self) {
        self.visits.clear();
        self.executed.clear();
    }

    /// Resets the visits of `pc`, whose code changed.
    pub fn forget(&mut self, pc: u64) {
        self.visits.remove(&pc);
    }

    /// Resets the executed-code maps of changed pages.
    pub fn forget_pages(&mut self, pages: &Range<u64>) {
        if pages.end.saturating_sub(pages.start) > self.executed.len() as u64 {
            self.executed.retain(|page, _| !pages.contains(page));
        } else {
            for page in pages.clone() {
                self.executed.remove(&page);
            }
        }
    }
}
