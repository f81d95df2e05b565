//! Loops translated several times: what holds where a round follows another is not what holds where the first begins, and less is to be done
//! there; and what each of several rounds adds to a pointer is added once.
//! A copy has addresses of its own: those of the source with the copy's number above.
//! Not which loops there are (`loops`).

use super::loops::Loops;
use super::reach::Reach;
use crate::instruction::{Instruction, Op, Operand};

/// Above what addresses have.
const SHIFT: u32 = 56;
/// So many instructions of a loop are translated twice.
const MOST_INSTRUCTIONS: usize = 120;
/// And so many of a unit in all.
const MOST_OF_UNIT: usize = 1000;
/// A loop that is no longer than this has copies that follow each other, so that its pointers move once in so many rounds.
const SHORT: usize = 20;
const ROUNDS: u64 = 4;

/// The source's address.
pub(super) const fn source(pc: u64) -> u64 {
    pc << (64 - SHIFT) >> (64 - SHIFT)
}

/// The number of the copy that an address is of: 0 for the first.
const fn copy_of(pc: u64) -> u64 {
    pc >> SHIFT
}

/// Whether an instruction moves a pointer, or counts: what it adds can be added later.
fn is_step(i: Instruction) -> bool {
    let counts = matches!(i.op, Op::AddImm | Op::SubImm) && i.is_wide() && i.rd() == i.rn();
    counts || matches!(i.row().operands.last(), Some(Operand::Address(b't' | b'p' | b'i' | b'j')))
}

impl Reach {
    /// Adds copies of each innermost loop.
    pub(super) fn copy_loops(&mut self, loops: &Loops) {
        let mut left = MOST_OF_UNIT;
        for leaders in loops.innermost() {
            let instructions: Vec<_> = leaders.iter().flat_map(|leader| self.block(*leader).0).collect();
            if instructions.len() > MOST_INSTRUCTIONS.min(left) {
                continue;
            }
            let steps = instructions.iter().any(|(_, i)| i.is_some_and(is_step));
            let copies = if steps && instructions.len() <= SHORT { ROUNDS } else { 1 };
            left = left.saturating_sub(instructions.len() * copies as usize);
            for copy in 1..=copies {
                self.leaders.extend(leaders.iter().map(|leader| leader | copy << SHIFT));
                self.instructions.extend(instructions.iter().map(|(pc, i)| (pc | copy << SHIFT, *i)));
            }
        }
    }

    /// Where a jump from the block of `leader` to a place in the source leads: into the next copy of the loop if it goes back, and out of it
    /// if it leaves the loop.
    pub(super) fn lead(&self, leader: u64, to: u64) -> u64 {
        let goes_back = to <= source(leader);
        let copy = copy_of(leader) + u64::from(goes_back);
        if copy == 0 || !self.loops.share(leader, to) {
            return to;
        }
        // The last is followed by the one behind the first round.
        let copied = [copy, 1].map(|copy| to | copy << SHIFT);
        copied.into_iter().find(|copied| self.leaders.contains(copied)).unwrap_or(to)
    }
}
