//! Liveness of flags at the target of an indirect jump, based on the calling convention and on compilers' code.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register, RflagsBits};

use super::super::uses::uses;
use super::ARITHMETIC;

/// The flags that may be live at the target of the indirect jump at the end of a block. If all cases of a switch start
/// with the same test, compilers hoist it above the jump. The result depends on the last instruction that set flags:
///
/// - If it computes the jump's address, or checks that the table index is in range: none.
/// - If it is an addition: ZF and SF, which a test would set as well, and CF unless it adds a constant. Interpreters
///   increment before each of their jumps, and computing all flags of the increment would make the code 50 %
///   longer.
/// - If it is a subtraction, comparison, test or another instruction: all but AF, which is for decimal arithmetic.
///
/// A jump through a pointer at a fixed address is a tail call or belongs to a procedure linkage table.
pub(super) fn live_after_jump(block: &[Instruction]) -> u32 {
    let Some((jump, preceding)) = block.split_last() else { return ARITHMETIC };
    if jump.is_ip_rel_memory_operand() {
        return 0;
    }
    let writes_flags = |i: &Instruction| i.rflags_modified() & ARITHMETIC != 0;
    let Some(at) = preceding.iter().rposition(writes_flags) else { return ARITHMETIC };
    let (last, after) = (&preceding[at], &preceding[at + 1..]);
    let first = full(last, 0);
    let target = full(jump, 0);
    if first != Register::None {
        let computes_target =
            first == target && writes(last, first) && !after.iter().any(|i| writes(i, first));
        // The index is used in the jump or in the load of its target. If its register was overwritten since, it was not
        // the compared value.
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

/// The values that a sequence of instructions has pushed. If a return jumps to one of them, it is an indirect jump.
#[derive(Default)]
pub(super) struct PushedValues {
    count: u32,
}

impl PushedValues {
    /// Whether the return at the end of a block jumps to a value that the block has pushed or written to the top of the
    /// stack.
    pub fn are_jumped_to(block: &[Instruction]) -> bool {
        let mut pushed = Self::default();
        block.iter().for_each(|i| pushed.note(i));
        pushed.is_top()
    }

    /// Whether the value at the top of the stack is one of the pushed values.
    pub fn is_top(&self) -> bool {
        self.count > 0
    }

    /// Takes an instruction into account.
    pub fn note(&mut self, i: &Instruction) {
        let is_top = i.op_count() > 0
            && i.op0_kind() == OpKind::Memory
            && (i.memory_base(), i.memory_index()) == (Register::RSP, Register::None)
            && i.memory_displacement64() == 0;
        match i.mnemonic() {
            Mnemonic::Push => self.count += 1,
            Mnemonic::Pop => self.count = self.count.saturating_sub(1),
            Mnemonic::Ret => {}
            Mnemonic::Mov if is_top => self.count = self.count.max(1),
            _ if i.is_stack_instruction() || writes(i, Register::RSP) => self.count = 0,
            _ => {}
        }
    }
}

fn is_register_or_memory(i: &Instruction, operand: u32) -> bool {
    matches!(i.op_kind(operand), OpKind::Register | OpKind::Memory)
}

/// Whether an instruction writes any part of a general register.
fn writes(i: &Instruction, register: Register) -> bool {
    let written = uses(&mut InstructionInfoFactory::new(), i).written;
    register.is_gpr64() && written & 1 << register.number() != 0
}

/// The full register of an operand, if it is a register.
fn full(i: &Instruction, operand: u32) -> Register {
    let is_register = i.op_count() > operand && i.op_kind(operand) == OpKind::Register;
    if is_register { i.op_register(operand).full_register() } else { Register::None }
}
