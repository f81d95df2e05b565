//! The registers that an instruction reads and writes, and liveness of registers. Source: Intel SDM, volume 2, as
//! encoded in iced-x86.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

use super::fma::is_fused_scalar;
use super::marks::has_number;
use super::vex::{first, is_vex, last, old};

/// Sets of general and vector registers, as bit masks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Live {
    /// General registers of which any part is read.
    pub any: u16,
    /// General registers whose upper half is read.
    pub wide: u16,
    /// Vector registers of which any part is read.
    pub vectors: u16,
    /// Vector registers of which more than eight bytes are read.
    pub whole: u16,
    /// Vector registers whose upper half of 256 bits is read.
    pub uppers: u16,
}

impl Live {
    /// All registers are read.
    pub const ALL: Self = Self { any: !0, wide: !0, vectors: !0, whole: !0, uppers: !0 };

    /// The union of two sets.
    pub fn or(self, other: Self) -> Self {
        Self {
            any: self.any | other.any,
            wide: self.wide | other.wide,
            vectors: self.vectors | other.vectors,
            whole: self.whole | other.whole,
            uppers: self.uppers | other.uppers,
        }
    }
}

/// The registers that an instruction uses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uses {
    pub reads: Live,
    /// General registers that it writes, possibly only in part or conditionally.
    pub written: u16,
    /// General registers whose old value is dead.
    pub killed: u16,
    /// Vector registers that it writes.
    pub vectors_written: u16,
    /// Vector registers whose old value is dead.
    pub vectors_killed: u16,
    /// Vector registers whose old upper half is dead.
    pub uppers_killed: u16,
    /// A vector register and the other one from which it receives all but the lowest part.
    pub carried: Option<(u8, u8)>,
}

/// Whether the instruction reads at most eight bytes of its second vector operand and preserves the upper part of the
/// first.
pub(super) fn is_scalar(i: &Instruction) -> bool {
    use Mnemonic::*;
    match old(i) {
        Addsd | Subsd | Mulsd | Divsd | Sqrtsd | Addss | Subss | Mulss | Divss | Sqrtss | Minsd | Maxsd
        | Minss | Maxss | Ucomisd | Comisd | Ucomiss | Comiss | Cvtsi2sd | Cvtsi2ss | Cvttsd2si
        | Cvtsd2si | Cvttss2si | Cvtss2si | Cvtss2sd | Cvtsd2ss | Roundsd | Roundss | Movss | Movd | Movq => {
            true
        }
        Movsd | Cmpsd | Cmpss => !i.is_string_instruction(),
        _ => is_fused_scalar(i),
    }
}

/// Whether both sources are the same register.
fn is_same(i: &Instruction) -> bool {
    let (a, b) = (first(i), last(i));
    i.op_count() > b
        && i.op_kind(a) == OpKind::Register
        && i.op_kind(b) == OpKind::Register
        && i.op_register(a) == i.op_register(b)
}

/// Whether the instruction stores all vector registers.
fn saves_all(i: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(i.mnemonic(), Fxsave | Fxsave64 | Xsave | Xsave64 | Xsaveopt | Xsaveopt64 | Xsavec | Xsavec64)
}

/// The register uses of an instruction.
pub(super) fn uses(factory: &mut InstructionInfoFactory, i: &Instruction) -> Uses {
    let mut uses = Uses::default();
    let scalar = is_scalar(i);
    // The result is independent of the sources.
    let ignores = is_same(i)
        && matches!(
            old(i),
            Mnemonic::Xorps | Mnemonic::Xorpd | Mnemonic::Pxor | Mnemonic::Pcmpeqd | Mnemonic::Pcmpeqb
        );
    let vex = is_vex(i);
    for used in factory.info(i).used_registers() {
        let register = used.register();
        let (reads, writes, kills) = match used.access() {
            OpAccess::None | OpAccess::NoMemAccess => continue,
            OpAccess::Read | OpAccess::CondRead => (true, false, false),
            OpAccess::Write => (false, true, true),
            OpAccess::CondWrite => (false, true, false),
            OpAccess::ReadWrite => (true, true, true),
            OpAccess::ReadCondWrite => (true, true, false),
        };
        if register.is_gpr() {
            uses.note_general(register, (reads, writes, kills));
        } else if register.is_vector_register() {
            let loads = !scalar
                || matches!(i.mnemonic(), Mnemonic::Movsd | Mnemonic::Movss)
                    && i.op1_kind() == OpKind::Memory
                || matches!(i.mnemonic(), Mnemonic::Movd | Mnemonic::Movq);
            let kills = ignores && writes || kills && !reads && (loads || vex);
            uses.note_vector(register, scalar, (reads && !ignores, writes, kills));
        }
    }
    if vex {
        uses.note_extended(i, scalar, ignores);
    }
    if has_number(i) {
        uses.reads.any |= 1 << Register::RDI.number();
        uses.reads.wide |= 1 << Register::RDI.number();
    }
    if saves_all(i) {
        uses.reads = Live::ALL;
    }
    uses
}

impl Uses {
    /// Records an access to a general register: whether it is read, written, and completely overwritten.
    fn note_general(&mut self, register: Register, (reads, writes, kills): (bool, bool, bool)) {
        let bit = 1u16 << (register.full_register().number() & 15);
        let bytes = register.size();
        if reads {
            self.reads.any |= bit;
            if bytes == 8 {
                self.reads.wide |= bit;
            }
        }
        if writes {
            self.written |= bit;
            if kills && bytes >= 4 {
                self.killed |= bit;
            }
        }
    }

    /// Records an access to a vector register by an instruction that may be `scalar`.
    fn note_vector(&mut self, register: Register, scalar: bool, (reads, writes, kills): (bool, bool, bool)) {
        let bit = 1u16 << (register.number() & 15);
        if reads {
            self.reads.vectors |= bit;
            if !scalar {
                self.reads.whole |= bit;
            }
        }
        if writes {
            self.vectors_written |= bit;
            if kills {
                self.vectors_killed |= bit;
            }
        }
    }

    /// Corrects the vector accesses of a VEX-encoded instruction.
    fn note_extended(&mut self, i: &Instruction, scalar: bool, ignores: bool) {
        if matches!(i.mnemonic(), Mnemonic::Vzeroupper | Mnemonic::Vzeroall) {
            self.reads.vectors = 0;
            self.reads.whole = 0;
            self.uppers_killed = !0;
            (self.vectors_written, self.vectors_killed) =
                if i.mnemonic() == Mnemonic::Vzeroall { (!0, !0) } else { (0, 0) };
            return;
        }
        let register = |n: u32| {
            let is_register = n < i.op_count() && i.op_kind(n) == OpKind::Register;
            is_register.then(|| i.op_register(n)).filter(|register| register.is_vector_register())
        };
        if let Some(d) = register(0).filter(|d| self.vectors_written >> (d.number() & 15) & 1 != 0) {
            self.uppers_killed |= 1 << (d.number() & 15);
            if let Some(carried) = register(first(i)).filter(|_| scalar && first(i) == 1) {
                self.carried = Some(((d.number() & 15) as u8, (carried.number() & 15) as u8));
            }
        }
        // An instruction that reads 256 bits of one register is assumed to read 256 bits of all sources.
        let is_wide = (0..i.op_count()).any(|n| register(n).is_some_and(Register::is_ymm));
        let is_wide = is_wide || i.memory_index().is_ymm();
        if is_wide && !ignores {
            self.reads.uppers |= self.reads.vectors;
            self.reads.whole |= self.reads.vectors;
        }
    }

    /// The registers that are live before the instruction, if `live_after` are live after it.
    pub fn before(&self, live_after: Live) -> Live {
        let mut whole = live_after.whole & !self.vectors_killed | self.reads.whole;
        if let Some((_, from)) = self.carried.filter(|(to, _)| live_after.whole >> to & 1 != 0) {
            whole |= 1 << from;
        }
        Live {
            any: live_after.any & !self.killed | self.reads.any,
            wide: live_after.wide & !self.killed | self.reads.wide,
            vectors: live_after.vectors & !self.vectors_killed | self.reads.vectors,
            whole,
            uppers: live_after.uppers & !self.uppers_killed | self.reads.uppers,
        }
    }
}
