//! MIPS64 instructions: the instruction table, the strict decoder, the disassembler and accessors for instruction
//! fields. Source: MIPS64 Architecture for Programmers, volume II-A; everything derives from `instructions.tsv`.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A row of the instruction table.
#[derive(Debug)]
struct Row {
    op: Op,
    /// The instruction word with all operand fields zero.
    matched: u32,
    /// The bits that identify the instruction.
    mask: u32,
    mnemonic: &'static str,
    operands: &'static [Operand],
}

/// An operand: its kind and the position of its field's lowest bit.
#[derive(Clone, Copy, Debug)]
enum Operand {
    General(u8),
    /// A general-purpose register that is encoded at this position and again at bit 16.
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

/// A decoded instruction: the operation and the instruction word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u32", try_from = "u32")]
pub struct Instruction {
    /// The operation.
    pub op: Op,
    /// The instruction word.
    pub word: u32,
}

/// Returns, for every instruction of the table, the word with all operand fields zero and the mask of the identifying
/// bits.
pub fn patterns() -> impl Iterator<Item = (u32, u32)> {
    ROWS.iter().map(|row| (row.matched, row.mask))
}

/// Decodes an instruction word. Returns `None` for words that the table does not define.
pub fn decode(word: u32) -> Option<Instruction> {
    // Indexed by opcode. No group has more than a hundred rows.
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
        decode(word).ok_or("undefined instruction word")
    }
}

impl Instruction {
    fn field(self, position: u8) -> u8 {
        (self.word >> position & 31) as u8
    }

    /// The general-purpose register at bit 21.
    pub fn rs(self) -> u8 {
        self.field(21)
    }

    /// The general-purpose register at bit 16; `ft` of floating-point instructions.
    pub fn rt(self) -> u8 {
        self.field(16)
    }

    /// The general-purpose register at bit 11; `fs` of floating-point instructions.
    pub fn rd(self) -> u8 {
        self.field(11)
    }

    /// The shift amount at bit 6; `fd` of floating-point instructions.
    pub fn sa(self) -> u8 {
        self.field(6)
    }

    /// The condition flag at bit 18.
    pub fn cc(self) -> u8 {
        (self.word >> 18 & 7) as u8
    }

    /// The low 16 bits, sign-extended.
    pub fn imm(self) -> i32 {
        self.word as u16 as i16 as i32
    }

    /// The low 16 bits, zero-extended.
    pub fn unsigned(self) -> u32 {
        self.word & 0xffff
    }

    /// The target of a branch at `pc`.
    pub fn branch_target(self, pc: u64) -> u64 {
        pc.wrapping_add(4).wrapping_add_signed(i64::from(self.imm()) << 2)
    }

    /// The target of a jump at `pc`: in the same 256 MiB region as its delay slot.
    pub fn jump_target(self, pc: u64) -> u64 {
        pc.wrapping_add(4) & !0xfff_ffff | u64::from(self.word & 0x3ff_ffff) << 2
    }

    /// The position and the width of the bit field of an extract or insert instruction.
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

    /// Whether the combination of fields is defined in the manual.
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

    /// The mnemonic in the manual.
    pub fn mnemonic(self) -> &'static str {
        self.row().mnemonic
    }

    fn row(self) -> &'static Row {
        &ROWS[self.op as usize]
    }

    /// The instruction as text; `pc` is its address and determines branch targets.
    pub fn text(self, pc: u64) -> impl fmt::Display {
        Text { instruction: self, pc }
    }

    /// Whether the instruction has a delay slot.
    pub fn has_delay_slot(self) -> bool {
        self.is_branch() || matches!(self.op, Op::J | Op::Jal | Op::Jr | Op::JrHb | Op::Jalr | Op::JalrHb)
    }

    /// The positions of the general-purpose register fields, including base registers.
    pub(super) fn general_operands(self) -> impl Iterator<Item = u8> {
        self.row().operands.iter().filter_map(|operand| match *operand {
            Operand::General(at) | Operand::Twice(at) => Some(at),
            Operand::Memory => Some(21),
            _ => None,
        })
    }

    /// Whether the instruction is a conditional branch, including branch-and-link and branch-likely.
    pub fn is_branch(self) -> bool {
        matches!(self.row().operands.last(), Some(Operand::Branch))
    }

    /// Whether the instruction is a branch-likely: the delay slot is executed only if the branch is taken.
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
