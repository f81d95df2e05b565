//! Which registers an instruction reads and writes, and how much of them; which are read behind a place.
//! Not flags: those are `unit`'s.
//! Source: Intel SDM, volume 2, by iced-x86.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

use super::fma::is_fused_scalar;
use super::marks::has_number;
use super::vex::{first, is_vex, last, old};

/// Sets of the general registers and of the vectors, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Live {
    /// Of which any part is read.
    pub any: u16,
    /// Of which the upper half is read.
    pub wide: u16,
    /// Vectors of which any part is read.
    pub vectors: u16,
    /// Vectors of which more is read than eight bytes.
    pub whole: u16,
    /// Vectors of which the upper half of 256 bits is read.
    pub uppers: u16,
}

impl Live {
    /// Everything is read.
    pub const ALL: Self = Self { any: !0, wide: !0, vectors: !0, whole: !0, uppers: !0 };

    /// What either reads.
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

/// What an instruction does to registers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uses {
    pub reads: Live,
    /// General registers that it writes, be it in part or only sometimes.
    pub written: u16,
    /// Those whose old value is gone.
    pub killed: u16,
    /// Vectors that it writes.
    pub vectors_written: u16,
    /// Vectors whose old value is gone.
    pub vectors_killed: u16,
    /// Vectors whose old upper half is gone.
    pub uppers_killed: u16,
    /// A vector that becomes another but for its lowest part, and that other.
    pub carried: Option<(u8, u8)>,
}

/// Whether it does nothing with a second vector register but read its low eight bytes or fewer, and keeps the upper part of the first.
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

/// Whether its sources are the same register.
fn is_same(i: &Instruction) -> bool {
    let (a, b) = (first(i), last(i));
    i.op_count() > b
        && i.op_kind(a) == OpKind::Register
        && i.op_kind(b) == OpKind::Register
        && i.op_register(a) == i.op_register(b)
}

/// Whether it writes all vectors to memory.
fn saves_all(i: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(i.mnemonic(), Fxsave | Fxsave64 | Xsave | Xsave64 | Xsaveopt | Xsaveopt64 | Xsavec | Xsavec64)
}

/// What an instruction reads and writes.
pub(super) fn uses(factory: &mut InstructionInfoFactory, i: &Instruction) -> Uses {
    let mut found = Uses::default();
    let scalar = is_scalar(i);
    // All ones or zeros whatever there was.
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
            found.note_general(register, (reads, writes, kills));
        } else if register.is_vector_register() {
            let loads = !scalar
                || matches!(i.mnemonic(), Mnemonic::Movsd | Mnemonic::Movss)
                    && i.op1_kind() == OpKind::Memory
                || matches!(i.mnemonic(), Mnemonic::Movd | Mnemonic::Movq);
            let kills = ignores && writes || kills && !reads && (loads || vex);
            found.note_vector(register, scalar, (reads && !ignores, writes, kills));
        }
    }
    if vex {
        found.note_extended(i, scalar, ignores);
    }
    if has_number(i) {
        found.reads.any |= 1 << Register::RDI.number();
        found.reads.wide |= 1 << Register::RDI.number();
    }
    if saves_all(i) {
        found.reads = Live::ALL;
    }
    found
}

impl Uses {
    /// Notes whether a general register is read, written, and written whole.
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

    /// Notes the same of a vector register, by an instruction that may read its lowest part alone.
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

    /// Notes what an instruction with the encoding of AVX does to whole vectors.
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
        // What reads 256 bits of one register is taken to do so of all; the destination counts where it is a source.
        let is_wide = (0..i.op_count()).any(|n| register(n).is_some_and(Register::is_ymm));
        let is_wide = is_wide || i.memory_index().is_ymm();
        if is_wide && !ignores {
            self.reads.uppers |= self.reads.vectors;
            self.reads.whole |= self.reads.vectors;
        }
    }

    /// What is read before the instruction, if `behind` is read behind it.
    pub fn before(&self, behind: Live) -> Live {
        let mut whole = behind.whole & !self.vectors_killed | self.reads.whole;
        if let Some((_, from)) = self.carried.filter(|(to, _)| behind.whole >> to & 1 != 0) {
            whole |= 1 << from;
        }
        Live {
            any: behind.any & !self.killed | self.reads.any,
            wide: behind.wide & !self.killed | self.reads.wide,
            vectors: behind.vectors & !self.vectors_killed | self.reads.vectors,
            whole,
            uppers: behind.uppers & !self.uppers_killed | self.reads.uppers,
        }
    }
}
