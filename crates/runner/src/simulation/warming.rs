//! Stores the last instructions before the region of interest. When the region begins, the models replay them without
//! counting. This warms caches, TLBs, predictors and DRAM rows. Source: warming before a measured interval as
//! in SMARTS (Wunderlich et al., ISCA 2003), but only for the last instructions, with the detailed models.

use std::collections::VecDeque;

use longma_sim::{Duration, Time};
use longma_trace::Trace;

/// The instructions of one core in one quantum.
#[derive(Debug)]
pub(super) struct CoreQuantum {
    pub core: usize,
    pub from: Time,
    pub to: Time,
    pub trace: Trace,
    instructions: u64,
}

/// The most recent quanta, which contain at least `wanted` instructions.
#[derive(Debug)]
pub(super) struct Warming {
    /// The number of instructions to keep.
    wanted: u64,
    held: u64,
    quanta: VecDeque<CoreQuantum>,
    /// Dropped traces, kept to reuse their allocations.
    spare: Vec<Trace>,
}

impl Warming {
    /// Keeps the last `wanted` instructions, rounded up to whole quanta.
    pub fn new(wanted: u64) -> Self {
        Self { wanted, held: 0, quanta: VecDeque::new(), spare: Vec::new() }
    }

    /// Whether the store is disabled.
    pub fn is_off(&self) -> bool {
        self.wanted == 0
    }

    /// Adds a trace of core `core`.
    pub fn keep(&mut self, core: usize, from: Time, to: Time, trace: &Trace) {
        if self.is_off() || trace.is_empty() {
            return;
        }
        let instructions = trace.instructions();
        let held_with = |held: u64, oldest: &CoreQuantum| held + instructions - oldest.instructions;
        while self.quanta.front().is_some_and(|oldest| held_with(self.held, oldest) >= self.wanted) {
            let Some(oldest) = self.quanta.pop_front() else { break };
            self.held -= oldest.instructions;
            self.spare.push(oldest.trace);
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.copy_from(trace);
        self.held += instructions;
        self.quanta.push_back(CoreQuantum { core, from, to, trace: copy, instructions });
    }

    /// Drops all quanta and keeps later ones.
    pub fn forget(&mut self) {
        self.held = 0;
        self.spare.extend(self.quanta.drain(..).map(|quantum| quantum.trace));
    }

    /// Returns the quanta, oldest first, and stops keeping more.
    pub fn take(&mut self) -> VecDeque<CoreQuantum> {
        self.wanted = 0;
        self.spare = Vec::new();
        std::mem::take(&mut self.quanta)
    }
}

/// `time` plus `shift`; `time` itself on overflow.
pub(super) fn shifted(time: Time, shift: Duration) -> Time {
    time.checked_add(shift).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use longma_trace::{BlockNumber, Record};

    use super::*;

    fn trace(block: u32, executed: u16) -> Trace {
        let mut trace = Trace::default();
        trace.push(&Record { block: BlockNumber(block), executed, addresses: &[] });
        trace
    }

    #[test]
    fn the_last_instructions_and_at_most_a_quantum_more_are_kept() {
        let mut warming = Warming::new(100);
        for number in 0..50 {
            warming.keep(0, Time::ZERO, Time::ZERO, &trace(number, 30));
        }
        let recent: Vec<u32> = warming
            .take()
            .iter()
            .flat_map(|quantum| quantum.trace.records().map(|record| record.block.0).collect::<Vec<_>>())
            .collect();
        assert_eq!(recent, [46, 47, 48, 49]);
        warming.keep(0, Time::ZERO, Time::ZERO, &trace(0, 30));
        assert!(warming.take().is_empty(), "the region has begun");
    }

    #[test]
    fn no_warming_keeps_nothing() {
        let mut warming = Warming::new(0);
        warming.keep(0, Time::ZERO, Time::ZERO, &trace(0, 30));
        assert!(warming.take().is_empty());
    }
}
