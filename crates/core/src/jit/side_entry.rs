//! Entries into the middle of regions, made when something jumps there.
//! Not the entry of a region, which is part of its code.
//! Source: our own.

use super::{allocation::Allocation, assembler::Assembler, emit::enter_mapping};

/// The code at host address `start` that goes from the canonical mapping to the block at `block`.
pub(super) fn write(start: u64, allocation: &Allocation, block: u64) -> Vec<u8> {
    let mut assembler = Assembler::new(start);
    enter_mapping(&mut assembler, allocation);
    assembler.jump_to(block);
    assembler.finish()
}
