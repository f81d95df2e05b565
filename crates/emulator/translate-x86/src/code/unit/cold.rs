//! Analysis of cold blocks, which make up most of the code that a starting program executes.

use iced_x86::{FlowControl, Instruction};
use longma_translate::optimizations::Options;

use super::super::reading::decode_at;
use super::{Block, MAX_INSTRUCTIONS, ReachableCode, ends, uses_of};

/// The typical maximum number of instructions in a block.
const USUAL_INSTRUCTIONS: usize = 14;

impl ReachableCode {
    /// Analyses the block at `start`, up to its first branch.
    pub(super) fn of_block(start: u64, fetch: &dyn Fn(u64) -> Option<u32>, options: Options) -> Self {
        let mut reach = Self { options, entry_points: vec![start], ..Self::default() };
        reach.code.reserve(USUAL_INSTRUCTIONS);
        let mut pc = start;
        let next = loop {
            let decoded = if reach.code.len() < MAX_INSTRUCTIONS { decode_at(pc, fetch) } else { None };
            let Some(instruction) = decoded else { break Some(pc) };
            reach.code.push(instruction);
            if instruction.is_invalid() || ends(&instruction) {
                break None;
            }
            pc = instruction.next_ip();
            if instruction.flow_control() != FlowControl::Next {
                break Some(pc);
            }
        };
        if reach.code.is_empty() {
            return reach;
        }
        reach.leaders.push(start);
        reach.blocks.push(Block { first: 0, end: reach.code.len(), next });
        let analyses_across_blocks = reach.analyses_across_blocks();
        if analyses_across_blocks {
            reach.look_ahead(fetch);
        }
        let is_loop = reach.code.iter().any(|i| i.near_branch_target() == start);
        if is_loop && analyses_across_blocks {
            reach.find_live();
        }
        if is_loop {
            reach.find_registers();
        } else {
            reach.find_around(&uses_of(&reach.code));
        }
        reach
    }

    /// Adds an invalid instruction at `start`.
    pub(super) fn add_invalid(&mut self, start: u64) {
        let mut invalid = Instruction::default();
        invalid.set_ip(start);
        self.leaders.push(start);
        self.blocks.push(Block { first: 0, end: 1, next: None });
        self.code.push(invalid);
        self.find_around(&uses_of(&self.code));
    }
}
