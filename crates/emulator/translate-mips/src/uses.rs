//! Which registers an instruction reads and writes, and which are read behind a place before they are written.
//! Not what becomes of them.
//! Source: MIPS64 Architecture for Programmers, volume II-A; the table's operands.

use rustc_hash::FxHashMap;

use super::code::{Reach, successors};
use super::instruction::{Instruction, Op};
use super::registers::{HIGH, LOW, general};

/// Registers, by a bit each: LoongArch's general ones, and behind them lo and hi.
pub(super) type Set = u64;
/// All of them.
pub(super) const EVERYTHING: Set = !0;
const GENERAL: Set = 0xffff_ffff;
/// at: compilers and assemblers have in it what is read within a function.
const ASSEMBLER_TEMPORARY: u8 = 1;
const PRODUCTS: Set = LOW_BIT | HIGH_BIT;
const LOW_BIT: Set = 1 << (32 + LOW);
const HIGH_BIT: Set = 1 << (32 + HIGH);

/// The set of a LoongArch register; that which is zero is in none.
pub(super) fn bit(register: u8) -> Set {
    if register == 0 { 0 } else { 1 << register }
}

/// The set of lo or hi.
pub(super) fn half_bit(half: u8) -> Set {
    1 << (32 + half)
}

impl Instruction {
    /// True if what it writes depends on what is there.
    pub(super) fn reads_destination(self) -> bool {
        use Op::*;
        matches!(
            self.op,
            Movz | Movn | Movf | Movt | Ins | Dinsm | Dinsu | Dins | Lwl | Lwr | Ldl | Ldr | Sc | Scd
        )
    }

    /// The general registers that it reads, by LoongArch's numbers.
    pub(super) fn read(self) -> Set {
        let written = self.destination_at().filter(|_| !self.reads_destination());
        let positions = self.general_operands().filter(|at| Some(*at) != written);
        positions.fold(0, |set, at| set | bit(general((self.word >> at & 31) as u8)))
    }

    fn reads(self) -> Set {
        use Op::*;
        let more = match self.op {
            Mflo => LOW_BIT,
            Mfhi => HIGH_BIT,
            Madd | Maddu | Msub | Msubu => PRODUCTS | GENERAL,
            Syscall => GENERAL,
            // A handler sees all registers and goes on where it likes.
            Break => EVERYTHING,
            // A mark tells the model what is in a register.
            Andi if self.rt() == 0 => GENERAL,
            _ if self.is_served() && !self.is_checked_sum() => GENERAL,
            _ => 0,
        };
        self.read() | more
    }

    fn writes(self) -> Set {
        use Op::*;
        let more = match self.op {
            Mult | Multu | Dmult | Dmultu | Div | Divu | Ddiv | Ddivu | Mul | Syscall => PRODUCTS,
            Mtlo => LOW_BIT,
            Mthi => HIGH_BIT,
            _ => 0,
        };
        more | bit(general(self.destination()))
    }
}

/// What is read from an instruction on that does not jump, if `live` is read behind it.
pub(super) fn slot_before(slot: Instruction, live: Set) -> Set {
    slot.reads() | live & !slot.writes()
}

/// What a step through the code does to what is read behind it.
struct Step {
    pc: u64,
    reads: Set,
    writes: Set,
    /// Where it goes on, with the delay slot between if there is one.
    next: Vec<u64>,
    /// Goes there past the delay slot.
    past: Option<u64>,
    slot: Option<(Set, Set)>,
    /// What is read where nobody knows what comes.
    beyond: Set,
}

impl Step {
    fn of(reach: &Reach, pc: u64, across: bool) -> Self {
        let unknown =
            |reads| Self { pc, reads, writes: 0, next: Vec::new(), past: None, slot: None, beyond: 0 };
        let Some(instruction) = reach.instruction(pc) else { return unknown(EVERYTHING) };
        let (reads, writes) = (instruction.reads(), instruction.writes());
        let known = Self { writes, ..unknown(reads) };
        let kept = if across { 0 } else { GENERAL };
        let Some(next) = successors(instruction, pc).filter(|_| instruction.has_delay_slot()) else {
            let behind = pc.wrapping_add(4);
            let beyond = if reach.leaders.contains(&behind) { kept } else { 0 };
            return Self { next: vec![behind], beyond, ..known };
        };
        let Some(slot) = reach.instruction(pc.wrapping_add(4)) else { return unknown(EVERYTHING) };
        let beyond = match instruction.op {
            // The assembler's register never has a result: it is lost like hi and lo.
            Op::Jr | Op::JrHb if instruction.rs() == 31 => GENERAL & !bit(general(ASSEMBLER_TEMPORARY)),
            Op::Jr | Op::JrHb => EVERYTHING,
            Op::Jalr | Op::JalrHb => GENERAL,
            _ => kept,
        };
        let past = instruction.is_likely().then(|| pc.wrapping_add(8));
        Self { next, past, slot: Some((slot.reads(), slot.writes())), beyond, ..known }
    }

    fn behind(&self, before: &FxHashMap<u64, Set>) -> Set {
        let at = |pc: &u64| before.get(pc).copied().unwrap_or(EVERYTHING);
        self.next.iter().fold(self.beyond, |set, pc| set | at(pc))
    }

    fn before(&self, before: &FxHashMap<u64, Set>) -> Set {
        let past = self.past.map_or(0, |pc| before.get(&pc).copied().unwrap_or(EVERYTHING) | self.beyond);
        let (reads, writes) = self.slot.unwrap_or((0, 0));
        self.reads | (past | reads | self.behind(before) & !writes) & !self.writes
    }
}

/// What is read from each place of a unit on.
pub(super) struct Liveness {
    before: FxHashMap<u64, Set>,
    behind: FxHashMap<u64, Set>,
}

impl Liveness {
    /// Of all that is reached; if not `across` blocks, all general registers are read behind each.
    pub fn new(reach: &Reach, across: bool) -> Self {
        let mut steps: Vec<Step> = reach.words.keys().map(|pc| Step::of(reach, *pc, across)).collect();
        steps.sort_unstable_by_key(|step| std::cmp::Reverse(step.pc));
        let mut before: FxHashMap<u64, Set> = steps.iter().map(|step| (step.pc, 0)).collect();
        loop {
            let mut changes = false;
            for step in &steps {
                let now = step.before(&before);
                changes |= before.insert(step.pc, now) != Some(now);
            }
            if !changes {
                break;
            }
        }
        let behind = steps.iter().map(|step| (step.pc, step.behind(&before))).collect();
        Self { before, behind }
    }

    /// What is read from `pc` on.
    pub fn before(&self, pc: u64) -> Set {
        self.before.get(&pc).copied().unwrap_or(EVERYTHING)
    }

    /// What is read behind the instruction at `pc` and its delay slot.
    pub fn behind(&self, pc: u64) -> Set {
        self.behind.get(&pc).copied().unwrap_or(EVERYTHING)
    }
}
