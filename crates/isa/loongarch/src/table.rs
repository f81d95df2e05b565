//! The instruction table as data: one [`Row`] an instruction, generated from `instructions.tsv`.
//! Not the decoder's search structure (see `decode.rs`).
//! Source: LoongArch Reference Manual, volume 1, appendix B; LSX, LASX and LBT encodings as published by the LoongArch community.

use std::fmt;

use crate::instruction::Op;

/// What the table knows of one instruction.
#[derive(Debug)]
pub struct Row {
    /// The word with every operand field zero.
    pub matched: u32,
    /// The bits of the word that tell the instruction from others; a word `w` is this instruction if `w & mask == matched`.
    pub mask: u32,
    /// The manual's name, in lower case.
    pub mnemonic: &'static str,
    /// The operands in assembly order.
    pub operands: &'static [Operand],
    /// What decides what it does. Memory has the bytes that are loaded.
    pub reads: &'static [Location],
    /// What it may change. Memory has the bytes that are stored.
    pub writes: &'static [Location],
    /// The part of the architecture that has it.
    pub extension: Extension,
    /// The manual's version that brought it: `1.0` or `1.1`.
    pub revision: &'static str,
    /// What kind of work it is to a core.
    pub class: Class,
}

impl Row {
    /// Whether it is a full barrier besides what it does, which the manual tells by `_db` in the name (volume 1, section 2.2.7.1).
    pub fn orders_memory(&self) -> bool {
        self.mnemonic.contains("_db")
    }
}

/// An operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A register of a kind, its number at a bit position of the word.
    Register(RegisterKind, u8),
    /// A number in the word.
    Immediate(Immediate),
}

/// Something that an instruction reads or writes.
///
/// A destination of which a part stays, or all of it in some cases, is read as well; but bits that the manual leaves undefined, such
/// as those above a single-precision result, are not. In x87 stack mode every scalar floating-point instruction also reads
/// [`Top`](Self::Top) and [`StackMode`](Self::StackMode), which no row says. The program counter and constant counters are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// The register that an operand names: of a kind, its number at a bit position of the word.
    Operand(RegisterKind, u8),
    /// A certain register, by kind and number.
    Register(RegisterKind, u8),
    /// The floating-point control and status register: rounding, enables, flags and causes.
    FloatControl,
    /// EFLAGS, and NZCV in the same bits, of the binary-translation extension.
    Flags,
    /// The x87 top of stack.
    Top,
    /// Whether the x87 stack renames registers.
    StackMode,
    /// What the last load-linked saw.
    Reservation,
    /// So many bytes of memory, at most.
    Memory(u8),
}

/// As the table has it.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |kind| match kind {
            RegisterKind::General => 'r',
            RegisterKind::Float => 'f',
            RegisterKind::Vector128 => 'v',
            RegisterKind::Vector256 => 'x',
            RegisterKind::Condition => 'c',
            RegisterKind::Scratch => 't',
            RegisterKind::FloatControl => 'g',
        };
        match *self {
            Self::Operand(kind, position) => write!(f, "{}{position}", letter(kind)),
            Self::Register(RegisterKind::General, 1) => f.write_str("ra"),
            Self::Register(RegisterKind::Scratch, number) => write!(f, "scr{number}"),
            Self::Register(kind, number) => write!(f, "{} {number}", letter(kind)),
            Self::FloatControl => f.write_str("fcsr"),
            Self::Flags => f.write_str("flags"),
            Self::Top => f.write_str("top"),
            Self::StackMode => f.write_str("mode"),
            Self::Reservation => f.write_str("reservation"),
            Self::Memory(bytes) => write!(f, "m{bytes}"),
        }
    }
}

/// Where an immediate stands in the word and what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// Two's complement if true.
    pub signed: bool,
    /// `(position, width)` in bits, the most significant part first.
    pub parts: &'static [(u8, u8)],
    /// The value in the text is the field's shifted left by this.
    pub scale: u8,
    /// The value in the text is the field's plus this.
    pub plus: u8,
}

impl Immediate {
    /// The number of bits in the word.
    pub const fn width(&self) -> u8 {
        let (mut sum, mut i) = (0, 0);
        while i < self.parts.len() {
            sum += self.parts[i].1;
            i += 1;
        }
        sum
    }

    /// The value that stands in `word`, as the text has it (scaled, and with `plus` added).
    pub fn extract(&self, word: u32) -> i32 {
        let mut field = 0u32;
        for &(position, width) in self.parts {
            field = field << width | word >> position & low_bits(width);
        }
        let unused = 32 - self.width();
        let value = if self.signed { (field << unused) as i32 >> unused } else { field as i32 };
        (value << self.scale) + i32::from(self.plus)
    }

    /// The bits of a word that hold `value`, or `None` if it does not fit.
    pub fn insert(&self, value: i32) -> Option<u32> {
        let value = value.checked_sub(i32::from(self.plus))?;
        if value & low_bits(self.scale) as i32 != 0 {
            return None;
        }
        let mut field = (value >> self.scale) as u32 & low_bits(self.width());
        let mut word = 0;
        for &(position, width) in self.parts.iter().rev() {
            word |= (field & low_bits(width)) << position;
            field >>= width;
        }
        (self.extract(word) == value + i32::from(self.plus)).then_some(word)
    }
}

/// A register file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterKind {
    /// r0-r31, 64 bits.
    General,
    /// f0-f31, the low 64 bits of the vector registers.
    Float,
    /// vr0-vr31, 128 bits.
    Vector128,
    /// xr0-xr31, 256 bits.
    Vector256,
    /// fcc0-fcc7, one bit.
    Condition,
    /// scr0-scr3 of the binary-translation extension, 64 bits.
    Scratch,
    /// fcsr0-fcsr3 and their kin, 32 bits.
    FloatControl,
}

impl RegisterKind {
    /// The width of the field that names a register, in bits.
    pub const fn field_width(self) -> u8 {
        match self {
            Self::Condition => 3,
            Self::Scratch => 2,
            _ => 5,
        }
    }
}

/// The part of the architecture an instruction belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Extension {
    /// Base integer.
    Base,
    /// Multiply and divide.
    Mul,
    /// Bit operations and CRC.
    Bit,
    /// Loads and stores with a bound.
    Bound,
    /// Load-linked, store-conditional, atomic memory operations.
    Atomic,
    /// Scalar floating point.
    Fp,
    /// 128-bit vectors.
    Lsx,
    /// 256-bit vectors.
    Lasx,
    /// Binary translation.
    Lbt,
    /// For the kernel only: a user program gets SIGILL.
    Privileged,
    /// Virtualisation, for the kernel only.
    Lvz,
}

/// What kind of work an instruction is to a core; timing models give each a latency and a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // the names are the manual's groups
pub enum Class {
    Alu,
    Shift,
    Bit,
    Mul,
    Div,
    Crc,
    Move,
    Branch,
    Jump,
    Load,
    Store,
    Prefetch,
    Atomic,
    Barrier,
    System,
    FpAdd,
    FpMul,
    FpFma,
    FpDiv,
    FpSqrt,
    FpCompare,
    FpConvert,
    FpMove,
    VectorAlu,
    VectorCompare,
    VectorShift,
    VectorShuffle,
    VectorIntMul,
    VectorIntDiv,
    VectorFpAdd,
    VectorFpMul,
    VectorFpFma,
    VectorFpDiv,
    VectorFpCompare,
    VectorFpConvert,
    Lbt,
    LbtMul,
}

/// The bits that no operand uses.
const fn mask_of(operands: &[Operand]) -> u32 {
    let (mut used, mut i) = (0, 0);
    while i < operands.len() {
        match operands[i] {
            Operand::Register(kind, position) => used |= low_bits(kind.field_width()) << position,
            Operand::Immediate(Immediate { parts, .. }) => {
                let mut part = 0;
                while part < parts.len() {
                    used |= low_bits(parts[part].1) << parts[part].0;
                    part += 1;
                }
            }
        }
        i += 1;
    }
    !used
}

/// A number with its lowest `width` bits set.
pub(crate) const fn low_bits(width: u8) -> u32 {
    ((1u64 << width) - 1) as u32
}

impl Op {
    /// The number of instructions in the table.
    pub const COUNT: usize = ROWS.len();

    /// Every instruction, in the order of the table.
    pub fn all() -> impl ExactSizeIterator<Item = Op> {
        (0..Self::COUNT as u16).map(|index| {
            // SAFETY: `Op` is `repr(u16)` and has exactly `COUNT` variants without gaps, both from the same build step.
            unsafe { std::mem::transmute::<u16, Op>(index) }
        })
    }

    /// The table's row of this instruction.
    pub fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The manual's name.
    pub fn mnemonic(self) -> &'static str {
        self.row().mnemonic
    }

    /// True if it can set the program counter to something else than the next instruction.
    pub fn is_control_flow(self) -> bool {
        matches!(self.row().class, Class::Branch | Class::Jump)
    }
}

include!(concat!(env!("OUT_DIR"), "/rows.rs"));
