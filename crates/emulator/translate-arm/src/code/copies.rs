//! Copies innermost loops so that later iterations can rely on state that the first one establishes. Short loops are
//! copied several times, so that pointer increments are added once for several iterations. The addresses of a copy are
//! the source addresses with the copy's number in the top byte.

use super::loops::Loops;
use super::reachable::ReachableCode;
use crate::instruction::{Instruction, Op, Operand};

/// Bit position of the copy number, above all source addresses.
const SHIFT: u32 = 56;
/// Loops of more instructions are not copied.
const MAX_INSTRUCTIONS: usize = 120;
/// Maximum number of copied instructions in a unit.
const MAX_COPIED_INSTRUCTIONS: usize = 1000;
/// Loops of up to this many instructions are unrolled to [`ROUNDS`] copies, so that pointers are updated once in
/// [`ROUNDS`] iterations.
const SHORT: usize = 20;
const ROUNDS: u64 = 4;

/// The source address without the copy number.
pub(super) const fn source(pc: u64) -> u64 {
    pc << (64 - SHIFT) >> (64 - SHIFT)
}

/// The copy number of an address; 0 for the original.
const fn copy_of(pc: u64) -> u64 {
    pc >> SHIFT
}

/// Whether an instruction increments a pointer or counter, so that the addition can be deferred.
fn is_step(i: Instruction) -> bool {
    let counts = matches!(i.op, Op::AddImm | Op::SubImm) && i.is_wide() && i.rd() == i.rn();
    counts || matches!(i.row().operands.last(), Some(Operand::Address(b't' | b'p' | b'i' | b'j')))
}

impl ReachableCode {
    /// Adds copies of each innermost loop.
    pub(super) fn copy_loops(&mut self, loops: &Loops) {
        let mut left = MAX_COPIED_INSTRUCTIONS;
        for leaders in loops.innermost() {
            let instructions: Vec<_> = leaders.iter().flat_map(|leader| self.block(*leader).0).collect();
            if instructions.len() > MAX_INSTRUCTIONS.min(left) {
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

    /// The target of a jump from the block of `leader` to a source address: backward jumps within the loop lead to the
    /// next copy, and jumps out of the loop to the original.
    pub(super) fn lead(&self, leader: u64, to: u64) -> u64 {
        let goes_back = to <= source(leader);
        let copy = copy_of(leader) + u64::from(goes_back);
        if copy == 0 || !self.loops.share(leader, to) {
            return to;
        }
        // After the last copy, the first copy follows again.
        let copied = [copy, 1].map(|copy| to | copy << SHIFT);
        copied.into_iter().find(|copied| self.leaders.contains(copied)).unwrap_or(to)
    }
}
