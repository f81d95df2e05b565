//! From a block of MIPS64 instructions to LoongArch code: order, positions, delay slots.
//! Not the plain instructions, which are in `plain` and `float`, nor what jumps become (`jumps`).
//! Source: MIPS64 Architecture for Programmers, volume II-A; LoongArch Reference Manual, volume 1.

use longma_loongarch::{Instruction as Code, Op as La};

use super::code::{Exit, Pending, Position, Product, Reach, Unit, WAITING, Waiting, exit};
use super::forms::Plan;
use super::instruction::{Instruction, Op};
use super::uses::{EVERYTHING, Liveness, Set, slot_before};
use super::width::Width;

use longma_translate::assembler::{Assembler, Goal, Label};
use longma_translate::parts::{Options, Part};

/// The code number that stands for the spare scratch register where a source register is named.
pub const SPARE_SOURCE: u8 = 26;

pub(super) struct Lowering<'a> {
    pub assembler: Assembler,
    pub unit: Unit,
    pub reach: &'a Reach,
    /// Source registers whose value is known here.
    pub known: [Option<i64>; 32],
    /// What else is known of them.
    pub widths: [Width; 32],
    pub product: Option<Product>,
    pub waiting: [Option<Waiting>; WAITING],
    pub live: Liveness,
    /// What is read from the instruction being translated on, and behind it.
    pub live_before: Set,
    pub live_after: Set,
    /// Traps, which are out of the straight path.
    stubs: Vec<Stub>,
    /// Where the instruction being translated stands, or the branch whose slot it is in.
    pub pc: u64,
    in_slot: bool,
    /// The general registers that this branch reads, before its slot.
    pub compared: Set,
    /// The next position is a block's first.
    begins: bool,
    /// The word before which everything is as it is before the jump whose slot is translated.
    jump_at: u32,
    /// The next instruction has been translated together with the one before it.
    pub skip: bool,
    /// Returns are jumps that the stack of return addresses predicts.
    pub predicts_returns: bool,
    /// Values wait.
    pub defers: bool,
    /// Comparisons and branches become one.
    pub fuses: bool,
}

/// A trap out of the straight path: where, whose, with which code, and what registers are yet to be.
struct Stub {
    label: Label,
    pc: u64,
    code: i32,
    pending: Option<Pending>,
}

impl<'a> Lowering<'a> {
    pub fn new(reach: &'a Reach, options: &Options) -> Self {
        Self {
            assembler: Assembler::default(),
            unit: Unit::default(),
            reach,
            known: [None; 32],
            widths: [Width::UNKNOWN; 32],
            product: None,
            waiting: [None; WAITING],
            live: Liveness::new(reach, options.has(Part::Loops)),
            live_before: EVERYTHING,
            live_after: EVERYTHING,
            stubs: Vec::new(),
            pc: 0,
            in_slot: false,
            compared: 0,
            begins: false,
            jump_at: 0,
            skip: false,
            predicts_returns: options.has(Part::Returns),
            defers: options.has(Part::Forms),
            fuses: options.has(Part::Fusion),
        }
    }

    /// Translates the block at `leader`; the block at `next` comes behind it.
    pub fn block(&mut self, leader: u64, next: Option<u64>) {
        self.known = [None; 32];
        self.known[0] = Some(0);
        self.widths = [Width::UNKNOWN; 32];
        self.begins = true;
        let mut pc = leader;
        loop {
            self.pc = pc;
            if pc != leader && self.reach.leaders.contains(&pc) || !self.reach.words.contains_key(&pc) {
                self.settle(pc);
                self.flush(self.live.before(pc));
                if next != Some(pc) {
                    self.assembler.go(Goal::Source(pc));
                }
                return;
            }
            let Some(instruction) = self.reach.instruction(pc) else {
                self.settle(pc);
                self.flush(EVERYTHING);
                exit(&mut self.assembler, &mut self.unit, pc, Exit::Illegal);
                return;
            };
            self.live_before = self.live.before(pc);
            if instruction.has_delay_slot() {
                self.settle_at_end(instruction, pc);
                self.position(true);
                self.jump_at = self.assembler.words.len() as u32;
                self.jump(instruction, pc, next);
                return;
            }
            self.live_after = self.live.before(pc.wrapping_add(4));
            self.prepare(instruction);
            if std::mem::take(&mut self.skip) {
                self.position(false);
                pc = pc.wrapping_add(4);
                continue;
            }
            match instruction.op {
                Op::Syscall => {
                    self.flush(EVERYTHING);
                    self.position(true);
                    self.assembler.push(Code::new(La::Syscall));
                }
                Op::Break => {
                    self.single(instruction);
                    return;
                }
                _ => self.single(instruction),
            }
            pc = pc.wrapping_add(4);
        }
    }

    /// An instruction that does not jump: what it needs, its position, and its code or that there is none yet.
    fn single(&mut self, instruction: Instruction) {
        let plan = self.plan(instruction);
        let is_first = !self.in_slot || self.assembler.words.len() as u32 == self.jump_at;
        self.position(is_first);
        let (value, width) = (self.value_of(instruction), self.width_of(instruction));
        match plan {
            Plan::Plain => return self.plain(instruction),
            Plan::Wait(d, form) => self.put_aside(d, form),
            Plan::Emit(code) => {
                self.assembler.push(code);
                self.changed(code.d);
            }
        }
        self.note(instruction.destination(), value, width);
    }

    /// Notes that the code of an instruction begins here.
    fn position(&mut self, is_boundary: bool) {
        let offset = self.assembler.words.len() as u32;
        let (pending, begins) = (self.pending(), std::mem::take(&mut self.begins));
        self.unit.positions.push(Position {
            offset,
            pc: self.pc,
            is_boundary,
            counted: Some(offset),
            begins,
            pending,
        });
    }

    /// A trap behind the straight path.
    pub fn trap(&mut self, code: i32) -> Label {
        let label = self.assembler.label();
        self.stubs.push(Stub { label, pc: self.pc, code, pending: self.pending() });
        label
    }

    /// Has the engine execute `instruction`.
    pub fn serve(&mut self, instruction: Instruction) {
        exit(&mut self.assembler, &mut self.unit, self.pc, Exit::Service(instruction));
    }

    /// Writes what is out of the straight path.
    pub fn out_of_line(&mut self, unit: &mut Unit) {
        for Stub { label, pc, code, pending } in std::mem::take(&mut self.stubs) {
            self.assembler.place(label);
            let offset = self.assembler.words.len() as u32;
            unit.positions.push(Position {
                offset,
                pc,
                is_boundary: false,
                counted: None,
                begins: true,
                pending,
            });
            self.assembler.push(Code { imm: code, ..Code::new(La::Break) });
        }
    }

    /// The instruction in the delay slot of the branch at `pc`. Behind it, every value is in its register that `live` has.
    pub fn slot(&mut self, pc: u64, live: Set) {
        let behind = pc.wrapping_add(4);
        let slot = self.reach.instruction(behind);
        let Some(instruction) = slot.filter(|slot| !slot.has_delay_slot() && !matches!(slot.op, Op::Syscall))
        else {
            self.flush(EVERYTHING);
            self.position(false);
            exit(&mut self.assembler, &mut self.unit, self.pc, Exit::Illegal);
            return;
        };
        (self.live_before, self.live_after) = (slot_before(instruction, live), live);
        (self.in_slot, self.compared) = (true, self.reach.instruction(pc).map_or(0, Instruction::read));
        self.single(instruction);
        (self.in_slot, self.compared) = (false, 0);
        self.settle_in_slot();
        self.flush(live);
    }

    /// What is read from the delay slot of the branch at `pc` on, if `live` is read behind it.
    pub fn before_slot(&self, pc: u64, live: Set) -> Set {
        self.reach.instruction(pc.wrapping_add(4)).map_or(EVERYTHING, |slot| slot_before(slot, live))
    }

    /// The instruction that stands next in the block, for those that go together.
    pub fn following(&self) -> Option<Instruction> {
        let pc = self.pc.wrapping_add(4);
        if self.in_slot || self.reach.leaders.contains(&pc) { None } else { self.reach.instruction(pc) }
    }
}
