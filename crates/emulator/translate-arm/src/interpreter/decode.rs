//! Decodes blocks for the interpreter. Source: Arm Architecture Reference Manual (Arm DDI 0487), chapter C4.

use longma_translate::front_end::InterpretableBlock;

use super::{DecodedInstruction, Group};
use crate::code::reachable::reads_returned_flags;
use crate::instruction::{Instruction, Op, decode, modified_immediate};
use crate::registers::TPIDR_EL0;

/// The maximum number of instructions in a block.
const MAX_INSTRUCTIONS: usize = 32;

/// The instructions from `start` to the first branch, or to one that the interpreter does not support.
pub(crate) fn decode_block(
    start: u64,
    fetch: &dyn Fn(u64) -> Option<u32>,
) -> InterpretableBlock<DecodedInstruction> {
    let mut block = InterpretableBlock::default();
    let mut pc = start;
    while block.steps.len() < MAX_INSTRUCTIONS {
        let Some(step) = fetch(pc).and_then(decode).and_then(|i| step_of(i, pc)) else { break };
        block.steps.push(step);
        pc = pc.wrapping_add(4);
        block.bytes = pc.wrapping_sub(start);
        if matches!(step.group, Group::BranchLink | Group::BranchLinkRegister) {
            block.called = (step.group == Group::BranchLink).then_some(step.value);
            block.return_address = Some(pc);
            block.reads_flags_after_call = reads_returned_flags(pc, fetch);
        }
        if step.is_branch() {
            break;
        }
    }
    block
}

/// Decodes an instruction; `None` if the interpreter does not support it.
fn step_of(i: Instruction, pc: u64) -> Option<DecodedInstruction> {
    let (group, value) = branches(i, pc)
        .or_else(|| immediates(i, pc))
        .or_else(|| registers(i))
        .or_else(|| accesses(i, pc))
        .or_else(|| others(i))?;
    Some(DecodedInstruction { group, word: i.word, value, pc })
}

fn branches(i: Instruction, pc: u64) -> Option<(Group, u64)> {
    let group = match i.op {
        Op::BCond => Group::BranchIf,
        Op::Cbz | Op::Cbnz => Group::BranchIfZero,
        Op::Tbz | Op::Tbnz => Group::BranchIfBit,
        Op::B => Group::Branch,
        Op::Bl => Group::BranchLink,
        Op::Br | Op::Ret => return Some((Group::BranchRegister, 0)),
        Op::Blr => return Some((Group::BranchLinkRegister, 0)),
        _ => return None,
    };
    Some((group, i.target(pc)?))
}

/// Data processing with an immediate.
fn immediates(i: Instruction, pc: u64) -> Option<(Group, u64)> {
    let wide = u64::from(i.bits(5, 16)) << (16 * i.bits(21, 2));
    let truncated = |value: u64| if i.is_wide() { value } else { u64::from(value as u32) };
    Some(match i.op {
        Op::Adr | Op::Adrp => (Group::Constant, i.target(pc)?),
        Op::Movz => (Group::Constant, wide),
        Op::Movn => (Group::Constant, truncated(!wide)),
        Op::Movk => (Group::MoveKeep, 0),
        Op::AddImm | Op::AddsImm | Op::SubImm | Op::SubsImm => {
            (Group::AddImmediate, i.arithmetic_immediate() as u64)
        }
        Op::AndImm | Op::OrrImm | Op::EorImm | Op::AndsImm => (Group::LogicImmediate, i.mask()),
        Op::Sbfm | Op::Bfm | Op::Ubfm => (Group::BitField, 0),
        Op::Extr => (Group::Extract, 0),
        _ => return None,
    })
}

/// Data processing on registers.
fn registers(i: Instruction) -> Option<(Group, u64)> {
    use Op::*;
    let group = match i.op {
        AddReg | AddsReg | SubReg | SubsReg => Group::AddShifted,
        AddExt | AddsExt | SubExt | SubsExt => Group::AddExtended,
        Adc | Adcs | Sbc | Sbcs => Group::AddCarry,
        AndReg | BicReg | OrrReg | OrnReg | EorReg | EonReg | AndsReg | BicsReg => Group::LogicShifted,
        CcmnReg | CcmnImm | CcmpReg | CcmpImm => Group::CompareIf,
        Csel | Csinc | Csinv | Csneg => Group::Select,
        Udiv | Sdiv | Lslv | Lsrv | Asrv | Rorv => Group::TwoSources,
        Rbit | Rev16 | Clz | Cls | RevW | Rev32 | RevX => Group::OneSource,
        Madd | Msub | Smaddl | Smsubl | Umaddl | Umsubl => Group::MultiplyAdd,
        Smulh | Umulh => Group::MultiplyHigh,
        _ => return None,
    };
    Some((group, 0))
}

/// Loads and stores, without exclusive, ordered, unprivileged, atomic and non-temporal ones.
fn accesses(i: Instruction, pc: u64) -> Option<(Group, u64)> {
    let is_prefetch = i.mnemonic().starts_with("prf");
    if is_prefetch {
        return Some((Group::Nothing, 0));
    }
    match i.bits(27, 3) {
        0b101 => {
            let scale = if i.bits(26, 1) != 0 { 2 + i.bits(30, 2) } else { 2 + i.bits(31, 1) };
            let group = match i.bits(23, 2) {
                1 => Group::PairPostIndexed,
                2 => Group::Pair,
                3 => Group::PairPreIndexed,
                _ => return None,
            };
            // Bit 25 is set in other instructions.
            (i.bits(25, 1) == 0).then(|| (group, (i.signed(15, 7) << scale) as u64))
        }
        0b011 if i.bits(24, 2) == 0 => Some((Group::Literal, i.target(pc)?)),
        0b111 if i.bits(25, 1) == 0 => single_access(i),
        _ => None,
    }
}

fn single_access(i: Instruction) -> Option<(Group, u64)> {
    let is_wide_vector = i.bits(26, 1) != 0 && i.bits(23, 1) != 0;
    let scale = if is_wide_vector { 4 } else { i.bits(30, 2) };
    if i.bits(24, 1) != 0 {
        return Some((Group::Immediate, u64::from(i.bits(10, 12)) << scale));
    }
    let offset = i.signed(12, 9) as u64;
    match (i.bits(21, 1), i.bits(10, 2)) {
        (0, 0) => Some((Group::Immediate, offset)),
        (0, 1) => Some((Group::PostIndexed, offset)),
        (0, 3) => Some((Group::PreIndexed, offset)),
        (1, 2) => Some((Group::RegisterOffset, 0)),
        _ => None,
    }
}

fn others(i: Instruction) -> Option<(Group, u64)> {
    match i.op {
        Op::Hint => Some((Group::Nothing, 0)),
        Op::Mrs if i.system_register() == TPIDR_EL0 => Some((Group::ThreadPointer, 0)),
        // The other values of cmode combine the immediate with the register.
        Op::Movi0 | Op::Movi1 if i.bits(12, 1) == 0 || i.bits(12, 4) >= 12 => {
            let is_inverted = i.op == Op::Movi1 && i.bits(12, 4) < 14;
            let value = modified_immediate(i)?;
            Some((Group::VectorConstant, if is_inverted { !value } else { value }))
        }
        Op::OrrV if i.rn() == i.rm() => Some((Group::VectorMove, 0)),
        _ => None,
    }
}
