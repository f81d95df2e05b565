//! Emits branches, jumps, calls and returns. Source: LoongArch Reference Manual, volume 1, section 2.2.5; the return
//! stack follows FX!32 and later translators.

use std::mem::offset_of;

use iced_x86::{Code, MemoryOperand, Register};
use longma_loongarch::{Instruction, Op, State};

use super::{Emitter, Stub};
use crate::{
    block::End,
    cpu::{Cpu, ExitReason, JUMP_CACHE_ENTRIES},
    jit::{
        assembler::{Assembler, Condition, Label},
        region::RegionBlock,
        registers::low32,
        trampolines::{BASE_BIAS, field},
    },
};

/// Holds the target guest address during an indirect jump.
const TARGET: Register = Register::RDX;

impl Emitter<'_> {
    /// Emits the last instruction of a block if it determines how the block ends.
    pub(super) fn emit_block_end(
        &mut self,
        block: &RegionBlock,
        instruction: &Instruction,
        next: Option<u64>,
    ) -> bool {
        if !matches!(block.end, End::Next(_) | End::Invalid | End::Leave { .. }) {
            self.close_record();
        }
        match block.end {
            End::Next(_) | End::Invalid => return false,
            End::Branch { taken, next: fall } => {
                let condition = self.compare(instruction);
                self.branch(condition, taken, fall, next);
            }
            End::Jump(target) => self.jump_to_block(target, next),
            End::Call { target, next: back } => {
                self.write_constant(1, back);
                self.leave_mapping();
                self.push_return(back);
                self.linked_jump(target, true);
                self.return_point(back, next);
            }
            End::IndirectCall { next: back } => {
                self.jump_target(instruction);
                self.write_constant(1, back);
                self.leave_mapping();
                self.push_return(back);
                let entry = find_host_code(&mut self.a);
                let (miss, landing) = (self.a.label(), self.a.label());
                self.a.jump_if(Condition::NotEqual, miss);
                self.a.op1(Code::Call_rm64, entry);
                self.a.place(landing);
                self.stubs.push(Stub::CallMiss { label: miss, landing });
                self.return_point(back, next);
            }
            End::Return => {
                self.copy(TARGET, 1);
                self.leave_mapping();
                self.a.op2(Code::Cmp_r64_rm64, TARGET, MemoryOperand::with_base_displ(Register::RSP, 8));
                let miss = self.a.label();
                self.a.jump_if(Condition::NotEqual, miss);
                self.a.op0(Code::Retnq);
                self.stubs.push(Stub::JumpTo { label: miss, host: self.trampolines.return_miss });
            }
            End::Indirect => {
                self.jump_target(instruction);
                self.leave_mapping();
                let entry = find_host_code(&mut self.a);
                let miss = self.a.label();
                self.a.jump_if(Condition::NotEqual, miss);
                self.a.op1(Code::Jmp_rm64, entry);
                self.stubs.push(Stub::JumpTo { label: miss, host: self.trampolines.leave_indirect });
            }
            End::Leave { .. } if instruction.op == Op::Syscall && instruction.imm == 0 => {
                self.set_pc(self.pc);
                self.set_reason(ExitReason::Syscall);
                self.a.jump(self.spill);
            }
            End::Leave { .. } => self.exit_to_run_loop(),
        }
        true
    }

    /// Branches to one of two addresses depending on the host's flags.
    pub(super) fn branch(&mut self, condition: Condition, taken: u64, fall_through: u64, next: Option<u64>) {
        if next == Some(taken) && self.label_of(taken).is_some() {
            let label = self.edge(fall_through);
            self.a.jump_if(condition.inverted(), label);
        } else {
            let label = self.edge(taken);
            self.a.jump_if(condition, label);
            self.jump_to_block(fall_through, next);
        }
    }

    /// Sets the host's flags for a conditional branch and returns the condition under which it is taken.
    pub(super) fn compare(&mut self, branch: &Instruction) -> Condition {
        let condition = match branch.op {
            Op::Bceqz | Op::Bcnez => {
                self.a.op2(Code::Cmp_rm8_imm8, condition_flag(branch.j), 0);
                return if branch.op == Op::Bceqz { Condition::Equal } else { Condition::NotEqual };
            }
            Op::Beqz | Op::Beq => Condition::Equal,
            Op::Bnez | Op::Bne => Condition::NotEqual,
            Op::Blt => Condition::Less,
            Op::Bge => Condition::GreaterOrEqual,
            Op::Bltu => Condition::Below,
            _ => Condition::AboveOrEqual,
        };
        let right = if matches!(branch.op, Op::Beqz | Op::Bnez) { 0 } else { branch.d };
        self.compare_registers(branch.j, right);
        condition
    }

    /// Compares two guest registers.
    pub(super) fn compare_registers(&mut self, left: u8, right: u8) {
        match (self.host_of(left), right) {
            (Some(host), 0) => self.a.op2(Code::Test_rm64_r64, host, host),
            (None, 0) if left != 0 => {
                let source = self.source(left);
                self.a.op2(Code::Cmp_rm64_imm8, source, 0);
            }
            (_, 0) => {
                let left = self.read(left, Register::RAX);
                self.a.op2(Code::Test_rm64_r64, left, left);
            }
            (_, right) => {
                let left = self.read(left, Register::RAX);
                let right = self.source(right);
                self.a.op2(Code::Cmp_r64_rm64, left, right);
            }
        }
    }

    pub(super) fn jump_target(&mut self, jump: &Instruction) {
        let base = self.read(jump.j, TARGET);
        if jump.imm != 0 {
            let sum = MemoryOperand::with_base_displ_size(base, i64::from(jump.imm), 1);
            self.a.op2(Code::Lea_r64_m, TARGET, sum);
        } else if base != TARGET {
            self.a.op2(Code::Mov_r64_rm64, TARGET, base);
        }
    }

    fn push_return(&mut self, return_address: u64) {
        if i32::try_from(return_address as i64).is_ok() {
            self.a.op1(Code::Pushq_imm32, return_address as i64);
        } else {
            self.a.op2(Code::Mov_r64_imm64, Register::RAX, return_address as i64);
            self.a.op1(Code::Push_r64, Register::RAX);
        }
    }

    /// Emits the code after a call, to which the called function returns in the canonical mapping.
    fn return_point(&mut self, return_address: u64, next: Option<u64>) {
        self.positions.push((self.a.position() as u32, return_address));
        self.a.op2(Code::Lea_r64_m, Register::RSP, MemoryOperand::with_base_displ_size(Register::RSP, 8, 1));
        match self.label_of(return_address) {
            Some(_) => {
                self.enter_mapping();
                self.jump_to_block(return_address, next);
            }
            None => self.linked_jump(return_address, false),
        }
    }
}

/// Looks up [`TARGET`] in the lookup table of indirect-jump targets. Sets the flags to "equal" on a hit, and returns
/// the operand that then holds the host address.
pub(in crate::jit) fn find_host_code(a: &mut Assembler) -> MemoryOperand {
    const INDEX: Register = Register::RCX;
    let table = offset_of!(Cpu, jump_cache) as i64 - BASE_BIAS;
    let entry =
        |offset| MemoryOperand::with_base_index_scale_displ_size(Register::RBP, INDEX, 4, table + offset, 1);
    a.op2(Code::Mov_r32_rm32, low32(INDEX), low32(TARGET));
    a.op2(Code::And_rm32_imm32, low32(INDEX), (JUMP_CACHE_ENTRIES as i32 - 1) << 2);
    a.op2(Code::Cmp_r64_rm64, TARGET, entry(0));
    entry(8)
}

/// The byte of a condition flag.
pub(super) fn condition_flag(number: u8) -> MemoryOperand {
    field(offset_of!(Cpu, state) + offset_of!(State, fcc) + usize::from(number))
}

/// Emits a call whose target is not in the lookup table. A host call pushes the return address, which is the landing.
pub(super) fn call_miss(a: &mut Assembler, label: Label, landing: Label, leave: u64) {
    a.place(label);
    a.call_to(leave);
    a.jump(landing);
}
