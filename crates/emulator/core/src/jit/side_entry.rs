//! Entry points into the middle of regions, made when a jump first targets a block there.

use super::{
    allocation::Allocation,
    assembler::{Assembled, Assembler},
    emit::enter_mapping,
};

/// The code that switches from the canonical mapping to the mapping of the block at `block` and jumps there.
pub(crate) fn write(allocation: &Allocation, block: u64) -> Assembled {
    let mut assembler = Assembler::new();
    enter_mapping(&mut assembler, allocation);
    assembler.jump_to(block);
    assembler.finish()
}
