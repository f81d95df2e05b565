//! Analysis of cold blocks, which make up most of the code that a starting program executes.

use iced_x86::{FlowControl, Instruction};
use longma_translate::optimizations::Options;

use super::super::reading::decode_at;
use super::{Block, MAX_INSTRUCTIONS, Reach, ends, uses_of};

/// The typical maximum number of instructions in a block.
const USUAL_INSTRUCTIONS: usize = 14;

impl Reach {
    /// Analyses the block at `start`, up to its first branch.
    pub(super) fn of_block(start: u64, fetch: &dyn Fn(u64) -> Option<u32>, options: Options) -> Self {
        let mut found = Self { options, entry_points: vec![start], ..Self::default() };
        found.code.reserve(USUAL_INSTRUCTIONS);
        let mut pc = start;
        let next = loop {
            let decoded = if found.code.len() < MAX_INSTRUCTIONS { decode_at(pc, fetch) } else { None };
            let Some(instruction) = decoded else { break Some(pc) };
            found.code.push(instruction);
            if instruction.is_invalid() || ends(&instruction) {
                break None;
            }
            pc = instruction.next_ip();
            if instruction.flow_control() != FlowControl::Next {
                break Some(pc);
            }
        };
        if found.code.is_empty() {
            return found;
        }
        found.leaders.push(start);
        found.blocks.push(Block { first: 0, end: found.code.len(), next });
        let sees_across = found.sees_across();
        if sees_across {
            found.look_ahead(fetch);
        }
        let is_loop = found.code.iter().any(|i| i.near_branch_target() == start);
        if is_loop && sees_across {
            found.find_live();
        }
        if is_loop {
            found.find_registers();
        } else {
            found.find_around(&uses_of(&found.code));
        }
        found
    }

    /// Adds an invalid instruction at `start`.
    pub(super) fn be_nothing(&mut self, start: u64) {
        let mut nothing = Instruction::default();
        nothing.set_ip(start);
        self.leaders.push(start);
        self.blocks.push(Block { first: 0, end: 1, next: None });
        self.code.push(nothing);
        self.find_around(&uses_of(&self.code));
    }
}
