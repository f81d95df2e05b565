//! Lowers jumps and branches, including delay slots that modify an operand of the branch. Source: MIPS64 Architecture
//! for Programmers, volume II-A; LoongArch Reference Manual, volume 1.

use longma_loongarch::{Instruction as Code, Op as La};

use super::deferred_expressions::ExprKind;
use super::instruction::{Instruction, Op};
use super::lower::{Lowering, SPARE_SOURCE};
use super::registers::{SCRATCH, SPARE, TABLE, general};
use super::uses::{EVERYTHING, Set, bit};
use super::width::Width;
use longma_translate::assembler::JumpTarget;

/// A condition: the branch that is taken if it holds, without an offset, and the inverse branch.
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

impl Lowering<'_> {
    fn slot_writes(&self, pc: u64, registers: [u8; 2]) -> bool {
        let slot = self.reachable.instruction(pc.wrapping_add(4));
        slot.is_some_and(|slot| slot.destination() != 0 && registers.contains(&slot.destination()))
    }

    pub(super) fn jump(&mut self, instruction: Instruction, pc: u64, next: Option<u64>) {
        let after_slot = pc.wrapping_add(8);
        let (rs, rt) = (instruction.rs(), instruction.rt());
        match instruction.op {
            Op::J => {
                self.slot(pc, self.live.after(pc));
                self.leave(instruction.jump_target(pc), next);
            }
            Op::Jal => self.call(pc, instruction.jump_target(pc), next),
            Op::Bgezal if rs == 0 => self.call(pc, instruction.branch_target(pc), next),
            Op::Jr | Op::JrHb => self.jump_to_register(pc, rs),
            Op::Jalr | Op::JalrHb => self.call_register(pc, rs, instruction.rd(), next),
            Op::Beq | Op::Beql | Op::Blez | Op::Bgez
                if rs == 0 && (rt == 0 || instruction.op == Op::Bgez) =>
            {
                self.slot(pc, self.live.after(pc));
                self.leave(instruction.branch_target(pc), next);
            }
            _ => {
                if matches!(instruction.op, Op::Bltzal | Op::Bgezal | Op::Bltzall | Op::Bgezall) {
                    self.flush(EVERYTHING);
                    self.assembler.constant(general(31), after_slot as i64);
                    self.note(31, Some(after_slot as i64), Width::UNKNOWN);
                }
                self.branch(instruction, pc, next);
            }
        }
    }

    fn leave(&mut self, to: u64, next: Option<u64>) {
        if next != Some(to) {
            self.assembler.go(JumpTarget::Source(to));
        }
    }

    fn call(&mut self, pc: u64, target: u64, next: Option<u64>) {
        let (after_slot, live) = (pc.wrapping_add(8), self.live.after(pc));
        self.compute_live(self.before_slot(pc, live));
        self.assembler.constant(general(31), after_slot as i64);
        self.changed(general(31));
        self.note(31, Some(after_slot as i64), Width::UNKNOWN);
        self.slot(pc, live);
        self.assembler.jump(Code::new(La::Bl), JumpTarget::Source(target));
        self.leave(after_slot, next);
    }

    /// Emits the delay slot of `jr` or `jalr` and the lookup of the target's code. Returns the register with the
    /// target: the spare register if the delay slot changes the original.
    fn target_across_slot(&mut self, pc: u64, rs: u8, link: u8) -> u8 {
        let live = self.live.after(pc);
        self.compute_live(self.before_slot(pc, live) | bit(general(rs)));
        let changes = self.slot_writes(pc, [rs, rs]) || link != 0 && link == rs;
        if changes {
            self.assembler.two(La::Movgr2scr, SPARE, general(rs));
        }
        if link != 0 {
            self.assembler.constant(general(link), pc.wrapping_add(8) as i64);
            self.changed(general(link));
            self.note(link, None, Width::UNKNOWN);
        }
        self.slot(pc, live);
        if changes {
            self.assembler.two(La::Movscr2gr, SCRATCH, SPARE);
            self.assembler.three(La::LdxWu, SCRATCH, SCRATCH, TABLE);
            SPARE_SOURCE
        } else {
            self.assembler.three(La::LdxWu, SCRATCH, general(rs), TABLE);
            rs
        }
    }

    /// Emits an indirect jump. A return uses r1 and offset 0, the LoongArch return idiom. Other jumps have a nonzero
    /// offset, so that the host does not predict them as returns. The offset also encodes the register, in case the
    /// target is not translated yet.
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
        let (target, after_slot) = (instruction.branch_target(pc), pc.wrapping_add(8));
        let links = matches!(instruction.op, Op::Bltzal | Op::Bgezal | Op::Bltzall | Op::Bgezall);
        let live = self.live.after(pc);
        if instruction.is_likely() {
            self.flush(EVERYTHING);
            let condition = self.condition(instruction);
            let saved_constants = self.known;
            let skip = self.assembler.label();
            self.assembler.jump(condition.fails, JumpTarget::Label(skip));
            self.slot(pc, live);
            self.take(target, links);
            self.known = saved_constants;
            self.assembler.place(skip);
            self.leave(after_slot, next);
            return;
        }
        let condition = self.condition_across_slot(instruction, pc, live);
        if links {
            let skip = self.assembler.label();
            self.assembler.jump(condition.fails, JumpTarget::Label(skip));
            self.take(target, true);
            self.assembler.place(skip);
            self.leave(after_slot, next);
        } else if next == Some(target) {
            self.assembler.jump(condition.fails, JumpTarget::Source(after_slot));
        } else {
            self.assembler.jump(condition.holds, JumpTarget::Source(target));
            self.leave(after_slot, next);
        }
    }

    fn take(&mut self, target: u64, links: bool) {
        let op = if links { La::Bl } else { La::B };
        self.assembler.jump(Code::new(op), JumpTarget::Source(target));
    }

    /// Emits the delay slot of a branch and returns the branch condition.
    fn condition_across_slot(&mut self, instruction: Instruction, pc: u64, live: Set) -> Condition {
        let before_slot = self.before_slot(pc, live);
        if matches!(instruction.op, Op::Bc1f | Op::Bc1t) {
            return self.flag_across_slot(instruction, pc, live);
        }
        let fused = self.fused_condition(instruction);
        if let Some(condition) = fused.filter(|condition| !self.may_change(*condition, pc, before_slot)) {
            self.slot(pc, live);
            return condition;
        }
        let mut read = bit(general(instruction.rs()));
        if instruction.compares_two_registers() {
            read |= bit(general(instruction.rt()));
        }
        self.before_reads(read);
        let condition = self.condition(instruction);
        if self.may_change(condition, pc, before_slot) {
            self.compute_live(before_slot | read);
            return self.keep_condition(instruction, pc, live);
        }
        self.slot(pc, live);
        condition
    }

    /// Whether an operand of the condition is written before the branch, including by a deferred value.
    fn may_change(&self, condition: Condition, pc: u64, live: Set) -> bool {
        let compared = bit(condition.holds.j) | bit(condition.holds.d);
        let slot = self.reachable.instruction(pc.wrapping_add(4));
        let written = slot.map_or(0, |slot| bit(general(slot.destination())));
        compared & (written | self.deferred_set() & live) != 0
    }

    /// Emits the delay slot of a branch on a floating-point flag and returns the branch condition.
    fn flag_across_slot(&mut self, instruction: Instruction, pc: u64, live: Set) -> Condition {
        let slot = self.reachable.instruction(pc.wrapping_add(4));
        if !slot.is_some_and(Instruction::writes_condition) {
            self.slot(pc, live);
            return self.condition(instruction);
        }
        self.assembler.two(La::Movcf2gr, SCRATCH, instruction.cc());
        self.assembler.two(La::Movgr2scr, SPARE, SCRATCH);
        self.slot(pc, live);
        self.assembler.two(La::Movscr2gr, SCRATCH, SPARE);
        let mut condition = Condition::of(La::Bnez, La::Beqz, SCRATCH, 0);
        if instruction.op == Op::Bc1f {
            std::mem::swap(&mut condition.holds, &mut condition.fails);
        }
        condition
    }

    /// The deferred comparison that a branch compares with zero, as a condition.
    fn fused_condition(&self, instruction: Instruction) -> Option<Condition> {
        let is_zero = instruction.compares_two_registers() && general(instruction.rt()) == 0;
        let form = self.form(general(instruction.rs())).filter(|_| is_zero && self.fuses)?;
        let mut condition = match form.shape {
            ExprKind::Less => Condition::of(La::Blt, La::Bge, form.j, form.k),
            ExprKind::LessUnsigned => Condition::of(La::Bltu, La::Bgeu, form.j, form.k),
            // `x < 1` is `0 >= x`.
            ExprKind::LessImmediate => Condition::of(La::Bge, La::Blt, 0, form.j),
            ExprKind::LessUnsignedImmediate => Condition::of(La::Beqz, La::Bnez, form.j, 0),
            _ => return None,
        };
        if instruction.op == Op::Beq {
            std::mem::swap(&mut condition.holds, &mut condition.fails);
        }
        Some(condition)
    }

    /// Evaluates the condition before a delay slot that changes an operand. No deferred value is live after the slot.
    fn keep_condition(&mut self, instruction: Instruction, pc: u64, live: Set) -> Condition {
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
        let slot = self.reachable.instruction(pc.wrapping_add(4));
        if slot.is_some_and(Instruction::may_need_scratch) {
            self.assembler.two(La::Movgr2scr, SPARE, SCRATCH);
            self.slot(pc, live);
            self.assembler.two(La::Movscr2gr, SCRATCH, SPARE);
        } else {
            self.slot(pc, live);
        }
        condition
    }

    fn sign_condition(&self, instruction: Instruction, rs: u8) -> Condition {
        match instruction.op {
            Op::Bltz | Op::Bltzl | Op::Bltzal | Op::Bltzall => Condition::of(La::Blt, La::Bge, rs, 0),
            Op::Bgez | Op::Bgezl | Op::Bgezal | Op::Bgezall => Condition::of(La::Bge, La::Blt, rs, 0),
            // `rs <= 0` is `0 >= rs`.
            Op::Blez | Op::Blezl => Condition::of(La::Bge, La::Blt, 0, rs),
            _ => Condition::of(La::Blt, La::Bge, 0, rs),
        }
    }

    fn condition(&self, instruction: Instruction) -> Condition {
        let (rs, rt) = (self.read(instruction.rs()), self.read(instruction.rt()));
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
}
