//! In-order completion: the number of instructions between the oldest incomplete one and the youngest issued one is
//! limited by the size of the window.
//!
//! Source: the reorder buffer of Smith and Pleszkun, Implementation of precise interrupts in pipelined processors (ISCA
//! 1985), whose instructions issue in order.

use std::collections::VecDeque;

use super::DISPATCH_CYCLES;

/// The window. Instructions are numbered from the start of the core.
#[derive(Debug)]
pub(super) struct Window {
    entries: u64,
    /// Minimum number of cycles to fill it.
    fill_cycles: u64,
    /// Number of the next instruction.
    next: u64,
    /// Slow instructions and their completion cycles, both ascending.
    late: VecDeque<(u64, u64)>,
}

impl Window {
    /// Creates an empty window of `entries` instructions for a core that issues `width` per cycle.
    pub fn new(entries: u32, width: u64) -> Self {
        let entries = u64::from(entries);
        Self { entries, fill_cycles: entries / width, next: 0, late: VecDeque::new() }
    }

    /// When the window has room for the next instruction. A past cycle means that it has room now.
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

    /// Records that the next instruction has issued at `at` and its result is available at `ready`.
    #[inline]
    pub fn take(&mut self, at: u64, ready: u64) {
        self.note(0, at, ready);
        self.next += 1;
    }

    /// Like [`take`](Self::take), for the instruction `number` after the next one, without advancing.
    #[inline]
    pub fn note(&mut self, number: u64, at: u64, ready: u64) {
        if ready + DISPATCH_CYCLES > at + self.fill_cycles
            && self.late.back().is_none_or(|(_, last)| ready > *last)
        {
            self.late.push_back((self.next + number, ready));
        }
    }

    /// Returns whether the next `instructions` can issue from `cycle` on without waiting for the window. Each is
    /// assumed to complete within `longest_cycles`, except those recorded as slow.
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

    /// Number of recorded slow instructions, to restore with [`forget`](Self::forget).
    #[inline]
    pub fn mark(&self) -> usize {
        self.late.len()
    }

    /// Discards the records since `mark`.
    pub fn forget(&mut self, mark: usize) {
        self.late.truncate(mark);
    }

    /// Advances by `instructions`. The slow ones among them have been recorded with [`note`](Self::note).
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
        fn the_window_has_room_when_enough_older_instructions_are_complete(
            entries in 1u32..40,
            width in 1u64..5,
            steps in prop::collection::vec((0u64..3, 0u64..60), 1..300),
        ) {
            let (mut window, mut complete, mut cycle) = (Window::new(entries, width), Vec::<u64>::new(), 0);
            for (index, (later, takes)) in steps.into_iter().enumerate() {
                // At most the issue width per cycle.
                cycle += later + u64::from((index as u64).is_multiple_of(width));
                let oldest = complete.len().checked_sub(entries as usize);
                let expected = oldest.map_or(0, |index| complete[index] + DISPATCH_CYCLES);
                prop_assert_eq!(window.free_at().max(cycle), expected.max(cycle));
                cycle = cycle.max(expected);
                window.take(cycle, cycle + takes);
                complete.push(complete.last().copied().unwrap_or(0).max(cycle + takes));
            }
        }
    }
}
