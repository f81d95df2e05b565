//! Deferred values as expressions of LoongArch registers, and the code that computes them. `deferred_values` decides
//! when to compute them. Source: LoongArch Reference Manual, volume 1.

use longma_loongarch::{Instruction as Code, Op as La, State};
use longma_translate::assembler::Assembler;
use serde::{Deserialize, Serialize};

use super::registers::SCRATCH;

/// The kind of expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// `j + (k << shift) + imm`, 64 bits.
    Sum,
    /// The low 32 bits of `k << shift`, sign-extended.
    Word,
    /// `j & imm`, where the set bits of `imm` are adjacent.
    Mask,
    /// 1 if `j < k` (signed), else 0.
    Less,
    /// 1 if `j < k` (unsigned), else 0.
    LessUnsigned,
    /// 1 if `j < imm` (signed), else 0.
    LessThan,
    /// 1 if `j < imm` (unsigned), else 0.
    LessThanUnsigned,
}

/// An expression of LoongArch registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Form {
    /// The kind of expression.
    pub shape: Shape,
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
    Defer(u8, Form),
    /// Emit a single LoongArch instruction.
    Emit(Code),
    /// Lower the instruction on its own.
    Plain,
}

/// Whether a constant fits into the 12-bit immediate of an addition.
pub(super) fn is_small(imm: i32) -> bool {
    (-2048..2048).contains(&imm)
}

/// Splits a constant into a multiple of 2^16 (returned divided by it) and a signed 16-bit remainder.
pub(super) fn halves(imm: i32) -> Option<(i32, i32)> {
    let low = i32::from(imm as i16);
    let high = imm.checked_sub(low)? >> 16;
    Some((high, low))
}

/// The highest and the lowest set bit of a nonzero mask.
pub(super) fn ends(mask: i32) -> (u8, u8) {
    (31 - mask.leading_zeros() as u8, mask.trailing_zeros() as u8)
}

impl Form {
    /// The sum of a register and a constant.
    pub(super) const fn sum(j: u8, imm: i32) -> Self {
        Self { shape: Shape::Sum, j, k: 0, shift: 0, imm }
    }

    /// Whether the value is a copy of register `j`, or zero.
    pub(super) fn is_copy(self) -> bool {
        self.is_near() && self.imm == 0
    }

    /// Whether the value is the sum of a register and a constant.
    pub(super) fn is_near(self) -> bool {
        self.shape == Shape::Sum && self.k == 0
    }

    /// Whether the value is a shifted register.
    pub(super) fn is_shift(self) -> bool {
        self.shape == Shape::Sum && self.j == 0 && self.k != 0 && self.imm == 0
    }

    /// Whether the value depends on a register.
    pub(super) fn reads(self, register: u8) -> bool {
        register != 0 && (self.j == register || self.k == register)
    }

    /// Evaluates the expression.
    pub(super) fn value(self, state: &State) -> u64 {
        let [j, k] = [self.j, self.k].map(|register| state.x[usize::from(register)]);
        let shifted = k << self.shift;
        let imm = i64::from(self.imm);
        match self.shape {
            Shape::Sum => j.wrapping_add(shifted).wrapping_add_signed(imm),
            Shape::Word => shifted as i32 as i64 as u64,
            Shape::Mask => j & imm as u64,
            Shape::Less => u64::from((j as i64) < k as i64),
            Shape::LessUnsigned => u64::from(j < k),
            Shape::LessThan => u64::from((j as i64) < imm),
            Shape::LessThanUnsigned => u64::from(j < imm as u64),
        }
    }

    /// The number of instructions to compute the value.
    pub(super) fn cost(self) -> usize {
        let mut assembler = Assembler::default();
        assembler.is_blank = true;
        self.emit(&mut assembler, 1);
        assembler.words.len()
    }

    /// Emits the computation into `d`. `d` is not written before all operands have been read.
    pub(super) fn emit(self, assembler: &mut Assembler, d: u8) {
        let Self { shape, j, k, shift, imm } = self;
        match shape {
            Shape::Sum if k == 0 => add_constant(assembler, d, j, imm),
            Shape::Sum => {
                match (j, shift) {
                    (_, 0) => assembler.three(La::AddD, d, j, k),
                    (0, _) => assembler.immediate(La::SlliD, d, k, shift.into()),
                    _ => assembler.push(Code { d, j: k, k: j, imm: shift.into(), ..Code::new(La::AlslD) }),
                }
                if imm != 0 {
                    add_constant(assembler, d, d, imm);
                }
            }
            Shape::Word => assembler.immediate(La::SlliW, d, k, shift.into()),
            Shape::Mask => {
                let (high, low) = ends(imm);
                assembler.field(La::BstrpickD, d, j, high, low);
                assembler.immediate(La::SlliD, d, d, low.into());
            }
            Shape::Less => assembler.three(La::Slt, d, j, k),
            Shape::LessUnsigned => assembler.three(La::Sltu, d, j, k),
            Shape::LessThan => assembler.immediate(La::Slti, d, j, imm),
            Shape::LessThanUnsigned => assembler.immediate(La::Sltui, d, j, imm),
        }
    }
}

/// Adds a constant. May clobber `SCRATCH` (r1).
pub(super) fn add_constant(assembler: &mut Assembler, d: u8, j: u8, imm: i32) {
    if j == 0 {
        assembler.constant(d, imm.into());
    } else if imm == 0 {
        assembler.copy(d, j);
    } else if is_small(imm) {
        assembler.immediate(La::AddiD, d, j, imm);
    } else if (-4096..=4094).contains(&imm) {
        assembler.immediate(La::AddiD, d, j, imm / 2);
        assembler.immediate(La::AddiD, d, d, imm - imm / 2);
    } else if let Some((high, low)) = halves(imm).filter(|(high, low)| *high != 0 && is_small(*low)) {
        assembler.immediate(La::Addu16iD, d, j, high);
        if low != 0 {
            assembler.immediate(La::AddiD, d, d, low);
        }
    } else {
        assembler.constant(SCRATCH, imm.into());
        assembler.three(La::AddD, d, j, SCRATCH);
    }
}
