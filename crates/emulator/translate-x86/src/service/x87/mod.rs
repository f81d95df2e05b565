//! x87 instructions, which the engine executes. Unmasked exceptions set the summary bit, but do not trap. Source: Intel
//! SDM, volume 1, chapter 8, and volume 2.

mod arithmetic;
mod control;
mod functions;
mod moves;

use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use longma_loongarch::{State, Trap};
use rustc_apfloat::ieee::{Double, Single, X87DoubleExtended as Extended};
use rustc_apfloat::{Category, Float, FloatConvert, Round};

use super::{AF, CF, Done, Machine, OF, PF, SF, ZF};
use crate::registers::{X87_EXPONENTS, X87_MANTISSAS, X87_WORDS, flags_of, set_flags_of};

/// The control, status and tag words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words {
    pub control: u16,
    pub status: u16,
    /// A mask of empty physical registers.
    pub empty: u8,
}

const INITIAL_CONTROL: u16 = 0x37f;
/// The initial words.
pub(crate) const INITIAL_WORDS: u64 = INITIAL_CONTROL as u64 | 0xff << 32;

/// Reads the words of a thread.
pub(super) fn words(state: &State) -> Words {
    let all = state.lbt.scratch[usize::from(X87_WORDS)];
    let status = (all >> 16) as u16 & !0x3800 | u16::from(state.lbt.top & 7) << 11;
    Words { control: all as u16, status, empty: (all >> 32) as u8 }
}

/// Writes the words of a thread.
pub(super) fn set_words(state: &mut State, words: Words) {
    state.lbt.top = (words.status >> 11 & 7) as u8;
    let kept_flags = state.lbt.scratch[usize::from(X87_WORDS)] & KEPT_FLAGS;
    state.lbt.scratch[usize::from(X87_WORDS)] =
        kept_flags | u64::from(words.control) | u64::from(words.status) << 16 | u64::from(words.empty) << 32;
}

/// ID, AC and TF of RFLAGS. Programs detect the CPUID instruction by changing ID and AC, which have no other effect. They
/// are kept in free bits of the x87 words.
const ID_AC_AND_TF: u64 = 1 << 21 | 1 << 18 | super::TF;
/// The position of these flags in the x87 words, in addition to their position in RFLAGS.
const KEPT_SHIFT: u32 = 40;
const KEPT_FLAGS: u64 = ID_AC_AND_TF << KEPT_SHIFT;

/// Reads ID, AC and TF.
pub(crate) fn kept_flags(state: &State) -> u64 {
    (state.lbt.scratch[usize::from(X87_WORDS)] & KEPT_FLAGS) >> KEPT_SHIFT
}

/// Sets ID, AC and TF from RFLAGS.
pub(crate) fn keep_flags(state: &mut State, flags: u64) {
    let words = &mut state.lbt.scratch[usize::from(X87_WORDS)];
    *words = *words & !KEPT_FLAGS | (flags & ID_AC_AND_TF) << KEPT_SHIFT;
}

/// FNINIT: sets the initial state.
pub(super) fn initialise(state: &mut State) {
    set_words(state, Words { control: INITIAL_CONTROL, status: 0, empty: 0xff });
}

fn physical(state: &State, number: u8) -> usize {
    usize::from(state.lbt.top.wrapping_add(number) & 7)
}

/// The mantissa, and the word of sign and exponent, of stack register `number`.
pub(super) fn bits(state: &State, number: u8) -> (u64, u16) {
    let at = physical(state, number);
    let mantissa = state.v[usize::from(X87_MANTISSAS) + at / 4].0[at % 4];
    (mantissa, (state.v[usize::from(X87_EXPONENTS)].0[at / 4] >> (16 * (at % 4))) as u16)
}

/// Sets stack register `number` without changing its tag.
pub(super) fn set_bits(state: &mut State, number: u8, (mantissa, exponent): (u64, u16)) {
    let at = physical(state, number);
    state.v[usize::from(X87_MANTISSAS) + at / 4].0[at % 4] = mantissa;
    let word = &mut state.v[usize::from(X87_EXPONENTS)].0[at / 4];
    let shift = 16 * (at % 4);
    *word = *word & !(0xffff << shift) | u64::from(exponent) << shift;
}

/// Whether an instruction is an x87 instruction.
pub(super) fn is_x87(i: &Instruction) -> bool {
    let code = format_mnemonic(i);
    code.starts_with('F') && !code.starts_with("FX")
        || i.mnemonic() == Mnemonic::Wait
        || code == "FXCH"
        || code == "FXAM"
        || code == "FXTRACT"
}

fn format_mnemonic(i: &Instruction) -> String {
    format!("{:?}", i.mnemonic()).to_uppercase()
}

fn from_bits((mantissa, exponent): (u64, u16)) -> Extended {
    Extended::from_bits(u128::from(exponent) << 64 | u128::from(mantissa))
}

fn to_bits(value: Extended) -> (u64, u16) {
    let bits = value.to_bits();
    (bits as u64, (bits >> 64) as u16)
}

fn double(value: f64) -> Extended {
    Double::from_bits(value.to_bits().into()).convert(&mut false).value
}

/// Converts a value for the host's double-precision functions.
fn to_host_double(value: Extended) -> f64 {
    let rounded: Double = value.convert(&mut false).value;
    f64::from_bits(rounded.to_bits() as u64)
}

/// Exception flags of the status word: invalid operation, denormal operand, division by zero, overflow, underflow,
/// inexact result, stack fault.
const INVALID: u16 = 1;
const DENORMAL: u16 = 1 << 1;
const ZERO_DIVIDE: u16 = 1 << 2;
const OVERFLOW: u16 = 1 << 3;
const UNDERFLOW: u16 = 1 << 4;
const INEXACT: u16 = 1 << 5;
const STACK_FAULT: u16 = 1 << 6;
/// ES, the summary of unmasked exceptions, and B, which is a copy of it.
const SUMMARY: u16 = 1 << 7 | 1 << 15;
const C1: u16 = 1 << 9;

/// The register stack during one instruction.
struct Stack<'a, 'b> {
    m: &'a mut Machine<'b>,
    /// The exceptions that the instruction raises.
    raised: u16,
    /// The value of C1, if the instruction sets it: whether the result was rounded up or, after a stack fault, whether
    /// the stack overflowed.
    c1: Option<bool>,
}

/// Executes an x87 instruction.
pub(super) fn execute(machine: &mut Machine) -> Done {
    Stack { m: machine, raised: 0, c1: None }.execute()
}

/// The status word with the summary of exceptions that `control` does not mask.
fn summarised(status: u16, control: u16) -> u16 {
    let is_unmasked = status & !control & 0x3f != 0;
    if is_unmasked { status | SUMMARY } else { status & !SUMMARY }
}

impl Stack<'_, '_> {
    fn round(&self) -> Round {
        match words(self.m.state).control >> 10 & 3 {
            0 => Round::NearestTiesToEven,
            1 => Round::TowardNegative,
            2 => Round::TowardPositive,
            _ => Round::TowardZero,
        }
    }

    fn is_empty(&self, number: u8) -> bool {
        words(self.m.state).empty >> physical(self.m.state, number) & 1 != 0
    }

    /// The bits of a register. If it is empty, raises a stack fault and returns the default NaN.
    fn get_bits(&mut self, number: u8) -> (u64, u16) {
        if self.is_empty(number) {
            self.raised |= INVALID | STACK_FAULT;
            self.c1 = Some(false);
            return arithmetic::INDEFINITE;
        }
        bits(self.m.state, number)
    }

    fn get(&mut self, number: u8) -> Extended {
        from_bits(self.get_bits(number))
    }

    fn set(&mut self, number: u8, value: Extended) {
        set_bits(self.m.state, number, to_bits(value));
        self.set_tag(number, false);
    }

    fn set_tag(&mut self, number: u8, empty: bool) {
        let mut words = words(self.m.state);
        let bit = 1 << physical(self.m.state, number);
        words.empty = if empty { words.empty | bit } else { words.empty & !bit };
        set_words(self.m.state, words);
    }

    /// Adds `by` to the number of the physical register that is the top of the stack.
    fn move_top(&mut self, by: i8) {
        self.m.state.lbt.top = self.m.state.lbt.top.wrapping_add_signed(by) & 7;
    }

    fn push(&mut self, value: Extended) {
        self.push_bits(to_bits(value));
    }

    /// Pushes a value, or the default NaN if the stack is full.
    fn push_bits(&mut self, value: (u64, u16)) {
        self.move_top(-1);
        let is_full = !self.is_empty(0);
        if is_full {
            self.raised |= INVALID | STACK_FAULT;
        }
        self.c1 = Some(is_full);
        set_bits(self.m.state, 0, if is_full { arithmetic::INDEFINITE } else { value });
        self.set_tag(0, false);
    }

    fn pop(&mut self) {
        self.set_tag(0, true);
        self.move_top(1);
    }

    /// The stack index of a register operand.
    fn number(&self, operand: u32) -> u8 {
        let i = &self.m.instruction;
        let register = if operand < i.op_count() { i.op_register(operand) } else { Register::ST1 };
        register.number() as u8
    }

    /// A floating-point operand in memory.
    fn float(&mut self) -> Result<Extended, Trap> {
        let address = self.m.address();
        if self.m.instruction.memory_size().size() == 4 {
            let single = Single::from_bits(self.m.load(address, 4)?.into());
            self.raise_for_operand(single.is_signaling(), single.is_denormal());
            return Ok(single.convert(&mut false).value);
        }
        let double = Double::from_bits(self.m.load(address, 8)?.into());
        self.raise_for_operand(double.is_signaling(), double.is_denormal());
        Ok(double.convert(&mut false).value)
    }

    fn raise_for_operand(&mut self, is_signalling: bool, is_denormal: bool) {
        self.raised |= if is_signalling { INVALID } else { 0 };
        self.raised |= if is_denormal { DENORMAL } else { 0 };
    }

    fn integer(&self) -> Result<Extended, Trap> {
        let bytes = self.m.instruction.memory_size().size();
        let value = self.m.load(self.m.address(), bytes)?;
        let unused = 64 - 8 * bytes as u32;
        Ok(Extended::from_i128(i128::from((value << unused) as i64 >> unused)).value)
    }

    fn execute(&mut self) -> Done {
        let i = self.m.instruction;
        let name = format_mnemonic(&i);
        let name = name.as_str();
        let is_executed = self.arithmetic(name)?
            || self.moves(name)?
            || self.compares(name)?
            || self.controls(name)?
            || self.functions(name);
        if !is_executed {
            return Err(Trap::IllegalInstruction);
        }
        let mut words = words(self.m.state);
        words.status |= self.raised;
        if let Some(c1) = self.c1 {
            words.status = words.status & !C1 | if c1 { C1 } else { 0 };
        }
        words.status = summarised(words.status, words.control);
        set_words(self.m.state, words);
        Ok(())
    }

    fn compares(&mut self, name: &str) -> Result<bool, Trap> {
        let i = self.m.instruction;
        let other = match name {
            "FCOM" | "FCOMP" | "FUCOM" | "FUCOMP" | "FCOMPP" | "FUCOMPP" | "FCOMI" | "FCOMIP" | "FUCOMI"
            | "FUCOMIP" => {
                if i.op_count() > 0 && i.op0_kind() == OpKind::Memory {
                    self.float()?
                } else {
                    let last = i.op_count().max(1) - 1;
                    let number = if i.op_count() == 0 { 1 } else { self.number(last) };
                    self.get(number)
                }
            }
            "FICOM" | "FICOMP" => self.integer()?,
            "FTST" => double(0.0),
            "FXAM" => {
                self.examine();
                return Ok(true);
            }
            _ => return Ok(false),
        };
        let top = self.get(0);
        self.c1 = Some(false);
        let is_quiet = name.starts_with("FU");
        let is_nan = top.is_nan() || other.is_nan();
        if is_nan && (!is_quiet || [top, other].iter().any(|value| arithmetic::is_signalling(*value))) {
            self.raised |= INVALID;
        }
        if !is_nan {
            self.note_denormals(&[top, other]);
        }
        let order = top.partial_cmp(&other);
        let [carry, parity, zero] = match order {
            Some(std::cmp::Ordering::Greater) => [false; 3],
            Some(std::cmp::Ordering::Less) => [true, false, false],
            Some(std::cmp::Ordering::Equal) => [false, false, true],
            None => [true; 3],
        };
        let bit = |set: bool, bit: u64| if set { bit } else { 0 };
        if name.contains("COMI") {
            let other_flags = flags_of(self.m.state) & !(CF | PF | ZF | OF | SF | AF);
            let new_flags = bit(carry, CF) | bit(parity, PF) | bit(zero, ZF);
            set_flags_of(self.m.state, other_flags | new_flags);
        } else {
            self.conditions(bit(carry, 1) | bit(parity, 4) | bit(zero, 8));
        }
        let pops = if name.ends_with("PP") { 2 } else { usize::from(name.ends_with('P')) };
        for _ in 0..pops {
            self.pop();
        }
        Ok(true)
    }

    /// Sets C0 (1), C1 (2), C2 (4), C3 (8).
    fn conditions(&mut self, set: u64) {
        let mut words = words(self.m.state);
        let set = set as u16;
        words.status = words.status & !0x4700 | (set & 7) << 8 | (set >> 3) << 14;
        set_words(self.m.state, words);
    }

    fn examine(&mut self) {
        let is_empty = words(self.m.state).empty >> physical(self.m.state, 0) & 1 != 0;
        let value = from_bits(bits(self.m.state, 0));
        let class = match value.category() {
            _ if is_empty => 9,
            Category::NaN => 1,
            Category::Infinity => 5,
            Category::Zero => 8,
            Category::Normal if value.is_denormal() => 12,
            Category::Normal => 4,
        };
        let sign = if bits(self.m.state, 0).1 >> 15 != 0 { 2 } else { 0 };
        self.conditions(class | sign);
    }
}
