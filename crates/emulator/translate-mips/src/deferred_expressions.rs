//! Deferred values as expressions of LoongArch registers, and the code that computes them. `deferred_values` decides
//! when to compute them. Source: LoongArch Reference Manual, volume 1.

use longma_loongarch::{Instruction as Code, Op as La, State};
use longma_translate::assembler::Assembler;
use serde::{Deserialize, Serialize};

use super::registers::SCRATCH;

/// The kind of expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExprKind {
    /// `j + (k << shift) + imm`, 64 bits.
    Sum,
    /// The low 32 bits of `k << shift`, sign-extended.
    ShiftWord,
    /// `j & imm`, where the set bits of `imm` are adjacent.
    Mask,
    /// 1 if `j < k` (signed), else 0.
    Less,
    /// 1 if `j < k` (unsigned), else 0.
    LessUnsigned,
    /// 1 if `j < imm` (signed), else 0.
    LessImmediate,
    /// 1 if `j < imm` (unsigned), else 0.
    LessUnsignedImmediate,
}

/// An expression of LoongArch registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeferredExpr {
    /// The kind of expression.
    pub shape: ExprKind,
    /// The first register; 0 if unused.
    pub j: u8,
    /// The second register, which can be shifted.
    pub k: u8,
    /// The shift amount in bits, at most 4.
    pub shift: u8,
    /// The constant that is added, compared with, or used as a mask.
    pub imm: i32,
}

/// How to lower an instruction.
pub(super) enum Plan {
    /// Defer the value of a LoongArch register.
    Defer(u8, DeferredExpr),
    /// Emit a single LoongArch instruction.
    Emit(Code),
    /// Lower the instruction without deferral.
    Regular,
}

/// Whether a constant fits into the 12-bit immediate of an addition.
pub(super) fn fits_imm12(imm: i32) -> bool {
    (-2048..2048).contains(&imm)
}

/// Splits a constant into a multiple of 2^16 (returned divided by it) and a signed 16-bit remainder.
pub(super) fn split_imm16(imm: i32) -> Option<(i32, i32)> {
    let low = i32::from(imm as i16);
    let high = imm.checked_sub(low)? >> 16;
    Some((high, low))
}

/// The highest and the lowest set bit of a nonzero mask.
pub(super) fn mask_bounds(mask: i32) -> (u8, u8) {
    (31 - mask.leading_zeros() as u8, mask.trailing_zeros() as u8)
}

impl DeferredExpr {
    /// The sum of a register and a constant.
    pub(super) const fn sum(j: u8, imm: i32) -> Self {
        Self { shape: ExprKind::Sum, j, k: 0, shift: 0, imm }
    }

    /// Whether the value is a copy of register `j`, or zero.
    pub(super) fn is_copy(self) -> bool {
        self.is_register_plus_constant() && self.imm == 0
    }

    /// Whether the value is the sum of a register and a constant.
    pub(super) fn is_register_plus_constant(self) -> bool {
        self.shape == ExprKind::Sum && self.k == 0
    }

    /// Whether the value is a shifted register.
    pub(super) fn is_shift(self) -> bool {
        self.shape == ExprKind::Sum && self.j == 0 && self.k != 0 && self.imm == 0
    }

    /// Whether the value depends on a register.
    pub(super) fn reads(self, register: u8) -> bool {
        register != 0 && (self.j == register || self.k == register)
    }

    /// Evaluates the expression.
    pub(super) fn evaluate(self, state: &State) -> u64 {
        let [j, k] = [self.j, self.k].map(|register| state.x[usize::from(register)]);
        let shifted = k << self.shift;
        let imm = i64::from(self.imm);
        match self.shape {
            ExprKind::Sum => j.wrapping_add(shifted).wrapping_add_signed(imm),
            ExprKind::ShiftWord => shifted as i32 as i64 as u64,
            ExprKind::Mask => j & imm as u64,
            ExprKind::Less => u64::from((j as i64) < k as i64),
            ExprKind::LessUnsigned => u64::from(j < k),
            ExprKind::LessImmediate => u64::from((j as i64) < imm),
            ExprKind::LessUnsignedImmediate => u64::from(j < imm as u64),
        }
    }

    /// The number of instructions to compute the value.
    pub(super) fn cost(self) -> usize {
        let mut assembler = Assembler::default();
        assembler.is_blank = true;
        self.emit(&mut assembler, 1);
        assembler.words.len()
    }

    /// Emits code that computes the value in `d`, which may be an operand.
    pub(super) fn emit(self, assembler: &mut Assembler, d: u8) {
        let Self { shape, j, k, shift, imm } = self;
        match shape {
            ExprKind::Sum if k == 0 => add_constant(assembler, d, j, imm),
            ExprKind::Sum => {
                match (j, shift) {
                    (_, 0) => assembler.three(La::AddD, d, j, k),
                    (0, _) => assembler.immediate(La::SlliD, d, k, shift.into()),
                    _ => assembler.push(Code { d, j: k, k: j, imm: shift.into(), ..Code::new(La::AlslD) }),
                }
                if imm != 0 {
                    add_constant(assembler, d, d, imm);
                }
            }
            ExprKind::ShiftWord => assembler.immediate(La::SlliW, d, k, shift.into()),
            ExprKind::Mask => {
                let (high, low) = mask_bounds(imm);
                assembler.field(La::BstrpickD, d, j, high, low);
                assembler.immediate(La::SlliD, d, d, low.into());
            }
            ExprKind::Less => assembler.three(La::Slt, d, j, k),
            ExprKind::LessUnsigned => assembler.three(La::Sltu, d, j, k),
            ExprKind::LessImmediate => assembler.immediate(La::Slti, d, j, imm),
            ExprKind::LessUnsignedImmediate => assembler.immediate(La::Sltui, d, j, imm),
        }
    }
}

/// Adds a constant. May clobber `SCRATCH` (r1).
pub(super) fn add_constant(assembler: &mut Assembler, d: u8, j: u8, imm: i32) {
    if j == 0 {
        assembler.constant(d, imm.into());
    } else if imm == 0 {
        assembler.copy(d, j);
    } else if fits_imm12(imm) {
        assembler.immediate(La::AddiD, d, j, imm);
    } else if (-4096..=4094).contains(&imm) {
        assembler.immediate(La::AddiD, d, j, imm / 2);
        assembler.immediate(La::AddiD, d, d, imm - imm / 2);
    } else if let Some((high, low)) = split_imm16(imm).filter(|(high, low)| *high != 0 && fits_imm12(*low)) {
        assembler.immediate(La::Addu16iD, d, j, high);
        if low != 0 {
            assembler.immediate(La::AddiD, d, d, low);
        }
    } else {
        assembler.constant(SCRATCH, imm.into());
        assembler.three(La::AddD, d, j, SCRATCH);
    }
}
