//! A64 instructions: the instruction table, the strict decoder and accessors for instruction fields. Source: Arm
//! Architecture Reference Manual (Arm DDI 0487), chapters C4 and C6; everything derives from `instructions.tsv`.

use super::registers::{FPCR, FPSR, is_readable, is_writable};
use serde::{Deserialize, Serialize};

/// A row of the instruction table.
#[derive(Debug)]
pub(super) struct Row {
    op: Op,
    /// The instruction word with all fields zero.
    matched: u32,
    /// The bits that identify the instruction.
    mask: u32,
    pub mnemonic: &'static str,
    pub operands: &'static [Operand],
}

/// How an instruction uses a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Read,
    Written,
    Both,
}

/// An operand; the header of the table defines the letters.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operand {
    Register { role: Role, kind: u8, at: u8 },
    Other(&'static str),
    Address(u8),
}

include!(concat!(env!("OUT_DIR"), "/arm.rs"));

/// A decoded instruction: the operation and the instruction word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u32", try_from = "u32")]
pub struct Instruction {
    /// The operation.
    pub op: Op,
    /// The instruction word.
    pub word: u32,
}

/// Returns, for every instruction of the table, the word with all fields zero and the mask of the identifying bits.
pub fn patterns() -> impl Iterator<Item = (u32, u32)> {
    ROWS.iter().map(|row| (row.matched, row.mask))
}

/// The mnemonics of the rows of the table, which are in the order of [`Op`].
pub(crate) fn mnemonics() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|row| row.mnemonic)
}

/// Decodes an instruction word. Returns `None` for words that the table does not define.
pub fn decode(word: u32) -> Option<Instruction> {
    // Indexed by bits 30 to 24, which are fixed in most rows.
    static GROUPS: std::sync::LazyLock<[Vec<&'static Row>; 128]> = std::sync::LazyLock::new(|| {
        std::array::from_fn(|group| {
            let fits = |row: &&Row| (row.matched ^ (group as u32) << 24) & row.mask & 0x7f00_0000 == 0;
            ROWS.iter().filter(fits).collect()
        })
    });
    let row = GROUPS[(word >> 24 & 0x7f) as usize].iter().find(|row| word & row.mask == row.matched)?;
    let instruction = Instruction { op: row.op, word };
    instruction.is_defined().then_some(instruction)
}

/// Decodes the immediate of a logical instruction from N, immr and imms.
pub(super) fn bit_mask(word: u32, is_wide: bool) -> Option<u64> {
    let (n, immr, imms) = (word >> 22 & 1, word >> 16 & 63, word >> 10 & 63);
    let length = 31u32.checked_sub((n << 6 | !imms & 63).leading_zeros())?;
    if length == 0 || !is_wide && n == 1 {
        return None;
    }
    let size = 1u32 << length;
    let (ones, rotation) = (imms & (size - 1), immr & (size - 1));
    if ones == size - 1 {
        return None;
    }
    let element = (1u64 << (ones + 1)) - 1;
    let all = u64::MAX >> (64 - size);
    let element =
        if rotation == 0 { element } else { (element >> rotation | element << (size - rotation)) & all };
    let mask = (0..64 / size).fold(0, |mask, index| mask | element << (index * size));
    Some(if is_wide { mask } else { mask & 0xffff_ffff })
}

impl From<Instruction> for u32 {
    fn from(instruction: Instruction) -> Self {
        instruction.word
    }
}

impl TryFrom<u32> for Instruction {
    type Error = &'static str;

    fn try_from(word: u32) -> Result<Self, Self::Error> {
        decode(word).ok_or("undefined instruction word")
    }
}

impl Instruction {
    pub(super) fn row(self) -> &'static Row {
        &ROWS[self.op as usize]
    }

    /// The mnemonic in the manual.
    pub fn mnemonic(self) -> &'static str {
        self.row().mnemonic
    }

    /// Returns `width` bits starting at bit `at`.
    pub(super) fn bits(self, at: u32, width: u32) -> u32 {
        self.word >> at & ((1 << width) - 1)
    }

    /// Returns `width` bits starting at bit `at`, sign-extended.
    pub(super) fn signed(self, at: u32, width: u32) -> i64 {
        i64::from((self.word << (32 - at - width)) as i32 >> (32 - width))
    }

    /// Rd or Rt.
    pub(super) fn rd(self) -> u8 {
        self.bits(0, 5) as u8
    }

    /// Rn.
    pub(super) fn rn(self) -> u8 {
        self.bits(5, 5) as u8
    }

    /// Rm or Rs.
    pub(super) fn rm(self) -> u8 {
        self.bits(16, 5) as u8
    }

    /// Ra or Rt2.
    pub(super) fn ra(self) -> u8 {
        self.bits(10, 5) as u8
    }

    /// Whether the instruction operates on 64 bits.
    pub(super) fn is_wide(self) -> bool {
        self.word >> 31 != 0
    }

    /// Whether a floating-point scalar is double precision.
    pub(super) fn is_double(self) -> bool {
        self.word >> 22 & 1 != 0
    }

    /// The condition of a select or a conditional comparison.
    pub(super) fn condition(self) -> u8 {
        if self.op == Op::BCond { self.bits(0, 4) as u8 } else { self.bits(12, 4) as u8 }
    }

    /// The immediate of ADD and SUB.
    pub(super) fn arithmetic_immediate(self) -> i64 {
        i64::from(self.bits(10, 12)) << if self.bits(22, 1) != 0 { 12 } else { 0 }
    }

    /// The immediate of a logical instruction.
    pub(super) fn mask(self) -> u64 {
        bit_mask(self.word, self.is_wide()).unwrap_or_default()
    }

    /// The system register of MRS and MSR: op0, op1, CRn, CRm and op2, 16 bits.
    pub(super) fn system_register(self) -> u16 {
        self.bits(5, 16) as u16
    }

    /// The target of a branch, a literal load or a PC-relative address; `None` for other instructions.
    pub(super) fn target(self, pc: u64) -> Option<u64> {
        let offset = match self.op {
            Op::B | Op::Bl => self.signed(0, 26) << 2,
            Op::Tbz | Op::Tbnz => self.signed(5, 14) << 2,
            Op::Adr => self.signed(5, 19) << 2 | i64::from(self.bits(29, 2)),
            Op::Adrp => {
                let pages = self.signed(5, 19) << 2 | i64::from(self.bits(29, 2));
                return Some((pc & !0xfff).wrapping_add_signed(pages << 12));
            }
            _ if self.has("to19") || self.is_literal() => self.signed(5, 19) << 2,
            _ => return None,
        };
        Some(pc.wrapping_add_signed(offset))
    }

    fn has(self, name: &str) -> bool {
        self.row().operands.iter().any(|operand| matches!(operand, Operand::Other(other) if *other == name))
    }

    fn is_literal(self) -> bool {
        matches!(self.row().operands.last(), Some(Operand::Address(b'l')))
    }

    /// Whether the instruction is a branch that may fall through.
    pub(super) fn is_conditional_branch(self) -> bool {
        matches!(self.op, Op::BCond | Op::Cbz | Op::Cbnz | Op::Tbz | Op::Tbnz)
    }

    /// Whether execution can return to the next instruction.
    pub(super) fn is_call(self) -> bool {
        matches!(self.op, Op::Bl | Op::Blr | Op::Svc)
    }

    /// Whether the next instruction is reachable only by a jump or a return.
    pub(super) fn ends_block(self) -> bool {
        self.is_call() || matches!(self.op, Op::B | Op::Br | Op::Ret | Op::Brk)
    }

    /// Whether the combination of fields is allocated in the manual.
    fn is_defined(self) -> bool {
        let is_wide = self.is_wide();
        let is_whole = self.bits(30, 1) != 0;
        if !self.is_lane_defined() {
            return false;
        }
        let shift_fits = is_wide || self.bits(15, 1) == 0;
        for operand in self.row().operands {
            let fits = match operand {
                Operand::Other("mask") => bit_mask(self.word, is_wide).is_some(),
                Operand::Other("wide") => is_wide || self.bits(22, 1) == 0,
                Operand::Other("field") => {
                    self.bits(22, 1) == u32::from(is_wide)
                        && (is_wide || self.bits(16, 6) < 32 && self.bits(10, 6) < 32)
                }
                Operand::Other("lsb") => self.bits(22, 1) == u32::from(is_wide) && shift_fits,
                Operand::Other("shift") => shift_fits && (self.is_logical() || self.bits(22, 2) != 3),
                Operand::Other("extend") => self.bits(10, 3) <= 4,
                Operand::Other("bit") => true,
                Operand::Other("fbits") => is_wide || !shift_fits,
                Operand::Other("lanes") => is_whole || self.bits(22, 2) != 3,
                Operand::Other("short") => self.bits(22, 2) != 3,
                Operand::Other("floats") => is_whole || !self.is_double(),
                Operand::Other("across") => self.bits(22, 2) < 2 || is_whole && self.bits(22, 2) == 2,
                Operand::Other("element") => self.has_element(),
                Operand::Other("elements") => matches!(self.bits(22, 2), 1 | 2),
                Operand::Other("floate") => !self.is_double() || is_whole && self.bits(21, 1) == 0,
                Operand::Other("floate1") => !self.is_double() || self.bits(21, 1) == 0,
                Operand::Other("index") => is_whole || self.bits(14, 1) == 0,
                Operand::Other("amount") => self.bits(19, 4) != 0 && (is_whole || self.bits(22, 1) == 0),
                Operand::Other("amount1") => self.bits(19, 4) != 0,
                Operand::Other("amount3") => self.bits(19, 4) != 0 && self.bits(22, 1) == 0,
                Operand::Other("fixed") => self.bits(19, 4) > 1 && (is_whole || self.bits(22, 1) == 0),
                Operand::Other("fixed1") => self.bits(19, 4) > 1,
                Operand::Other("modified0" | "modified1") => modified_immediate(self).is_some(),
                Operand::Other("list2" | "list3" | "list4") => {
                    is_whole
                        || self.bits(10, 2) != 3
                        || self.mnemonic().ends_with('1')
                        || self.is_single_structure()
                }
                Operand::Address(b'r') => self.bits(14, 1) != 0,
                Operand::Other("sysreg") => {
                    if self.op == Op::Mrs {
                        is_readable(self.system_register())
                    } else {
                        is_writable(self.system_register())
                    }
                }
                _ => true,
            };
            if !fits {
                return false;
            }
        }
        true
    }

    /// Whether the element size of a lane copy is allocated.
    fn has_element(self) -> bool {
        let (bits, is_whole) = (self.bits(16, 5), self.bits(30, 1) != 0);
        let size = bits.trailing_zeros();
        match self.op {
            Op::Smov => size < 2 || size == 2 && is_whole,
            Op::Umov => size < 3 && !is_whole || size == 3 && is_whole,
            Op::DupElement | Op::DupGeneral => size < 3 || size == 3 && is_whole,
            _ => size < 4,
        }
    }

    /// Whether the instruction loads or stores a single structure: to or from one lane, or replicated to all lanes.
    pub(crate) fn is_single_structure(self) -> bool {
        self.word & 0xbf00_0000 == 0x0d00_0000
    }

    /// Whether a single-structure load replicates to all lanes.
    pub(crate) fn replicates(self) -> bool {
        self.is_single_structure() && self.bits(14, 2) == 3
    }

    /// Whether the element size and the lane index of a single-lane load or store fit together.
    fn is_lane_defined(self) -> bool {
        if !self.is_single_structure() || self.replicates() {
            return true;
        }
        match self.bits(14, 2) {
            0 => true,
            1 => self.bits(10, 1) == 0,
            _ => self.bits(10, 2) == 0 || self.bits(10, 2) == 1 && self.bits(12, 1) == 0,
        }
    }

    fn is_logical(self) -> bool {
        use Op::*;
        matches!(self.op, AndReg | BicReg | OrrReg | OrnReg | EorReg | EonReg | AndsReg | BicsReg)
    }

    /// Whether the instruction reads or writes FPCR or FPSR.
    pub(super) fn is_of_float_control(self) -> bool {
        matches!(self.op, Op::Mrs | Op::Msr) && matches!(self.system_register(), FPCR | FPSR)
    }
}

/// The 64-bit immediate of MOVI and related instructions; `None` for unallocated encodings.
pub(crate) fn modified_immediate(i: Instruction) -> Option<u64> {
    let byte = u64::from(i.bits(16, 3) << 5 | i.bits(5, 5));
    let (cmode, op) = (i.bits(12, 4), i.bits(29, 1));
    let twice = |value: u64| value | value << 32;
    if i.op == Op::FmovVH {
        return Some(half_immediate(byte as u32) * 0x0001_0001_0001_0001);
    }
    Some(match (cmode >> 1, cmode & 1, op) {
        (part @ 0..=3, ..) => twice(byte << (8 * part)),
        (part @ 4..=5, ..) => twice(byte << (8 * (part - 4))) | twice(byte << (8 * (part - 4))) << 16,
        (6, low, _) => twice(if low == 0 { byte << 8 | 0xff } else { byte << 16 | 0xffff }),
        (_, 0, 0) => byte.wrapping_mul(0x0101_0101_0101_0101),
        (_, 0, _) => (0..8).filter(|bit| byte >> bit & 1 != 0).fold(0, |sum, bit| sum | 0xff << (8 * bit)),
        (_, _, 0) => twice(float_immediate(byte as u32, false)),
        _ if i.bits(30, 1) != 0 => float_immediate(byte as u32, true),
        _ => return None,
    })
}

/// The element size (log2 of bytes) and the lane index encoded in imm5: the lowest set bit is the size.
pub(crate) fn element(i: Instruction) -> (usize, i32) {
    let bits = i.bits(16, 5);
    let size = bits.trailing_zeros();
    (size as usize, (bits >> (size + 1)) as i32)
}

/// The register and the lane of a by-element operand.
pub(crate) fn lane_of(i: Instruction) -> (u8, i32) {
    let (high, low, more) = (i.bits(11, 1), i.bits(21, 1), i.bits(20, 1));
    match i.bits(22, 2) {
        0 | 1 => (i.bits(16, 4) as u8, (high << 2 | low << 1 | more) as i32),
        2 => (i.rm(), (high << 1 | low) as i32),
        _ => (i.rm(), high as i32),
    }
}

/// Expands an 8-bit floating-point immediate to half precision.
pub(crate) fn half_immediate(bits: u32) -> u64 {
    let bits = u64::from(bits);
    let exponent = if bits >> 6 & 1 == 0 { 0x10 } else { 0xc };
    bits >> 7 << 15 | (exponent | bits >> 4 & 3) << 10 | (bits & 15) << 6
}

/// Expands an 8-bit floating-point immediate.
pub(crate) fn float_immediate(bits: u32, is_double: bool) -> u64 {
    let bits = u64::from(bits);
    let (sign, low) = (bits >> 7, bits & 0x3f);
    let inverse = bits >> 6 & 1 == 0;
    if is_double {
        let exponent = if inverse { 0x400 } else { 0x3fc };
        sign << 63 | (exponent | low >> 4) << 52 | (low & 15) << 48
    } else {
        let exponent = if inverse { 0x80 } else { 0x7c };
        sign << 31 | (exponent | low >> 4) << 23 | (low & 15) << 19
    }
}
