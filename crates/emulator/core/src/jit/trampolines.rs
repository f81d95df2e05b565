//! Code shared by all regions: entry to translated code, exit from it, and calls to the interpreter. Source: System V
//! psABI (callee-saved host registers).

use std::mem::offset_of;

use iced_x86::{Code, MemoryOperand, Register};

use longma_loongarch::State;

use super::{
    assembler::{Assembled, Assembler, Condition},
    emit::control::find_host_code,
    interpreter_call::execute_interpreter_call,
    registers::{CANONICAL, GENERAL_HOSTS},
};
use crate::cpu::{Cpu, ExitReason};

/// The offset of the base register into the [`Cpu`], chosen so that one-byte displacements reach all general registers.
pub(crate) const BASE_BIAS: i64 = 128;

/// The operand for a field of the [`Cpu`].
pub(crate) fn field(offset: usize) -> MemoryOperand {
    MemoryOperand::with_base_displ_size(Register::RBP, offset as i64 - BASE_BIAS, 1)
}

/// The operand for guest general register `number` in memory.
pub(crate) fn general_slot(number: u8) -> MemoryOperand {
    field(offset_of!(Cpu, state.x) + 8 * usize::from(number))
}

/// The operand for guest vector register `number` in memory.
pub(crate) fn vector_slot(number: u8) -> MemoryOperand {
    field(offset_of!(Cpu, state.v) + 32 * usize::from(number))
}

/// Host addresses of the trampolines.
#[derive(Clone, Copy)]
pub(crate) struct Trampolines {
    /// `extern "sysv64" fn(cpu + BASE_BIAS, host code) -> ExitReason`.
    pub enter: u64,
    /// Spills the canonical registers, then continues as `leave`. EAX holds the reason.
    pub leave_canonical: u64,
    /// Returns to the run loop. The registers have been spilled, and EAX holds the reason.
    pub leave: u64,
    /// Exits because the target of an indirect jump, in RDX, is not in the lookup table. The mapping is canonical.
    pub leave_indirect: u64,
    /// Handles a return to RDX that the return stack did not predict: empties the stack and jumps. The mapping is
    /// canonical.
    pub return_miss: u64,
    /// Calls the interpreter on the host stack for the instruction that RDX points to. The registers have been spilled,
    /// and EAX returns the result.
    pub interpreter_call: u64,
}

const CALLEE_SAVED: [Register; 6] =
    [Register::RBX, Register::RBP, Register::R12, Register::R13, Register::R14, Register::R15];

impl Trampolines {
    /// Writes the trampolines. `insert` stores code and returns its address.
    pub fn write(insert: &mut dyn FnMut(&Assembled) -> u64) -> Self {
        let leave_canonical = append(insert, |a| {
            canonical_to_memory(a);
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
            let hit = a.label();
            a.jump_if(Condition::Equal, hit);
            a.jump_to(leave_indirect);
            a.place(hit);
            a.op1(Code::Jmp_rm64, entry);
        });
        Self {
            enter: append(insert, enter),
            leave_canonical,
            leave: append(insert, leave),
            leave_indirect,
            return_miss,
            interpreter_call: append(insert, interpreter_call),
        }
    }

    /// Writes the trampolines of a system, which calls the function at `call_out` for an instruction. Translated code
    /// runs on the host stack.
    pub fn write_for_system(insert: &mut dyn FnMut(&Assembled) -> u64, call_out: u64) -> Self {
        let leave = append(insert, restore_host);
        let leave_canonical = append(insert, |a| {
            canonical_to_memory(a);
            restore_host(a);
        });
        let leave_indirect = append(insert, |a| {
            a.op2(Code::Mov_rm64_r64, field(offset_of!(Cpu, state) + offset_of!(State, pc)), Register::RDX);
            a.op2(Code::Mov_r32_imm32, Register::EAX, ExitReason::Indirect as i32);
            a.jump_to(leave_canonical);
        });
        let enter = append(insert, |a| {
            save_host(a);
            a.op2(Code::Mov_r64_rm64, Register::RBP, Register::RDI);
            a.op2(Code::Mov_r64_rm64, Register::RAX, Register::RSI);
            canonical_from_memory(a);
            a.op1(Code::Jmp_rm64, Register::RAX);
        });
        let interpreter_call = append(insert, |a| {
            a.op2(Code::Lea_r64_m, Register::RDI, MemoryOperand::with_base_displ(Register::RBP, -BASE_BIAS));
            a.op2(Code::Mov_r64_rm64, Register::RSI, Register::RDX);
            a.op2(Code::Mov_r64_imm64, Register::RAX, call_out as i64);
            a.op1(Code::Call_rm64, Register::RAX);
            a.op0(Code::Retnq);
        });
        Self { enter, leave_canonical, leave, leave_indirect, return_miss: leave_indirect, interpreter_call }
    }
}

fn append(insert: &mut dyn FnMut(&Assembled) -> u64, write: impl FnOnce(&mut Assembler)) -> u64 {
    let mut assembler = Assembler::new();
    write(&mut assembler);
    insert(&assembler.finish())
}

fn canonical_to_memory(a: &mut Assembler) {
    for (host, guest) in GENERAL_HOSTS.into_iter().zip(CANONICAL) {
        a.op2(Code::Mov_rm64_r64, general_slot(guest), host);
    }
}

fn canonical_from_memory(a: &mut Assembler) {
    for (host, guest) in GENERAL_HOSTS.into_iter().zip(CANONICAL) {
        a.op2(Code::Mov_r64_rm64, host, general_slot(guest));
    }
}

fn save_host(a: &mut Assembler) {
    for register in CALLEE_SAVED {
        a.op1(Code::Push_r64, register);
    }
    // An additional word aligns the stack for the functions called by `interpreter_call`.
    a.op1(Code::Push_r64, Register::RBP);
}

fn restore_host(a: &mut Assembler) {
    a.op1(Code::Pop_r64, Register::RCX);
    for register in CALLEE_SAVED.into_iter().rev() {
        a.op1(Code::Pop_r64, register);
    }
    a.op0(Code::Retnq);
}

fn enter(a: &mut Assembler) {
    save_host(a);
    a.op2(Code::Mov_r64_rm64, Register::RBP, Register::RDI);
    a.op2(Code::Mov_r64_rm64, Register::RAX, Register::RSI);
    a.op2(Code::Mov_rm64_r64, field(offset_of!(Cpu, host_stack)), Register::RSP);
    a.op2(Code::Mov_r64_rm64, Register::RSP, field(offset_of!(Cpu, return_stack)));
    a.op1(Code::Ldmxcsr_m32, field(offset_of!(Cpu, guest_mxcsr)));
    canonical_from_memory(a);
    a.op1(Code::Jmp_rm64, Register::RAX);
}

fn leave(a: &mut Assembler) {
    a.op2(Code::Mov_rm64_r64, field(offset_of!(Cpu, return_stack)), Register::RSP);
    a.op2(Code::Mov_r64_rm64, Register::RSP, field(offset_of!(Cpu, host_stack)));
    a.op1(Code::Stmxcsr_m32, field(offset_of!(Cpu, guest_mxcsr)));
    a.op1(Code::Ldmxcsr_m32, field(offset_of!(Cpu, host_mxcsr)));
    a.op0(Code::VEX_Vzeroupper);
    restore_host(a);
}

fn interpreter_call(a: &mut Assembler) {
    // The return address is on the return stack; the host function runs on the host stack.
    a.op2(Code::Mov_rm64_r64, field(offset_of!(Cpu, return_stack)), Register::RSP);
    a.op2(Code::Mov_r64_rm64, Register::RSP, field(offset_of!(Cpu, host_stack)));
    a.op1(Code::Stmxcsr_m32, field(offset_of!(Cpu, guest_mxcsr)));
    a.op1(Code::Ldmxcsr_m32, field(offset_of!(Cpu, host_mxcsr)));
    a.op0(Code::VEX_Vzeroupper);
    a.op2(Code::Lea_r64_m, Register::RDI, MemoryOperand::with_base_displ(Register::RBP, -BASE_BIAS));
    a.op2(Code::Mov_r64_rm64, Register::RSI, Register::RDX);
    a.op2(Code::Mov_r64_imm64, Register::RAX, execute_interpreter_call as *const () as i64);
    a.op1(Code::Call_rm64, Register::RAX);
    a.op1(Code::Ldmxcsr_m32, field(offset_of!(Cpu, guest_mxcsr)));
    a.op2(Code::Mov_r64_rm64, Register::RSP, field(offset_of!(Cpu, return_stack)));
    a.op0(Code::Retnq);
}
