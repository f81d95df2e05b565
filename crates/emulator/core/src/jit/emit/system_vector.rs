//! Emits loads and stores of floating-point and vector registers for a core of a system. The registers stay in the
//! frame, because all other instructions on them are executed by the owner. Source: LoongArch Reference Manual, volume
//! 1, section 7.4.3 (EUEN).

use std::mem::offset_of;

use iced_x86::{Code, MemoryOperand, Register};
use longma_loongarch::{ExtendedFlags, Instruction, Op, State};

use super::{Condition, Emitter};
use crate::frame::Frame;
use crate::jit::trampolines::{field, vector_slot};

/// The units as bits of EUEN.
const FLOAT: i32 = 1;
const VECTOR128: i32 = 2;
const VECTOR256: i32 = 4;

/// Holds the host address of an access.
const HOST: Register = Register::RDX;

impl Emitter<'_> {
    /// Emits a load or store of a floating-point or vector register. Returns false for other instructions.
    pub(super) fn system_vector(&mut self, i: &Instruction) -> bool {
        let (unit, bytes, is_load) = match i.op {
            Op::FldS | Op::FldxS => (FLOAT, 4, true),
            Op::FldD | Op::FldxD => (FLOAT, 8, true),
            Op::FstS | Op::FstxS => (FLOAT, 4, false),
            Op::FstD | Op::FstxD => (FLOAT, 8, false),
            Op::Vld | Op::Vldx => (VECTOR128, 16, true),
            Op::Vst | Op::Vstx => (VECTOR128, 16, false),
            Op::Xvld | Op::Xvldx => (VECTOR256, 32, true),
            Op::Xvst | Op::Xvstx => (VECTOR256, 32, false),
            _ => return false,
        };
        let (slow, resume) = self.slow_path(i);
        self.a.op2(Code::Test_rm8_imm8, field(offset_of!(Frame, units)), unit);
        self.a.jump_if(Condition::Equal, slow);
        if unit == FLOAT {
            let stack_mode = offset_of!(State, lbt) + offset_of!(ExtendedFlags, stack_mode);
            self.a.op2(Code::Cmp_rm8_imm8, field(offset_of!(Frame, state) + stack_mode), 0);
            self.a.jump_if(Condition::NotEqual, slow);
        }
        let table = if is_load { offset_of!(Frame, readable) } else { offset_of!(Frame, writable) };
        self.system_address(i, bytes, table);
        self.a.jump_if(Condition::NotEqual, slow);
        self.add_addend();
        let slot = vector_slot(i.d);
        for offset in (0..bytes).step_by(8) {
            let memory = MemoryOperand::with_base_displ_size(HOST, offset, 1);
            let register = MemoryOperand { displacement: slot.displacement + offset, ..slot };
            let (from, to) = if is_load { (memory, register) } else { (register, memory) };
            let (load, store, value) = match bytes {
                4 => (Code::Mov_r32_rm32, Code::Mov_rm32_r32, Register::EAX),
                _ => (Code::Mov_r64_rm64, Code::Mov_rm64_r64, Register::RAX),
            };
            self.a.op2(load, value, from);
            self.a.op2(store, to, value);
        }
        self.a.place(resume);
        true
    }
}
