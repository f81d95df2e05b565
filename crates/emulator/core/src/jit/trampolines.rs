//! The code that all regions share: into translated code, out of it, and out for one instruction.
//! Not code of any guest program.
//! Source: System V psABI (host registers a function must keep).

use std::mem::offset_of;

use iced_x86::{Code, MemoryOperand, Register};

use longma_loongarch::State;

use super::{
    assembler::{Assembled, Assembler, Condition},
    call_out::execute_call_out,
    emit::control::find_host_code,
    registers::{CANONICAL, GENERAL_HOSTS},
};
use crate::cpu::{Cpu, ExitReason};

/// The base register points this far into the [`Cpu`], so that one-byte displacements reach every general register.
pub(crate) const BASE_BIAS: i64 = 128;

/// A field of the [`Cpu`] as translated code addresses it.
pub(crate) fn field(offset: usize) -> MemoryOperand {
    MemoryOperand::with_base_displ_size(Register::RBP, offset as i64 - BASE_BIAS, 1)
}

/// The memory of guest general register `number`.
pub(crate) fn general_slot(number: u8) -> MemoryOperand {
    field(offset_of!(Cpu, state.x) + 8 * usize::from(number))
}

/// The memory of guest vector register `number`.
pub(crate) fn vector_slot(number: u8) -> MemoryOperand {
    field(offset_of!(Cpu, state.v) + 32 * usize::from(number))
}

/// Host addresses of the shared code.
#[derive(Clone, Copy)]
pub(crate) struct Trampolines {
    /// `extern "sysv64" fn(cpu + BASE_BIAS, host code) -> ExitReason`.
    pub enter: u64,
    /// Writes the canonical registers to memory, then as `leave`. The reason is in EAX.
    pub leave_canonical: u64,
    /// Back to the run loop; the registers are in memory already. The reason is in EAX.
    pub leave: u64,
    /// Leaves because an indirect jump's target, in RDX, is not at hand. The mapping is canonical.
    pub leave_indirect: u64,
    /// A return to RDX that the return stack did not expect: empties it, then jumps. The mapping is canonical.
    pub return_miss: u64,
    /// Has the interpreter execute the instruction that RDX points at, on the host's stack; registers are in memory. The result is in EAX.
    pub call_out: u64,
}

const CALLEE_SAVED: [Register; 6] =
    [Register::RBX, Register::RBP, Register::R12, Register::R13, Register::R14, Register::R15];

impl Trampolines {
    /// Writes the shared code by `insert`, which puts code somewhere and says where that is.
    pub fn write(insert: &mut dyn FnMut(&Assembled) -> u64) -> Self {
        let leave_canonical = append(insert, |a| {
            for (host, guest) in GENERAL_HOSTS.into_iter().zip(CANONICAL) {
                a.op2(Code::Mov_rm64_r64, general_slot(guest), host);
            }
            leave(a);
        });
        let leave_indirect = append(insert, |a| {
            a.op2(Code::Mov_rm64_r64, field(offset_of!(Cpu, state) + offset_of!(State, pc)), Register::RDX);
            a.op2(Code::Mov_r32_imm32, Register::EAX, ExitReason::Indirect as i32);
            a.jump_to(leave_canonical);
        });
        let return_miss = append(insert, |a| {
            a.op2(Code::Mov_r64_rm64, Register::RSP, field(offset_of!(Cpu, return_stack_top)));
            let entry = find_host_code(a);
            let found = a.label();
            a.jump_if(Condition::Equal, found);
            a.jump_to(leave_indirect);
            a.place(found);
            a.op1(Code::Jmp_rm64, entry);
        });
        Self {
            enter: append(insert, enter),
            leave_canonical,
            leave: append(insert, leave),
            leave_indirect,
            return_miss,
            call_out: append(insert, call_out),
        }
    }
}

fn append(insert: &mut dyn FnMut(&Assembled) -> u64, write: impl FnOnce(&mut Assembler)) -> u64 {
    let mut assembler = Assembler::new();
    write(&mut assembler);
    insert(&assembler.finish())
}

fn enter(a: &mut Assembler) {
    for register in CALLEE_SAVED {
        a.op1(Code::Push_r64, register);
    }
    // One more word keeps the stack aligned for the functions that call_out calls.
    a.op1(Code::Push_r64, Register::RBP);
    a.op2(Code::Mov_r64_rm64, Register::RBP, Register::RDI);
    a.op2(Code::Mov_r64_rm64, Register::RAX, Register::RSI);
    a.op2(Code::Mov_rm64_r64, field(offset_of!(Cpu, host_stack)), Register::RSP);
    a.op2(Code::Mov_r64_rm64, Register::RSP, field(offset_of!(Cpu, return_stack)));
    a.op1(Code::Ldmxcsr_m32, field(offset_of!(Cpu, guest_mxcsr)));
    for (host, guest) in GENERAL_HOSTS.into_iter().zip(CANONICAL) {
        a.op2(Code::Mov_r64_rm64, host, general_slot(guest));
    }
    a.op1(Code::Jmp_rm64, Register::RAX);
}

fn leave(a: &mut Assembler) {
    a.op2(Code::Mov_rm64_r64, field(offset_of!(Cpu, return_stack)), Register::RSP);
    a.op2(Code::Mov_r64_rm64, Register::RSP, field(offset_of!(Cpu, host_stack)));
    a.op1(Code::Stmxcsr_m32, field(offset_of!(Cpu, guest_mxcsr)));
    a.op1(Code::Ldmxcsr_m32, field(offset_of!(Cpu, host_mxcsr)));
    a.op0(Code::VEX_Vzeroupper);
    a.op1(Code::Pop_r64, Register::RCX);
    for register in CALLEE_SAVED.into_iter().rev() {
        a.op1(Code::Pop_r64, register);
    }
    a.op0(Code::Retnq);
}

fn call_out(a: &mut Assembler) {
    // The caller's return address is on the return stack; everything the host's function may touch is on the host's.
    a.op2(Code::Mov_rm64_r64, field(offset_of!(Cpu, return_stack)), Register::RSP);
    a.op2(Code::Mov_r64_rm64, Register::RSP, field(offset_of!(Cpu, host_stack)));
    a.op1(Code::Stmxcsr_m32, field(offset_of!(Cpu, guest_mxcsr)));
    a.op1(Code::Ldmxcsr_m32, field(offset_of!(Cpu, host_mxcsr)));
    a.op0(Code::VEX_Vzeroupper);
    a.op2(Code::Lea_r64_m, Register::RDI, MemoryOperand::with_base_displ(Register::RBP, -BASE_BIAS));
    a.op2(Code::Mov_r64_rm64, Register::RSI, Register::RDX);
    a.op2(Code::Mov_r64_imm64, Register::RAX, execute_call_out as *const () as i64);
    a.op1(Code::Call_rm64, Register::RAX);
    a.op1(Code::Ldmxcsr_m32, field(offset_of!(Cpu, guest_mxcsr)));
    a.op2(Code::Mov_r64_rm64, Register::RSP, field(offset_of!(Cpu, return_stack)));
    a.op0(Code::Retnq);
}
