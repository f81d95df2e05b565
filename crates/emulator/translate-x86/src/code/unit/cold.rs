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
        let mut reachable = Self { options, entry_points: vec![start], ..Self::default() };
        reachable.code.reserve(USUAL_INSTRUCTIONS);
        let mut pc = start;
        let next = loop {
            let decoded = if reachable.code.len() < MAX_INSTRUCTIONS { decode_at(pc, fetch) } else { None };
            let Some(instruction) = decoded else { break Some(pc) };
            reachable.code.push(instruction);
            if instruction.is_invalid() || ends(&instruction) {
                break None;
            }
            pc = instruction.next_ip();
            if instruction.flow_control() != FlowControl::Next {
                break Some(pc);
            }
        };
        if reachable.code.is_empty() {
            return reachable;
        }
        reachable.leaders.push(start);
        reachable.blocks.push(Block { first: 0, end: reachable.code.len(), next });
        let analyses_across_blocks = reachable.analyses_across_blocks();
        if analyses_across_blocks {
            reachable.look_ahead(fetch);
        }
        let is_loop = reachable.code.iter().any(|i| i.near_branch_target() == start);
        if is_loop && analyses_across_blocks {
            reachable.find_live();
        }
        if is_loop {
            reachable.find_registers();
        } else {
            reachable.analyse_instructions(&uses_of(&reachable.code));
        }
        reachable
    }

    /// Adds an invalid instruction at `start`.
    pub(super) fn add_invalid(&mut self, start: u64) {
        let mut invalid = Instruction::default();
        invalid.set_ip(start);
        self.leaders.push(start);
        self.blocks.push(Block { first: 0, end: 1, next: None });
        self.code.push(invalid);
        self.analyse_instructions(&uses_of(&self.code));
    }
}
