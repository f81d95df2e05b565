//! Reference front end: fetches instructions in program order, up to the fetch width per cycle. A taken branch ends a
//! fetch cycle, and fetch waits for a mispredicted branch to resolve.

use std::collections::HashSet;

use super::{Executed, LINE_BYTES, Stages, trap_ends};

/// Penalty of a taken branch with an unknown target, cycles.
const UNKNOWN_TARGET: u64 = 3;
/// Maximum number of cycles that fetch is ahead of dispatch at the start of a block.
const FETCH_AHEAD: u64 = 8;
/// Cycles that an instruction line takes in addition to a hit in the first-level cache.
pub fn line_late(pc: u64) -> u64 {
    match (pc / LINE_BYTES).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61 {
        0 => 10,
        1 => 33,
        _ => 0,
    }
}

/// The state of fetch.
pub struct FrontEnd {
    width: u64,
    /// Cycles from fetch to dispatch.
    depth: u64,
    cycle: u64,
    /// Instructions fetched in the current cycle.
    fetched: u64,
    line: u64,
    known: HashSet<(u64, u64)>,
    /// Number of fetched instructions, and when the last of them can be dispatched.
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

    /// When instruction `index` can be dispatched; `None` if that is not decided yet. All earlier instructions must
    /// have been fetched.
    pub fn dispatchable(&mut self, index: usize, program: &[Executed], stages: &[Stages]) -> Option<u64> {
        if index == self.count {
            self.fetch(index, program, stages)?;
            self.count += 1;
        }
        Some(self.dispatchable)
    }

    fn fetch(&mut self, index: usize, program: &[Executed], stages: &[Stages]) -> Option<()> {
        let executed = &program[index];
        // An exception waits until all older instructions have retired.
        let older = stages[..index].iter().map(|stages| stages.retired);
        let emptied = if executed.refill_fetch == 0 {
            0
        } else {
            older.collect::<Option<Vec<_>>>()?.into_iter().max().unwrap_or(0)
        };
        if let Some(last) = index.checked_sub(1) {
            let before = &program[last];
            let mispredicted =
                before.branch.filter(|(target, trapped_at)| (*target < before.pc) != *trapped_at);
            let resolved = if mispredicted.is_some() { stages[last].done? } else { 0 };
            if executed.begins_block {
                self.begin(stages[last].dispatched?.saturating_sub(self.depth + FETCH_AHEAD));
            }
            if let Some((target, true)) = before.branch {
                let was_known = !self.known.insert((before.pc, target));
                if mispredicted.is_none() {
                    self.begin(self.cycle + 1 + if was_known { 0 } else { UNKNOWN_TARGET });
                }
            }
            if mispredicted.is_some() {
                self.begin(resolved.max(self.cycle));
                self.fetched = 0;
            }
        }
        if executed.pc / LINE_BYTES != self.line {
            self.line = executed.pc / LINE_BYTES;
            if executed.refill_fetch > 0 {
                // The exception takes the instruction's place in the pipeline and becomes the oldest instruction one
                // cycle after dispatch at the earliest.
                let trapped_at = (self.cycle + self.depth + 1).max(emptied);
                self.begin(trap_ends(trapped_at, self.depth + 1, executed.refill_fetch));
            }
            self.begin(self.cycle + line_late(executed.pc));
        }
        self.dispatchable = self.cycle + self.depth;
        self.fetched += 1;
        if self.fetched == self.width {
            self.begin(self.cycle + 1);
        }
        Some(())
    }

    /// Refetches the last instruction after an exception, from `cycle` on.
    pub fn fetch_again(&mut self, cycle: u64) {
        (self.cycle, self.fetched) = (cycle, 0);
        self.dispatchable = self.cycle + self.depth;
        self.fetched += 1;
        if self.fetched == self.width {
            self.begin(self.cycle + 1);
        }
    }

    /// Delays fetch until `cycle`.
    fn begin(&mut self, cycle: u64) {
        if cycle > self.cycle {
            (self.cycle, self.fetched) = (cycle, 0);
        }
    }
}
