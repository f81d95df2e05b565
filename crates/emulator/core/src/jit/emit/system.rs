//! Emits code for a core of a system: loads and stores through the frame's caches of address translations, the budget
//! of instructions at each block, and jumps that depend on the current mapping of addresses. The owner executes all
//! instructions that may trap for other reasons than memory, and operations on floating-point and vector registers,
//! whose units may be disabled.

use std::mem::offset_of;

use iced_x86::{Code, MemoryOperand, Register};
use longma_loongarch::{Instruction, Op};

use super::{Condition, Emitter, Stub};
use crate::block::End;
use crate::cpu::{Cpu, ExitReason};
use crate::frame::{Frame, JUMP_ENTRIES, PageEntry};
use crate::jit::region::RegionBlock;
use crate::jit::registers::{low8, low16, low32};
use crate::jit::trampolines::{BASE_BIAS, field};

// The registers are at the same offsets, so that most instructions are emitted as for a process.
const _: () = assert!(offset_of!(Cpu, state) == 0 && offset_of!(Frame, state) == 0);

/// Holds the guest address of an access and the target of a jump.
const ADDRESS: Register = Register::RDX;

impl Emitter<'_> {
    /// Emits one instruction that does not end a block. Returns false if the owner must execute it.
    pub(super) fn system_instruction(&mut self, i: &Instruction, following: Option<&Instruction>) -> bool {
        // These use constants that a frame does not have.
        let is_crc = matches!(i.op, Op::CrcWBW | Op::CrcWHW | Op::CrcWWW | Op::CrcWDW);
        self.constant(i, following)
            || self.integer(i)
            || !is_crc && self.bits(i)
            || self.system_memory(i)
            || self.system_atomic(i)
            || self.system_vector(i)
    }

    fn system_memory(&mut self, i: &Instruction) -> bool {
        match i.op {
            Op::LdB | Op::LdxB => self.system_load(i, Code::Movsx_r64_rm8, 1),
            Op::LdH | Op::LdxH => self.system_load(i, Code::Movsx_r64_rm16, 2),
            Op::LdW | Op::LdxW | Op::LdptrW => self.system_load(i, Code::Movsxd_r64_rm32, 4),
            Op::LdD | Op::LdxD | Op::LdptrD => self.system_load(i, Code::Mov_r64_rm64, 8),
            Op::LdBu | Op::LdxBu => self.system_load(i, Code::Movzx_r32_rm8, 1),
            Op::LdHu | Op::LdxHu => self.system_load(i, Code::Movzx_r32_rm16, 2),
            Op::LdWu | Op::LdxWu => self.system_load(i, Code::Mov_r32_rm32, 4),
            Op::StB | Op::StxB => self.system_store(i, Code::Mov_rm8_r8, low8, 1),
            Op::StH | Op::StxH => self.system_store(i, Code::Mov_rm16_r16, low16, 2),
            Op::StW | Op::StxW | Op::StptrW => self.system_store(i, Code::Mov_rm32_r32, low32, 4),
            Op::StD | Op::StxD | Op::StptrD => self.system_store(i, Code::Mov_rm64_r64, |r| r, 8),
            // Cores take turns on one host thread.
            Op::Preld | Op::Preldx | Op::Dbar => {}
            _ => return false,
        }
        true
    }

    fn system_load(&mut self, i: &Instruction, code: Code, bytes: i64) {
        let (slow, resume) = self.slow_path(i);
        self.system_address(i, bytes, offset_of!(Frame, readable));
        self.a.jump_if(Condition::NotEqual, slow);
        self.add_addend();
        let to = self.target(i.d, Register::RAX);
        let narrow = matches!(code, Code::Movzx_r32_rm8 | Code::Movzx_r32_rm16 | Code::Mov_r32_rm32);
        let memory = MemoryOperand::with_base(ADDRESS);
        self.a.op2(code, if narrow { low32(to) } else { to }, memory);
        self.write(i.d, to);
        self.a.place(resume);
    }

    fn system_store(&mut self, i: &Instruction, code: Code, part: fn(Register) -> Register, bytes: i64) {
        let (slow, resume) = self.slow_path(i);
        self.system_address(i, bytes, offset_of!(Frame, writable));
        self.a.jump_if(Condition::NotEqual, slow);
        self.add_addend();
        let value = self.read(i.d, Register::RAX);
        self.a.op2(code, MemoryOperand::with_base(ADDRESS), part(value));
        self.a.place(resume);
    }

    /// Computes the guest address of an access in [`ADDRESS`].
    pub(super) fn guest_address(&mut self, i: &Instruction) {
        let indexed =
            i.op.row().operands.len() == 3 && i.op.row().operands[2] == super::memory::INDEX_OPERAND;
        if indexed {
            let (j, k) = (self.read(i.j, Register::RCX), self.read(i.k, ADDRESS));
            self.a.op2(Code::Lea_r64_m, ADDRESS, MemoryOperand::with_base_index(j, k));
        } else {
            let base = self.read(i.j, ADDRESS);
            let sum = MemoryOperand::with_base_displ_size(base, i64::from(i.imm), 1);
            self.a.op2(Code::Lea_r64_m, ADDRESS, sum);
        }
    }

    /// Computes the guest address in [`ADDRESS`] and the address of its entry in RCX. The host's flags are "equal" if
    /// the entry matches an access of `bytes` bytes. `table` is the offset of the pointer to the entries.
    pub(super) fn system_address(&mut self, i: &Instruction, bytes: i64, table: usize) {
        const SHIFT: i32 = 12 - size_of::<PageEntry>().ilog2() as i32;
        const MASK: i32 = ((Frame::PAGES - 1) * size_of::<PageEntry>()) as i32;
        self.guest_address(i);
        self.a.op2(Code::Mov_r32_rm32, Register::ECX, low32(ADDRESS));
        self.a.op2(Code::Shr_rm32_imm8, Register::ECX, SHIFT);
        self.a.op2(Code::And_rm32_imm32, Register::ECX, MASK);
        self.a.op2(Code::Add_r64_rm64, Register::RCX, field(table));
        let last = MemoryOperand::with_base_displ_size(ADDRESS, bytes - 1, 1);
        self.a.op2(Code::Lea_r64_m, Register::RAX, last);
        self.a.op2(Code::And_rm64_imm32, Register::RAX, -4096);
        self.a.op2(Code::Or_r64_rm64, Register::RAX, field(offset_of!(Frame, generation)));
        let tag = MemoryOperand::with_base_displ(Register::RCX, offset_of!(PageEntry, tag) as i64);
        self.a.op2(Code::Cmp_r64_rm64, Register::RAX, tag);
    }

    pub(super) fn add_addend(&mut self) {
        let addend = offset_of!(PageEntry, addend) as i64;
        let addend = MemoryOperand::with_base_displ_size(Register::RCX, addend, 1);
        self.a.op2(Code::Add_r64_rm64, ADDRESS, addend);
    }

    /// Subtracts the block's length from the instruction budget. If the length exceeds the budget, the code exits
    /// before the block.
    pub(super) fn take_budget(&mut self, block: &RegionBlock) {
        let label = self.a.label();
        let length = block.instructions.len() as u8;
        self.a.op2(Code::Sub_rm64_imm8, field(offset_of!(Frame, budget)), i64::from(length));
        self.a.jump_if(Condition::Below, label);
        self.stubs.push(Stub::Budget { label, pc: block.start, length });
    }

    /// Emits the code for a block that exceeds the budget.
    pub(super) fn return_budget(&mut self, pc: u64, length: u8) {
        let budget = self.budget_field();
        self.a.op2(Code::Add_rm64_imm8, budget, i64::from(length));
        self.set_pc(pc);
        self.set_reason(ExitReason::Attention);
        self.a.jump(self.spill);
    }

    /// Emits the last instruction of a block if it determines how the block ends.
    pub(super) fn emit_system_block_end(
        &mut self,
        block: &RegionBlock,
        instruction: &Instruction,
        next: Option<u64>,
    ) -> bool {
        match block.end {
            End::Next(_) | End::Invalid => return false,
            // The unit of the condition flags may be disabled.
            End::Branch { .. } if matches!(instruction.op, Op::Bceqz | Op::Bcnez) => {
                self.call_interpreter(instruction);
                // The owner executes the branch, which sets the program counter; exit afterwards.
                self.exit_to_run_loop();
            }
            End::Branch { taken, next: fall } => {
                let condition = self.compare(instruction);
                self.branch(condition, taken, fall, next);
            }
            End::Jump(target) => self.jump_to_block(target, next),
            End::Call { target, next: back } => {
                self.write_constant(1, back);
                self.jump_to_block(target, next);
            }
            End::IndirectCall { next: back } => {
                self.jump_target(instruction);
                self.write_constant(1, back);
                self.leave_mapping();
                self.find_and_jump();
            }
            End::Return | End::Indirect => {
                self.jump_target(instruction);
                self.leave_mapping();
                self.find_and_jump();
            }
            End::Leave { next: following } => {
                self.call_interpreter(instruction);
                self.jump_to_block(following, next);
            }
        }
        true
    }

    /// Jumps to the host code for the guest address in [`ADDRESS`], or leaves if there is none for the current mapping
    /// of addresses. The mapping of registers is canonical.
    pub(super) fn find_and_jump(&mut self) {
        const INDEX: Register = Register::RCX;
        let table = offset_of!(Frame, jumps) as i64 - BASE_BIAS;
        let entry = |offset| {
            MemoryOperand::with_base_index_scale_displ_size(Register::RBP, INDEX, 8, table + offset, 1)
        };
        let miss = self.a.label();
        self.a.op2(Code::Mov_r32_rm32, low32(INDEX), low32(ADDRESS));
        self.a.op2(Code::And_rm32_imm32, low32(INDEX), (JUMP_ENTRIES as i32 - 1) << 2);
        self.a.op2(Code::Cmp_r64_rm64, ADDRESS, entry(0));
        self.a.jump_if(Condition::NotEqual, miss);
        self.a.op2(Code::Mov_r64_rm64, Register::RAX, field(offset_of!(Frame, stamp)));
        self.a.op2(Code::Cmp_r64_rm64, Register::RAX, entry(8));
        self.a.jump_if(Condition::NotEqual, miss);
        self.a.op1(Code::Jmp_rm64, entry(16));
        self.stubs.push(Stub::JumpTo { label: miss, host: self.trampolines.leave_indirect });
    }
}
