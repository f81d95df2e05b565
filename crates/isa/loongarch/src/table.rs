//! The instruction table: one [`Row`] for each instruction, generated from `instructions.tsv`. Source: LoongArch
//! Reference Manual, volume 1, appendix B; LSX, LASX and LBT encodings as published by the LoongArch community.

use std::fmt;

use crate::instruction::Op;

/// The description of one instruction.
#[derive(Debug)]
pub struct Row {
    /// The word with all operand fields zero.
    pub matched: u32,
    /// The fixed bits: a word `w` is this instruction if `w & mask == matched`.
    pub mask: u32,
    /// The manual's mnemonic in lower case.
    pub mnemonic: &'static str,
    /// The operands in assembly order.
    pub operands: &'static [Operand],
    /// The inputs that determine its effect. Memory has the number of bytes loaded.
    pub reads: &'static [Location],
    /// The outputs that it may change. Memory has the number of bytes stored.
    pub writes: &'static [Location],
    /// The part of the architecture that defines it.
    pub extension: Extension,
    /// The version of the manual that introduced it: `1.0` or `1.1`; `-` if it is in no manual.
    pub revision: &'static str,
    /// Its class for timing models.
    pub class: Class,
}

impl Row {
    /// Whether it is also a full barrier, which the manual marks with `_db` in the mnemonic (volume 1, section
    /// 2.2.7.1).
    pub fn orders_memory(&self) -> bool {
        self.mnemonic.contains("_db")
    }
}

/// An operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A register file, and the bit position of the register number.
    Register(RegisterKind, u8),
    /// An immediate.
    Immediate(Immediate),
}

/// An input or output of an instruction.
///
/// A destination that is only partly or only sometimes written also counts as an input, except for bits that the manual
/// leaves undefined, such as those above a single-precision result. In x87 stack mode, scalar floating-point
/// instructions also read [`Top`](Self::Top) and [`StackMode`](Self::StackMode), which the rows omit. The program
/// counter and the constant counters are also omitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// The register of an operand: register file, and bit position of the register number.
    Operand(RegisterKind, u8),
    /// A fixed register, by file and number.
    Register(RegisterKind, u8),
    /// The floating-point control and status register: rounding, enables, flags and causes.
    FloatControl,
    /// The flags of the binary-translation extension: EFLAGS, which include NZCV.
    Flags,
    /// The x87 top of stack.
    Top,
    /// Whether stack mode is on.
    StackMode,
    /// The reservation of the last load-linked.
    Reservation,
    /// At most this many bytes of memory.
    Memory(u8),
}

/// Formats the location as in the table.
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

/// The encoding of an immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// Whether it is in two's complement.
    pub signed: bool,
    /// `(position, width)` of its parts in bits, the most significant part first.
    pub parts: &'static [(u8, u8)],
    /// The left shift that converts the field to the value in assembly text.
    pub scale: u8,
    /// The number added to the field to obtain the value in assembly text.
    pub plus: u8,
}

impl Immediate {
    /// The total width in bits.
    pub const fn width(&self) -> u8 {
        let (mut sum, mut i) = (0, 0);
        while i < self.parts.len() {
            sum += self.parts[i].1;
            i += 1;
        }
        sum
    }

    /// Extracts the value from `word`, as in assembly text (scaled, and with `plus` added).
    pub fn extract(&self, word: u32) -> i32 {
        let mut field = 0u32;
        for &(position, width) in self.parts {
            field = field << width | word >> position & low_bits(width);
        }
        let unused = 32 - self.width();
        let value = if self.signed { (field << unused) as i32 >> unused } else { field as i32 };
        (value << self.scale) + i32::from(self.plus)
    }

    /// The bits of a word that encode `value`; `None` if it does not fit.
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
    /// r0 to r31, 64 bits.
    General,
    /// f0 to f31, the low 64 bits of the vector registers.
    Float,
    /// vr0 to vr31, 128 bits.
    Vector128,
    /// xr0 to xr31, 256 bits.
    Vector256,
    /// fcc0 to fcc7, one bit.
    Condition,
    /// scr0 to scr3 of the binary-translation extension, 64 bits.
    Scratch,
    /// fcsr0 to fcsr3 and further numbers of the field, 32 bits.
    FloatControl,
}

impl RegisterKind {
    /// The width in bits of a register number field.
    pub const fn field_width(self) -> u8 {
        match self {
            Self::Condition => 3,
            Self::Scratch => 2,
            _ => 5,
        }
    }
}

/// The part of the architecture that defines an instruction.
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
    /// Privileged: a user program gets SIGILL.
    Privileged,
    /// Virtualisation; privileged.
    Lvz,
    /// This project's own instructions for code translated from other architectures; illegal elsewhere.
    Private,
}

/// The class of an instruction, for which timing models define a latency and a functional unit.
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

/// The bits outside all operand fields.
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

/// An integer whose lowest `width` bits are set.
pub(crate) const fn low_bits(width: u8) -> u32 {
    ((1u64 << width) - 1) as u32
}

impl Op {
    /// The number of instructions in the table.
    pub const COUNT: usize = ROWS.len();

    /// All instructions in table order.
    pub fn all() -> impl ExactSizeIterator<Item = Op> {
        (0..Self::COUNT as u16).map(|index| {
            // SAFETY: `Op` is `repr(u16)` and has exactly `COUNT` variants without gaps, both from the same build step.
            unsafe { std::mem::transmute::<u16, Op>(index) }
        })
    }

    /// The table row of this instruction.
    pub fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The manual's mnemonic in lower case.
    pub fn mnemonic(self) -> &'static str {
        self.row().mnemonic
    }

    /// Whether it can set the program counter to an address other than the next instruction.
    pub fn is_control_flow(self) -> bool {
        matches!(self.row().class, Class::Branch | Class::Jump)
    }
}

include!(concat!(env!("OUT_DIR"), "/rows.rs"));
