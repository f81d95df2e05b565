//! Registers that an instruction reads and writes, and liveness analysis. Source: MIPS64 Architecture for Programmers,
//! volume II-A; the operands in the instruction table.

use rustc_hash::FxHashMap;

use super::code::{ReachableCode, successors};
use super::instruction::{Instruction, Op};
use super::registers::{HIGH, LOW, general};

/// A set of registers: one bit for each LoongArch general-purpose register, followed by lo and hi.
pub(super) type Set = u64;
/// All registers.
pub(super) const EVERYTHING: Set = !0;
const GENERAL: Set = 0xffff_ffff;
/// Register at, which compilers and assemblers use as a temporary within a function.
const ASSEMBLER_TEMPORARY: u8 = 1;
const PRODUCTS: Set = LOW_BIT | HIGH_BIT;
const LOW_BIT: Set = 1 << (32 + LOW);
const HIGH_BIT: Set = 1 << (32 + HIGH);

/// The set that contains a LoongArch register. Empty for r0.
pub(super) fn bit(register: u8) -> Set {
    if register == 0 { 0 } else { 1 << register }
}

/// The set that contains lo or hi.
pub(super) fn half_bit(half: u8) -> Set {
    1 << (32 + half)
}

impl Instruction {
    /// Whether the result depends on the old value of the destination.
    pub(super) fn reads_destination(self) -> bool {
        use Op::*;
        matches!(
            self.op,
            Movz | Movn | Movf | Movt | Ins | Dinsm | Dinsu | Dins | Lwl | Lwr | Ldl | Ldr | Sc | Scd
        )
    }

    /// The general-purpose registers that the instruction reads, as LoongArch registers.
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
            // A signal handler sees all registers and can resume anywhere.
            Break => EVERYTHING,
            // A marker reports the value of a register to the model.
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

/// Liveness before an instruction that is not a jump, given the liveness `live` after it.
pub(super) fn slot_before(slot: Instruction, live: Set) -> Set {
    slot.reads() | live & !slot.writes()
}

/// The effect of an instruction on liveness.
struct LivenessEffect {
    pc: u64,
    reads: Set,
    writes: Set,
    /// The successors, reached after the delay slot if there is one.
    next: Vec<u64>,
    /// A successor that is reached without executing the delay slot.
    past: Option<u64>,
    slot: Option<(Set, Set)>,
    /// Liveness at unknown successors.
    beyond: Set,
}

impl LivenessEffect {
    fn of(reachable: &ReachableCode, pc: u64, across: bool) -> Self {
        let unknown =
            |reads| Self { pc, reads, writes: 0, next: Vec::new(), past: None, slot: None, beyond: 0 };
        let Some(instruction) = reachable.instruction(pc) else { return unknown(EVERYTHING) };
        let (reads, writes) = (instruction.reads(), instruction.writes());
        let known = Self { writes, ..unknown(reads) };
        let live_through = if across { 0 } else { GENERAL };
        let Some(next) = successors(instruction, pc).filter(|_| instruction.has_delay_slot()) else {
            let next_pc = pc.wrapping_add(4);
            let beyond = if reachable.leaders.contains(&next_pc) { live_through } else { 0 };
            return Self { next: vec![next_pc], beyond, ..known };
        };
        let Some(slot) = reachable.instruction(pc.wrapping_add(4)) else { return unknown(EVERYTHING) };
        let beyond = match instruction.op {
            // The assembler temporary never holds a result. It is dead after a return, like hi and lo.
            Op::Jr | Op::JrHb if instruction.rs() == 31 => GENERAL & !bit(general(ASSEMBLER_TEMPORARY)),
            Op::Jr | Op::JrHb => EVERYTHING,
            Op::Jalr | Op::JalrHb => GENERAL,
            _ => live_through,
        };
        let past = instruction.is_likely().then(|| pc.wrapping_add(8));
        Self { next, past, slot: Some((slot.reads(), slot.writes())), beyond, ..known }
    }

    /// Liveness after the instruction and its delay slot, from the liveness before each address.
    fn after(&self, before: &FxHashMap<u64, Set>) -> Set {
        let at = |pc: &u64| before.get(pc).copied().unwrap_or(EVERYTHING);
        self.next.iter().fold(self.beyond, |set, pc| set | at(pc))
    }

    /// Liveness before the instruction, from the liveness before each address.
    fn before(&self, before: &FxHashMap<u64, Set>) -> Set {
        let past = self.past.map_or(0, |pc| before.get(&pc).copied().unwrap_or(EVERYTHING) | self.beyond);
        let (reads, writes) = self.slot.unwrap_or((0, 0));
        self.reads | (past | reads | self.after(before) & !writes) & !self.writes
    }
}

/// Liveness at each address of a unit.
pub(super) struct Liveness {
    before: FxHashMap<u64, Set>,
    after: FxHashMap<u64, Set>,
}

impl Liveness {
    /// Computes liveness for all reachable code. If `across` is false, it is not analysed across blocks: all
    /// general-purpose registers are live at the end of each block.
    pub fn new(reachable: &ReachableCode, across: bool) -> Self {
        let mut steps: Vec<LivenessEffect> =
            reachable.words.keys().map(|pc| LivenessEffect::of(reachable, *pc, across)).collect();
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
        let after = steps.iter().map(|step| (step.pc, step.after(&before))).collect();
        Self { before, after }
    }

    /// Liveness before the instruction at `pc`.
    pub fn before(&self, pc: u64) -> Set {
        self.before.get(&pc).copied().unwrap_or(EVERYTHING)
    }

    /// Liveness after the instruction at `pc` and its delay slot.
    pub fn after(&self, pc: u64) -> Set {
        self.after.get(&pc).copied().unwrap_or(EVERYTHING)
    }
}
