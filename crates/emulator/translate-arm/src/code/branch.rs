//! Lowers branches, calls and returns. `lower` prepares the state that the target expects. Source: Arm Architecture
//! Reference Manual (Arm DDI 0487), section C6.2 (B, BL, BR, BLR, RET, CBZ, TBZ); LoongArch Reference Manual, volume 1.

use longma_loongarch::{Instruction as Code, Op as La};

use super::flags::{Comparison, Flags, Second, Test, TestOp, holds};
use super::known::Facts;
use super::lower::Lowering;
use super::operands::{NONE, STACK};
use crate::instruction::{Instruction, Op};
use crate::registers::{LINK, SCRATCH, TABLE, TARGET, TEMPORARIES};
use longma_translate::assembler::JumpTarget;
use longma_translate::optimizations::Optimization;

impl Lowering<'_> {
    /// Lowers a branch, call or return.
    pub fn jump(&mut self, i: Instruction) {
        let next = self.pc.wrapping_add(4);
        match i.op {
            // The target follows in the same block.
            Op::B if self.index + 1 < self.block.0.len() => {}
            Op::B => {
                if let Some(target) = i.target(self.pc) {
                    self.leave(self.reachable.lead(self.leader, target));
                }
            }
            Op::Bl => {
                self.settle();
                self.link(next);
                self.known.flags = Flags::Stored;
                if let Some(target) = i.target(self.pc) {
                    let jump_target = self.jump_target(target);
                    self.assembler.jump(Code::new(La::Bl), jump_target);
                }
                self.returned(next);
            }
            Op::Blr => self.call_register(i, next),
            Op::Br | Op::Ret => self.jump_to_register(i),
            _ => self.branch(i),
        }
    }

    fn link(&mut self, next: u64) {
        self.forget(30);
        self.known.steps[30] = 0;
        self.assembler.constant(LINK, next as i64);
        self.known.facts[30] = Facts::of(next as i64);
        self.constants[30] = None;
    }

    /// Emits an indirect jump. A return becomes a jump through r1 with offset 0, the LoongArch return idiom. Other
    /// jumps have a nonzero offset, so that the host does not predict them as returns. The offset also encodes the
    /// register, in case the target is not translated yet.
    fn jump_to_register(&mut self, i: Instruction) {
        self.settle();
        let register = self.jumped_to(i.rn());
        let is_return =
            i.op == Op::Ret && register == LINK && self.reachable.options.has(Optimization::Returns);
        let offset = if is_return { 0 } else { 4 * i32::from(register) };
        self.find_code(register);
        if offset != 0 {
            self.assembler.immediate(La::AddiD, SCRATCH, SCRATCH, -offset);
        }
        self.assembler.immediate(La::Jirl, 0, SCRATCH, offset);
    }

    /// Looks up the code address for the source address in a register.
    fn find_code(&mut self, register: u8) {
        let options = self.reachable.options;
        if options.has(Optimization::Table) {
            self.assembler.three(La::LdxWu, SCRATCH, register, TABLE);
            return;
        }
        // The spare register can be overwritten: temporaries are dead after a jump or call.
        let spare = if register == TEMPORARIES[1] { TEMPORARIES[2] } else { TEMPORARIES[1] };
        let (miss, resume) = (self.assembler.label(), self.assembler.label());
        self.assembler.look_up_hashed(&options, 4, [SCRATCH, register, spare], miss);
        self.assembler.go(JumpTarget::Label(resume));
        self.assembler.place(miss);
        self.assembler.three(La::LdxWu, SCRATCH, register, TABLE);
        self.assembler.place(resume);
    }

    /// Returns the register for the jump: the assigned register, or [`TARGET`] if there is none.
    fn jumped_to(&mut self, number: u8) -> u8 {
        let register = self.whole(number);
        if register == SCRATCH || register == 0 {
            self.assembler.copy(TARGET, register);
            TARGET
        } else {
            register
        }
    }

    fn call_register(&mut self, i: Instruction, next: u64) {
        self.settle();
        let mut register = self.jumped_to(i.rn());
        if register == LINK {
            self.assembler.copy(TARGET, LINK);
            register = TARGET;
        }
        self.link(next);
        self.find_code(register);
        self.unit.calls.push((self.assembler.words.len() as u32, register));
        self.assembler.immediate(La::Jirl, 1, SCRATCH, 0);
        self.known.flags = Flags::Stored;
        self.returned(next);
    }

    /// Continues after a call.
    fn returned(&mut self, next: u64) {
        let is_outside = self.next != Some(next) && matches!(self.jump_target(next), JumpTarget::Source(_));
        if is_outside && !self.assembler.is_blank && !self.reachable.options.is_cold {
            self.known.flags = Flags::Stored;
            self.unit.exit_after_call(&mut self.assembler, next);
        } else {
            self.leave(next);
        }
    }

    fn branch(&mut self, i: Instruction) {
        let Some(target) = i.target(self.pc) else { return };
        let target = self.reachable.lead(self.leader, target);
        match self.known_outcome(i) {
            Some(true) => {
                self.go_to(target);
                return self.assembler.go(self.jump_target(target));
            }
            Some(false) => return,
            None => {}
        }
        // Convert the tested registers before the test reads them.
        self.convert_tested(i);
        self.prepare_branch(target);
        let test = match i.op {
            Op::BCond if i.condition() >= 14 => Test::of(TestOp::Equal, 0, 0),
            Op::BCond => self.test(i.condition()),
            Op::Cbz | Op::Cbnz => self.test_of_zero(i),
            _ => self.test_of_bit(i),
        };
        let jump_target = self.branch_goal(target);
        self.assembler.jump(test.branch(), jump_target);
    }

    /// Whether the branch is taken, if its operands are known constants.
    fn known_outcome(&self, i: Instruction) -> Option<bool> {
        if i.op == Op::BCond {
            let Flags::Compared(comparison) = self.known.flags else { return None };
            let (a, b) = comparison.operands?;
            let b = match b {
                Second::Register(b) => self.known_constant(b)?,
                Second::Constant(b) => b,
                Second::Held(..) => return None,
            };
            let a = if a == STACK { None } else { self.known_constant(a) }?;
            return Some(holds(i.condition(), comparison.flags_of(a as u64, b as u64)));
        }
        let value = self.known_constant(i.rd())? as u64;
        let value =
            if i.is_wide() || matches!(i.op, Op::Tbz | Op::Tbnz) { value } else { value & 0xffff_ffff };
        let bit = i.bits(19, 5) | if i.is_wide() { 32 } else { 0 };
        Some(match i.op {
            Op::Cbz => value == 0,
            Op::Cbnz => value != 0,
            Op::Tbz => value >> bit & 1 == 0,
            _ => value >> bit & 1 != 0,
        })
    }

    /// Converts the registers that a branch tests to the form that the test needs.
    fn convert_tested(&mut self, i: Instruction) {
        let (is_wide, numbers) = match (i.op, self.known.flags) {
            (Op::BCond, Flags::Compared(Comparison { is_wide, operands, result, .. })) => {
                let (first, second) = operands.unzip();
                let second = if let Some(Second::Register(second)) = second { Some(second) } else { None };
                (is_wide, [first, second, result])
            }
            (Op::BCond, _) => return,
            _ => (i.is_wide(), [Some(i.rd()), None, None]),
        };
        for number in numbers.into_iter().flatten().filter(|number| *number < NONE) {
            if is_wide {
                self.clear_upper(number);
            }
            self.apply_increment(number);
        }
    }

    fn test_of_zero(&mut self, i: Instruction) -> Test {
        let number = i.rd();
        let value = if i.is_wide() {
            self.whole(number)
        } else if self.facts(number).width <= 32 {
            self.word(number)
        } else {
            self.signed_word(number)
        };
        let test = Test::of(TestOp::Equal, value, 0);
        if i.op == Op::Cbnz { test.not() } else { test }
    }

    fn test_of_bit(&mut self, i: Instruction) -> Test {
        let bit = i.bits(19, 5) as u8 | if i.is_wide() { 32 } else { 0 };
        let value = self.source(i.rd(), i.is_wide());
        let facts = self.facts(i.rd());
        if bit == 63 || bit == 31 && facts.sign {
            // The tested bit is the sign bit.
            let test = Test::of(TestOp::Less, value, 0);
            return if i.op == Op::Tbz { test.not() } else { test };
        }
        let to = self.own(value);
        if bit < 12 {
            self.assembler.immediate(La::Andi, to, value, 1 << bit);
        } else {
            self.assembler.field(La::BstrpickD, to, value, bit, bit);
        }
        let test = Test::of(TestOp::Equal, to, 0);
        if i.op == Op::Tbnz { test.not() } else { test }
    }
}
