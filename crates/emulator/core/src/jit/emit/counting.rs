//! Emits the updates of block counters and instruction budgets at the start of a block.

use std::mem::offset_of;

use iced_x86::{Code, MemoryOperand, Register};

use super::{Emitter, Stub};
use crate::{
    cpu::{Cpu, InterruptedBlock},
    jit::{assembler::Condition, region::RegionBlock, trampolines::field},
};

impl Emitter<'_> {
    /// Counts the block, if blocks are counted, and subtracts its length from the instruction budget, if there is one.
    pub(super) fn count_block(&mut self, block: &RegionBlock) {
        let length = block.instructions.len();
        let number = self.counting.and_then(|c| c.add_block(block.start, length));
        self.counted = InterruptedBlock::default();
        if self.metered {
            self.meter_block(block);
        }
        if number.is_some() || self.metered {
            self.counted = InterruptedBlock { start: block.start, instructions: length as u64 };
            self.counted_blocks.push((self.a.position() as u32, self.counted));
        }
        if let Some(number) = number {
            self.a.op2(Code::Mov_r64_rm64, Register::RAX, field(offset_of!(Cpu, counters)));
            let slot = MemoryOperand::with_base_displ_size(Register::RAX, 8 * i64::from(number), 1);
            self.a.op1(Code::Inc_rm64, slot);
        }
    }

    /// Subtracts the block's length from the instruction budget. If it exceeds the budget, the code exits before the
    /// block.
    fn meter_block(&mut self, block: &RegionBlock) {
        let label = self.a.label();
        let length = block.instructions.len() as u8;
        self.a.op2(Code::Sub_rm64_imm8, field(offset_of!(Cpu, budget)), i64::from(length));
        self.a.jump_if(Condition::Below, label);
        self.stubs.push(Stub::Budget { label, pc: block.start, length });
    }

    /// The field of the budget that [`Stub::Budget`] returns instructions to.
    pub(super) fn budget_field(&self) -> MemoryOperand {
        match self.system {
            Some(_) => field(offset_of!(crate::frame::Frame, budget)),
            None => field(offset_of!(Cpu, budget)),
        }
    }
}
