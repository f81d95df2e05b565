//! Lowers scalar floating-point arithmetic, comparisons, selects and moves. Source: Arm Architecture Reference Manual
//! (Arm DDI 0487), sections A1.5 (NaNs), C7.2; LoongArch Reference Manual, volume 1, section 3.2.

use longma_loongarch::{Instruction as Code, Op as La};

use super::compare::FlagUses;
use super::flags::{Flags, TestOp, holds};
use super::known::Facts;
use super::lower::Lowering;
use super::operands::NONE;
use crate::instruction::{Instruction, Op, float_immediate, half_immediate};
use crate::registers::*;
use longma_translate::assembler::JumpTarget;
use longma_translate::front_end::Exit;

/// A LoongArch comparison: quiet and signaling, single and double precision.
#[derive(Clone, Copy)]
struct Comparison([[La; 2]; 2]);

const EQUAL: Comparison = Comparison([[La::FcmpCeqS, La::FcmpCeqD], [La::FcmpSeqS, La::FcmpSeqD]]);
const UNEQUAL: Comparison = Comparison([[La::FcmpCuneS, La::FcmpCuneD], [La::FcmpSuneS, La::FcmpSuneD]]);
const LESS: Comparison = Comparison([[La::FcmpCltS, La::FcmpCltD], [La::FcmpSltS, La::FcmpSltD]]);
const LESS_EQUAL: Comparison = Comparison([[La::FcmpCleS, La::FcmpCleD], [La::FcmpSleS, La::FcmpSleD]]);
const NOT_GREATER_EQUAL: Comparison =
    Comparison([[La::FcmpCultS, La::FcmpCultD], [La::FcmpSultS, La::FcmpSultD]]);
const NOT_GREATER: Comparison = Comparison([[La::FcmpCuleS, La::FcmpCuleD], [La::FcmpSuleS, La::FcmpSuleD]]);
const UNORDERED: Comparison = Comparison([[La::FcmpCunS, La::FcmpCunD], [La::FcmpSunS, La::FcmpSunD]]);
const ORDERED: Comparison = Comparison([[La::FcmpCorS, La::FcmpCorD], [La::FcmpSorS, La::FcmpSorD]]);

/// Returns the comparison that evaluates a condition, and whether to swap its operands.
fn comparison_of(condition: u8) -> (Comparison, bool) {
    match condition {
        0 => (EQUAL, false),
        1 => (UNEQUAL, false),
        2 => (NOT_GREATER, true),
        3 | 4 => (LESS, false),
        5 => (NOT_GREATER, true),
        6 => (UNORDERED, false),
        7 => (ORDERED, false),
        8 => (NOT_GREATER_EQUAL, true),
        9 => (LESS_EQUAL, false),
        10 => (LESS_EQUAL, true),
        11 => (NOT_GREATER_EQUAL, false),
        12 => (LESS, true),
        _ => (NOT_GREATER, false),
    }
}

/// Whether a scalar instruction operates on half precision.
fn is_of_halves(i: Instruction) -> bool {
    i.bits(22, 2) == 3
}

impl Lowering<'_> {
    /// Returns the register of a scalar operand. All bytes that the instruction reads are valid.
    pub fn scalar(&mut self, number: u8, i: Instruction) -> u8 {
        self.widen(number, if i.is_double() { 8 } else { 4 });
        number
    }

    /// Records that a scalar has been written.
    pub fn put_scalar(&mut self, number: u8, is_double: bool) {
        self.put_vector(number, if is_double { 8 } else { 4 });
    }

    /// Lowers the instruction. Returns false for other instructions.
    pub fn float(&mut self, i: Instruction) -> bool {
        use Op::*;
        match i.op {
            Fadd | Fsub | Fmul | Fdiv | Fmaxnm | Fminnm | Fmax | Fmin | Fnmul => self.float_two(i),
            FmovReg | Fabs | Fneg | Fsqrt | Frintx => self.float_one(i),
            Fmadd | Fmsub | Fnmadd | Fnmsub => self.fused(i),
            FcmpReg | FcmpZero | FcmpeReg | FcmpeZero | FcmpRegH | FcmpZeroH | FcmpeRegH | FcmpeZeroH => {
                self.float_compare(i)
            }
            Fccmp | Fccmpe | FccmpH | FccmpeH => self.float_compare_if(i),
            Fcsel | FcselH => self.float_select(i),
            FmovRegH | FabsH | FnegH | FmovRh | FmovHr | FmovImmH => self.half_move(i),
            FmovImm | FmovWs | FmovSw | FmovXd | FmovDx | FmovXh | FmovHx => self.float_move(i),
            _ => return false,
        }
        true
    }

    fn float_two(&mut self, i: Instruction) {
        let (d, n, m) = (i.rd(), self.scalar(i.rn(), i), self.scalar(i.rm(), i));
        let double = usize::from(i.is_double());
        let add = [La::FaddS, La::FaddD][double];
        let op = match i.op {
            Op::Fadd => add,
            Op::Fsub => [La::FsubS, La::FsubD][double],
            Op::Fmul | Op::Fnmul => [La::FmulS, La::FmulD][double],
            Op::Fdiv => [La::FdivS, La::FdivD][double],
            Op::Fmaxnm | Op::Fmax => [La::FmaxS, La::FmaxD][double],
            _ => [La::FminS, La::FminD][double],
        };
        if matches!(i.op, Op::Fmax | Op::Fmin) {
            // If an operand is a quiet NaN, LoongArch returns the other operand. FADD propagates the NaN, as AArch64
            // requires.
            let (nan, end) = (self.assembler.label(), self.assembler.label());
            self.assembler.three(UNORDERED.0[0][double], FLAG_TEMPORARY, n, m);
            self.assembler.jump(Code { j: FLAG_TEMPORARY, ..Code::new(La::Bcnez) }, JumpTarget::Label(nan));
            self.assembler.three(op, d, n, m);
            self.assembler.go(JumpTarget::Label(end));
            self.assembler.place(nan);
            self.assembler.three(add, d, n, m);
            self.assembler.place(end);
        } else {
            self.assembler.three(op, d, n, m);
        }
        if i.op == Op::Fnmul {
            self.assembler.two([La::FnegS, La::FnegD][double], d, d);
        }
        self.put_scalar(d, i.is_double());
    }

    fn float_one(&mut self, i: Instruction) {
        let (d, n) = (i.rd(), self.scalar(i.rn(), i));
        let ops = match i.op {
            Op::FmovReg => [La::FmovS, La::FmovD],
            Op::Fabs => [La::FabsS, La::FabsD],
            Op::Fneg => [La::FnegS, La::FnegD],
            Op::Fsqrt => [La::FsqrtS, La::FsqrtD],
            _ => [La::FrintS, La::FrintD],
        };
        self.assembler.two(ops[usize::from(i.is_double())], d, n);
        self.put_scalar(d, i.is_double());
    }

    /// Computes a + n * m with the product or the whole result negated. Negates operands instead, so that zeros and
    /// NaNs have the correct sign.
    fn fused(&mut self, i: Instruction) {
        let (d, mut n, m, mut a) =
            (i.rd(), self.scalar(i.rn(), i), self.scalar(i.rm(), i), self.scalar(i.ra(), i));
        let double = usize::from(i.is_double());
        let negate = [La::FnegS, La::FnegD][double];
        let used = [d, n, m, a];
        let mut has_d = true;
        if matches!(i.op, Op::Fmsub | Op::Fnmadd) {
            let to = if d != m && d != a { d } else { self.borrow_vector(&used) };
            has_d = to != d;
            self.assembler.two(negate, to, n);
            n = to;
        }
        if matches!(i.op, Op::Fnmadd | Op::Fnmsub) {
            let to = if has_d && d != m && d != n { d } else { self.borrow_vector(&used) };
            self.assembler.two(negate, to, a);
            a = to;
        }
        self.assembler.push(Code { d, j: n, k: m, a, ..Code::new([La::FmaddS, La::FmaddD][double]) });
        self.put_scalar(d, i.is_double());
    }

    /// The operands of a comparison. The second can be zero.
    fn float_operands(&mut self, i: Instruction) -> (u8, u8) {
        let n = self.compared_scalar(i.rn(), i);
        if matches!(i.op, Op::FcmpZero | Op::FcmpeZero | Op::FcmpZeroH | Op::FcmpeZeroH) {
            let zero = self.borrow_vector(&[n]);
            self.assembler.two(La::Movgr2frD, zero, 0);
            return (n, zero);
        }
        (n, self.compared_scalar(i.rm(), i))
    }

    /// An operand of a comparison, in single precision instead of half precision.
    fn compared_scalar(&mut self, number: u8, i: Instruction) -> u8 {
        if !is_of_halves(i) {
            return self.scalar(number, i);
        }
        let single = self.borrow_vector(&[i.rn(), i.rm()]);
        self.assembler.two(La::VfcvtlSH, single, number);
        single
    }

    fn float_condition(&mut self, i: Instruction, (n, m): (u8, u8), condition: u8, flag: u8) {
        let signals = i.mnemonic().ends_with('e');
        let (comparison, is_swapped) = comparison_of(condition);
        let op = comparison.0[usize::from(signals)][usize::from(i.is_double() && !is_of_halves(i))];
        let (j, k) = if is_swapped { (m, n) } else { (n, m) };
        self.assembler.three(op, flag, j, k);
    }

    fn float_compare(&mut self, i: Instruction) {
        if self.reachable.options.exact_floats {
            return self.exact_compare(i);
        }
        let operands = self.float_operands(i);
        let readers = self.readers();
        match readers.only() {
            Some(condition) => {
                self.float_condition(i, operands, condition, FLOAT_TRUTH);
                self.known.flags = Flags::FloatTruth(condition);
            }
            None => {
                self.store_float_flags(i, operands, &readers);
                self.known.flags = Flags::Stored;
            }
        }
    }

    /// Compares according to FPCR: the engine executes the comparison if an operand is special.
    fn exact_compare(&mut self, i: Instruction) {
        if is_of_halves(i) {
            self.serve(i);
        } else {
            self.settle();
            let [service, end] = [(); 2].map(|()| self.assembler.label());
            let has_zero = matches!(i.op, Op::FcmpZero | Op::FcmpeZero);
            let operands = [i.rn(), i.rm()];
            self.check(i, if has_zero { &operands[..1] } else { &operands }, service);
            let (operands, readers) = (self.float_operands(i), self.readers());
            self.store_float_flags(i, operands, &readers);
            self.give_back_vectors();
            self.assembler.go(JumpTarget::Label(end));
            self.assembler.place(service);
            self.unit.exit(&mut self.assembler, self.pc, Exit::Service(i));
            self.assembler.place(end);
        }
        self.known.flags = Flags::Stored;
    }

    fn store_float_flags(&mut self, i: Instruction, operands: (u8, u8), readers: &FlagUses) {
        let flags = readers.flags();
        // MI, EQ, CS and VS test a single flag each.
        for (bit, condition, flag) in [(8, 4, NEGATIVE), (4, 0, ZERO), (2, 2, CARRY), (1, 6, OVERFLOW)] {
            if flags & bit != 0 {
                self.float_condition(i, operands, condition, flag);
            }
        }
        if flags == 0 {
            // The comparison is still needed for the exception flags.
            self.float_condition(i, operands, 6, FLAG_TEMPORARY);
        }
    }

    /// FCCMP: compares if a condition holds, and sets the flags to an immediate otherwise.
    fn float_compare_if(&mut self, i: Instruction) {
        let immediate_flags = i.bits(0, 4) as u8;
        let is_exact = self.reachable.options.exact_floats;
        if is_exact {
            self.settle();
        }
        let operands = if is_exact { (0, 0) } else { self.float_operands(i) };
        let readers = self.readers();
        let skip = self.assembler.label();
        let otherwise = self.assembler.label();
        let flags = readers.flags();
        let only = readers.only().filter(|_| !is_exact);
        let is_conditional = i.condition() < 14;
        if is_conditional {
            let test = self.test(i.condition());
            self.assembler.jump(test.not().branch(), JumpTarget::Label(otherwise));
        }
        match only {
            // The engine compares and sets all flags.
            None if is_exact => self.unit.exit(&mut self.assembler, self.pc, Exit::Service(i)),
            Some(condition) => self.float_condition(i, operands, condition, FLOAT_TRUTH),
            None => self.store_float_flags(i, operands, &readers),
        }
        if is_conditional {
            self.assembler.go(JumpTarget::Label(skip));
            self.assembler.place(otherwise);
            let bits = [(8, NEGATIVE), (4, ZERO), (2, CARRY), (1, OVERFLOW)];
            let stored = bits.into_iter().filter(|(bit, _)| only.is_none() && flags & bit != 0);
            let mut values: Vec<(bool, u8)> =
                stored.map(|(bit, flag)| (immediate_flags & bit != 0, flag)).collect();
            values.extend(only.map(|condition| (holds(condition, immediate_flags), FLOAT_TRUTH)));
            for (value, flag) in values {
                self.assembler.immediate(La::AddiD, SCRATCH, 0, value.into());
                self.assembler.two(La::Movgr2cf, flag, SCRATCH);
            }
        }
        self.assembler.place(skip);
        self.known.flags = only.map_or(Flags::Stored, Flags::FloatTruth);
    }

    fn float_select(&mut self, i: Instruction) {
        let is_half = i.op == Op::FcselH;
        let (d, n, m) = match is_half {
            true => (i.rd(), i.rn(), i.rm()),
            false => (i.rd(), self.scalar(i.rn(), i), self.scalar(i.rm(), i)),
        };
        if i.condition() >= 14 {
            self.assembler.two(La::FmovD, d, n);
            return self.put_selected(i, is_half);
        }
        let test = self.test(i.condition());
        let (flag, is_opposite) = if test.op == TestOp::Flag {
            (test.j, test.is_opposite)
        } else {
            let truth = self.temporary();
            self.truth(test, truth);
            self.assembler.two(La::Movgr2cf, FLAG_TEMPORARY, truth);
            (FLAG_TEMPORARY, false)
        };
        let (j, k) = if is_opposite { (n, m) } else { (m, n) };
        self.assembler.push(Code { d, j, k, a: flag, ..Code::new(La::Fsel) });
        self.put_selected(i, is_half);
    }

    fn put_selected(&mut self, i: Instruction, is_half: bool) {
        if !is_half {
            return self.put_scalar(i.rd(), i.is_double());
        }
        let value = self.temporary();
        self.assembler.immediate(La::Vpickve2grHu, value, i.rd(), 0);
        self.put_half(i.rd(), value);
    }

    /// Writes the lowest halfword of a scratch register, whose other bits are zero.
    pub(super) fn put_half(&mut self, d: u8, value: u8) {
        self.assembler.two(La::Movgr2frD, d, value);
        self.put_scalar(d, true);
    }

    /// FMOV, FABS and FNEG of half precision.
    fn half_move(&mut self, i: Instruction) {
        let (d, n) = (i.rd(), i.rn());
        match i.op {
            Op::FmovRh => {
                if d != NONE {
                    let to = self.target(d);
                    self.assembler.immediate(La::Vpickve2grHu, to, n, 0);
                    self.put(d, to, true, Facts::of_width(16));
                }
            }
            Op::FmovImmH => {
                let value = self.constant(half_immediate(i.bits(13, 8)) as i64);
                self.put_half(d, value);
            }
            Op::FmovHr => {
                let from = self.word(n);
                let value = self.temporary();
                self.assembler.field(La::BstrpickD, value, from, 15, 0);
                self.put_half(d, value);
            }
            op => {
                let value = self.temporary();
                self.assembler.immediate(La::Vpickve2grHu, value, n, 0);
                match op {
                    Op::FabsH => self.assembler.field(La::BstrpickD, value, value, 14, 0),
                    Op::FnegH => {
                        let sign = self.constant(0x8000);
                        self.assembler.three(La::Xor, value, value, sign);
                    }
                    _ => {}
                }
                self.put_half(d, value);
            }
        }
    }

    fn float_move(&mut self, i: Instruction) {
        let (d, n) = (i.rd(), i.rn());
        match i.op {
            Op::FmovImm => {
                let value = self.constant(float_immediate(i.bits(13, 8), i.is_double()) as i64);
                self.assembler.two(La::Movgr2frD, d, value);
                self.put_scalar(d, true);
            }
            Op::FmovSw => {
                let from = self.word(n);
                self.assembler.two(La::Movgr2frD, d, from);
                self.put_scalar(d, false);
            }
            Op::FmovDx => {
                let from = self.whole(n);
                self.assembler.two(La::Movgr2frD, d, from);
                self.put_scalar(d, true);
            }
            Op::FmovHx => {
                let from = self.whole(n);
                self.widen(d, 8);
                self.assembler.immediate(La::Vinsgr2vrD, d, from, 1);
                self.put_vector(d, 16);
            }
            _ if d == NONE => {}
            Op::FmovWs => {
                let to = self.target(d);
                self.assembler.two(La::Movfr2grS, to, n);
                self.put(d, to, false, Facts::WORD);
            }
            Op::FmovXd => {
                self.widen(n, 8);
                let to = self.target(d);
                self.assembler.two(La::Movfr2grD, to, n);
                self.put(d, to, true, Facts::NONE);
            }
            _ => {
                self.widen(n, 16);
                let to = self.target(d);
                self.assembler.immediate(La::Vpickve2grD, to, n, 1);
                self.put(d, to, true, Facts::NONE);
            }
        }
    }
}
