//! Entries into the middle of regions, made when something jumps there.
//! Not the entry of a region, which is part of its code.

use super::{
    allocation::Allocation,
    assembler::{Assembled, Assembler},
    emit::enter_mapping,
};

/// The code that goes from the canonical mapping to the block at `block`.
pub(super) fn write(allocation: &Allocation, block: u64) -> Assembled {
    let mut assembler = Assembler::new();
    enter_mapping(&mut assembler, allocation);
    assembler.jump_to(block);
    assembler.finish()
}
