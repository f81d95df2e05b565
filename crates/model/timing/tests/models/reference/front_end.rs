//! When instructions are fetched: in program order, so many a cycle, no further than a taken branch, and behind a mispredicted one
//! when that is done.
//! Not whether there is room for them behind.

use std::collections::HashSet;

use super::{Executed, LINE_BYTES, Stages, trap_ends};

/// Cycles that a taken branch costs whose target is not known yet.
const UNKNOWN_TARGET: u64 = 3;
/// Cycles that fetch is ahead of dispatch at most, at the beginning of a block.
const FETCH_AHEAD: u64 = 8;
/// What an instruction line takes beyond a hit in the first-level cache, cycles.
pub fn line_late(pc: u64) -> u64 {
    match (pc / LINE_BYTES).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61 {
        0 => 10,
        1 => 33,
        _ => 0,
    }
}

/// How far fetch has come.
pub struct FrontEnd {
    width: u64,
    /// From fetch to dispatch.
    depth: u64,
    cycle: u64,
    /// Instructions fetched in that cycle.
    fetched: u64,
    line: u64,
    known: HashSet<(u64, u64)>,
    /// Instructions fetched, and when the last of them can be dispatched.
    count: usize,
    dispatchable: u64,
}

impl FrontEnd {
    /// Cycles from fetch to dispatch.
    pub fn depth(&self) -> u64 {
        self.depth
    }

    pub fn new(width: u64, depth: u64) -> Self {
        Self {
            width,
            depth,
            cycle: 0,
            fetched: 0,
            line: u64::MAX,
            known: HashSet::new(),
            count: 0,
            dispatchable: 0,
        }
    }

    /// When the instruction `index` can be dispatched, everything before it having been; `None` if that is not known yet.
    pub fn dispatchable(&mut self, index: usize, program: &[Executed], stages: &[Stages]) -> Option<u64> {
        if index == self.count {
            self.fetch(index, program, stages)?;
            self.count += 1;
        }
        Some(self.dispatchable)
    }

    fn fetch(&mut self, index: usize, program: &[Executed], stages: &[Stages]) -> Option<()> {
        let it = &program[index];
        // An exception waits until everything older has retired.
        let older = stages[..index].iter().map(|stages| stages.retired);
        let emptied = if it.refill_fetch == 0 {
            0
        } else {
            older.collect::<Option<Vec<_>>>()?.into_iter().max().unwrap_or(0)
        };
        if let Some(last) = index.checked_sub(1) {
            let before = &program[last];
            let mispredicted = before.branch.filter(|(target, taken)| (*target < before.pc) != *taken);
            let resolved = if mispredicted.is_some() { stages[last].done? } else { 0 };
            if it.begins_block {
                self.begin(stages[last].dispatched?.saturating_sub(self.depth + FETCH_AHEAD));
            }
            if let Some((target, true)) = before.branch {
                let known = !self.known.insert((before.pc, target));
                if mispredicted.is_none() {
                    self.begin(self.cycle + 1 + if known { 0 } else { UNKNOWN_TARGET });
                }
            }
            if mispredicted.is_some() {
                self.begin(resolved.max(self.cycle));
                self.fetched = 0;
            }
        }
        if it.pc / LINE_BYTES != self.line {
            self.line = it.pc / LINE_BYTES;
            if it.refill_fetch > 0 {
                // What takes its place in the pipeline is the oldest a cycle after its dispatch.
                let taken = (self.cycle + self.depth + 1).max(emptied);
                self.begin(trap_ends(taken, self.depth + 1, it.refill_fetch));
            }
            self.begin(self.cycle + line_late(it.pc));
        }
        self.dispatchable = self.cycle + self.depth;
        self.fetched += 1;
        if self.fetched == self.width {
            self.begin(self.cycle + 1);
        }
        Some(())
    }

    /// An exception sends the front end back to the instruction that it fetched last, from `cycle` on.
    pub fn fetch_again(&mut self, cycle: u64) {
        (self.cycle, self.fetched) = (cycle, 0);
        self.dispatchable = self.cycle + self.depth;
        self.fetched += 1;
        if self.fetched == self.width {
            self.begin(self.cycle + 1);
        }
    }

    /// Nothing is fetched before `cycle` from now on.
    fn begin(&mut self, cycle: u64) {
        if cycle > self.cycle {
            (self.cycle, self.fetched) = (cycle, 0);
        }
    }
}
