//! Lowers a block of MIPS64 instructions to LoongArch code: instruction order, positions, delay slots. Source: MIPS64
//! Architecture for Programmers, volume II-A; LoongArch Reference Manual, volume 1.

use longma_loongarch::{Instruction as Code, Op as La};

use super::code::{DeferredValue, Exit, MAX_DEFERRED, Pending, Position, Product, ReachableCode, Unit, exit};
use super::deferred_expressions::Plan;
use super::instruction::{Instruction, Op};
use super::uses::{EVERYTHING, Liveness, Set, slot_before};
use super::width::Width;

use longma_translate::assembler::{Assembler, JumpTarget, Label};
use longma_translate::optimizations::{Optimization, Options};

/// A pseudo register number that represents the spare scratch register.
pub const SPARE_SOURCE: u8 = 26;

pub(super) struct Lowering<'a> {
    pub assembler: Assembler,
    pub unit: Unit,
    pub reachable: &'a ReachableCode,
    /// Source registers with known values.
    pub known: [Option<i64>; 32],
    /// The known widths of the source registers' values.
    pub widths: [Width; 32],
    pub product: Option<Product>,
    pub deferred_values: [Option<DeferredValue>; MAX_DEFERRED],
    pub live: Liveness,
    /// Live registers before and after the current instruction.
    pub live_before: Set,
    pub live_after: Set,
    /// Traps, which are emitted out of line.
    stubs: Vec<Stub>,
    /// The address of the current instruction, or of the branch if the instruction is in its delay slot.
    pub pc: u64,
    in_slot: bool,
    /// The general-purpose registers that the current branch reads before its delay slot.
    pub compared: Set,
    /// The next position starts a block.
    begins: bool,
    /// The word offset at which the current delay slot starts. A position there still has the state before the jump.
    jump_at: u32,
    /// The next instruction has been lowered together with the current one.
    pub skip: bool,
    /// Emit returns in the form that the host's return address stack predicts.
    pub predicts_returns: bool,
    /// Defer values.
    pub defers: bool,
    /// Fuse comparisons and branches.
    pub fuses: bool,
}

/// An out-of-line trap: label, source address, `break` code, deferred values.
struct Stub {
    label: Label,
    pc: u64,
    code: i32,
    pending: Option<Pending>,
}

impl<'a> Lowering<'a> {
    pub fn new(reachable: &'a ReachableCode, options: &Options) -> Self {
        Self {
            assembler: Assembler::default(),
            unit: Unit::default(),
            reachable,
            known: [None; 32],
            widths: [Width::UNKNOWN; 32],
            product: None,
            deferred_values: [None; MAX_DEFERRED],
            live: Liveness::new(reachable, options.has(Optimization::Loops)),
            live_before: EVERYTHING,
            live_after: EVERYTHING,
            stubs: Vec::new(),
            pc: 0,
            in_slot: false,
            compared: 0,
            begins: false,
            jump_at: 0,
            skip: false,
            predicts_returns: options.has(Optimization::Returns),
            defers: options.has(Optimization::Forms),
            fuses: options.has(Optimization::Fusion),
        }
    }

    /// Lowers the block at `leader`. The block at `next` follows it in the code.
    pub fn block(&mut self, leader: u64, next: Option<u64>) {
        self.known = [None; 32];
        self.known[0] = Some(0);
        self.widths = [Width::UNKNOWN; 32];
        self.begins = true;
        let mut pc = leader;
        loop {
            self.pc = pc;
            if pc != leader && self.reachable.leaders.contains(&pc) || !self.reachable.words.contains_key(&pc)
            {
                self.settle(pc);
                self.flush(self.live.before(pc));
                if next != Some(pc) {
                    self.assembler.go(JumpTarget::Source(pc));
                }
                return;
            }
            let Some(instruction) = self.reachable.instruction(pc) else {
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

    /// Lowers an instruction that is not a jump: computes what it needs, records its position, and emits its code or
    /// defers it.
    fn single(&mut self, instruction: Instruction) {
        let plan = self.plan(instruction);
        let is_first = !self.in_slot || self.assembler.words.len() as u32 == self.jump_at;
        self.position(is_first);
        let (value, width) = (self.value_of(instruction), self.width_of(instruction));
        match plan {
            Plan::Regular => return self.plain(instruction),
            Plan::Defer(d, form) => self.defer(d, form),
            Plan::Emit(code) => {
                self.assembler.push(code);
                self.changed(code.d);
            }
        }
        self.note(instruction.destination(), value, width);
    }

    /// Records the start of an instruction's code.
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

    /// Creates an out-of-line trap.
    pub fn trap(&mut self, code: i32) -> Label {
        let label = self.assembler.label();
        self.stubs.push(Stub { label, pc: self.pc, code, pending: self.pending() });
        label
    }

    /// Exits to the engine to execute `instruction`.
    pub fn serve(&mut self, instruction: Instruction) {
        exit(&mut self.assembler, &mut self.unit, self.pc, Exit::Service(instruction));
    }

    /// Emits the out-of-line traps.
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

    /// Lowers the delay slot of the branch at `pc`. Afterwards, all deferred values of registers in `live` have been
    /// computed.
    pub fn slot(&mut self, pc: u64, live: Set) {
        let slot_pc = pc.wrapping_add(4);
        let slot = self.reachable.instruction(slot_pc);
        let Some(instruction) = slot.filter(|slot| !slot.has_delay_slot() && !matches!(slot.op, Op::Syscall))
        else {
            self.flush(EVERYTHING);
            self.position(false);
            exit(&mut self.assembler, &mut self.unit, self.pc, Exit::Illegal);
            return;
        };
        (self.live_before, self.live_after) = (slot_before(instruction, live), live);
        (self.in_slot, self.compared) = (true, self.reachable.instruction(pc).map_or(0, Instruction::read));
        self.single(instruction);
        (self.in_slot, self.compared) = (false, 0);
        self.settle_in_slot();
        self.flush(live);
    }

    /// Liveness before the delay slot of the branch at `pc`, given the liveness `live` after it.
    pub fn before_slot(&self, pc: u64, live: Set) -> Set {
        self.reachable.instruction(pc.wrapping_add(4)).map_or(EVERYTHING, |slot| slot_before(slot, live))
    }

    /// The next instruction of the block, for pairs that are lowered together.
    pub fn following(&self) -> Option<Instruction> {
        let pc = self.pc.wrapping_add(4);
        if self.in_slot || self.reachable.leaders.contains(&pc) {
            None
        } else {
            self.reachable.instruction(pc)
        }
    }
}
