//! Values that are not in their registers yet: what they are of others, and the code that puts them there.
//! Not when that is done (`waiting`).
//! Source: LoongArch Reference Manual, volume 1.

use longma_loongarch::{Instruction as Code, Op as La, State};
use longma_translate::assembler::Assembler;
use serde::{Deserialize, Serialize};

use super::registers::SCRATCH;

/// How a value is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// `j + (k << shift) + imm`, 64 bits.
    Sum,
    /// `k << shift`, the lowest 32 bits, signed.
    Word,
    /// The bits of `j` that `imm` has, which are next to each other.
    Mask,
    /// 1 if `j < k`, signed, else 0.
    Less,
    /// The same, unsigned.
    LessUnsigned,
    /// 1 if `j < imm`, signed, else 0.
    LessThan,
    /// The same, unsigned.
    LessThanUnsigned,
}

/// A value of what LoongArch registers hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Form {
    /// How it is computed.
    pub shape: Shape,
    /// A register; 0 adds nothing.
    pub j: u8,
    /// Another, which may be shifted.
    pub k: u8,
    /// By so many bits, at most 4.
    pub shift: u8,
    /// What is added, compared with, or kept.
    pub imm: i32,
}

/// What becomes of an instruction.
pub(super) enum Plan {
    /// Its value waits in a LoongArch register's place.
    Wait(u8, Form),
    /// It is one LoongArch instruction.
    Emit(Code),
    /// What it is by itself.
    Plain,
}

/// A constant that one instruction adds.
pub(super) fn is_small(imm: i32) -> bool {
    (-2048..2048).contains(&imm)
}

/// The multiple of 2^16 and the rest, signed 16 bits.
pub(super) fn halves(imm: i32) -> Option<(i32, i32)> {
    let low = i32::from(imm as i16);
    let high = imm.checked_sub(low)? >> 16;
    Some((high, low))
}

/// The highest and the lowest bit of a mask, which is not 0.
pub(super) fn ends(mask: i32) -> (u8, u8) {
    (31 - mask.leading_zeros() as u8, mask.trailing_zeros() as u8)
}

impl Form {
    /// What a register holds, and `imm`.
    pub(super) const fn sum(j: u8, imm: i32) -> Self {
        Self { shape: Shape::Sum, j, k: 0, shift: 0, imm }
    }

    /// Whether it is what the register `j` holds, or zero.
    pub(super) fn is_copy(self) -> bool {
        self.is_near() && self.imm == 0
    }

    /// Whether it is a register and a constant.
    pub(super) fn is_near(self) -> bool {
        self.shape == Shape::Sum && self.k == 0
    }

    /// Whether it is a register shifted, and nothing else.
    pub(super) fn is_shift(self) -> bool {
        self.shape == Shape::Sum && self.j == 0 && self.k != 0 && self.imm == 0
    }

    /// Whether it depends on what a register holds.
    pub(super) fn reads(self, register: u8) -> bool {
        register != 0 && (self.j == register || self.k == register)
    }

    /// Its value.
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

    /// How many instructions its code has.
    pub(super) fn cost(self) -> usize {
        let mut assembler = Assembler::default();
        assembler.is_blank = true;
        self.emit(&mut assembler, 1);
        assembler.words.len()
    }

    /// Computes it into `d`. `d` is written last, or after everything has been read.
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

/// Adds a constant, by way of r1 if it takes more than two instructions.
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
