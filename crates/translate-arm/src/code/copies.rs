//! Loops translated twice: what holds where a round follows another is not what holds where the first begins, and less is to be done there.
//! A copy has addresses of its own: those of the source with the copy's number above.
//! Not which loops there are (`loops`).

use super::loops::Loops;
use super::reach::Reach;

/// Above what addresses have.
const SHIFT: u32 = 56;
/// So many instructions of a loop are translated twice.
const MOST_INSTRUCTIONS: usize = 120;
/// And so many of a unit in all.
const MOST_OF_UNIT: usize = 1000;

/// The source's address.
pub(super) const fn source(pc: u64) -> u64 {
    pc << (64 - SHIFT) >> (64 - SHIFT)
}

/// The number of the copy that an address is of: 0 for the first.
const fn copy_of(pc: u64) -> u64 {
    pc >> SHIFT
}

impl Reach {
    /// Adds a copy of each innermost loop.
    pub(super) fn copy_loops(&mut self, loops: &Loops) {
        let mut left = MOST_OF_UNIT;
        for leaders in loops.innermost() {
            let instructions: Vec<_> = leaders.iter().flat_map(|leader| self.block(*leader).0).collect();
            if instructions.len() > MOST_INSTRUCTIONS.min(left) {
                continue;
            }
            left -= instructions.len();
            self.leaders.extend(leaders.iter().map(|leader| leader | 1 << SHIFT));
            self.instructions.extend(instructions.into_iter().map(|(pc, i)| (pc | 1 << SHIFT, i)));
        }
    }

    /// Where a jump from `from`, in the block of `leader`, to a place in the source leads: into the copy of the loop if it goes back, and out
    /// of it if it leaves the loop.
    pub(super) fn lead(&self, from: u64, leader: u64, to: u64) -> u64 {
        let goes_back = to <= source(from);
        let copy = if goes_back { 1 } else { copy_of(from) };
        let copied = to | copy << SHIFT;
        let is_inside = self.loops.share(leader, to);
        if copy != 0 && is_inside && self.leaders.contains(&copied) { copied } else { to }
    }
}
