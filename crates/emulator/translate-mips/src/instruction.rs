//! MIPS64 instructions: the table as data, the strict decoder, the printer.
//! Not what they do: that is `lower`.
//! Source: MIPS64 Architecture for Programmers, volume II-A; `instructions.tsv` is the one table all of it comes from.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What the table knows of one instruction.
#[derive(Debug)]
struct Row {
    op: Op,
    /// The word with every operand field zero.
    matched: u32,
    /// The bits that tell the instruction from others.
    mask: u32,
    mnemonic: &'static str,
    operands: &'static [Operand],
}

/// An operand: its kind and the position of its field's lowest bit.
#[derive(Clone, Copy, Debug)]
enum Operand {
    General(u8),
    /// A general register that stands at this position and again at 16.
    Twice(u8),
    Float(u8),
    Condition(u8),
    Branch,
    Jump,
    Memory,
    Signed(u8, u8),
    Unsigned(u8, u8),
}

/// The bits that no operand uses.
const fn mask_of(operands: &[Operand]) -> u32 {
    let (mut used, mut i) = (0u32, 0);
    while i < operands.len() {
        used |= match operands[i] {
            Operand::General(at) | Operand::Float(at) => 31 << at,
            Operand::Twice(at) => 31 << at | 31 << 16,
            Operand::Condition(at) => 7 << at,
            Operand::Branch => 0xffff,
            Operand::Jump => 0x3ff_ffff,
            Operand::Memory => 31 << 21 | 0xffff,
            Operand::Signed(at, width) | Operand::Unsigned(at, width) => ((1 << width) - 1) << at,
        };
        i += 1;
    }
    !used
}

include!(concat!(env!("OUT_DIR"), "/mips.rs"));

/// A decoded instruction: which one, and its word, whose fields stand where they always stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u32", try_from = "u32")]
pub struct Instruction {
    /// Which instruction.
    pub op: Op,
    /// The word it was decoded from.
    pub word: u32,
}

/// Every instruction of the table: the word with every operand field zero, and the bits that tell it from others.
pub fn patterns() -> impl Iterator<Item = (u32, u32)> {
    ROWS.iter().map(|row| (row.matched, row.mask))
}

/// The instruction of a word; `None` if the table has none.
pub fn decode(word: u32) -> Option<Instruction> {
    // By the opcode: no group has more rows than a hundred.
    static GROUPS: std::sync::LazyLock<[Vec<&'static Row>; 64]> = std::sync::LazyLock::new(|| {
        std::array::from_fn(|opcode| {
            ROWS.iter().filter(|row| (row.matched >> 26) as usize == opcode).collect()
        })
    });
    let row = GROUPS[(word >> 26) as usize].iter().find(|row| word & row.mask == row.matched)?;
    let instruction = Instruction { op: row.op, word };
    instruction.is_defined().then_some(instruction)
}

impl From<Instruction> for u32 {
    fn from(instruction: Instruction) -> Self {
        instruction.word
    }
}

impl TryFrom<u32> for Instruction {
    type Error = &'static str;

    fn try_from(word: u32) -> Result<Self, Self::Error> {
        decode(word).ok_or("the table has no such instruction")
    }
}

impl Instruction {
    fn field(self, position: u8) -> u8 {
        (self.word >> position & 31) as u8
    }

    /// The general register at bit 21.
    pub fn rs(self) -> u8 {
        self.field(21)
    }

    /// The general register at bit 16; of floating-point instructions `ft`.
    pub fn rt(self) -> u8 {
        self.field(16)
    }

    /// The general register at bit 11; of floating-point instructions `fs`.
    pub fn rd(self) -> u8 {
        self.field(11)
    }

    /// The shift amount at bit 6; of floating-point instructions `fd`.
    pub fn sa(self) -> u8 {
        self.field(6)
    }

    /// The condition flag at bit 18.
    pub fn cc(self) -> u8 {
        (self.word >> 18 & 7) as u8
    }

    /// The lowest 16 bits, signed.
    pub fn imm(self) -> i32 {
        self.word as u16 as i16 as i32
    }

    /// The lowest 16 bits, unsigned.
    pub fn unsigned(self) -> u32 {
        self.word & 0xffff
    }

    /// Where a branch at `pc` goes.
    pub fn branch_target(self, pc: u64) -> u64 {
        pc.wrapping_add(4).wrapping_add_signed(i64::from(self.imm()) << 2)
    }

    /// Where a jump at `pc` goes: within the 256 MiB of its delay slot.
    pub fn jump_target(self, pc: u64) -> u64 {
        pc.wrapping_add(4) & !0xfff_ffff | u64::from(self.word & 0x3ff_ffff) << 2
    }

    /// The position and the size of a bit field that is extracted or inserted.
    pub fn bit_field(self) -> (u8, u8) {
        let (low, high) = (self.sa(), self.rd());
        match self.op {
            Op::Ext | Op::Dext => (low, high + 1),
            Op::Dextm => (low, high + 33),
            Op::Dextu => (low + 32, high + 1),
            Op::Ins | Op::Dins => (low, (high + 1).wrapping_sub(low)),
            Op::Dinsm => (low, high + 33 - low),
            _ => (low + 32, (high + 1).wrapping_sub(low)),
        }
    }

    /// Combinations of fields that the manual leaves undefined are no instructions.
    fn is_defined(self) -> bool {
        let (low, high) = (self.sa(), self.rd());
        match self.op {
            Op::Ext => low + high < 32,
            Op::Ins | Op::Dins | Op::Dinsu => low <= high,
            Op::Dextm => u32::from(low) + u32::from(high) + 33 <= 64,
            Op::Dextu => u32::from(low) + u32::from(high) + 33 <= 64,
            Op::Dext => u32::from(low) + u32::from(high) < 63,
            _ => true,
        }
    }

    /// The manual's name.
    pub fn mnemonic(self) -> &'static str {
        self.row().mnemonic
    }

    fn row(self) -> &'static Row {
        &ROWS[self.op as usize]
    }

    /// The instruction as text; `pc` is where it stands, for the targets of branches.
    pub fn text(self, pc: u64) -> impl fmt::Display {
        Text { instruction: self, pc }
    }

    /// True if it has a delay slot.
    pub fn has_delay_slot(self) -> bool {
        self.is_branch() || matches!(self.op, Op::J | Op::Jal | Op::Jr | Op::JrHb | Op::Jalr | Op::JalrHb)
    }

    /// Where the fields of its general registers begin, that of an access's base included.
    pub(super) fn general_operands(self) -> impl Iterator<Item = u8> {
        self.row().operands.iter().filter_map(|operand| match *operand {
            Operand::General(at) | Operand::Twice(at) => Some(at),
            Operand::Memory => Some(21),
            _ => None,
        })
    }

    /// True for conditional branches, those that link and those that are likely included.
    pub fn is_branch(self) -> bool {
        matches!(self.row().operands.last(), Some(Operand::Branch))
    }

    /// True for branches whose delay slot is executed only if they are taken.
    pub fn is_likely(self) -> bool {
        use Op::*;
        matches!(self.op, Beql | Bnel | Blezl | Bgtzl | Bltzl | Bgezl | Bltzall | Bgezall | Bc1fl | Bc1tl)
    }
}

struct Text {
    instruction: Instruction,
    pc: u64,
}

const GENERAL: [&str; 32] = [
    "zero", "at", "v0", "v1", "a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "t0", "t1", "t2", "t3", "s0",
    "s1", "s2", "s3", "s4", "s5", "s6", "s7", "t8", "t9", "k0", "k1", "gp", "sp", "fp", "ra",
];

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instruction = self.instruction;
        if instruction.word == 0 {
            return f.write_str("nop");
        }
        f.write_str(instruction.mnemonic())?;
        for (index, operand) in instruction.row().operands.iter().enumerate() {
            f.write_str(if index == 0 { " " } else { ", " })?;
            let general = |at| GENERAL[usize::from(instruction.field(at))];
            match *operand {
                Operand::General(at) | Operand::Twice(at) => write!(f, "${}", general(at))?,
                Operand::Float(at) => write!(f, "$f{}", instruction.field(at))?,
                Operand::Condition(at) => write!(f, "$fcc{}", instruction.word >> at & 7)?,
                Operand::Branch => write!(f, "{:#x}", instruction.branch_target(self.pc))?,
                Operand::Jump => write!(f, "{:#x}", instruction.jump_target(self.pc))?,
                Operand::Memory => write!(f, "{}(${})", instruction.imm(), general(21))?,
                Operand::Signed(..) => write!(f, "{}", instruction.imm())?,
                Operand::Unsigned(at, width) => {
                    write!(f, "{}", instruction.word >> at & ((1 << width) - 1))?;
                }
            }
        }
        Ok(())
    }
}
