//! Lowers instructions that set condition flags. Determines which flags are read later and chooses the cheapest way to
//! provide them. Source: Arm Architecture Reference Manual (Arm DDI 0487), sections C6.2 (ADDS to SUBS) and J1
//! (AddWithCarry).

use longma_loongarch::{Instruction as Code, Op as La};

use super::atomic::needs_truth;
use super::flags::{ALL, CARRY_SET, Comparison, Flags, Kind, Second, Test, TestOp, flags_of, holds};
use super::known::Facts;
use super::lower::Lowering;
use super::operands::{NONE, STACK};
use crate::instruction::{Instruction, Op};
use crate::registers::*;
use longma_translate::assembler::JumpTarget;
use longma_translate::optimizations::Optimization;

/// The uses of the flags that an instruction sets.
#[derive(Debug, Default)]
pub(super) struct FlagUses {
    /// Flags that must be written because they are read outside this block or as a whole.
    pub stored: u8,
    /// Conditions that are tested, each with the index of the instruction that tests it.
    pub conditions: Vec<(usize, u8)>,
    /// An instruction before the last use needs the [`TRUTH`] register itself.
    needs_truth_register: bool,
    /// All uses are tests of conditions in this block.
    is_within_block: bool,
}

impl FlagUses {
    /// The condition that is tested, if it is the only one (a condition and its inverse count as one).
    pub fn only(&self) -> Option<u8> {
        let (_, first) = *self.conditions.first()?;
        let same = self.conditions.iter().all(|(_, condition)| condition >> 1 == first >> 1);
        (same && self.stored == 0 && first < 14 && !self.needs_truth_register).then_some(first)
    }

    /// All flags that are read.
    pub fn flags(&self) -> u8 {
        self.conditions.iter().fold(self.stored, |flags, (_, condition)| flags | flags_of(*condition))
    }
}

/// The condition code of binary-translation instructions that always execute.
const ALWAYS: i32 = 14;

/// How to provide the flags.
enum FlagStrategy {
    /// Evaluate conditions where they are tested, from operands that are still available.
    Later(Comparison),
    /// Evaluate a single condition immediately.
    Truth(u8),
    /// Like [`Self::Later`] until the instruction at the index overwrites an operand. Before it, evaluate the single
    /// condition that is tested after it.
    LaterThenTruth(Comparison, usize, u8),
    Stored(u8),
}

impl Lowering<'_> {
    /// The uses of the flags that the current instruction sets.
    pub fn readers(&self) -> FlagUses {
        let mut readers = self.all_readers();
        let options = self.reachable.options;
        readers.is_within_block = readers.stored == 0 && options.has(Optimization::Flags);
        if !options.has(Optimization::Flags) {
            readers.stored = ALL;
        }
        if !options.has(Optimization::Fusion) {
            readers.stored |= readers.flags();
            readers.conditions.clear();
        }
        readers
    }

    fn all_readers(&self) -> FlagUses {
        let mut readers = FlagUses::default();
        let mut needs_truth_register = false;
        for (index, (pc, i)) in self.block.0.iter().enumerate().skip(self.index + 1) {
            let Some(i) = *i else {
                readers.stored |= ALL;
                return readers;
            };
            let uses = self.reachable.used_by(*pc);
            needs_truth_register |= needs_truth(i);
            match i.op {
                _ if uses.reads.flags == 0 => {}
                Op::Mrs | Op::Msr => readers.stored |= ALL,
                Op::Adc | Op::Adcs | Op::Sbc | Op::Sbcs => readers.conditions.push((index, CARRY_SET)),
                _ => readers.conditions.push((index, i.condition())),
            }
            if uses.reads.flags != 0 {
                readers.needs_truth_register = needs_truth_register;
            }
            if let Some(target) = i.target(*pc).filter(|_| i.is_conditional_branch()) {
                readers.stored |= self.reachable.live_at(target).flags;
            }
            if uses.sets_flags {
                return readers;
            }
        }
        readers.stored |= self.reachable.live_after(&self.block).flags;
        readers
    }

    /// Whether a source register is unchanged until the instruction at `last`.
    fn stays(&self, number: u8, from: usize, last: usize) -> bool {
        match number {
            NONE => true,
            STACK => last <= self.index + 1,
            _ => {
                let writes = |(pc, _): &(u64, _)| self.reachable.used_by(*pc).written >> number & 1 != 0;
                !self.block.0[from.min(last)..last].iter().any(writes)
            }
        }
    }

    fn strategy(&self, comparison: Comparison, readers: &FlagUses) -> FlagStrategy {
        let last = readers.conditions.iter().map(|(index, _)| *index).max().unwrap_or(self.index);
        let operands = comparison.operands.filter(|(a, b)| {
            let second = match b {
                Second::Register(b) => self.stays(*b, self.index, last),
                Second::Constant(_) => true,
                Second::Held(..) => false,
            };
            second && self.stays(*a, self.index, last)
        });
        let result = comparison.result.filter(|result| self.stays(*result, self.index + 1, last));
        let available = Comparison { operands, result, ..comparison };
        let all = |comparison| {
            readers.conditions.iter().all(|(_, condition)| Self::can_test(comparison, *condition))
        };
        match readers.only() {
            _ if readers.stored == 0 && all(available) => FlagStrategy::Later(available),
            Some(condition) if all(Comparison { result: None, ..comparison }) => {
                FlagStrategy::Truth(condition)
            }
            _ => self.later_then_truth(comparison, readers).unwrap_or(FlagStrategy::Stored(readers.flags())),
        }
    }

    fn later_then_truth(&self, comparison: Comparison, readers: &FlagUses) -> Option<FlagStrategy> {
        let comparison = Comparison { result: None, ..comparison };
        let (a, b) = comparison.operands.filter(|(_, b)| !matches!(b, Second::Held(..)))?;
        if readers.stored != 0 || readers.needs_truth_register {
            return None;
        }
        let stay = |last| {
            let second = if let Second::Register(b) = b { self.stays(b, self.index, last) } else { true };
            second && self.stays(a, self.index, last)
        };
        // The last instruction before which both operands are available.
        let last = (self.index + 1..self.block.0.len()).take_while(|last| stay(*last)).last()?;
        // Instructions that add the carry need the truth register themselves.
        let adds =
            self.block.0[last].1.is_none_or(|i| matches!(i.op, Op::Adc | Op::Adcs | Op::Sbc | Op::Sbcs));
        let can_all =
            !adds && readers.conditions.iter().all(|(_, condition)| Self::can_test(comparison, *condition));
        let mut late =
            readers.conditions.iter().filter(|(index, _)| *index > last).map(|(_, condition)| *condition);
        let condition = late.next().filter(|condition| *condition < 14)?;
        let is_one = late.all(|other| other >> 1 == condition >> 1);
        (can_all && is_one).then_some(FlagStrategy::LaterThenTruth(comparison, last, condition))
    }

    /// Before an instruction that overwrites a comparison operand: evaluates the condition that is tested afterwards.
    pub fn truth_before(&mut self) -> Option<Flags> {
        let (_, condition) = self.then_truth.take_if(|(index, _)| *index == self.index)?;
        let test = self.test(condition);
        let holds = self.store_truth(test);
        self.taken = 0;
        Some(Flags::Truth(if holds { condition } else { condition ^ 1 }))
    }

    /// Sets flags according to the sum, difference or conjunction of `a` and `b`, and writes the result to `d`.
    fn set_flags(&mut self, kind: Kind, i: Instruction, a: u8, b: Second, d: u8) {
        let is_wide = i.is_wide();
        let result = Some(d).filter(|d| *d != NONE);
        let comparison = Comparison { kind, is_wide, operands: Some((a, b)), result };
        let readers = self.readers();
        self.then_truth = None;
        match self.strategy(comparison, &readers) {
            FlagStrategy::LaterThenTruth(kept, last, condition) => {
                if d != NONE {
                    self.compute(comparison, d);
                }
                self.known.flags = Flags::Compared(kept);
                self.then_truth = Some((last, condition));
            }
            FlagStrategy::Later(kept) => {
                if d != NONE {
                    self.compute(comparison, d);
                }
                self.known.flags =
                    if readers.conditions.is_empty() { Flags::Stored } else { Flags::Compared(kept) };
            }
            FlagStrategy::Truth(condition) => {
                self.known.flags = Flags::Compared(Comparison { result: None, ..comparison });
                let saved_temporaries = self.taken;
                let test = self.test(condition);
                let holds = self.store_truth(test);
                self.taken = saved_temporaries;
                if d != NONE {
                    self.compute(comparison, d);
                }
                self.known.flags = Flags::Truth(if holds { condition } else { condition ^ 1 });
            }
            FlagStrategy::Stored(_) if self.suits_extension(kind, is_wide, &readers) => {
                let (a, b) = self.compared(a, b, is_wide, true);
                let value = self.store_flags(kind, (a, b), is_wide, 0);
                let op = match kind {
                    Kind::Sub => La::ArmsubW,
                    Kind::Add => La::ArmaddW,
                    Kind::And => La::ArmandW,
                };
                self.assembler.push(Code { j: a, k: b, imm: ALWAYS, ..Code::new(op) });
                self.known.flags = Flags::Extension;
                self.put_sum(d, value, is_wide);
            }
            FlagStrategy::Stored(flags) => {
                let operands = self.compared(a, b, is_wide, true);
                let value = self.store_flags(kind, operands, is_wide, flags);
                self.known.flags = self.truth_besides(kind, operands, is_wide, &readers);
                self.put_sum(d, value, is_wide);
            }
        }
    }

    /// Whether the flag register of the binary-translation extension is cheaper: for 32-bit operations whose flags are
    /// only tested in this block. The extension inverts the carry of a difference, and leaves C and V unchanged for a
    /// conjunction, where AArch64 clears them. It is usable only if the code does not need those flags.
    fn suits_extension(&self, kind: Kind, is_wide: bool, readers: &FlagUses) -> bool {
        let flags = readers.flags();
        let is_costly = flags.count_ones() > 1 || flags & 1 != 0;
        let is_right = match kind {
            Kind::Sub => flags & 2 == 0,
            Kind::And => flags & 3 == 0,
            Kind::Add => true,
        };
        self.reachable.options.has(Optimization::Lbt)
            && !is_wide
            && readers.is_within_block
            && is_costly
            && is_right
    }

    /// Returns the representation of flags that have been written for uses outside this block. If a single condition is
    /// tested in this block, evaluates it as well, which is cheaper than testing the flags.
    fn truth_besides(&mut self, kind: Kind, (a, b): (u8, u8), is_wide: bool, readers: &FlagUses) -> Flags {
        let block_uses = FlagUses { stored: 0, conditions: readers.conditions.clone(), ..*readers };
        let Some(condition) = block_uses.only().filter(|_| kind == Kind::Sub && is_wide) else {
            return Flags::Stored;
        };
        let test = match condition >> 1 {
            0 => Test::of(TestOp::Equal, a, b),
            1 => Test::of(TestOp::Below, a, b).not(),
            4 => Test::of(TestOp::Below, b, a),
            5 => Test::of(TestOp::Less, a, b).not(),
            6 => Test::of(TestOp::Less, b, a),
            _ => return Flags::Stored,
        };
        let test = if condition & 1 != 0 { test.not() } else { test };
        let holds = self.store_truth(test);
        Flags::StoredTruth(if holds { condition } else { condition ^ 1 })
    }

    /// Computes the sum, difference or conjunction into the register of `d`.
    fn compute(&mut self, comparison: Comparison, d: u8) {
        let Some((a, b)) = comparison.operands else { return };
        let is_wide = comparison.is_wide;
        let first = self.source(a, is_wide);
        let to = self.target(d);
        let facts = match (comparison.kind, b) {
            (Kind::Sub, Second::Constant(value)) => {
                self.add_constant(to, first, value.wrapping_neg(), is_wide);
                None
            }
            (Kind::Add, Second::Constant(value)) => {
                self.add_constant(to, first, value, is_wide);
                None
            }
            (Kind::And, Second::Constant(value)) => {
                self.and_constant(to, first, value as u64);
                Some(self.facts(a).and(Facts::of(value)))
            }
            (kind, b) => {
                let (second, known) = match b {
                    Second::Register(b) => (self.source(b, is_wide), self.facts(b)),
                    Second::Held(register, facts) => (register, facts),
                    Second::Constant(_) => (0, Facts::NONE),
                };
                let op = match (kind, is_wide) {
                    (Kind::Sub, false) => La::SubW,
                    (Kind::Sub, true) => La::SubD,
                    (Kind::Add, false) => La::AddW,
                    (Kind::Add, true) => La::AddD,
                    (Kind::And, _) => La::And,
                };
                let facts = (kind == Kind::And).then(|| self.facts(a).and(known));
                self.assembler.three(op, to, first, second);
                facts
            }
        };
        match facts {
            Some(facts) => self.put(d, to, is_wide, facts),
            None => self.put_sum(d, to, is_wide),
        }
    }

    /// Computes the result of two operands into a temporary register and writes its `flags`. 32-bit operands must be
    /// sign-extended.
    fn store_flags(&mut self, kind: Kind, (a, b): (u8, u8), is_wide: bool, flags: u8) -> u8 {
        let value = self.temporary();
        let op = match (kind, is_wide) {
            (Kind::Sub, false) => La::SubW,
            (Kind::Sub, true) => La::SubD,
            (Kind::Add, false) => La::AddW,
            (Kind::Add, true) => La::AddD,
            (Kind::And, _) => La::And,
        };
        self.assembler.three(op, value, a, b);
        if kind == Kind::Sub && flags & 1 != 0 {
            // A difference overflows if its sign differs from the result of the signed comparison.
            let sign = self.temporary();
            self.assembler.three(La::Slt, sign, value, 0);
            if flags & 8 != 0 {
                self.assembler.two(La::Movgr2cf, NEGATIVE, sign);
            }
            self.assembler.three(La::Slt, TRUTH, a, b);
            self.assembler.three(La::Xor, sign, sign, TRUTH);
            self.assembler.two(La::Movgr2cf, OVERFLOW, sign);
            self.free(sign);
            self.store_sign_and_zero(value, flags & 4);
        } else {
            self.store_sign_and_zero(value, flags);
        }
        if kind == Kind::And {
            for (bit, flag) in [(2, CARRY), (1, OVERFLOW)] {
                if flags & bit != 0 {
                    self.assembler.two(La::Movgr2cf, flag, 0);
                }
            }
            return value;
        }
        if flags & 2 != 0 {
            if kind == Kind::Sub {
                self.assembler.three(La::Sltu, TRUTH, a, b);
                self.assembler.immediate(La::Xori, TRUTH, TRUTH, 1);
            } else {
                self.assembler.three(La::Sltu, TRUTH, value, a);
            }
            self.assembler.two(La::Movgr2cf, CARRY, TRUTH);
        }
        if flags & 1 != 0 && kind == Kind::Add {
            let both = self.temporary();
            self.assembler.three(La::Xor, both, a, value);
            self.assembler.three(La::Xor, TRUTH, b, value);
            self.assembler.three(La::And, TRUTH, TRUTH, both);
            self.assembler.immediate(La::SrliD, TRUTH, TRUTH, 63);
            self.assembler.two(La::Movgr2cf, OVERFLOW, TRUTH);
            self.free(both);
        }
        value
    }

    /// Writes N and Z of a value, as far as `flags` includes them. 32-bit values must be sign-extended.
    fn store_sign_and_zero(&mut self, value: u8, flags: u8) {
        if flags & 8 != 0 {
            self.assembler.three(La::Slt, TRUTH, value, 0);
            self.assembler.two(La::Movgr2cf, NEGATIVE, TRUTH);
        }
        if flags & 4 != 0 {
            self.assembler.immediate(La::Sltui, TRUTH, value, 1);
            self.assembler.two(La::Movgr2cf, ZERO, TRUTH);
        }
    }

    /// Lowers an instruction that sets flags. Returns false for other instructions.
    pub fn compare(&mut self, i: Instruction) -> bool {
        use Op::*;
        let stack = |number| if number == NONE { STACK } else { number };
        let (d, n) = (i.rd(), i.rn());
        match i.op {
            AddsImm | SubsImm => {
                let value = i.arithmetic_immediate();
                match (i.op, value) {
                    (AddsImm, 0) => self.set_flags(Kind::Add, i, stack(n), Second::Constant(0), d),
                    // An addition carries if and only if subtracting the negated value does not borrow.
                    (AddsImm, _) => self.set_flags(Kind::Sub, i, stack(n), Second::Constant(-value), d),
                    _ => self.set_flags(Kind::Sub, i, stack(n), Second::Constant(value), d),
                }
            }
            AndsImm => self.set_flags(Kind::And, i, n, Second::Constant(i.mask() as i64), d),
            AddsReg | SubsReg | AndsReg => {
                let kind = match i.op {
                    AddsReg => Kind::Add,
                    SubsReg => Kind::Sub,
                    _ => Kind::And,
                };
                let second = self.second_shifted(i);
                self.set_flags(kind, i, n, second, d);
            }
            BicsReg => {
                let (register, facts) = self.shifted(i);
                let to = self.own(register);
                self.assembler.three(La::Nor, to, register, 0);
                self.set_flags(Kind::And, i, n, Second::Held(to, Facts { width: 64, sign: facts.sign }), d);
            }
            AddsExt | SubsExt => {
                let (register, facts) = self.extended(i.rm(), i.bits(13, 3), i.bits(10, 3));
                let kind = if i.op == AddsExt { Kind::Add } else { Kind::Sub };
                self.set_flags(kind, i, stack(n), Second::Held(register, facts), d);
            }
            CcmpReg | CcmpImm | CcmnReg | CcmnImm => self.compare_if(i),
            Adc | Adcs | Sbc | Sbcs => self.with_carry(i),
            _ => return false,
        }
        true
    }

    fn second_shifted(&mut self, i: Instruction) -> Second {
        if i.bits(10, 6) == 0 {
            return Second::Register(i.rm());
        }
        let (register, facts) = self.shifted(i);
        Second::Held(register, facts)
    }

    /// CCMP and CCMN: compares if a condition holds, and sets the flags to an immediate otherwise.
    fn compare_if(&mut self, i: Instruction) {
        let (condition, immediate_flags) = (i.condition(), i.bits(0, 4) as u8);
        let immediate = i64::from(i.bits(16, 5));
        let (kind, second) = match i.op {
            Op::CcmpReg => (Kind::Sub, Second::Register(i.rm())),
            Op::CcmpImm => (Kind::Sub, Second::Constant(immediate)),
            Op::CcmnReg => (Kind::Add, Second::Register(i.rm())),
            _ if immediate == 0 => (Kind::Add, Second::Constant(0)),
            _ => (Kind::Sub, Second::Constant(-immediate)),
        };
        let comparison =
            Comparison { kind, is_wide: i.is_wide(), operands: Some((i.rn(), second)), result: None };
        let readers = self.readers();
        match readers.only() {
            Some(wanted) if Self::can_test(comparison, wanted) => {
                self.truth_if(condition, comparison, wanted, holds(wanted, immediate_flags));
                self.known.flags = Flags::Truth(wanted);
            }
            _ => {
                self.store_if(condition, comparison, immediate_flags, readers.flags());
                self.known.flags = Flags::Stored;
            }
        }
    }

    /// Evaluates condition `tested_condition` of a conditional comparison into [`TRUTH`]. `otherwise` is the result if
    /// `condition` does not hold.
    fn truth_if(&mut self, condition: u8, comparison: Comparison, tested_condition: u8, otherwise: bool) {
        if condition >= 14 {
            self.known.flags = Flags::Compared(comparison);
            let test = self.test(tested_condition);
            return self.truth(test, TRUTH);
        }
        let first = self.test(condition);
        let (mask, is_opposite) = if otherwise {
            // If the condition does not hold, the result is true.
            let to = self.temporary();
            self.truth(first.not(), to);
            (to, false)
        } else {
            self.mask(first)
        };
        // The mask may be in the truth register, which is overwritten below.
        let mask = if mask == TRUTH {
            let to = self.temporary();
            self.assembler.copy(to, TRUTH);
            to
        } else {
            mask
        };
        let mask_temporary = if TEMPORARIES.contains(&mask) { mask } else { 0 };
        for register in TEMPORARIES {
            if register != mask_temporary {
                self.free(register);
            }
        }
        self.known.flags = Flags::Compared(comparison);
        let second = self.test(tested_condition);
        self.truth(second, TRUTH);
        let op = match (otherwise, is_opposite) {
            (true, _) => La::Or,
            (false, false) => La::Maskeqz,
            (false, true) => La::Masknez,
        };
        self.assembler.three(op, TRUTH, TRUTH, mask);
    }

    /// Writes the flags of a conditional comparison: those of the comparison if `condition` holds, `immediate_flags`
    /// otherwise.
    fn store_if(&mut self, condition: u8, comparison: Comparison, immediate_flags: u8, flags: u8) {
        let skip = self.assembler.label();
        if let Some((a, b)) = comparison.operands.filter(|_| comparison.is_wide) {
            self.clear_upper(a);
            if let Second::Register(b) = b {
                self.clear_upper(b);
            }
        }
        if let Some((a, b)) = comparison.operands {
            let second = if let Second::Register(b) = b { b } else { a };
            [a, second]
                .into_iter()
                .filter(|number| *number < NONE)
                .for_each(|number| self.apply_increment(number));
        }
        if condition < 14 {
            let test = self.test(condition);
            let end = self.assembler.label();
            self.assembler.jump(test.branch(), JumpTarget::Label(end));
            self.taken = 0;
            for (bit, flag) in [(8, NEGATIVE), (4, ZERO), (2, CARRY), (1, OVERFLOW)] {
                if flags & bit != 0 {
                    self.assembler.immediate(La::AddiD, TRUTH, 0, i32::from(immediate_flags & bit != 0));
                    self.assembler.two(La::Movgr2cf, flag, TRUTH);
                }
            }
            self.assembler.go(JumpTarget::Label(skip));
            self.assembler.place(end);
        }
        let Some((a, b)) = comparison.operands else { return };
        let (a, b) = self.compared(a, b, comparison.is_wide, true);
        self.store_flags(comparison.kind, (a, b), comparison.is_wide, flags);
        self.assembler.place(skip);
        // Registers that were loaded on only one of the two paths are not valid after they join.
        self.known.cached = [None; 3];
    }

    /// ADC and SBC. SBC adds the inverted second operand.
    fn with_carry(&mut self, i: Instruction) {
        let is_wide = i.is_wide();
        let sets = matches!(i.op, Op::Adcs | Op::Sbcs);
        let flags = if sets { self.readers().flags() } else { 0 };
        let test = self.test(CARRY_SET);
        self.truth(test, TRUTH);
        self.taken = 0;
        let (a, mut b) = (self.source(i.rn(), is_wide), self.source(i.rm(), is_wide));
        let (add, value) = (if is_wide { La::AddD } else { La::AddW }, self.temporary());
        if matches!(i.op, Op::Sbc | Op::Sbcs) {
            let to = self.own_except(b, a);
            self.assembler.three(La::Nor, to, b, 0);
            b = to;
        }
        self.assembler.three(add, value, a, b);
        self.assembler.three(add, value, value, TRUTH);
        self.store_sign_and_zero(value, flags);
        let top = if is_wide { 63 } else { 31 };
        let bit = |lowering: &mut Self, flag| {
            lowering.assembler.field(La::BstrpickD, TRUTH, TRUTH, top, top);
            lowering.assembler.two(La::Movgr2cf, flag, TRUTH);
        };
        if flags & 1 != 0 {
            let both = self.temporary();
            self.assembler.three(La::Xor, TRUTH, a, value);
            self.assembler.three(La::Xor, both, b, value);
            self.assembler.three(La::And, TRUTH, TRUTH, both);
            bit(self, OVERFLOW);
            self.free(both);
        }
        if flags & 2 != 0 {
            // Carry: the top bit is set in both operands, or in one of them and clear in the sum.
            let either = self.temporary();
            self.assembler.three(La::Or, either, a, b);
            self.assembler.three(La::Andn, either, either, value);
            self.assembler.three(La::And, TRUTH, a, b);
            self.assembler.three(La::Or, TRUTH, TRUTH, either);
            bit(self, CARRY);
        }
        self.put_sum(i.rd(), value, is_wide);
        match self.known.flags {
            _ if sets => self.known.flags = Flags::Stored,
            Flags::Truth(_) => self.known.flags = Flags::Truth(CARRY_SET),
            Flags::StoredTruth(_) => self.known.flags = Flags::StoredTruth(CARRY_SET),
            _ => {}
        }
    }
}
