//! Registers and flags that an instruction reads and writes, and to what width. Source: Arm Architecture Reference
//! Manual (Arm DDI 0487), chapter C6; the operands in the instruction table.

use super::flags::{ALL, flags_of};
use super::vector::count;
use crate::instruction::lane_of;
use crate::instruction::{Instruction, Op, Operand, Role};
use crate::registers::{FPCR, NZCV};

/// Liveness at a point in the code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Live {
    /// Live condition flags, N, Z, C and V in bits 3 to 0.
    pub flags: u8,
    /// General-purpose registers whose upper half is live.
    pub wide: u32,
    /// Vectors of which more than 4 bytes, and more than 8 bytes, are live.
    pub upper: [u32; 2],
}

impl Live {
    /// Everything except the flags is live.
    pub const REGISTERS: Self = Self { flags: 0, wide: !0, upper: [!0; 2] };

    pub fn or(self, other: Self) -> Self {
        Self {
            flags: self.flags | other.flags,
            wide: self.wide | other.wide,
            upper: [self.upper[0] | other.upper[0], self.upper[1] | other.upper[1]],
        }
    }
}

/// The registers and flags that an instruction uses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uses {
    pub reads: Live,
    /// General-purpose registers that are read, at least in part.
    pub read: u32,
    /// General registers that are written.
    pub written: u32,
    /// Vectors that are written.
    pub vectors_written: u32,
    /// Vectors that are read or written.
    pub vectors: u32,
    /// Whether the instruction writes all condition flags.
    pub sets_flags: bool,
}

impl Uses {
    /// Liveness before the instruction, given the liveness `after` it.
    pub fn before(&self, after: Live) -> Live {
        let live_through = Live {
            flags: if self.sets_flags { 0 } else { after.flags },
            wide: after.wide & !self.written,
            upper: after.upper.map(|set| set & !self.vectors_written),
        };
        live_through.or(self.reads)
    }

    fn general(&mut self, number: u8, is_wide: bool, role: Role) {
        if number == 31 {
            return;
        }
        if role != Role::Written {
            self.read |= 1 << number;
            self.reads.wide |= u32::from(is_wide) << number;
        }
        if role != Role::Read {
            self.written |= 1 << number;
        }
    }

    /// Adds the vectors of a register list.
    fn lists(&mut self, i: Instruction) {
        let is_lane = i.is_single_structure() && !i.replicates();
        let bytes = if is_lane || i.bits(30, 1) != 0 { 16 } else { 8 };
        let role = match i.bits(22, 1) {
            0 => Role::Read,
            _ if is_lane => Role::Both,
            _ => Role::Written,
        };
        for index in 0..count(i).unwrap_or(0) {
            self.vector((i.rd() + index) & 31, bytes, role);
        }
        if matches!(i.mnemonic(), "tbl" | "tbx") {
            for index in 0..=i.bits(13, 2) as u8 {
                self.vector((i.rn() + index) & 31, 16, Role::Read);
            }
        }
    }

    fn vector(&mut self, number: u8, bytes: u8, role: Role) {
        self.vectors |= 1 << number;
        if role != Role::Written {
            self.reads.upper[0] |= u32::from(bytes > 4) << number;
            self.reads.upper[1] |= u32::from(bytes > 8) << number;
        }
        if role != Role::Read {
            self.vectors_written |= 1 << number;
        }
    }
}

/// Whether all 64 bits of an extended register are read.
fn is_extended_wide(i: Instruction) -> bool {
    i.bits(13, 2) == 3
}

/// Returns the registers and flags that `i` uses.
pub(super) fn uses(i: Instruction) -> Uses {
    let mut uses = Uses::default();
    for operand in i.row().operands {
        match *operand {
            Operand::Register { role, kind, at } => {
                let number = i.bits(at.into(), 5) as u8;
                match kind {
                    b'w' => uses.general(number, false, role),
                    b'x' => uses.general(number, true, role),
                    b'r' | b'p' => uses.general(number, i.is_wide(), role),
                    b'e' => uses.general(number, is_extended_wide(i), role),
                    b'F' => uses.vector(number, if i.is_double() { 8 } else { 4 }, role),
                    b'D' | b'Z' | b'I' => uses.vector(number, 8, role),
                    b'B' | b'H' | b'S' => uses.vector(number, 4, role),
                    b'E' => {
                        let (number, lane) = lane_of(i);
                        uses.vector(number, (lane as u8 + 1) << i.size().max(1), role);
                    }
                    b'V' => uses.vector(number, if i.bits(30, 1) != 0 { 16 } else { 8 }, role),
                    _ => uses.vector(number, 16, role),
                }
            }
            Operand::Address(b'l') => {}
            Operand::Address(kind) => {
                let steps = matches!(kind, b't' | b'p' | b'i' | b'j' | b's');
                uses.general(i.rn(), true, if steps { Role::Both } else { Role::Read });
                if kind == b's' {
                    uses.general(i.rm(), true, Role::Read);
                }
                if kind == b'r' {
                    uses.general(i.rm(), is_extended_wide(i), Role::Read);
                }
            }
            Operand::Other(_) => {}
        }
    }
    uses.lists(i);
    if matches!(i.op, Op::CaspW | Op::CaspX) {
        uses.general(i.rm() + 1, i.op == Op::CaspX, Role::Both);
        uses.general(i.rd() + 1, i.op == Op::CaspX, Role::Read);
    }
    if matches!(i.op, Op::Bl | Op::Blr) {
        uses.written |= 1 << 30;
    }
    uses.reads.flags = flags_of_reader(i);
    uses.sets_flags = sets_flags(i);
    uses
}

/// The condition flags that an instruction reads.
fn flags_of_reader(i: Instruction) -> u8 {
    use Op::*;
    match i.op {
        BCond | CcmnReg | CcmnImm | CcmpReg | CcmpImm | Csel | Csinc | Csinv | Csneg | Fccmp | Fccmpe
        | Fcsel | FccmpH | FccmpeH | FcselH => flags_of(i.condition()),
        Adc | Adcs | Sbc | Sbcs => 2,
        Mrs if i.system_register() == NZCV => ALL,
        // After this instruction, the engine may execute other code, which expects the flags in their registers.
        Msr if i.system_register() == FPCR => ALL,
        _ => 0,
    }
}

fn sets_flags(i: Instruction) -> bool {
    use Op::*;
    match i.op {
        AddsImm | SubsImm | AndsImm | AndsReg | BicsReg | AddsReg | SubsReg | AddsExt | SubsExt | Adcs
        | Sbcs => true,
        CcmnReg | CcmnImm | CcmpReg | CcmpImm | Fccmp | Fccmpe | FccmpH | FccmpeH => true,
        FcmpReg | FcmpZero | FcmpeReg | FcmpeZero | FcmpRegH | FcmpZeroH | FcmpeRegH | FcmpeZeroH => true,
        Msr => i.system_register() == NZCV,
        _ => false,
    }
}
