//! What is found for a block that is translated for the first few times: most of a program's start is such blocks.
//! Not what they become.

use iced_x86::FlowControl;
use longma_translate::parts::Options;

use super::super::reading::decode_at;
use super::{MOST_INSTRUCTIONS, Reach, ends};

/// A block has no more, mostly.
const USUAL_INSTRUCTIONS: usize = 14;

impl Reach {
    /// The block at `start`, up to its first branch. Unless that leads back to `start`, nothing has to settle.
    pub(super) fn of_block(start: u64, fetch: &dyn Fn(u64) -> Option<u32>, options: Options) -> Self {
        let mut found = Self::empty(start, options);
        found.instructions.reserve(USUAL_INSTRUCTIONS);
        let (mut block, mut pc) = (Vec::with_capacity(USUAL_INSTRUCTIONS), start);
        let next = loop {
            let decoded = if block.len() < MOST_INSTRUCTIONS { decode_at(pc, fetch) } else { None };
            let Some(instruction) = decoded else { break Some(pc) };
            found.instructions.insert(pc, instruction);
            block.push(instruction);
            if instruction.is_invalid() || ends(&instruction) {
                break None;
            }
            pc = instruction.next_ip();
            if instruction.flow_control() != FlowControl::Next {
                break Some(pc);
            }
        };
        if block.is_empty() {
            return found;
        }
        found.leaders.insert(start);
        found.blocks.insert(start, (block.into(), next));
        let sees_across = found.sees_across();
        if sees_across {
            found.look_ahead(fetch);
        }
        let is_loop = found.instructions.values().any(|i| i.near_branch_target() == start);
        if is_loop && sees_across {
            found.find_live();
        }
        if is_loop {
            found.find_registers();
        } else {
            let around = found.around(start);
            found.around.insert(start, around);
        }
        found
    }
}
