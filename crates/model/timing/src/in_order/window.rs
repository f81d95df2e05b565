//! Completion in program order behind issue in program order: what has begun and is not complete, from the oldest on, is no more than the
//! window holds.
//! Not renaming and not a scheduler: what issues has its operands.
//! Source: the reorder buffer of Smith and Pleszkun, Implementation of precise interrupts in pipelined processors (ISCA 1985), whose
//! instructions issue in order.

use std::collections::VecDeque;

use super::DISPATCH_CYCLES;

/// Instructions that have issued, by their number since the core began.
#[derive(Debug)]
pub(super) struct Window {
    entries: u64,
    /// Cycles that it takes at least to fill it.
    fill_cycles: u64,
    /// The number of the next instruction.
    next: u64,
    /// Those that take longer, and when they are complete, which is later of each than of the one before.
    late: VecDeque<(u64, u64)>,
}

impl Window {
    /// None has issued; `entries` are under way at most, and `width` issue in a cycle.
    pub fn new(entries: u32, width: u64) -> Self {
        let entries = u64::from(entries);
        Self { entries, fill_cycles: entries / width, next: 0, late: VecDeque::new() }
    }

    /// When the next instruction can issue that finds room now or later: a cycle that is over, if there is room.
    #[inline]
    pub fn free_at(&mut self) -> u64 {
        let mut free = 0;
        while let Some(&(number, complete)) = self.late.front()
            && number + self.entries <= self.next
        {
            free = complete + DISPATCH_CYCLES;
            self.late.pop_front();
        }
        free
    }

    /// The next instruction has issued at `at`, and its result is there at `ready`.
    #[inline]
    pub fn take(&mut self, at: u64, ready: u64) {
        self.note(0, at, ready);
        self.next += 1;
    }

    /// As [`take`](Self::take), of the instruction `nth` behind the next, without going on to it.
    #[inline]
    pub fn note(&mut self, nth: u64, at: u64, ready: u64) {
        if ready + DISPATCH_CYCLES > at + self.fill_cycles
            && self.late.back().is_none_or(|(_, last)| ready > *last)
        {
            self.late.push_back((self.next + nth, ready));
        }
    }

    /// True if the next `instructions` find room at once, from `cycle` on, unless those of them that were noted are late. Those that were not
    /// take `longest_cycles` at most.
    #[inline]
    pub fn has_room(&mut self, instructions: u64, longest_cycles: u16, cycle: u64) -> bool {
        while self.late.front().is_some_and(|(_, complete)| complete + DISPATCH_CYCLES <= cycle) {
            self.late.pop_front();
        }
        let oldest = self.late.front().map_or(u64::MAX, |(number, _)| *number);
        u64::from(longest_cycles) + DISPATCH_CYCLES <= self.fill_cycles
            && instructions <= self.entries
            && oldest.saturating_add(self.entries) >= self.next + instructions
    }

    /// How many late instructions are known: what [`forget`](Self::forget) goes back to.
    #[inline]
    pub fn mark(&self) -> usize {
        self.late.len()
    }

    /// Forgets what was noted since `mark`.
    pub fn forget(&mut self, mark: usize) {
        self.late.truncate(mark);
    }

    /// Goes on by `instructions`, the late ones of which were noted.
    #[inline]
    pub fn pass(&mut self, instructions: u64) {
        self.next += instructions;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_next_has_room_when_all_but_so_many_before_it_are_complete(
            entries in 1u32..40,
            width in 1u64..5,
            steps in prop::collection::vec((0u64..3, 0u64..60), 1..300),
        ) {
            let (mut window, mut complete, mut cycle) = (Window::new(entries, width), Vec::<u64>::new(), 0);
            for (nth, (later, takes)) in steps.into_iter().enumerate() {
                // No more issue in a cycle than the width.
                cycle += later + u64::from((nth as u64).is_multiple_of(width));
                let known = complete.len().checked_sub(entries as usize);
                let expected = known.map_or(0, |nth| complete[nth] + DISPATCH_CYCLES);
                prop_assert_eq!(window.free_at().max(cycle), expected.max(cycle));
                cycle = cycle.max(expected);
                window.take(cycle, cycle + takes);
                complete.push(complete.last().copied().unwrap_or(0).max(cycle + takes));
            }
        }
    }
}
