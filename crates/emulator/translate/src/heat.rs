//! How often a program comes to its code and which of it has been executed at all: what is worth being translated with all that it reaches.
//! Not the translation.
//! Source: the staged compilers of virtual machines; of binary translators, Rosenblum's Embra and LATX translate at once, FX!32 what a
//! profile says.

use std::collections::BTreeSet;
use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

use crate::front_end::Unit;

/// The size of what is watched for changes of the source's code, and of a map of what of it has been executed.
pub(crate) const PAGE: u64 = 4096;

/// What is known of how code is executed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Heat {
    /// Code is hot when somebody has come to it so often by way of the engine; 1 for at once.
    hot: u32,
    /// How often, by source address.
    visits: FxHashMap<u64, u32>,
    /// The bytes of code in blocks that have been come to, by page.
    executed: FxHashMap<u64, Executed>,
    /// Where functions begin, as far as calls and jumps have told.
    functions: BTreeSet<u64>,
    /// Where calls come back to.
    behind_calls: FxHashSet<u64>,
}

/// The bytes of a page.
type Executed = [[u64; 32]; 2];

/// Where the word with the bit of an address is.
fn word_of(address: u64) -> (usize, usize) {
    let word = (address % PAGE / 64) as usize;
    (word / 32, word % 32)
}

/// A function has no code farther behind its beginning than this.
const LONGEST_FUNCTION: u64 = 1 << 16;

impl Heat {
    /// All code is hot from `hot` visits on.
    pub fn new(hot: u32) -> Self {
        Self {
            hot: hot.max(1),
            visits: FxHashMap::default(),
            executed: FxHashMap::default(),
            functions: BTreeSet::new(),
            behind_calls: FxHashSet::default(),
        }
    }

    /// What is known of another process that executes the same program, but for how often it has come where. It is a guess here, as it is there.
    pub fn take_up(&mut self, known: Self) {
        *self = Self { hot: self.hot, visits: FxHashMap::default(), ..known };
    }

    /// What another process is told.
    pub fn known(&self) -> Self {
        Self {
            hot: self.hot,
            visits: FxHashMap::default(),
            executed: self.executed.clone(),
            functions: self.functions.clone(),
            behind_calls: self.behind_calls.clone(),
        }
    }

    /// Whether anything is cold at first.
    pub fn waits(&self) -> bool {
        self.hot > 1
    }

    /// Somebody has come to `pc`. True if it is hot from now on. `is_made` says whether the function that begins at an address has been
    /// translated: to be worth that once more, what else is in it has to be twice as hot. With more than that, loops stay cold too long.
    pub fn visit(&mut self, pc: u64, is_made: impl Fn(u64) -> bool) -> bool {
        if self.hot == 1 {
            return true;
        }
        let visits = self.visits.entry(pc).or_default();
        *visits = visits.saturating_add(1);
        let visits = *visits;
        visits >= self.hot && {
            let is_again = self.function_of(pc).is_some_and(|function| is_made(function.start));
            visits >= self.hot.saturating_mul(1 + u32::from(is_again))
        }
    }

    /// Notes a block that is about to be executed.
    pub fn note<S, P>(&mut self, Unit { sources, called, behind_calls, .. }: &Unit<S, P>) {
        self.functions.extend(called);
        self.behind_calls.extend(behind_calls);
        self.note_code(sources);
    }

    /// The code in these places has been executed: first address and bytes.
    pub fn note_code(&mut self, places: &[(u64, u64)]) {
        for (first, bytes) in places {
            let (mut at, end) = (*first, first.saturating_add(*bytes));
            while at < end {
                // As far as one word of the map goes.
                let count = (64 - at % 64).min(end - at);
                let page = self.executed.entry(at / PAGE).or_default();
                page[word_of(at).0][word_of(at).1] |= (u64::MAX >> (64 - count)) << (at % 64);
                at += count;
            }
        }
    }

    /// Whether the code at `pc` has been executed, as far as that is asked for: what has not hardly ever will be.
    pub fn has_executed(&self, pc: u64) -> bool {
        let is_there = |page: &Executed| page[word_of(pc).0][word_of(pc).1] >> (pc % 64) & 1 != 0;
        self.hot == 1 || self.executed.get(&(pc / PAGE)).is_some_and(is_there)
    }

    /// An indirect jump or call has come to `pc`, or a return.
    pub fn note_indirect(&mut self, pc: u64) {
        if self.hot > 1 && !self.behind_calls.contains(&pc) {
            self.functions.insert(pc);
        }
    }

    /// Where the function that `pc` is probably in begins, if it has been executed from there, and where the next one does.
    pub fn function_of(&self, pc: u64) -> Option<Range<u64>> {
        let begin = *self.functions.range(..=pc).next_back()?;
        let end =
            self.functions.range(pc + 1..).next().copied().unwrap_or(u64::MAX).min(begin + LONGEST_FUNCTION);
        (pc < end && self.hot > 1 && self.has_executed(begin)).then_some(begin..end)
    }

    /// There is no code any more; where functions begin stays known.
    pub fn begin_again(&mut self) {
        self.visits.clear();
        self.executed.clear();
    }

    /// There is other code at `pc`.
    pub fn forget(&mut self, pc: u64) {
        self.visits.remove(&pc);
    }

    /// There is other code on these pages.
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
