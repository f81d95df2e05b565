//! Decodes blocks to steps.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::operands::HIGH;
use super::{DecodedInstruction, Form, Operation, VectorOperation};
use crate::registers::{THREAD_POINTER, general, is_high, vector};

/// A block to interpret.
#[derive(Debug, Default)]
pub struct Block {
    /// The instructions; none if the first one is not supported.
    pub steps: Vec<DecodedInstruction>,
    /// Their length in bytes.
    pub bytes: u64,
    /// The call at the end of the block.
    pub call: Option<Instruction>,
}

/// The maximum length of an instruction in bytes.
const MAX_INSTRUCTION_BYTES: usize = 15;
/// The granularity of change tracking in bytes. A block is on one page.
const PAGE: u64 = 4096;
/// The maximum number of instructions in a block.
const MAX_STEPS: usize = 32;
/// The number of bytes that are read at once.
const WINDOW: usize = 64;

/// The instructions from `start` to the first jump, or to one that the interpreter does not support. Only whole
/// instructions on one page are read.
pub fn decode_block(start: u64, fetch: &dyn Fn(u64) -> Option<u32>) -> Block {
    let mut block = Block::default();
    let mut instruction = Instruction::default();
    let mut pc = start;
    loop {
        let mut bytes = [0; WINDOW];
        let first = pc & !3;
        let available = (PAGE - first % PAGE).min(WINDOW as u64) as usize;
        let mut count = 0;
        while count < available {
            let Some(word) = fetch(first.wrapping_add(count as u64)) else { break };
            bytes[count..count + 4].copy_from_slice(&word.to_le_bytes());
            count += 4;
        }
        let Some(window) = bytes[..count].get((pc & 3) as usize..) else { return block };
        let mut decoder = Decoder::with_ip(64, window, pc, DecoderOptions::NONE);
        let mut is_empty = true;
        while window.len() - decoder.position() >= MAX_INSTRUCTION_BYTES {
            decoder.decode_out(&mut instruction);
            let Some(step) = step_of(&instruction) else { return block };
            block.steps.push(step);
            (pc, is_empty) = (step.next(), false);
            block.bytes = pc.wrapping_sub(start);
            if step.is_jump() || block.steps.len() == MAX_STEPS {
                let is_call = matches!(step.operation, Operation::Call | Operation::CallIndirect);
                block.call = is_call.then_some(instruction);
                return block;
            }
        }
        if is_empty {
            return block;
        }
    }
}

/// An instruction's step; `None` if the interpreter does not support it.
fn step_of(i: &Instruction) -> Option<DecodedInstruction> {
    // On a jump or a return, the prefixes have no effect.
    let is_repeated = i.flow_control() == FlowControl::Next && (i.has_rep_prefix() || i.has_repne_prefix());
    if i.is_invalid() || i.has_lock_prefix() || is_repeated {
        return None;
    }
    let mut step = DecodedInstruction {
        operation: Operation::Nothing,
        form: Form::Registers,
        size: 8,
        from_size: 0,
        to: 0,
        from: 0,
        base: 0,
        index: 0,
        scale: 0,
        segment: 0,
        condition: 0,
        length: i.len() as u8,
        displacement: 0,
        immediate: 0,
        pc: i.ip(),
    };
    integer(&mut step, i).or_else(|| vectors(&mut step, i))?;
    Some(step)
}

/// The register number of an operand, and its size in bytes.
fn general_operand(register: Register) -> Option<(u8, u8)> {
    let is_general = register.is_gpr8() || register.is_gpr16() || register.is_gpr32() || register.is_gpr64();
    let high = if is_high(register) { HIGH } else { 0 };
    is_general.then(|| (general(register) | high, register.size() as u8))
}

/// Sets the parts of the address of the memory operand.
fn address(step: &mut DecodedInstruction, i: &Instruction) -> Option<()> {
    step.segment = match i.memory_segment() {
        Register::FS => THREAD_POINTER,
        Register::GS => return None,
        _ => 0,
    };
    step.displacement = i.memory_displacement64();
    let part = |register: Register| match register {
        Register::None | Register::RIP => Some(0),
        // Other registers occur with an address size of 4 bytes, or as a vector index. They are not supported.
        _ => register.is_gpr64().then(|| general(register)),
    };
    (step.base, step.index) = (part(i.memory_base())?, part(i.memory_index())?);
    step.scale = i.memory_index_scale().trailing_zeros() as u8;
    // Absolute 32-bit addresses wrap. They are not supported.
    (i.memory_displ_size() != 4 || i.memory_base() != Register::None || i.memory_index() != Register::None)
        .then_some(())
}

/// Sets the operands of an instruction with a destination and at most one source.
fn operands(step: &mut DecodedInstruction, i: &Instruction) -> Option<()> {
    let kind = |number| if number < i.op_count() { Some(i.op_kind(number)) } else { None };
    let is_immediate = |kind| !matches!(kind, OpKind::Register | OpKind::Memory);
    step.form = match (kind(0)?, kind(1)) {
        (OpKind::Register, None) => {
            (step.to, step.size) = general_operand(i.op0_register())?;
            step.from = step.to;
            Form::Registers
        }
        (OpKind::Register, Some(OpKind::Register)) => {
            (step.to, step.size) = general_operand(i.op0_register())?;
            (step.from, step.from_size) = general_operand(i.op1_register())?;
            Form::Registers
        }
        (OpKind::Register, Some(OpKind::Memory)) => {
            (step.to, step.size) = general_operand(i.op0_register())?;
            Form::FromMemory
        }
        (OpKind::Register, Some(other)) if is_immediate(other) => {
            (step.to, step.size) = general_operand(i.op0_register())?;
            step.immediate = i.immediate(1);
            Form::Immediate
        }
        (OpKind::Memory, None) => Form::ToMemory,
        (OpKind::Memory, Some(OpKind::Register)) => {
            (step.from, step.size) = general_operand(i.op1_register())?;
            Form::ToMemory
        }
        (OpKind::Memory, Some(other)) if is_immediate(other) => {
            step.immediate = i.immediate(1);
            Form::ImmediateToMemory
        }
        _ => return None,
    };
    if i.op0_kind() == OpKind::Memory || kind(1) == Some(OpKind::Memory) {
        address(step, i)?;
        let size = i.memory_size().size() as u8;
        if step.form == Form::FromMemory {
            step.from_size = size;
        } else {
            step.size = size;
        }
    }
    matches!(step.size, 1 | 2 | 4 | 8).then_some(())
}

/// Sets the single source operand of an instruction.
fn source(step: &mut DecodedInstruction, i: &Instruction) -> Option<()> {
    match i.op0_kind() {
        OpKind::Register => {
            (step.from, step.size) = general_operand(i.op0_register())?;
            step.form = Form::Registers;
        }
        OpKind::Memory => {
            address(step, i)?;
            step.form = Form::FromMemory;
            step.size = i.memory_size().size() as u8;
        }
        _ => {
            step.form = Form::Immediate;
            step.immediate = i.immediate(0);
        }
    }
    Some(())
}

/// Sets the step of a general-purpose instruction.
fn integer(step: &mut DecodedInstruction, i: &Instruction) -> Option<()> {
    use Mnemonic::*;
    let has_same_sizes = |step: &DecodedInstruction| {
        step.form != Form::Registers || step.from_size == 0 || step.from_size == step.size
    };
    step.operation = match i.mnemonic() {
        // The operand of NOP is not accessed.
        Nop | Reservednop | Endbr64 => return Some(()),
        Mov => Operation::Move,
        Add => Operation::Add,
        Adc => Operation::AddCarry,
        Sub => Operation::Subtract,
        Sbb => Operation::SubtractBorrow,
        Cmp => Operation::Compare,
        And => Operation::And,
        Test => Operation::Test,
        Or => Operation::Or,
        Xor => Operation::Xor,
        Not => Operation::Not,
        Neg => Operation::Negate,
        Inc => Operation::Increment,
        Dec => Operation::Decrement,
        Shl | Sal => Operation::ShiftLeft,
        Shr => Operation::ShiftRight,
        Sar => Operation::ShiftRightSigned,
        Rol => Operation::RotateLeft,
        Ror => Operation::RotateRight,
        Movzx => Operation::ZeroExtend,
        Movsx | Movsxd => Operation::SignExtend,
        Lea => Operation::LoadAddress,
        Bt => Operation::TestBit,
        Bsf => Operation::ScanForward,
        Bsr => Operation::ScanReverse,
        Bswap => Operation::SwapBytes,
        Xchg => Operation::Exchange,
        Imul if i.op_count() > 1 => Operation::Multiply,
        Cbw | Cwde | Cdqe => Operation::ExtendAccumulator,
        Cwd | Cdq | Cqo => Operation::SpreadSign,
        Mul | Imul | Div | Idiv => return wide_arithmetic(step, i),
        Push | Pop | Leave | Call | Jmp | Ret => return stack_and_jumps(step, i),
        _ => return conditional(step, i),
    };
    match step.operation {
        Operation::LoadAddress => {
            (step.to, step.size) = general_operand(i.op0_register())?;
            address(step, i)?;
            step.segment = 0;
            return Some(());
        }
        Operation::ExtendAccumulator | Operation::SpreadSign => {
            step.size = match i.mnemonic() {
                Cbw | Cwd => 2,
                Cwde | Cdq => 4,
                _ => 8,
            };
            return Some(());
        }
        Operation::Multiply if i.op_count() == 3 => {
            (step.to, step.size) = general_operand(i.op0_register())?;
            step.immediate = i.immediate(2);
            if i.op1_kind() == OpKind::Register {
                step.from = general_operand(i.op1_register())?.0;
                step.form = Form::Immediate;
            } else {
                address(step, i)?;
                (step.form, step.from_size) = (Form::FromMemory, step.size);
            }
            return Some(());
        }
        _ => operands(step, i)?,
    }
    let is_register = matches!(step.form, Form::Registers | Form::Immediate);
    match step.operation {
        Operation::ZeroExtend | Operation::SignExtend => Some(()),
        Operation::Multiply => {
            step.from_size = 0;
            Some(())
        }
        // The operand with the shift count has its own size.
        Operation::ShiftLeft
        | Operation::ShiftRight
        | Operation::ShiftRightSigned
        | Operation::RotateLeft
        | Operation::RotateRight => Some(()),
        Operation::TestBit | Operation::SwapBytes => (is_register && step.size >= 4).then_some(()),
        Operation::Exchange => is_register.then_some(()),
        _ => has_same_sizes(step).then_some(()),
    }
}

/// MUL, IMUL, DIV and IDIV with one operand.
fn wide_arithmetic(step: &mut DecodedInstruction, i: &Instruction) -> Option<()> {
    step.operation = match i.mnemonic() {
        Mnemonic::Mul => Operation::MultiplyWide,
        Mnemonic::Imul => Operation::MultiplyWideSigned,
        Mnemonic::Div => Operation::Divide,
        _ => Operation::DivideSigned,
    };
    source(step, i)?;
    (step.size >= 4).then_some(())
}

fn stack_and_jumps(step: &mut DecodedInstruction, i: &Instruction) -> Option<()> {
    let is_near_target = |kind| kind == OpKind::NearBranch64;
    step.operation = match i.mnemonic() {
        Mnemonic::Push => {
            source(step, i)?;
            // Immediates of all sizes are pushed as 8 bytes.
            let is_wide = i.code() != Code::Pushw_imm8 && i.code() != Code::Push_imm16;
            if step.form == Form::Immediate && !is_wide || step.form != Form::Immediate && step.size != 8 {
                return None;
            }
            Operation::Push
        }
        Mnemonic::Pop => {
            (step.to, step.size) =
                general_operand(i.op0_register()).filter(|_| i.op0_kind() == OpKind::Register)?;
            if step.size != 8 {
                return None;
            }
            Operation::Pop
        }
        Mnemonic::Leave => {
            if i.code() != Code::Leaveq {
                return None;
            }
            Operation::Leave
        }
        Mnemonic::Ret => {
            step.immediate = match i.code() {
                Code::Retnq => 0,
                Code::Retnq_imm16 => i.immediate16().into(),
                _ => return None,
            };
            Operation::Return
        }
        mnemonic => {
            let is_call = mnemonic == Mnemonic::Call;
            if is_near_target(i.op0_kind()) {
                step.immediate = i.near_branch_target();
                if is_call { Operation::Call } else { Operation::Jump }
            } else {
                // Far and 16-bit jumps are not supported.
                if !(i.is_jmp_near_indirect() || i.is_call_near_indirect()) {
                    return None;
                }
                source(step, i)?;
                if step.size != 8 {
                    return None;
                }
                if is_call { Operation::CallIndirect } else { Operation::JumpIndirect }
            }
        }
    };
    Some(())
}

/// Jcc, SETcc and CMOVcc.
fn conditional(step: &mut DecodedInstruction, i: &Instruction) -> Option<()> {
    let code = i.condition_code();
    // iced-x86 numbers the conditions from 1 in the order of their encodings; 0 is none.
    step.condition = (code as u8).checked_sub(1)?;
    if i.is_jcc_short_or_near() {
        (step.operation, step.immediate) = (Operation::JumpIf, i.near_branch_target());
        return (i.op0_kind() == OpKind::NearBranch64).then_some(());
    }
    operands(step, i)?;
    match i.op_count() {
        1 => step.operation = Operation::SetIf,
        2 if matches!(step.form, Form::Registers | Form::FromMemory) && step.size >= 2 => {
            step.operation = Operation::MoveIf;
        }
        _ => return None,
    }
    Some(())
}

/// Sets the operands of an instruction on XMM registers or a register and memory.
fn vector_operands(step: &mut DecodedInstruction, i: &Instruction) -> Option<()> {
    let xmm = |register: Register| register.is_xmm().then(|| vector(register));
    match (i.op0_kind(), i.op1_kind()) {
        (OpKind::Register, OpKind::Register) => {
            (step.to, step.from) = (xmm(i.op0_register())?, xmm(i.op1_register())?);
            step.form = Form::Registers;
        }
        (OpKind::Register, OpKind::Memory) => {
            step.to = xmm(i.op0_register())?;
            address(step, i)?;
            step.form = Form::FromMemory;
        }
        (OpKind::Memory, OpKind::Register) => {
            step.from = xmm(i.op1_register())?;
            address(step, i)?;
            step.form = Form::ToMemory;
        }
        _ => return None,
    }
    Some(())
}

/// Decodes an SSE2 instruction into `step`.
fn vectors(step: &mut DecodedInstruction, i: &Instruction) -> Option<()> {
    use Mnemonic::*;
    use VectorOperation as V;
    let (operation, size) = match i.mnemonic() {
        Movaps | Movapd | Movdqa => (V::Move, 16),
        Movups | Movupd | Movdqu => (V::Move, 1),
        Movd | Movq => return move_general(step, i),
        Movss => (V::MoveScalar, 4),
        Movsd if i.op_count() == 2 && i.code() != Code::Movsd_m32_m32 => (V::MoveScalar, 8),
        Movlps | Movlpd | Movhps | Movhpd | Movhlps | Movlhps => return move_half(step, i),
        Pand | Andps | Andpd => (V::And, 8),
        Pandn | Andnps | Andnpd => (V::AndNot, 8),
        Por | Orps | Orpd => (V::Or, 8),
        Pxor | Xorps | Xorpd => (V::Xor, 8),
        Paddb => (V::Add, 1),
        Paddw => (V::Add, 2),
        Paddd => (V::Add, 4),
        Paddq => (V::Add, 8),
        Psubb => (V::Subtract, 1),
        Psubw => (V::Subtract, 2),
        Psubd => (V::Subtract, 4),
        Psubq => (V::Subtract, 8),
        Pcmpeqb => (V::CompareEqual, 1),
        Pcmpeqw => (V::CompareEqual, 2),
        Pcmpeqd => (V::CompareEqual, 4),
        Pminub => (V::MinimumUnsignedBytes, 1),
        Punpcklbw => (V::UnpackLow, 1),
        Punpcklwd => (V::UnpackLow, 2),
        Punpckldq | Unpcklps => (V::UnpackLow, 4),
        Punpcklqdq | Unpcklpd => (V::UnpackLow, 8),
        Punpckhbw => (V::UnpackHigh, 1),
        Punpckhwd => (V::UnpackHigh, 2),
        Punpckhdq | Unpckhps => (V::UnpackHigh, 4),
        Punpckhqdq | Unpckhpd => (V::UnpackHigh, 8),
        Pshufd => (V::Shuffle, 4),
        Pmovmskb => {
            if !i.op1_register().is_xmm() {
                return None;
            }
            (step.to, step.size) = general_operand(i.op0_register())?;
            step.from = vector(i.op1_register());
            step.operation = Operation::Vector(V::MoveMask);
            return Some(());
        }
        Pslldq | Psrldq => {
            if !i.op0_register().is_xmm() {
                return None;
            }
            step.to = vector(i.op0_register());
            step.immediate = i.immediate8().into();
            let operation = if i.mnemonic() == Pslldq { V::ShiftLeftBytes } else { V::ShiftRightBytes };
            step.operation = Operation::Vector(operation);
            return Some(());
        }
        _ => return None,
    };
    vector_operands(step, i)?;
    step.size = size;
    if operation == V::Shuffle {
        step.immediate = i.immediate8().into();
    }
    let is_merge = operation == V::MoveScalar && step.form == Form::Registers;
    step.operation = Operation::Vector(if is_merge { V::MergeScalar } else { operation });
    Some(())
}

/// MOVD and MOVQ.
fn move_general(step: &mut DecodedInstruction, i: &Instruction) -> Option<()> {
    use VectorOperation as V;
    let size = if i.mnemonic() == Mnemonic::Movd { 4 } else { 8 };
    let is_general = |register: Register| register.is_gpr32() || register.is_gpr64();
    let operation = if i.op1_kind() == OpKind::Register && is_general(i.op1_register()) {
        if i.op0_kind() != OpKind::Register || !i.op0_register().is_xmm() {
            return None;
        }
        (step.to, step.from) = (vector(i.op0_register()), general(i.op1_register()));
        V::FromGeneral
    } else if i.op0_kind() == OpKind::Register && is_general(i.op0_register()) {
        if i.op1_kind() != OpKind::Register || !i.op1_register().is_xmm() {
            return None;
        }
        (step.to, step.from) = (general(i.op0_register()), vector(i.op1_register()));
        V::ToGeneral
    } else {
        vector_operands(step, i)?;
        V::MoveScalar
    };
    (step.operation, step.size) = (Operation::Vector(operation), size);
    Some(())
}

/// MOVLPS, MOVHPS, their double-precision forms, MOVHLPS and MOVLHPS.
fn move_half(step: &mut DecodedInstruction, i: &Instruction) -> Option<()> {
    use VectorOperation as V;
    vector_operands(step, i)?;
    let is_high = matches!(i.mnemonic(), Mnemonic::Movhps | Mnemonic::Movhpd | Mnemonic::Movlhps);
    step.condition = is_high.into();
    step.from_size = u8::from(i.mnemonic() == Mnemonic::Movhlps);
    step.size = 8;
    step.operation = Operation::Vector(match step.form {
        Form::Registers => V::CopyHalf,
        Form::FromMemory => V::LoadHalf,
        _ if is_high => V::StoreHigh,
        _ => V::MoveScalar,
    });
    Some(())
}
