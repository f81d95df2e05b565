//! Condition flags: deferred until a condition is tested, or written to LoongArch condition flags. Source: Arm
//! Architecture Reference Manual (Arm DDI 0487), sections C1.2.4 (conditions) and J1 (AddWithCarry).

use longma_loongarch::{Instruction as Code, Op as La, State};
use serde::{Deserialize, Serialize};

use super::known::Facts;
use super::loops::RegisterAssignment;
use super::lower::Lowering;
use super::operands::{NONE, STACK};
use crate::registers::*;
use longma_translate::front_end::UserMemory;

/// N, Z, C and V as in instruction immediates: bits 3 to 0.
pub(super) const ALL: u8 = 15;
/// Condition CS: carry set, that is, no borrow.
pub(super) const CARRY_SET: u8 = 2;

/// The flags that a condition depends on.
pub(super) fn flags_of(condition: u8) -> u8 {
    match condition >> 1 {
        0 => 4,
        1 => 2,
        2 => 8,
        3 => 1,
        4 => 6,
        5 => 9,
        6 => 13,
        _ => 0,
    }
}

/// Whether a condition holds for the given flags.
pub(super) fn holds(condition: u8, flags: u8) -> bool {
    let [n, z, c, v] = [8, 4, 2, 1].map(|bit| flags & bit != 0);
    let base = match condition >> 1 {
        0 => z,
        1 => c,
        2 => n,
        3 => v,
        4 => c && !z,
        5 => n == v,
        6 => n == v && !z,
        _ => return true,
    };
    base != (condition & 1 != 0)
}

/// The operation that sets the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    Sub,
    Add,
    And,
}

/// A second operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Second {
    /// A source register.
    Register(u8),
    Constant(i64),
    /// A LoongArch register that is valid only within this instruction, and the known properties of its value.
    Held(u8, Facts),
}

/// A flag-setting operation whose operands or result are still available in their registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Comparison {
    pub kind: Kind,
    pub is_wide: bool,
    /// The operands, if still available.
    pub operands: Option<(u8, Second)>,
    /// The source register that holds the result, if still available.
    pub result: Option<u8>,
}

/// The representation of the condition flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Flags {
    /// In LoongArch condition flags; only the flags that are read later are valid.
    Stored,
    /// Deferred: computed from the comparison.
    Compared(Comparison),
    /// [`TRUTH`] holds the outcome of this condition, the only one that is tested.
    Truth(u8),
    /// In LoongArch condition flags. In addition, [`TRUTH`] holds the outcome of this condition.
    StoredTruth(u8),
    /// [`FLOAT_TRUTH`] holds the outcome of this condition.
    FloatTruth(u8),
    /// In the flag register of the binary-translation extension.
    Extension,
}

/// A test that a single branch can make.
#[derive(Clone, Copy, Debug)]
pub(super) struct Test {
    pub op: TestOp,
    pub j: u8,
    pub k: u8,
    /// The test is negated.
    pub is_opposite: bool,
}

/// The type of test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TestOp {
    Equal,
    Less,
    Below,
    /// Condition flag `j` is set.
    Flag,
}

impl Test {
    pub fn of(op: TestOp, j: u8, k: u8) -> Self {
        Self { op, j, k, is_opposite: false }
    }

    pub fn not(self) -> Self {
        Self { is_opposite: !self.is_opposite, ..self }
    }

    fn not_if(self, opposite: bool) -> Self {
        if opposite { self.not() } else { self }
    }

    /// The branch that is taken if the test holds.
    pub fn branch(self) -> Code {
        let (holds, fails) = match self.op {
            TestOp::Equal if self.k == 0 => (La::Beqz, La::Bnez),
            TestOp::Equal => (La::Beq, La::Bne),
            TestOp::Less => (La::Blt, La::Bge),
            TestOp::Below => (La::Bltu, La::Bgeu),
            TestOp::Flag => (La::Bcnez, La::Bceqz),
        };
        Code { j: self.j, d: self.k, ..Code::new(if self.is_opposite { fails } else { holds }) }
    }
}

/// Replaces a comparison with 1 or -1 by an equivalent comparison with zero: returns the constant and the condition.
fn with_zero(value: i64, is_wide: bool, condition: u8) -> Option<(i64, u8)> {
    const ZERO_SET: u8 = 0;
    let value = if is_wide { value } else { (value as i32).into() };
    let opposite = condition & 1;
    match (value, condition >> 1) {
        // Unsigned `x < 1` is `x == 0`; signed `x < 1` is `x <= 0`.
        (1, 1) => Some((0, ZERO_SET | (opposite ^ 1))),
        (1, 5) => Some((0, 12 | opposite)),
        // Signed `x > -1` is `x >= 0`.
        (-1, 6) => Some((0, 10 | opposite)),
        // Unsigned `x > 0` is `x != 0`.
        (0, 4) => Some((0, ZERO_SET | (opposite ^ 1))),
        _ => None,
    }
}

/// Returns the test for a condition of a difference.
fn test_of_order(condition: u8, a: u8, b: u8) -> Test {
    let opposite = condition & 1 != 0;
    match condition >> 1 {
        0 => Test::of(TestOp::Equal, a, b).not_if(opposite),
        1 => Test::of(TestOp::Below, a, b).not_if(!opposite),
        4 => Test::of(TestOp::Below, b, a).not_if(opposite),
        5 => Test::of(TestOp::Less, a, b).not_if(!opposite),
        _ => Test::of(TestOp::Less, b, a).not_if(opposite),
    }
}

/// Replaces a comparison with a constant by one with the adjacent constant, if that is cheaper to load. Returns the
/// constant and the condition.
fn cheaper(value: i64, is_wide: bool, condition: u8) -> Option<(i64, u8)> {
    let is_short =
        |value: i64| (-2048..2048).contains(&value) || value & 0xfff == 0 && value == i64::from(value as i32);
    let opposite = condition & 1;
    // CS is HI with the constant minus one, and GE is GT. HI is CS with the constant plus one, and GT is GE.
    let (neighbour, condition) = match condition >> 1 {
        1 => (value.wrapping_sub(1), 8),
        5 => (value.wrapping_sub(1), 12),
        4 => (value.wrapping_add(1), 2),
        6 => (value.wrapping_add(1), 10),
        _ => return None,
    };
    // There is no adjacent constant at the ends of the range.
    let is_end = matches!(value, 0 | -1 | i64::MIN | i64::MAX);
    (is_wide && !is_end && !is_short(value) && is_short(neighbour))
        .then_some((neighbour, condition | opposite))
}

impl Lowering<'_> {
    /// Returns the test for a condition. AL and NV have no test.
    pub fn test(&mut self, condition: u8) -> Test {
        let opposite = condition & 1 != 0;
        match self.known.flags {
            Flags::Truth(of) | Flags::StoredTruth(of) => {
                Test::of(TestOp::Equal, TRUTH, 0).not_if(of == condition)
            }
            Flags::FloatTruth(of) => Test::of(TestOp::Flag, FLOAT_TRUTH, 0).not_if(of != condition),
            Flags::Compared(comparison) => self.test_of(comparison, condition),
            Flags::Extension => {
                let holds = self.temporary();
                self.assembler.immediate(La::Setarmj, holds, 0, condition.into());
                Test::of(TestOp::Equal, holds, 0).not()
            }
            Flags::Stored => match condition >> 1 {
                0 => Test::of(TestOp::Flag, ZERO, 0).not_if(opposite),
                1 => Test::of(TestOp::Flag, CARRY, 0).not_if(opposite),
                2 => Test::of(TestOp::Flag, NEGATIVE, 0).not_if(opposite),
                3 => Test::of(TestOp::Flag, OVERFLOW, 0).not_if(opposite),
                _ => self.test_of_several(condition),
            },
        }
    }

    /// Returns the test for a condition that depends on several stored flags.
    fn test_of_several(&mut self, condition: u8) -> Test {
        let opposite = condition & 1 != 0;
        let (first, second) = (self.temporary(), self.temporary());
        if condition >> 1 == 4 {
            self.assembler.two(La::Movcf2gr, first, CARRY);
            self.assembler.two(La::Movcf2gr, second, ZERO);
            self.assembler.three(La::Andn, first, first, second);
            self.free(second);
            return Test::of(TestOp::Equal, first, 0).not_if(!opposite);
        }
        self.assembler.two(La::Movcf2gr, first, NEGATIVE);
        self.assembler.two(La::Movcf2gr, second, OVERFLOW);
        self.assembler.three(La::Xor, first, first, second);
        if condition >> 1 == 6 {
            self.assembler.two(La::Movcf2gr, second, ZERO);
            self.assembler.three(La::Or, first, first, second);
        }
        self.free(second);
        Test::of(TestOp::Equal, first, 0).not_if(opposite)
    }

    /// Returns both operands in a form that can be compared directly. `signed` selects a signed comparison.
    pub fn compared(&mut self, a: u8, b: Second, is_wide: bool, signed: bool) -> (u8, u8) {
        if is_wide {
            let a = self.whole(a);
            let b = match b {
                Second::Register(b) => self.whole(b),
                Second::Constant(value) => self.constant(value),
                Second::Held(register, _) => register,
            };
            return (a, b);
        }
        let facts = |lowering: &Self, operand| match operand {
            Second::Register(b) => lowering.facts(b),
            Second::Constant(value) if (value as i32) >= 0 => Facts::of(value & 0x7fff_ffff),
            Second::Constant(_) => Facts { width: 32, sign: true },
            Second::Held(_, facts) => facts,
        };
        let (first, second) = (self.facts(a), facts(self, b));
        let unsigned = !signed && first.width <= 32 && second.width <= 32 && !(first.sign && second.sign);
        let value = |lowering: &mut Self, number| {
            if unsigned { lowering.unsigned_word(number) } else { lowering.signed_word(number) }
        };
        let a = value(self, a);
        let b = match b {
            Second::Register(b) => value(self, b),
            Second::Constant(constant) if unsigned => self.constant(constant & 0xffff_ffff),
            Second::Constant(constant) => self.constant((constant as i32).into()),
            Second::Held(register, facts) if unsigned || facts.sign => register,
            Second::Held(register, _) => {
                let to = self.own(register);
                self.assembler.immediate(La::SlliW, to, register, 0);
                to
            }
        };
        (a, b)
    }

    /// Whether both words are extended in the same way, so that they can be compared as 64-bit values.
    fn have_same_extension(&self, a: u8, b: Second) -> bool {
        let first = self.facts(a);
        match b {
            Second::Register(b) => {
                let second = self.facts(b);
                first.sign && second.sign || first.width <= 32 && second.width <= 32
            }
            Second::Constant(0) => true,
            Second::Constant(_) | Second::Held(..) => first.sign || first.width <= 32,
        }
    }

    /// Returns a register whose sign bit is that of the 64-bit or 32-bit value.
    fn with_sign(&mut self, number: u8, is_wide: bool) -> u8 {
        if is_wide { self.whole(number) } else { self.signed_word(number) }
    }

    /// Whether [`Self::test_of`] can evaluate the condition from the operands or the result that are still available.
    pub fn can_test(comparison: Comparison, condition: u8) -> bool {
        let by_result = matches!(condition >> 1, 0 | 2) || comparison.kind == Kind::And;
        if comparison.result.is_some() && by_result {
            return true;
        }
        let Some((_, second)) = comparison.operands else { return false };
        match comparison.kind {
            Kind::Sub => condition >> 1 != 3,
            Kind::And => true,
            Kind::Add => {
                matches!(condition >> 1, 0 | 2)
                    || condition >> 1 == 1 && matches!(second, Second::Register(_))
            }
        }
    }

    fn test_of(&mut self, comparison: Comparison, condition: u8) -> Test {
        let (is_wide, opposite) = (comparison.is_wide, condition & 1 != 0);
        if comparison.kind == Kind::And {
            return self.test_of_result(comparison, condition);
        }
        if let (Some(_), 0 | 2) = (comparison.result, condition >> 1) {
            return self.test_of_result(comparison, condition);
        }
        let Some((a, b)) = comparison.operands else {
            unreachable!("flags without operands have been stored")
        };
        if let (Kind::Sub, Second::Constant(value)) = (comparison.kind, b)
            && let Some((value, condition)) = with_zero(value, is_wide, condition)
        {
            let operands = Some((a, Second::Constant(value)));
            return self.test_of(Comparison { operands, result: None, ..comparison }, condition);
        }
        if comparison.kind == Kind::Add {
            if condition >> 1 != 1 {
                return self.test_of_result(comparison, condition);
            }
            // A sum carries if it is below one of its operands.
            let sum = self.result_of(comparison);
            let (sum, first) = if is_wide {
                (sum, self.whole(a))
            } else {
                self.assembler.field(La::BstrpickD, sum, sum, 31, 0);
                (sum, self.unsigned_word(a))
            };
            return Test::of(TestOp::Below, sum, first).not_if(opposite);
        }
        let signed = condition >> 1 >= 5;
        if condition >> 1 == 2 {
            return self.test_of_result(comparison, condition);
        }
        if let Second::Constant(value) = b
            && let Some((value, condition)) = cheaper(value, is_wide, condition)
        {
            let (a, b) = self.compared(a, Second::Constant(value), is_wide, signed);
            return test_of_order(condition, a, b);
        }
        if condition >> 1 == 0 && !is_wide && !self.have_same_extension(a, b) {
            return self.test_of_result(comparison, condition);
        }
        let (a, b) = self.compared(a, b, is_wide, signed);
        test_of_order(condition, a, b)
    }

    /// Returns the test for a condition that depends only on the result: zero or negative. For AND, these are all
    /// conditions, because C and V are clear.
    fn test_of_result(&mut self, comparison: Comparison, condition: u8) -> Test {
        let opposite = condition & 1 != 0;
        let is_wide = comparison.is_wide;
        let value = match comparison.result {
            Some(result) if condition >> 1 == 0 && self.facts(result).width <= 32 => self.word(result),
            Some(result) => self.with_sign(result, is_wide),
            None => self.result_of(comparison),
        };
        match condition >> 1 {
            0 => Test::of(TestOp::Equal, value, 0).not_if(opposite),
            2 => Test::of(TestOp::Less, value, 0).not_if(opposite),
            // C and V are clear: LS, VC and CC always hold, and GE equals PL.
            1 | 3 | 4 => Test::of(TestOp::Equal, 0, 0).not_if(!opposite),
            5 => Test::of(TestOp::Less, value, 0).not_if(!opposite),
            _ => Test::of(TestOp::Less, 0, value).not_if(opposite),
        }
    }

    /// Computes the result of a comparison into a temporary register. 32-bit results are sign-extended.
    fn result_of(&mut self, comparison: Comparison) -> u8 {
        let Some((a, b)) = comparison.operands else { unreachable!("the operands are available") };
        let is_wide = comparison.is_wide;
        let first = if is_wide { self.whole(a) } else { self.word(a) };
        let to = self.own(first);
        match (comparison.kind, b) {
            (Kind::Sub, Second::Constant(value)) => {
                self.add_constant(to, first, value.wrapping_neg(), is_wide)
            }
            (Kind::Add, Second::Constant(value)) => self.add_constant(to, first, value, is_wide),
            (Kind::And, Second::Constant(value)) => self.and_constant(to, first, value as u64),
            (kind, b) => {
                let second = match b {
                    Second::Register(b) => self.source(b, is_wide),
                    Second::Held(register, _) => register,
                    Second::Constant(value) => self.constant(value),
                };
                let op = match (kind, is_wide) {
                    (Kind::Sub, false) => La::SubW,
                    (Kind::Sub, true) => La::SubD,
                    (Kind::Add, false) => La::AddW,
                    (Kind::Add, true) => La::AddD,
                    (Kind::And, _) => La::And,
                };
                self.assembler.three(op, to, first, second);
                self.free_except(second, to);
            }
        }
        let is_positive = matches!(b, Second::Constant(value) if value as u32 >> 31 == 0 && value >> 32 == 0);
        if comparison.kind == Kind::And && !is_wide && !is_positive {
            self.assembler.immediate(La::SlliW, to, to, 0);
        }
        to
    }

    /// Evaluates a test into register `to`, as 0 or 1.
    pub fn truth(&mut self, test: Test, to: u8) {
        let Test { op, j, k, is_opposite } = test;
        match op {
            TestOp::Equal if j == 0 && k == 0 => {
                self.assembler.immediate(La::AddiD, to, 0, i32::from(!is_opposite));
                return;
            }
            TestOp::Equal => {
                if k != 0 {
                    self.assembler.three(La::Xor, to, j, k);
                }
                let value = if k == 0 { j } else { to };
                if is_opposite {
                    self.assembler.three(La::Sltu, to, 0, value);
                } else {
                    self.assembler.immediate(La::Sltui, to, value, 1);
                }
                return;
            }
            TestOp::Less => self.assembler.three(La::Slt, to, j, k),
            TestOp::Below => self.assembler.three(La::Sltu, to, j, k),
            TestOp::Flag => self.assembler.two(La::Movcf2gr, to, j),
        }
        if is_opposite {
            self.assembler.immediate(La::Xori, to, to, 1);
        }
    }

    /// Evaluates a test into [`TRUTH`]. If this returns true, a nonzero value means that the test holds; otherwise,
    /// that it does not.
    pub fn store_truth(&mut self, test: Test) -> bool {
        let Test { op, j, k, is_opposite } = test;
        match op {
            TestOp::Equal if k == 0 => self.assembler.copy(TRUTH, j),
            TestOp::Equal => self.assembler.three(La::Xor, TRUTH, j, k),
            TestOp::Less => self.assembler.three(La::Slt, TRUTH, j, k),
            TestOp::Below => self.assembler.three(La::Sltu, TRUTH, j, k),
            TestOp::Flag => self.assembler.two(La::Movcf2gr, TRUTH, j),
        }
        is_opposite == (op == TestOp::Equal)
    }

    /// Returns a register that is nonzero if the test holds. The meaning is inverted if the second value is true.
    pub fn mask(&mut self, test: Test) -> (u8, bool) {
        let Test { op, j, k, is_opposite } = test;
        if op == TestOp::Equal && k == 0 {
            return (j, !is_opposite);
        }
        let to = if op == TestOp::Flag { self.temporary() } else { self.own(j) };
        match op {
            TestOp::Equal => {
                self.assembler.three(La::Xor, to, j, k);
                self.free_except(k, to);
                return (to, !is_opposite);
            }
            TestOp::Less => self.assembler.three(La::Slt, to, j, k),
            TestOp::Below => self.assembler.three(La::Sltu, to, j, k),
            TestOp::Flag => self.assembler.two(La::Movcf2gr, to, j),
        }
        if op != TestOp::Flag {
            self.free_except(k, to);
        }
        (to, is_opposite)
    }
}

impl Flags {
    /// Writes the pending flags to a thread's state.
    pub(super) fn settle(self, state: &mut State, assignment: &RegisterAssignment, memory: &dyn UserMemory) {
        let satisfying = |condition: u8| (0..16).find(|flags| holds(condition, *flags)).unwrap_or(0);
        let flags = match self {
            Self::Stored | Self::StoredTruth(_) => return,
            Self::Truth(condition) => satisfying(condition ^ u8::from(state.r(TRUTH) == 0)),
            Self::FloatTruth(condition) => {
                satisfying(condition ^ u8::from(state.fcc[usize::from(FLOAT_TRUTH)] == 0))
            }
            Self::Compared(comparison) => comparison.flags(state, assignment, memory),
            Self::Extension => {
                // N, Z, C and V correspond to SF, ZF, CF and OF.
                [7, 6, 0, 11].iter().fold(0, |sum, bit| sum << 1 | (state.lbt.eflags >> bit & 1) as u8)
            }
        };
        set_flags(state, u64::from(flags) << 28);
    }
}

impl Comparison {
    fn flags(self, state: &State, assignment: &RegisterAssignment, memory: &dyn UserMemory) -> u8 {
        let value = |number: u8| match number {
            STACK => state.r(STACK_POINTER),
            NONE => 0,
            _ => read_at(state, assignment.general[usize::from(number)], memory),
        };
        if let Some((a, b)) = self.operands {
            let b = match b {
                Second::Register(b) => value(b),
                Second::Constant(constant) => constant as u64,
                Second::Held(..) => 0,
            };
            return self.flags_of(value(a), b);
        }
        let result = self.result.map_or(0, value);
        of_result(
            if self.is_wide { result } else { result & 0xffff_ffff },
            if self.is_wide { 64 } else { 32 },
        )
    }

    /// Returns the flags of the operation on two values.
    pub(super) fn flags_of(self, a: u64, b: u64) -> u8 {
        let bits = if self.is_wide { 64 } else { 32 };
        let cut = |value: u64| if self.is_wide { value } else { value & 0xffff_ffff };
        let (a, b) = (cut(a), cut(b));
        match self.kind {
            Kind::Sub => add_with_carry(a, cut(!b), true, bits).1,
            Kind::Add => add_with_carry(a, b, false, bits).1,
            Kind::And => of_result(a & b, bits),
        }
    }
}

/// N and Z of a result that is `bits` wide.
pub(super) fn of_result(result: u64, bits: u32) -> u8 {
    ((result >> (bits - 1) & 1) as u8) << 3 | u8::from(result == 0) << 2
}

/// Returns the sum of two values that are `bits` wide, and its flags.
pub(super) fn add_with_carry(a: u64, b: u64, carry: bool, bits: u32) -> (u64, u8) {
    let all = u64::MAX >> (64 - bits);
    let wide = u128::from(a) + u128::from(b) + u128::from(carry);
    let result = wide as u64 & all;
    let overflows = (a ^ result) & (b ^ result);
    let flags =
        of_result(result, bits) | u8::from(wide >> bits != 0) << 1 | (overflows >> (bits - 1) & 1) as u8;
    (result, flags)
}
