//! Integer arithmetic and comparisons. Source: Intel SDM, volume 2; LoongArch Reference Manual, volume 1.

use iced_x86::{Code, ConditionCode, Instruction, Mnemonic, OpKind, Register, RflagsBits};
use longma_loongarch::Op as La;

use super::flags::{Comparison, is_cmovcc, is_equality, is_setcc, is_signed};
use super::forms::number;
use super::known::{Facts, RSP};
use super::lower::{Lowering, is_register};
use super::operands::{Extension, OperandLocation};
use crate::registers::*;
use longma_translate::optimizations::Optimization;

/// Flags that do not depend on the result alone.
const BEYOND_RESULT: u32 = RflagsBits::CF | RflagsBits::OF | RflagsBits::AF;

/// Arithmetic with two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add,
    Subtract,
    And,
    Or,
    Xor,
}

impl Arithmetic {
    pub(super) fn of(mnemonic: Mnemonic) -> Option<Self> {
        Some(match mnemonic {
            Mnemonic::Add | Mnemonic::Inc => Self::Add,
            Mnemonic::Sub | Mnemonic::Dec | Mnemonic::Cmp => Self::Subtract,
            Mnemonic::And | Mnemonic::Test => Self::And,
            Mnemonic::Or => Self::Or,
            Mnemonic::Xor => Self::Xor,
            _ => return None,
        })
    }

    pub(super) fn is_logic(self) -> bool {
        !matches!(self, Self::Add | Self::Subtract)
    }

    /// Facts about a result of `bytes` bytes, derived from facts about the operands.
    fn facts(self, bytes: usize, a: Facts, b: Facts) -> Facts {
        match self {
            Self::Add | Self::Subtract if bytes == 4 => Facts::WORD,
            Self::Add | Self::Subtract => Facts::NONE,
            Self::And => {
                let width = a.width.min(b.width);
                Facts { width, sign: a.sign && b.sign || width < 32 }
            }
            Self::Or | Self::Xor => a.or(b),
        }
    }
}

/// The second operand.
#[derive(Clone, Copy, Debug)]
enum Second {
    Register(u8),
    Constant(i64),
}

/// The amount that ADD or SUB of a constant adds to its first operand.
fn stack_step(i: &Instruction, kind: Arithmetic) -> Option<i64> {
    let is_constant = i.op_count() == 2 && i.op1_kind() != OpKind::Register && i.op1_kind() != OpKind::Memory;
    if kind.is_logic() || !is_constant {
        return None;
    }
    let step = i.immediate(1) as i64;
    Some(if kind == Arithmetic::Add { step } else { step.wrapping_neg() })
}

/// Whether the instruction is INC or DEC, which preserve CF.
pub(super) fn steps(i: &Instruction) -> bool {
    matches!(i.mnemonic(), Mnemonic::Inc | Mnemonic::Dec)
}

/// Whether the instruction is a zeroing idiom.
fn is_zeroing(i: &Instruction) -> bool {
    matches!(i.mnemonic(), Mnemonic::Xor | Mnemonic::Sub)
        && matches!((is_register(i, 0), is_register(i, 1)), (Some(a), Some(b)) if a == b)
}

/// Whether the instruction is a TEST of a register with itself.
fn tests_itself(i: &Instruction) -> bool {
    i.mnemonic() == Mnemonic::Test
        && matches!((is_register(i, 0), is_register(i, 1)), (Some(a), Some(b)) if a == b)
}

/// Whether a result of `bytes` bytes is sign-extended, or equivalent to that for a comparison with zero if
/// `by_equality`.
fn is_extended(facts: Facts, bytes: usize, by_equality: bool) -> bool {
    let bits = 8 * bytes as u8;
    facts.width < bits || bytes == 4 && facts.sign || by_equality && facts.width <= bits
}

impl Lowering<'_> {
    /// Writes the first operand, a register or memory.
    pub fn write(&mut self, value: u8) {
        let i = self.instruction;
        match is_register(&i, 0) {
            Some(register) => self.write_register(register, value),
            None => {
                let t = self.temporary();
                let location = self.place(t);
                self.store_from(value, location, i.memory_size().size());
            }
        }
    }

    /// Translates a comparison or arithmetic instruction fused with the user of its flags. Returns false if that is not
    /// possible.
    pub fn fused(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        if i.has_lock_prefix() || !self.reachable.options.has(Optimization::Fusion) {
            return false;
        }
        let sample = match self.mnemonic() {
            Cmp => Comparison::Difference(0, 0),
            Ucomisd | Comisd | Ucomiss | Comiss => Comparison::Floats(
                0,
                0,
                matches!(self.mnemonic(), Ucomisd | Comisd),
                matches!(self.mnemonic(), Comisd | Comiss),
            ),
            Test | And | Or | Xor => Comparison::Result(0),
            Add | Sub | Inc | Dec | Neg => Comparison::Sum(0),
            _ => return false,
        };
        let Some(reader) = self.direct_reader(sample) else { return self.fused_difference() };
        if reader.is_jcc_short_or_near() {
            self.ready(reader.near_branch_target());
        }
        let condition = reader.condition_code();
        let comparison = match sample {
            Comparison::Difference(..) => self.difference(condition),
            Comparison::Floats(_, _, is_double, signals) => {
                let (a, b) = self.float_operands(is_double);
                Comparison::Floats(a, b, is_double, signals)
            }
            _ => {
                let live = self.live;
                self.live &= !i.rflags_modified();
                let result = self.arithmetic(Some(condition));
                self.live = live;
                if matches!(sample, Comparison::Sum(_)) {
                    Comparison::Sum(result)
                } else {
                    Comparison::Result(result)
                }
            }
        };
        self.read_directly(comparison);
        true
    }

    /// Fuses SUB with a condition on its operands, which is computed before the subtraction. Returns false if that is
    /// not possible.
    fn fused_difference(&mut self) -> bool {
        let i = self.instruction;
        let Some(register) = is_register(&i, 0).filter(|_| i.mnemonic() == Mnemonic::Sub) else {
            return false;
        };
        let Some(reader) = self.direct_reader(Comparison::Difference(0, 0)) else { return false };
        if register.size() < 4 || number(register) == RSP {
            return false;
        }
        if reader.is_jcc_short_or_near() {
            self.ready(reader.near_branch_target());
        }
        let a = self.read(0, Extension::Sign);
        let b = self.read(1, Extension::Sign);
        let condition = reader.condition_code();
        let Some((value, if_zero)) = self.value_of(Comparison::Difference(a, b), condition) else {
            return false;
        };
        let live = self.live;
        self.live &= !i.rflags_modified();
        let is_loaded = i.op1_kind() != OpKind::Memory;
        if is_loaded {
            self.arithmetic(None);
        } else {
            // Reuse loaded operands.
            let n = number(register);
            let d = self.define(n);
            self.assembler.three(if register.size() == 4 { La::SubW } else { La::SubD }, d, a, b);
            if register.size() == 4 {
                self.defined(n, Facts::WORD)
            } else {
                self.defined_wide(n, Facts::NONE)
            }
        }
        self.live = live;
        self.read_value(value, if_zero);
        true
    }

    /// The number of instructions to extend an operand of CMP.
    fn cost_of(&self, operand: u32, extension: Extension) -> u32 {
        let i = self.instruction;
        let Some(register) = is_register(&i, operand) else {
            let negative = i.op_kind(operand) != OpKind::Memory && (i.immediate(operand) as i64) < 0;
            return u32::from(negative && extension == Extension::Zero);
        };
        let facts = self.known.value(number(register));
        let bits = 8 * register.size() as u8;
        let is_free = match extension {
            _ if bits == 64 => true,
            _ if is_high(register) => false,
            Extension::Zero => facts.width <= bits,
            _ => bits == 32 && facts.sign || facts.width < bits,
        };
        u32::from(!is_free)
    }

    /// The operands of CMP, extended as the condition needs.
    fn difference(&mut self, condition: ConditionCode) -> Comparison {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let costs = |extension| [self.cost_of(0, extension), self.cost_of(1, extension)];
        let (signed, unsigned) = (costs(Extension::Sign), costs(Extension::Zero));
        let is_constant = !matches!(i.op_kind(1), OpKind::Register | OpKind::Memory);
        let unused = 64 - 8 * bytes as u32;
        let value = if is_constant { (i.immediate(1) as i64) << unused >> unused } else { 0 };
        if bytes >= 4 && is_equality(condition) {
            let sum: u32 = signed.iter().sum::<u32>().min(unsigned.iter().sum());
            // Values are equal if their difference is zero, whatever the upper bits are.
            if is_constant && value != 0 && (-2047..2049).contains(&value) {
                let a = self.read(0, Extension::Any);
                let t = self.temporary();
                self.assembler.immediate(if bytes == 8 { La::AddiD } else { La::AddiW }, t, a, -value as i32);
                return Comparison::Difference(t, 0);
            }
            if !is_constant && bytes == 4 && sum > 1 {
                let a = self.read(0, Extension::Any);
                let b = self.read(1, Extension::Any);
                let t = self.temporary();
                self.assembler.three(La::SubW, t, a, b);
                return Comparison::Difference(t, 0);
            }
        }
        let zero = !is_signed(condition) && unsigned.iter().sum::<u32>() < signed.iter().sum();
        let extension = if zero { Extension::Zero } else { Extension::Sign };
        let a = self.read(0, extension);
        let b = self.read(1, extension);
        Comparison::Difference(a, b)
    }

    /// Translates an integer instruction. Returns false for others.
    pub fn integer(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        if i.has_lock_prefix() {
            return false;
        }
        match i.mnemonic() {
            Mov | Movnti => return self.move_general(),
            Movzx => self.move_extended(Extension::Zero),
            Movsx | Movsxd => self.move_extended(Extension::Sign),
            Lea => self.load_address(),
            Push => return self.push(),
            Pop => return self.pop(),
            Leave if i.code() == Code::Leaveq => self.leave_frame(),
            Add | Sub | And | Or | Xor | Inc | Dec | Neg | Cmp | Test => {
                self.arithmetic(None);
            }
            Not => {
                let (a, location) = self.first(Extension::Any);
                let t = self.temporary();
                self.assembler.three(La::Nor, t, a, 0);
                self.write_back(t, location);
            }
            Adc | Sbb => self.with_carry(),
            Adcx | Adox => self.add_with_one_flag(),
            Xchg if i.op0_kind() == OpKind::Register && i.op1_kind() == OpKind::Register => {
                self.exchange_registers()
            }
            Cbw | Cwde | Cdqe | Cwd | Cdq | Cqo => self.extend_accumulator(),
            Imul if i.op_count() > 1 => self.product(),
            Imul | Mul => self.wide_product(),
            Div | Idiv => return self.division(),
            Nop => self.mark(&i),
            Endbr64 | Endbr32 | Prefetcht0 | Prefetcht1 | Prefetcht2 | Prefetchnta | Prefetchw | Clflush
            | Clflushopt | Clwb | Rdsspd | Rdsspq | Pause | Reservednop => {}
            Mfence => self.assembler.immediate(La::Dbar, 0, 0, 0),
            Lfence | Sfence => {}
            Clc => self.assembler.copy(CARRY, 0),
            Stc => self.assembler.immediate(La::Ori, CARRY, 0, 1),
            Cmc => self.assembler.immediate(La::Xori, CARRY, CARRY, 1),
            Cld => self.assembler.two(La::Movgr2scr, DIRECTION, 0),
            Std => {
                self.assembler.immediate(La::Ori, SCRATCH, 0, 1);
                self.assembler.two(La::Movgr2scr, DIRECTION, SCRATCH);
            }
            _ if is_setcc(&i) => {
                let (value, if_zero) = self.condition_value(i.condition_code());
                self.set_byte(value, if_zero, false);
            }
            _ if is_cmovcc(&i) => {
                let (value, if_zero) = self.condition_value(i.condition_code());
                self.conditional_move(value, if_zero);
            }
            _ => return false,
        }
        true
    }

    /// The value of the first operand, and its place if it is in memory.
    pub fn first(&mut self, extension: Extension) -> (u8, Option<OperandLocation>) {
        let i = self.instruction;
        match is_register(&i, 0) {
            Some(register) => (self.read_register(register, extension), None),
            None => {
                let location = self.near();
                let t = self.temporary();
                self.load_to(t, location, i.memory_size().size(), extension);
                (t, Some(location))
            }
        }
    }

    /// Writes the first operand to the place that [`Self::first`] returned.
    pub fn write_back(&mut self, value: u8, location: Option<OperandLocation>) {
        let i = self.instruction;
        match location {
            Some(location) => self.store_from(value, location, i.memory_size().size()),
            None => self.write_register(i.op0_register(), value),
        }
    }

    fn second(&mut self, kind: Arithmetic, bytes: usize, extension: Extension, as_register: bool) -> Second {
        let i = self.instruction;
        if i.op_count() < 2 {
            return if as_register {
                Second::Register(self.read_constant(1, bytes, Extension::Sign))
            } else {
                Second::Constant(1)
            };
        }
        if matches!(i.op_kind(1), OpKind::Register | OpKind::Memory) {
            return Second::Register(self.read(1, extension));
        }
        let unused = 64 - 8 * bytes as u32;
        let signed = (i.immediate(1) as i64) << unused >> unused;
        // For narrower operands, the upper bits do not matter.
        let value =
            if kind.is_logic() && bytes < 4 { (signed as u64) << unused >> unused } else { signed as u64 };
        let value = value as i64;
        let fits = match kind {
            Arithmetic::Add => (-2048..2048).contains(&value),
            Arithmetic::Subtract => (-2047..2049).contains(&value),
            _ => (0..4096).contains(&value),
        };
        if fits && !as_register {
            Second::Constant(value)
        } else {
            Second::Register(self.read_constant(signed, bytes, Extension::Sign))
        }
    }

    /// Computes the result into `d`; results of 32 bits or more are sign-extended.
    fn combine(&mut self, kind: Arithmetic, d: u8, a: u8, b: Second, bytes: usize) {
        let word = bytes == 4;
        match b {
            Second::Register(b) => {
                let op = match kind {
                    Arithmetic::Add if word => La::AddW,
                    Arithmetic::Add => La::AddD,
                    Arithmetic::Subtract if word => La::SubW,
                    Arithmetic::Subtract => La::SubD,
                    Arithmetic::And => La::And,
                    Arithmetic::Or => La::Or,
                    Arithmetic::Xor => La::Xor,
                };
                self.assembler.three(op, d, a, b);
            }
            Second::Constant(value) => {
                let value = value as i32;
                let (op, value) = match kind {
                    Arithmetic::Add if word => (La::AddiW, value),
                    Arithmetic::Add => (La::AddiD, value),
                    Arithmetic::Subtract if word => (La::AddiW, -value),
                    Arithmetic::Subtract => (La::AddiD, -value),
                    Arithmetic::And => (La::Andi, value),
                    Arithmetic::Or => (La::Ori, value),
                    Arithmetic::Xor => (La::Xori, value),
                };
                self.assembler.immediate(op, d, a, value);
            }
        }
    }

    /// The last and first bit of a constant mask that AND or TEST can apply by extracting a bit field.
    fn field_of(&self, kind: Arithmetic, bytes: usize, reader: Option<ConditionCode>) -> Option<(u8, u8)> {
        let i = self.instruction;
        if kind != Arithmetic::And || matches!(i.op_kind(1), OpKind::Register | OpKind::Memory) {
            return None;
        }
        let unused = 64 - 8 * bytes as u32;
        let value = i.immediate(1) << unused >> unused;
        let first = value.trailing_zeros();
        let ones = value.checked_shr(first)?.trailing_ones();
        // A mask that includes the top bit of a word would sign-extend differently. Small masks are left to `andi`.
        let is_run = value != 0 && value >> first == u64::MAX >> (64 - ones);
        // A field that does not start at bit 0 is moved, which is allowed only if the result is compared with zero.
        let starts = first == 0 || i.mnemonic() == Mnemonic::Test && reader.is_some_and(is_equality);
        (is_run && starts && value >= 4096).then_some(((first + ones - 1) as u8, first as u8))
    }

    /// Translates arithmetic that needs little or no code: zeroing idioms, stack adjustments, TEST of a register with
    /// itself. The result is as for [`Self::arithmetic`].
    fn simple_arithmetic(
        &mut self,
        kind: Arithmetic,
        reader: Option<ConditionCode>,
        live_flags: u32,
        bytes: usize,
    ) -> Option<u8> {
        let i = self.instruction;
        if is_zeroing(&i) {
            self.clear_first();
            return Some(0);
        }
        let is_of_stack = i.mnemonic() != Mnemonic::Cmp && is_register(&i, 0) == Some(Register::RSP);
        if is_of_stack
            && live_flags == 0
            && reader.is_none()
            && let Some(step) = stack_step(&i, kind)
        {
            self.move_stack(step);
            return Some(STACK_POINTER);
        }
        tests_itself(&i).then(|| self.test_itself(reader, live_flags, bytes))
    }

    /// ADD, SUB, AND, OR, XOR, INC, DEC, NEG, CMP, TEST. Returns the register with the result. If a `reader` is fused
    /// or flags are live, it is suitably extended.
    pub fn arithmetic(&mut self, reader: Option<ConditionCode>) -> u8 {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let mnemonic = i.mnemonic();
        let live_flags = self.live & i.rflags_modified();
        let kind = Arithmetic::of(mnemonic).unwrap_or(Arithmetic::Subtract);
        if let Some(result) = self.simple_arithmetic(kind, reader, live_flags, bytes) {
            return result;
        }
        let is_negation = mnemonic == Mnemonic::Neg;
        let discards = matches!(mnemonic, Mnemonic::Cmp | Mnemonic::Test);
        let destination = is_register(&i, 0).filter(|_| !discards);
        let needs_operands = live_flags & BEYOND_RESULT != 0 && !kind.is_logic();
        // Whether the result must be extended from its size.
        let extends = live_flags != 0 || reader.is_some();
        let extension = if needs_operands { Extension::Sign } else { Extension::Any };
        let (a, location) = if discards { (self.read(0, extension), None) } else { self.first(extension) };
        let field = self.field_of(kind, bytes, reader).filter(|_| live_flags == 0);
        let b = if is_negation {
            Second::Register(a)
        } else if field.is_some() {
            Second::Constant(0)
        } else {
            self.second(kind, bytes, extension, needs_operands)
        };
        let a = if is_negation { 0 } else { a };
        let (facts_a, facts_b) = (self.known.of(a), self.facts_of_second(b));
        // Write the result directly to its register if the old value is not needed. A word in RSP would lose the
        // sign-extension that flags are computed from.
        let is_cut = destination == Some(Register::ESP) && extends;
        let in_place = destination.is_some() && bytes >= 4 && !needs_operands && !is_cut;
        let d = match destination {
            Some(register) if in_place => self.define(number(register)),
            _ => self.temporary(),
        };
        let mut facts = if let Some((last, first)) = field {
            self.assembler.field(La::BstrpickD, d, a, last, first);
            Facts::of_width(last - first + 1)
        } else {
            self.combine(kind, d, a, b, bytes);
            kind.facts(bytes, facts_a, facts_b)
        };
        let by_equality = live_flags == 0 && reader.is_some_and(is_equality);
        if extends && bytes < 8 && !is_extended(facts, bytes, by_equality) {
            self.extend(d, d, bytes, Extension::Sign);
            facts = Facts::WORD;
        }
        if location.is_some() {
            self.write_back(d, location);
        }
        if live_flags != 0 {
            self.arithmetic_flags(kind, a, b, d);
        }
        if let Some(register) = destination {
            self.place_result(register, d, in_place, facts);
        }
        d
    }

    /// Writes the result `d` to its register, unless it was computed there (`in_place`).
    fn place_result(&mut self, register: Register, d: u8, in_place: bool, facts: Facts) {
        if register.size() < 4 {
            return self.write_register(register, d);
        }
        let n = number(register);
        if !in_place {
            let own = self.define(n);
            self.assembler.copy(own, d);
        }
        if register.size() == 8 { self.defined_wide(n, facts) } else { self.defined(n, facts) }
    }

    /// Clears the first operand of a zeroing idiom.
    fn clear_first(&mut self) {
        let register = self.instruction.op0_register();
        if register.size() >= 4 && number(register) != RSP {
            self.clear(number(register));
        } else {
            self.write(0);
        }
        self.logic_flags(0);
    }

    /// Computes the flags of a result `d`.
    fn arithmetic_flags(&mut self, kind: Arithmetic, a: u8, b: Second, d: u8) {
        let second = if let Second::Register(b) = b { Some(b) } else { None };
        let needs_operands = self.live & self.instruction.rflags_modified() & BEYOND_RESULT != 0;
        if self.extension_flags(kind, a, second.filter(|_| needs_operands), d) {
            return;
        }
        let preserved = if steps(&self.instruction) { RflagsBits::CF } else { 0 };
        match (kind, b) {
            (kind, _) if kind.is_logic() => self.logic_flags(d),
            (Arithmetic::Add, Second::Register(b)) => self.sum_flags([a, b, d], preserved),
            (_, Second::Register(b)) => self.difference_flags([a, b, d], preserved),
            _ => self.result_flags(d),
        }
    }

    fn facts_of_second(&self, b: Second) -> Facts {
        match b {
            Second::Register(b) => self.known.of(b),
            Second::Constant(value) if value < 0 => Facts::WORD,
            Second::Constant(value) => Facts::of_width((64 - value.leading_zeros()) as u8),
        }
    }

    /// TEST of a register with itself.
    fn test_itself(&mut self, reader: Option<ConditionCode>, live_flags: u32, bytes: usize) -> u8 {
        let unsigned = live_flags == 0
            && reader.is_some_and(is_equality)
            && self.cost_of(0, Extension::Zero) <= self.cost_of(0, Extension::Sign);
        let extension = match (unsigned, bytes) {
            (true, 4) if self.cost_of(0, Extension::Zero) > 0 => Extension::Sign,
            (true, _) => Extension::Zero,
            _ => Extension::Sign,
        };
        let a = self.read(0, extension);
        if live_flags != 0 && !self.extension_flags(Arithmetic::And, a, None, a) {
            self.logic_flags(a);
        }
        a
    }

    /// Adds `step` to RSP.
    fn move_stack(&mut self, step: i64) {
        if Self::is_step(step) {
            self.reserve_stack(step.unsigned_abs() as i32);
            self.known.stack += step as i32;
        } else {
            let sum = step + i64::from(self.known.stack);
            self.add_constant(STACK_POINTER, STACK_POINTER, sum);
            self.known.stack = 0;
        }
    }

    /// ADC and SBB.
    fn with_carry(&mut self) {
        let i = self.instruction;
        let bytes = self.bytes_of(0);
        let live_flags = self.live & i.rflags_modified();
        let adds = i.mnemonic() == Mnemonic::Adc;
        if !adds
            && live_flags == 0
            && is_register(&i, 0).is_some()
            && is_register(&i, 0) == is_register(&i, 1)
        {
            // SBB of a register with itself gives all ones or zero.
            self.assembler.three(La::SubD, SCRATCH, 0, CARRY);
            self.write(SCRATCH);
            return;
        }
        let extension = if live_flags != 0 { Extension::Sign } else { Extension::Any };
        let (a, location) = self.first(extension);
        let b = match self.second(Arithmetic::Xor, bytes, extension, true) {
            Second::Register(b) => b,
            Second::Constant(_) => unreachable!("the operand is a register"),
        };
        let (half, d) = (self.temporary(), self.temporary());
        let op = match (adds, bytes == 4) {
            (true, true) => La::AddW,
            (true, false) => La::AddD,
            (false, true) => La::SubW,
            (false, false) => La::SubD,
        };
        self.assembler.three(op, half, a, b);
        if bytes < 4 && live_flags != 0 {
            self.extend(half, half, bytes, Extension::Sign);
        }
        self.assembler.three(op, d, half, CARRY);
        if bytes < 4 && live_flags != 0 {
            self.extend(d, d, bytes, Extension::Sign);
        }
        if location.is_some() {
            self.write_back(d, location);
        }
        self.carry_flags([a, b, half, d], adds);
        if location.is_none() {
            self.write_back(d, location);
        }
    }

    pub fn carry_flags(&mut self, [a, b, half, d]: [u8; 4], adds: bool) {
        let live = self.live;
        self.adjust([a, b, d]);
        if live & RflagsBits::OF != 0 {
            let other = if adds { d } else { b };
            self.assembler.three(La::Xor, SCRATCH, a, other);
            self.assembler.three(La::Xor, OVERFLOW, if adds { b } else { a }, d);
            self.assembler.three(La::And, OVERFLOW, OVERFLOW, SCRATCH);
        }
        if live & RflagsBits::CF != 0 {
            if adds {
                self.assembler.three(La::Sltu, SCRATCH, half, a);
                self.assembler.three(La::Sltu, CARRY, d, half);
            } else {
                self.assembler.three(La::Sltu, SCRATCH, a, b);
                self.assembler.three(La::Sltu, CARRY, half, d);
            }
            self.assembler.three(La::Or, CARRY, CARRY, SCRATCH);
        }
        self.result_flags(d);
    }
}
