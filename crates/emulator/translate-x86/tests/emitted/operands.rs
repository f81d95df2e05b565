//! Encodes x86-64 instructions with typical operands.

use iced_x86::{Code, Encoder, Instruction, OpCodeOperandKind, OpKind, Register};

use longma_translate_conformance::emitted::{OUTSIDE, SOURCE};

/// The kind of operands that may be registers or memory, and prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Register,
    Memory,
    /// Memory, with a LOCK prefix.
    Locked,
    /// With a REP prefix.
    Repeated,
}

/// The instruction with this code at [`SOURCE`], and its bytes; `None` if it has no such form.
pub fn encoded(code: Code, form: Form) -> Option<(Instruction, Vec<u8>)> {
    let instruction = instruction(code, form)?;
    let mut encoder = Encoder::new(64);
    encoder.encode(&instruction, SOURCE).ok()?;
    let bytes = encoder.take_buffer();
    let decoded = iced_x86::Decoder::with_ip(64, &bytes, SOURCE, 0).decode();
    (!decoded.is_invalid() && decoded.code() == code).then_some((decoded, bytes))
}

fn instruction(code: Code, form: Form) -> Option<Instruction> {
    let mut i = Instruction::new();
    i.set_code(code);
    let op_code = code.op_code();
    let kinds: Vec<OpCodeOperandKind> = (0..op_code.op_count()).map(|n| op_code.op_kind(n)).collect();
    let has_form = match form {
        Form::Register => true,
        Form::Memory => kinds.iter().any(|kind| is_either(*kind)),
        Form::Locked => op_code.can_use_lock_prefix(),
        Form::Repeated => op_code.can_use_rep_prefix() && code.op_code().op_kind(0) != OpCodeOperandKind::dx,
    };
    if !has_form {
        return None;
    }
    i.set_has_lock_prefix(form == Form::Locked);
    i.set_has_rep_prefix(form == Form::Repeated);
    for (operand, kind) in (0..).zip(kinds) {
        if matches!(form, Form::Memory | Form::Locked) && is_either(kind) || kind == OpCodeOperandKind::mem {
            i.set_op_kind(operand, OpKind::Memory);
            i.set_memory_base(Register::RDI);
            i.set_memory_displ_size(1);
            i.set_memory_displacement64(0x18);
        } else if let Some(index) = index(kind) {
            i.set_op_kind(operand, OpKind::Memory);
            i.set_memory_base(Register::RDI);
            i.set_memory_index(index);
            i.set_memory_index_scale(4);
        } else if let Some(register) = register(kind, operand) {
            i.set_op_kind(operand, OpKind::Register);
            i.set_op_register(operand, register);
        } else {
            other(&mut i, operand, kind)?;
        }
    }
    Some(i)
}

fn is_either(kind: OpCodeOperandKind) -> bool {
    use OpCodeOperandKind::*;
    matches!(kind, r8_or_mem | r16_or_mem | r32_or_mem | r64_or_mem | xmm_or_mem | ymm_or_mem)
}

/// The index register of a gather.
fn index(kind: OpCodeOperandKind) -> Option<Register> {
    use OpCodeOperandKind::*;
    match kind {
        mem_vsib32x | mem_vsib64x => Some(Register::XMM5),
        mem_vsib32y | mem_vsib64y => Some(Register::YMM5),
        _ => Option::None,
    }
}

/// The register for an operand: rbx, rsi or r8 by operand number.
fn register(kind: OpCodeOperandKind, operand: u32) -> Option<Register> {
    use OpCodeOperandKind::*;
    let by_operand = |of: [Register; 3]| of[operand as usize % 3];
    Some(match kind {
        r8_reg | r8_opcode | r8_or_mem => by_operand([Register::BL, Register::SIL, Register::R8L]),
        r16_reg | r16_opcode | r16_rm | r16_or_mem => by_operand([Register::BX, Register::SI, Register::R8W]),
        r32_reg | r32_opcode | r32_rm | r32_or_mem | r32_vvvv => {
            by_operand([Register::EBX, Register::ESI, Register::R8D])
        }
        r64_reg | r64_opcode | r64_rm | r64_or_mem | r64_vvvv => {
            by_operand([Register::RBX, Register::RSI, Register::R8])
        }
        xmm_reg | xmm_rm | xmm_or_mem | xmm_vvvv => {
            by_operand([Register::XMM1, Register::XMM2, Register::XMM3])
        }
        ymm_reg | ymm_rm | ymm_or_mem | ymm_vvvv => {
            by_operand([Register::YMM1, Register::YMM2, Register::YMM3])
        }
        xmm_is4 => Register::XMM4,
        ymm_is4 => Register::YMM4,
        al => Register::AL,
        cl => Register::CL,
        ax => Register::AX,
        eax => Register::EAX,
        rax => Register::RAX,
        dx => Register::DX,
        st0 => Register::ST0,
        sti_opcode => Register::ST2,
        _ => return Option::None,
    })
}

/// Sets immediates, branch targets and string operands.
fn other(i: &mut Instruction, operand: u32, kind: OpCodeOperandKind) -> Option<()> {
    use OpCodeOperandKind::*;
    let of_kind = match kind {
        imm8 | imm8_const_1 => OpKind::Immediate8,
        imm8sex16 => OpKind::Immediate8to16,
        imm8sex32 => OpKind::Immediate8to32,
        imm8sex64 => OpKind::Immediate8to64,
        imm16 => OpKind::Immediate16,
        imm32 => OpKind::Immediate32,
        imm32sex64 => OpKind::Immediate32to64,
        imm64 => OpKind::Immediate64,
        br64_4 => OpKind::NearBranch64,
        seg_rSI => OpKind::MemorySegRSI,
        es_rDI => OpKind::MemoryESRDI,
        _ => return Option::None,
    };
    i.set_op_kind(operand, of_kind);
    match kind {
        imm8 | imm8sex16 | imm8sex32 | imm8sex64 => i.set_immediate8(5),
        imm8_const_1 => i.set_immediate8(1),
        imm16 => i.set_immediate16(0x1234),
        imm32 | imm32sex64 => i.set_immediate32(0x0012_3456),
        imm64 => i.set_immediate64(0x1234_5678_9abc_def0),
        br64_4 => i.set_near_branch64(OUTSIDE + 0x100),
        _ => {}
    }
    Some(())
}
