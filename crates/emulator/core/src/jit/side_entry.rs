//! Entry points into the middle of regions, made when a jump first targets a block there.

use std::mem::offset_of;

use iced_x86::{Code, Register};
use longma_loongarch::State;

use super::{
    allocation::Allocation,
    assembler::{Assembled, Assembler, Condition},
    emit::enter_mapping,
    trampolines::field,
};
use crate::cpu::{Cpu, ExitReason};

/// How a side entry leaves when the core must stop.
pub(crate) struct AttentionExit {
    /// The guest address of the block.
    pub pc: u64,
    /// The trampoline that leaves from the canonical mapping.
    pub leave_canonical: u64,
}

/// The code that switches from the canonical mapping to the mapping of the block at host address `block` and jumps
/// there. With `exit`, it first checks whether the core must stop: a loop over several regions need not pass through a
/// loop head or a region's own entry.
pub(crate) fn write(allocation: &Allocation, block: u64, exit: Option<AttentionExit>) -> Assembled {
    let mut assembler = Assembler::new();
    let must_stop = assembler.label();
    if exit.is_some() {
        assembler.op2(Code::Cmp_rm32_imm8, field(offset_of!(Cpu, attention)), 0);
        assembler.jump_if(Condition::NotEqual, must_stop);
    }
    enter_mapping(&mut assembler, allocation);
    assembler.jump_to(block);
    assembler.place(must_stop);
    if let Some(AttentionExit { pc, leave_canonical }) = exit {
        let slot = field(offset_of!(Cpu, state) + offset_of!(State, pc));
        assembler.op2(Code::Mov_r64_imm64, Register::RAX, pc as i64);
        assembler.op2(Code::Mov_rm64_r64, slot, Register::RAX);
        assembler.op2(Code::Mov_r32_imm32, Register::EAX, ExitReason::Attention as i32);
        assembler.jump_to(leave_canonical);
    }
    assembler.finish()
}
