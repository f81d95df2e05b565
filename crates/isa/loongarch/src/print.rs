//! Formats an [`Instruction`] as LLVM does without aliases: `addi.d $a0, $sp, 16`. Source: register names of the
//! LoongArch ELF psABI, section "Register Convention".

use std::fmt;

use crate::{
    instruction::{Instruction, Op},
    table::{Class, Operand, RegisterKind},
};

const GENERAL: [&str; 32] = [
    "zero", "ra", "tp", "sp", "a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "t0", "t1", "t2", "t3", "t4",
    "t5", "t6", "t7", "t8", "r21", "fp", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8",
];
const FLOAT: [&str; 32] = [
    "fa0", "fa1", "fa2", "fa3", "fa4", "fa5", "fa6", "fa7", "ft0", "ft1", "ft2", "ft3", "ft4", "ft5", "ft6",
    "ft7", "ft8", "ft9", "ft10", "ft11", "ft12", "ft13", "ft14", "ft15", "fs0", "fs1", "fs2", "fs3", "fs4",
    "fs5", "fs6", "fs7",
];

/// A register operand.
///
/// `Display` writes the psABI name with a dollar sign: `$a0`, `$fa0`, `$vr0`, `$xr0`, `$fcc0`, `$fcsr0`, `$scr0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// The register file.
    pub kind: RegisterKind,
    /// The number within the file.
    pub number: u8,
}

impl Register {
    /// General register `number`.
    pub const fn general(number: u8) -> Self {
        Self { kind: RegisterKind::General, number }
    }

    /// Floating-point register `number`.
    pub const fn float(number: u8) -> Self {
        Self { kind: RegisterKind::Float, number }
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |f: &mut fmt::Formatter<'_>, names: &[&str; 32], plain| {
            // Error messages also print numbers that no field can hold.
            match names.get(usize::from(self.number)) {
                Some(name) => write!(f, "${name}"),
                None => write!(f, "${plain}{}", self.number),
            }
        };
        match self.kind {
            RegisterKind::General => named(f, &GENERAL, "r"),
            RegisterKind::Float => named(f, &FLOAT, "f"),
            RegisterKind::Vector128 => write!(f, "$vr{}", self.number),
            RegisterKind::Vector256 => write!(f, "$xr{}", self.number),
            RegisterKind::Condition => write!(f, "$fcc{}", self.number),
            RegisterKind::Scratch => write!(f, "$scr{}", self.number),
            RegisterKind::FloatControl => write!(f, "$fcsr{}", self.number),
        }
    }
}

impl Instruction {
    /// The operands in assembly order.
    fn operand_texts(&self) -> impl Iterator<Item = OperandText> + '_ {
        let mut immediates = [self.imm, self.imm2].into_iter();
        self.op.row().operands.iter().map(move |operand| match *operand {
            Operand::Register(kind, position) => {
                OperandText::Register(Register { kind, number: self.register_at(position) })
            }
            Operand::Immediate(_) => OperandText::Immediate(immediates.next().unwrap_or(0)),
        })
    }

    /// The target address if this instruction is a branch at `pc`; `None` if it is not a branch or takes its target
    /// from a register.
    pub fn branch_target(&self, pc: u64) -> Option<u64> {
        let relative = match self.op.row().class {
            Class::Branch => true,
            Class::Jump => !self.is_register_jump(),
            _ => false,
        };
        relative.then(|| pc.wrapping_add_signed(i64::from(self.imm)))
    }

    /// `jirl` and `jiscr*` take the target from a register; `b` and `bl` have only an offset.
    fn is_register_jump(&self) -> bool {
        matches!(self.op, Op::Jirl | Op::Jiscr0 | Op::Jiscr1)
    }

    /// Formats this instruction for address `pc`: a branch shows its target address (`beqz $a0, 0x120000040`) instead
    /// of the offset.
    pub fn at(&self, pc: u64) -> impl fmt::Display + '_ {
        Located { instruction: self, pc }
    }
}

enum OperandText {
    Register(Register),
    Immediate(i32),
}

impl fmt::Display for OperandText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Register(register) => register.fmt(f),
            Self::Immediate(value) => value.fmt(f),
        }
    }
}

/// An instruction and its address.
struct Located<'a> {
    instruction: &'a Instruction,
    pc: u64,
}

impl fmt::Display for Located<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.instruction, self.instruction.branch_target(self.pc))
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self, None)
    }
}

/// The assembler mnemonic, and whether to omit the mask register. The manual gives csrxchg other names for the mask
/// registers r0 (csrrd, which writes no bits) and r1 (csrwr, which writes all bits). The encoding is the same.
fn assembly_name(instruction: &Instruction) -> (&'static str, bool) {
    match (instruction.op, instruction.j) {
        (Op::Csrxchg, 0) => ("csrrd", true),
        (Op::Csrxchg, 1) => ("csrwr", true),
        (Op::Gcsrxchg, 0) => ("gcsrrd", true),
        (Op::Gcsrxchg, 1) => ("gcsrwr", true),
        (op, _) => (op.mnemonic(), false),
    }
}

/// Writes the mnemonic and the operands. `target`, if given, replaces the offset.
fn write(f: &mut fmt::Formatter<'_>, instruction: &Instruction, target: Option<u64>) -> fmt::Result {
    let (name, without_mask) = assembly_name(instruction);
    f.write_str(name)?;
    let operands = instruction.operand_texts().enumerate().filter(|(i, _)| !(without_mask && *i == 1));
    for (i, operand) in operands {
        f.write_str(if i == 0 { " " } else { ", " })?;
        match (&operand, target) {
            (OperandText::Immediate(_), Some(target)) => write!(f, "{target:#x}")?,
            _ => write!(f, "{operand}")?,
        }
    }
    Ok(())
}
