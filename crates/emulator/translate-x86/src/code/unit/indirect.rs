//! Which flags may be read where an indirect jump leads to: by the calling convention, and by what compilers put before such a jump.
//! Not those of jumps whose target is known.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register, RflagsBits};

use super::super::uses::uses;
use super::ARITHMETIC;

/// The flags that may be read where the indirect jump at the end of a block leads to. Compilers put a test that all cases of a switch begin with
/// before its jump, and the branches that read it behind. By what has set the flags last:
///
/// - of what computes the jump's address, and of the check that its index is in the table, nothing is read;
/// - of a sum that it is zero or negative, which a test would say as well, and, where it is not a constant that is added, the carry: interpreters
///   count up before each of their jumps, and all flags of that are half as many instructions again;
/// - of differences, comparisons, tests and others everything but AF, which is for decimal numbers.
///
/// A jump through a pointer at a fixed place is a call, as those of procedure linkage tables are.
pub(super) fn live_behind_jump(block: &[Instruction]) -> u32 {
    let Some((jump, before)) = block.split_last() else { return ARITHMETIC };
    if jump.is_ip_rel_memory_operand() {
        return 0;
    }
    let writes_flags = |i: &Instruction| i.rflags_modified() & ARITHMETIC != 0;
    let Some(at) = before.iter().rposition(writes_flags) else { return ARITHMETIC };
    let (last, after) = (&before[at], &before[at + 1..]);
    let first = full(last, 0);
    let target = full(jump, 0);
    if first != Register::None {
        let computes_target =
            first == target && writes(last, first) && !after.iter().any(|i| writes(i, first));
        // Where the index is: in the jump, or in the load of what it jumps to. What is put there later is not what was compared.
        let load = after.iter().position(|i| target != Register::None && full(i, 0) == target);
        let index_at = |i: &Instruction| i.memory_index().full_register() == first;
        let is_index = match load {
            Some(load) => index_at(&after[load]) && !after[..load].iter().any(|i| writes(i, first)),
            None => index_at(jump) && !after.iter().any(|i| writes(i, first)),
        };
        if computes_target || last.mnemonic() == Mnemonic::Cmp && is_index {
            return 0;
        }
    }
    let is_zero_or_negative = RflagsBits::ZF | RflagsBits::SF;
    match last.mnemonic() {
        Mnemonic::Inc | Mnemonic::Dec => is_zero_or_negative,
        Mnemonic::Add if !is_register_or_memory(last, 1) => is_zero_or_negative,
        Mnemonic::Add => is_zero_or_negative | RflagsBits::CF,
        _ => ARITHMETIC & !RflagsBits::AF,
    }
}

fn is_register_or_memory(i: &Instruction, operand: u32) -> bool {
    matches!(i.op_kind(operand), OpKind::Register | OpKind::Memory)
}

/// Whether an instruction writes a general register, be it in part.
fn writes(i: &Instruction, register: Register) -> bool {
    let written = uses(&mut InstructionInfoFactory::new(), i).written;
    register.is_gpr64() && written & 1 << register.number() != 0
}

/// The whole of the register that an operand is, if it is one.
fn full(i: &Instruction, operand: u32) -> Register {
    let is_register = i.op_count() > operand && i.op_kind(operand) == OpKind::Register;
    if is_register { i.op_register(operand).full_register() } else { Register::None }
}
