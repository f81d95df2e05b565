//! From a block of MIPS64 instructions to LoongArch code: order, delay slots, jumps, hi and lo.
//! Not the plain instructions, which are in `plain` and `float`.
//! Source: MIPS64 Architecture for Programmers, volume II-A; LoongArch Reference Manual, volume 1.

use longma_loongarch::{Instruction as Code, Op as La};

use super::code::{Exit, Pending, Position, Reach, Unit, exit, successors};
use super::instruction::{Instruction, Op};
use super::registers::{HIGH, LOW, SCRATCH, SPARE, TABLE, general};

use longma_translate::assembler::{Assembler, Goal, Label};

/// How far ahead hi and lo are looked for.
const LOOKAHEAD: usize = 200;

/// The code number that stands for the spare scratch register where a source register is named.
pub const SPARE_SOURCE: u8 = 26;

pub(super) struct Lowering<'a> {
    pub assembler: Assembler,
    pub unit: Unit,
    reach: &'a Reach,
    /// Source registers whose value is known here.
    pub known: [Option<i64>; 32],
    pending: Option<Pending>,
    /// Traps, which are out of the straight path.
    stubs: Vec<Stub>,
    /// Where the instruction being translated stands, or the branch whose slot it is in.
    pc: u64,
    in_slot: bool,
    /// The next instruction has been translated together with the one before it.
    pub skip: bool,
    /// Returns are jumps that the stack of return addresses predicts.
    predicts_returns: bool,
}

/// A trap out of the straight path: where, whose, with which code, and what hi and lo are yet to be.
struct Stub {
    label: Label,
    pc: u64,
    code: i32,
    pending: Option<Pending>,
}

/// A condition: the branch to be taken if it holds, without its offset, and its opposite.
#[derive(Clone, Copy)]
struct Condition {
    holds: Code,
    fails: Code,
}

impl Condition {
    fn of(holds: La, fails: La, j: u8, d: u8) -> Self {
        let make = |op| Code { j, d, ..Code::new(op) };
        Self { holds: make(holds), fails: make(fails) }
    }
}

impl<'a> Lowering<'a> {
    pub fn new(reach: &'a Reach, predicts_returns: bool) -> Self {
        Self {
            assembler: Assembler::default(),
            unit: Unit::default(),
            reach,
            known: [None; 32],
            pending: None,
            stubs: Vec::new(),
            pc: 0,
            in_slot: false,
            skip: false,
            predicts_returns,
        }
    }

    /// Translates the block at `leader`; the block at `next` comes behind it.
    pub fn block(&mut self, leader: u64, next: Option<u64>) {
        self.known = [None; 32];
        self.known[0] = Some(0);
        let mut pc = leader;
        loop {
            if pc != leader && self.reach.leaders.contains(&pc) || !self.reach.words.contains_key(&pc) {
                self.settle(pc);
                if next != Some(pc) {
                    self.assembler.go(Goal::Source(pc));
                }
                return;
            }
            self.pc = pc;
            let Some(instruction) = self.reach.instruction(pc) else {
                self.settle(pc);
                exit(&mut self.assembler, &mut self.unit, pc, Exit::Illegal);
                return;
            };
            if instruction.has_delay_slot() {
                self.settle_at_end(instruction, pc);
                self.position(true);
                self.jump(instruction, pc, next);
                return;
            }
            self.prepare(instruction);
            if std::mem::take(&mut self.skip) {
                self.position(false);
                pc = pc.wrapping_add(4);
                continue;
            }
            self.position(self.pending.is_none());
            match instruction.op {
                Op::Syscall => self.assembler.push(Code::new(La::Syscall)),
                Op::Break => {
                    let code = (instruction.word >> 16 & 0x3ff) as i32;
                    self.assembler.push(Code { imm: code, ..Code::new(La::Break) });
                    return;
                }
                _ => self.plain(instruction),
            }
            pc = pc.wrapping_add(4);
        }
    }

    /// Notes that the code of an instruction begins here.
    fn position(&mut self, is_boundary: bool) {
        let offset = self.assembler.words.len() as u32;
        let pending = self.pending;
        self.unit.positions.push(Position {
            offset,
            pc: self.pc,
            is_boundary,
            counted: Some(offset),
            begins: false,
            pending,
        });
    }

    /// What has been put off is done where `instruction` would change what it needs.
    fn prepare(&mut self, instruction: Instruction) {
        let Some(pending) = self.pending else { return };
        let written = general(instruction.destination());
        let changes = written != 0 && pending.operands.contains(&written);
        match instruction.op {
            Op::Mflo | Op::Mfhi if !changes => {}
            Op::Mflo | Op::Mfhi => {
                // What is read now is computed from the operands; the other half must be there afterwards.
                let other = if instruction.op == Op::Mflo { HIGH } else { LOW };
                for half in [LOW, HIGH] {
                    if half == other || self.is_live(self.pc.wrapping_add(4), half) {
                        self.materialise(pending, half, self.pc);
                    }
                }
            }
            Op::Syscall | Op::Break | Op::Mthi | Op::Mtlo => self.settle(self.pc),
            _ if changes || instruction.is_served() => self.settle(self.pc),
            _ => {}
        }
    }

    /// Writes hi and lo as far as the code at `pc` may read them.
    fn settle(&mut self, pc: u64) {
        let Some(pending) = self.pending else { return };
        for half in [LOW, HIGH] {
            self.materialise(pending, half, pc);
        }
        self.pending = None;
    }

    /// As `settle`, at a jump. No caller reads what a function leaves in hi and lo. One that is called may leave them as they were, and compilers
    /// that know it (GCC's -fipa-ra) read them behind the call.
    fn settle_at_end(&mut self, instruction: Instruction, pc: u64) {
        let slot = self.reach.instruction(pc.wrapping_add(4));
        let slot_reads = slot.is_some_and(|slot| matches!(slot.op, Op::Mflo | Op::Mfhi));
        if !slot_reads && is_return(instruction) {
            self.pending = None;
        }
        if slot_reads {
            let Some(pending) = self.pending.take() else { return };
            self.compute(pending, LOW, SCRATCH);
            self.assembler.two(La::Movgr2scr, LOW, SCRATCH);
            self.compute(pending, HIGH, SCRATCH);
            self.assembler.two(La::Movgr2scr, HIGH, SCRATCH);
        }
        self.settle(pc);
    }

    fn materialise(&mut self, pending: Pending, half: u8, pc: u64) {
        if self.is_live(pc, half) {
            self.compute(pending, half, SCRATCH);
            self.assembler.two(La::Movgr2scr, half, SCRATCH);
        }
    }

    /// Whether code from `pc` on may read lo or hi before it writes it.
    fn is_live(&self, pc: u64, half: u8) -> bool {
        let mut budget = LOOKAHEAD;
        self.may_read(pc, half, &mut budget)
    }

    fn may_read(&self, mut pc: u64, half: u8, budget: &mut usize) -> bool {
        loop {
            if *budget == 0 {
                return true;
            }
            *budget -= 1;
            let Some(instruction) = self.reach.instruction(pc) else { return true };
            match instruction.op {
                Op::Mflo if half == LOW => return true,
                Op::Mfhi if half == HIGH => return true,
                Op::Mult | Op::Multu | Op::Dmult | Op::Dmultu | Op::Div | Op::Divu | Op::Ddiv | Op::Ddivu => {
                    return false;
                }
                Op::Mul => return false,
                Op::Madd | Op::Maddu | Op::Msub | Op::Msubu => return true,
                Op::Mthi if half == HIGH => return false,
                Op::Mtlo if half == LOW => return false,
                Op::Syscall | Op::Break => return false,
                _ => {}
            }
            if instruction.has_delay_slot() {
                let slot = self.reach.instruction(pc.wrapping_add(4));
                let slot_reads = slot.is_none_or(|slot| {
                    slot.op == Op::Mflo && half == LOW || slot.op == Op::Mfhi && half == HIGH
                });
                if slot_reads {
                    return true;
                }
                if is_return(instruction) {
                    return false;
                }
                return match successors(instruction, pc) {
                    Some(next) if !next.is_empty() => next.iter().any(|pc| self.may_read(*pc, half, budget)),
                    _ => true,
                };
            }
            pc = pc.wrapping_add(4);
        }
    }

    /// Puts off a multiplication or division until its result is read.
    pub fn put_off(&mut self, instruction: Instruction) {
        let operands = [general(instruction.rs()), general(instruction.rt())];
        self.pending = Some(Pending { op: instruction.op, operands });
    }

    /// Reads lo or hi.
    pub fn read_half(&mut self, d: u8, half: u8) {
        match self.pending {
            Some(pending) => {
                self.compute(pending, half, d);
                if pending.operands.contains(&d) {
                    self.pending = None;
                }
            }
            None => self.assembler.two(La::Movscr2gr, d, half),
        }
    }

    fn compute(&mut self, pending: Pending, half: u8, d: u8) {
        let op = match (pending.op, half) {
            (Op::Mult | Op::Multu, LOW) => La::MulW,
            (Op::Mult, _) => La::MulhW,
            (Op::Multu, _) => La::MulhWu,
            (Op::Dmult | Op::Dmultu, LOW) => La::MulD,
            (Op::Dmult, _) => La::MulhD,
            (Op::Dmultu, _) => La::MulhDu,
            (Op::Div, LOW) => La::DivW,
            (Op::Div, _) => La::ModW,
            (Op::Divu, LOW) => La::DivWu,
            (Op::Divu, _) => La::ModWu,
            (Op::Ddiv, LOW) => La::DivD,
            (Op::Ddiv, _) => La::ModD,
            (_, LOW) => La::DivDu,
            _ => La::ModDu,
        };
        let [j, k] = pending.operands;
        self.assembler.three(op, d, j, k);
    }

    /// A trap behind the straight path.
    pub fn trap(&mut self, code: i32) -> Label {
        let label = self.assembler.label();
        self.stubs.push(Stub { label, pc: self.pc, code, pending: self.pending });
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

    /// The instruction in the delay slot of the branch at `pc`.
    fn slot(&mut self, pc: u64) {
        self.position(false);
        let Some(instruction) = self.reach.instruction(pc.wrapping_add(4)) else {
            exit(&mut self.assembler, &mut self.unit, self.pc, Exit::Illegal);
            return;
        };
        if instruction.has_delay_slot() || matches!(instruction.op, Op::Syscall) {
            exit(&mut self.assembler, &mut self.unit, self.pc, Exit::Illegal);
        } else {
            self.in_slot = true;
            self.plain(instruction);
            self.in_slot = false;
            // A product in a slot is written at once: nothing behind the jump knows of it.
            if let Some(pending) = self.pending.take() {
                for half in [LOW, HIGH] {
                    self.compute(pending, half, SCRATCH);
                    self.assembler.two(La::Movgr2scr, half, SCRATCH);
                }
            }
        }
    }

    fn slot_writes(&self, pc: u64, registers: [u8; 2]) -> bool {
        let slot = self.reach.instruction(pc.wrapping_add(4));
        slot.is_some_and(|slot| slot.destination() != 0 && registers.contains(&slot.destination()))
    }

    fn jump(&mut self, instruction: Instruction, pc: u64, next: Option<u64>) {
        let behind = pc.wrapping_add(8);
        let (rs, rt) = (instruction.rs(), instruction.rt());
        match instruction.op {
            Op::J => {
                self.slot(pc);
                self.leave(instruction.jump_target(pc), next);
            }
            Op::Jal => self.call(pc, instruction.jump_target(pc), next),
            Op::Bgezal if rs == 0 => self.call(pc, instruction.branch_target(pc), next),
            Op::Jr | Op::JrHb => self.jump_to_register(pc, rs),
            Op::Jalr | Op::JalrHb => self.call_register(pc, rs, instruction.rd(), next),
            Op::Beq | Op::Beql | Op::Blez | Op::Bgez
                if rs == 0 && (rt == 0 || instruction.op == Op::Bgez) =>
            {
                self.slot(pc);
                self.leave(instruction.branch_target(pc), next);
            }
            _ => {
                if matches!(instruction.op, Op::Bltzal | Op::Bgezal | Op::Bltzall | Op::Bgezall) {
                    self.assembler.constant(general(31), behind as i64);
                    self.known[31] = Some(behind as i64);
                }
                self.branch(instruction, pc, next);
            }
        }
    }

    fn leave(&mut self, to: u64, next: Option<u64>) {
        if next != Some(to) {
            self.assembler.go(Goal::Source(to));
        }
    }

    fn call(&mut self, pc: u64, target: u64, next: Option<u64>) {
        let behind = pc.wrapping_add(8);
        self.assembler.constant(general(31), behind as i64);
        self.slot(pc);
        self.assembler.jump(Code::new(La::Bl), Goal::Source(target));
        self.leave(behind, next);
    }

    /// What `jr` and `jalr` jump to: the register, or the spare one if the delay slot changes it.
    fn target_across_slot(&mut self, pc: u64, rs: u8, link: u8) -> u8 {
        let changes = self.slot_writes(pc, [rs, rs]) || link != 0 && link == rs;
        if changes {
            self.assembler.two(La::Movgr2scr, SPARE, general(rs));
        }
        if link != 0 {
            self.assembler.constant(general(link), pc.wrapping_add(8) as i64);
            self.known[usize::from(link)] = None;
        }
        self.slot(pc);
        if changes {
            self.assembler.two(La::Movscr2gr, SCRATCH, SPARE);
            self.assembler.three(La::LdxWu, SCRATCH, SCRATCH, TABLE);
            SPARE_SOURCE
        } else {
            self.assembler.three(La::LdxWu, SCRATCH, general(rs), TABLE);
            rs
        }
    }

    /// A return jumps through r1 as LoongArch's own do. Other jumps do so with an offset, so that nobody takes them for returns; it names
    /// the register, in case there is no code yet.
    fn jump_to_register(&mut self, pc: u64, rs: u8) {
        let source = self.target_across_slot(pc, rs, 0);
        let is_return = source == 31 && self.predicts_returns;
        let offset = if is_return { 0 } else { 4 * i32::from(source) };
        if offset != 0 {
            self.assembler.immediate(La::AddiD, SCRATCH, SCRATCH, -offset);
        }
        self.assembler.immediate(La::Jirl, 0, SCRATCH, offset);
    }

    fn call_register(&mut self, pc: u64, rs: u8, link: u8, next: Option<u64>) {
        let source = self.target_across_slot(pc, rs, link);
        self.unit.calls.push((self.assembler.words.len() as u32, source));
        self.assembler.immediate(La::Jirl, 1, SCRATCH, 0);
        self.leave(pc.wrapping_add(8), next);
    }

    fn branch(&mut self, instruction: Instruction, pc: u64, next: Option<u64>) {
        let (target, behind) = (instruction.branch_target(pc), pc.wrapping_add(8));
        let links = matches!(instruction.op, Op::Bltzal | Op::Bgezal | Op::Bltzall | Op::Bgezall);
        if instruction.is_likely() {
            let condition = self.condition(instruction);
            let known = self.known;
            let over = self.assembler.label();
            self.assembler.jump(condition.fails, Goal::Label(over));
            self.slot(pc);
            self.take(target, links);
            self.known = known;
            self.assembler.place(over);
            self.leave(behind, next);
            return;
        }
        let mut condition = self.condition(instruction);
        let is_float = matches!(instruction.op, Op::Bc1f | Op::Bc1t);
        let registers = [instruction.rs(), if instruction.op_has_two() { instruction.rt() } else { 0 }];
        if !is_float && self.slot_writes(pc, registers) {
            condition = self.keep_condition(instruction, pc);
        } else if is_float
            && self.reach.instruction(pc.wrapping_add(4)).is_some_and(Instruction::writes_condition)
        {
            self.assembler.two(La::Movcf2gr, SCRATCH, instruction.cc());
            self.assembler.two(La::Movgr2scr, SPARE, SCRATCH);
            self.slot(pc);
            self.assembler.two(La::Movscr2gr, SCRATCH, SPARE);
            condition = Condition::of(La::Bnez, La::Beqz, SCRATCH, 0);
            if instruction.op == Op::Bc1f {
                std::mem::swap(&mut condition.holds, &mut condition.fails);
            }
        } else {
            self.slot(pc);
        }
        if links {
            let over = self.assembler.label();
            self.assembler.jump(condition.fails, Goal::Label(over));
            self.take(target, true);
            self.assembler.place(over);
            self.leave(behind, next);
        } else if next == Some(target) {
            self.assembler.jump(condition.fails, Goal::Source(behind));
        } else {
            self.assembler.jump(condition.holds, Goal::Source(target));
            self.leave(behind, next);
        }
    }

    fn take(&mut self, target: u64, links: bool) {
        let op = if links { La::Bl } else { La::B };
        self.assembler.jump(Code::new(op), Goal::Source(target));
    }

    /// The delay slot changes what the branch compares: the comparison is made before it.
    fn keep_condition(&mut self, instruction: Instruction, pc: u64) -> Condition {
        let (rs, rt) = (general(instruction.rs()), general(instruction.rt()));
        let mut condition = match instruction.op {
            Op::Beq | Op::Bne => {
                if rt == 0 {
                    self.assembler.copy(SCRATCH, rs);
                } else {
                    self.assembler.three(La::Xor, SCRATCH, rs, rt);
                }
                Condition::of(La::Bnez, La::Beqz, SCRATCH, 0)
            }
            _ => {
                self.assembler.copy(SCRATCH, rs);
                self.sign_condition(instruction, SCRATCH)
            }
        };
        if instruction.op == Op::Beq {
            std::mem::swap(&mut condition.holds, &mut condition.fails);
        }
        let slot = self.reach.instruction(pc.wrapping_add(4));
        if slot.is_some_and(Instruction::may_need_scratch) {
            self.assembler.two(La::Movgr2scr, SPARE, SCRATCH);
            self.slot(pc);
            self.assembler.two(La::Movscr2gr, SCRATCH, SPARE);
        } else {
            self.slot(pc);
        }
        condition
    }

    fn sign_condition(&self, instruction: Instruction, rs: u8) -> Condition {
        match instruction.op {
            Op::Bltz | Op::Bltzl | Op::Bltzal | Op::Bltzall => Condition::of(La::Blt, La::Bge, rs, 0),
            Op::Bgez | Op::Bgezl | Op::Bgezal | Op::Bgezall => Condition::of(La::Bge, La::Blt, rs, 0),
            // rs <= 0 is 0 >= rs.
            Op::Blez | Op::Blezl => Condition::of(La::Bge, La::Blt, 0, rs),
            _ => Condition::of(La::Blt, La::Bge, 0, rs),
        }
    }

    fn condition(&self, instruction: Instruction) -> Condition {
        let (rs, rt) = (general(instruction.rs()), general(instruction.rt()));
        match instruction.op {
            Op::Beq | Op::Beql if rt == 0 => Condition::of(La::Beqz, La::Bnez, rs, 0),
            Op::Bne | Op::Bnel if rt == 0 => Condition::of(La::Bnez, La::Beqz, rs, 0),
            Op::Beq | Op::Beql => Condition::of(La::Beq, La::Bne, rs, rt),
            Op::Bne | Op::Bnel => Condition::of(La::Bne, La::Beq, rs, rt),
            Op::Bc1f | Op::Bc1fl => Condition::of(La::Bceqz, La::Bcnez, instruction.cc(), 0),
            Op::Bc1t | Op::Bc1tl => Condition::of(La::Bcnez, La::Bceqz, instruction.cc(), 0),
            _ => self.sign_condition(instruction, rs),
        }
    }

    /// The instruction that stands next in the block, for those that go together.
    pub fn following(&self) -> Option<Instruction> {
        let pc = self.pc.wrapping_add(4);
        if self.in_slot || self.reach.leaders.contains(&pc) { None } else { self.reach.instruction(pc) }
    }
}

fn is_return(instruction: Instruction) -> bool {
    matches!(instruction.op, Op::Jr | Op::JrHb) && instruction.rs() == 31
}
