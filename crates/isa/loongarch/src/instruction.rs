//! A decoded instruction: its opcode and its operands as plain numbers. Source: LoongArch Reference Manual, volume 1,
//! section 1.2 (instruction formats).

include!(concat!(env!("OUT_DIR"), "/ops.rs"));

/// A decoded instruction.
///
/// `d`, `j`, `k` and `a` are the register numbers in the fields at bits 0, 5, 10 and 15, for all kinds of registers,
/// and 0 if the instruction has no register there. `imm` and `imm2` are the first and second immediate in assembly
/// order, scaled as in assembly text (a branch offset is in bytes), and 0 if absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instruction {
    /// The opcode.
    pub op: Op,
    /// The register at bit 0.
    pub d: u8,
    /// The register at bit 5.
    pub j: u8,
    /// The register at bit 10.
    pub k: u8,
    /// The register at bit 15.
    pub a: u8,
    /// The first immediate.
    pub imm: i32,
    /// The second immediate.
    pub imm2: i32,
}

impl Instruction {
    /// An instruction with every operand zero.
    pub const fn new(op: Op) -> Self {
        Self { op, d: 0, j: 0, k: 0, a: 0, imm: 0, imm2: 0 }
    }

    /// The register number in the field at `position` (0, 5, 10 or 15).
    pub fn register_at(&self, position: u8) -> u8 {
        match position {
            0 => self.d,
            5 => self.j,
            10 => self.k,
            _ => self.a,
        }
    }

    pub(crate) fn set_register_at(&mut self, position: u8, number: u8) {
        match position {
            0 => self.d = number,
            5 => self.j = number,
            10 => self.k = number,
            _ => self.a = number,
        }
    }
}
