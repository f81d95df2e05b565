//! x87 instructions, executed by the engine with 80-bit precision. Unmasked exceptions and precision control are not
//! implemented: results always have 64 bits of mantissa. Transcendental functions have double precision. Source: Intel
//! SDM, volume 1, chapter 8, and volume 2.

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
    let kept = state.lbt.scratch[usize::from(X87_WORDS)] & KEPT_FLAGS;
    state.lbt.scratch[usize::from(X87_WORDS)] =
        kept | u64::from(words.control) | u64::from(words.status) << 16 | u64::from(words.empty) << 32;
}

/// ID and AC of RFLAGS. Programs test whether they can be changed to detect CPUID. They have no effect, and are stored
/// in free bits of the x87 words.
const UNCOMPUTED: u64 = 1 << 21 | 1 << 18;
const KEPT_SHIFT: u32 = 40;
const KEPT_FLAGS: u64 = UNCOMPUTED << KEPT_SHIFT;

/// Reads ID and AC.
pub(crate) fn kept_flags(state: &State) -> u64 {
    (state.lbt.scratch[usize::from(X87_WORDS)] & KEPT_FLAGS) >> KEPT_SHIFT
}

/// Sets ID and AC from RFLAGS.
pub(crate) fn keep_flags(state: &mut State, flags: u64) {
    let words = &mut state.lbt.scratch[usize::from(X87_WORDS)];
    *words = *words & !KEPT_FLAGS | (flags & UNCOMPUTED) << KEPT_SHIFT;
}

/// FNINIT: sets the initial state.
pub(super) fn initialise(state: &mut State) {
    set_words(state, Words { control: INITIAL_CONTROL, status: 0, empty: 0xff });
}

fn physical(state: &State, number: u8) -> usize {
    usize::from(state.lbt.top.wrapping_add(number) & 7)
}

/// Mantissa, and sign with exponent, of stack register `number`.
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

/// Whether an instruction belongs to x87.
pub(super) fn is_known(i: &Instruction) -> bool {
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
fn by_double(value: Extended) -> f64 {
    let near: Double = value.convert(&mut false).value;
    f64::from_bits(near.to_bits() as u64)
}

/// The square root, rounded to nearest.
fn root(value: Extended) -> Extended {
    if value.is_negative() && !value.is_zero() || value.is_nan() {
        return if value.is_nan() { value } else { -Extended::NAN };
    }
    if value.is_zero() || value.is_infinite() {
        return value;
    }
    let exponent = value.ilogb();
    let even = exponent & !1;
    // A value between 1 and 4, with 62 more fraction bits than a mantissa has.
    let mantissa = value.scalbn(-even).scalbn(63).to_u128(128).value;
    let wide = mantissa << 63;
    let mut low: u128 = 0;
    for bit in (0..64).rev() {
        let next = low | 1 << bit;
        if next * next <= wide {
            low = next;
        }
    }
    let rest = wide - low * low;
    let rounded = if rest > low { low + 1 } else { low };
    Extended::from_u128(rounded).value.scalbn(-63 + even / 2)
}

struct Stack<'a, 'b> {
    m: &'a mut Machine<'b>,
}

/// Executes an x87 instruction.
pub(super) fn execute(machine: &mut Machine) -> Done {
    Stack { m: machine }.execute()
}

/// The result of an arithmetic instruction.
fn combine(name: &str, a: Extended, b: Extended, round: Round) -> Extended {
    match name {
        "ADD" => a.add_r(b, round).value,
        "MUL" => a.mul_r(b, round).value,
        "SUB" => a.sub_r(b, round).value,
        "SUBR" => b.sub_r(a, round).value,
        "DIV" => a.div_r(b, round).value,
        _ => b.div_r(a, round).value,
    }
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

    fn get(&self, number: u8) -> Extended {
        if words(self.m.state).empty >> physical(self.m.state, number) & 1 != 0 {
            return -Extended::NAN;
        }
        from_bits(bits(self.m.state, number))
    }

    fn set(&mut self, number: u8, value: Extended) {
        set_bits(self.m.state, number, to_bits(value));
        self.mark(number, false);
    }

    fn mark(&mut self, number: u8, empty: bool) {
        let mut words = words(self.m.state);
        let bit = 1 << physical(self.m.state, number);
        words.empty = if empty { words.empty | bit } else { words.empty & !bit };
        set_words(self.m.state, words);
    }

    fn turn(&mut self, by: i8) {
        self.m.state.lbt.top = self.m.state.lbt.top.wrapping_add_signed(by) & 7;
    }

    fn push(&mut self, value: Extended) {
        self.turn(-1);
        self.set(0, value);
    }

    fn pop(&mut self) {
        self.mark(0, true);
        self.turn(1);
    }

    /// The stack index of a register operand.
    fn number(&self, operand: u32) -> u8 {
        let i = &self.m.instruction;
        let register = if operand < i.op_count() { i.op_register(operand) } else { Register::ST1 };
        register.number() as u8
    }

    fn float(&self) -> Result<Extended, Trap> {
        let address = self.m.address();
        Ok(match self.m.instruction.memory_size().size() {
            4 => {
                let single = Single::from_bits(self.m.load(address, 4)?.into());
                single.convert(&mut false).value
            }
            8 => {
                let double = Double::from_bits(self.m.load(address, 8)?.into());
                double.convert(&mut false).value
            }
            _ => {
                let exponent = self.m.load(address.wrapping_add(8), 2)? as u16;
                from_bits((self.m.load(address, 8)?, exponent))
            }
        })
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
        if self.arithmetic(name)?
            || self.moves(name)?
            || self.compares(name)?
            || self.controls(name)?
            || self.functions(name)
        {
            Ok(())
        } else {
            Err(Trap::IllegalInstruction)
        }
    }

    fn arithmetic(&mut self, name: &str) -> Result<bool, Trap> {
        const NAMES: [&str; 6] = ["ADD", "MUL", "SUB", "SUBR", "DIV", "DIVR"];
        let i = self.m.instruction;
        let bare = name.trim_start_matches('F');
        let (integer, bare) = match bare.strip_prefix('I') {
            Some(rest) if NAMES.contains(&rest) => (true, rest),
            _ => (false, bare),
        };
        let (pops, bare) = match bare.strip_suffix('P') {
            Some(rest) if NAMES.contains(&rest) => (true, rest),
            _ => (false, bare),
        };
        let Some(bare) = NAMES.into_iter().find(|known| *known == bare) else { return Ok(false) };
        let round = self.round();
        if i.op0_kind() == OpKind::Memory {
            let b = if integer { self.integer()? } else { self.float()? };
            let result = combine(bare, self.get(0), b, round);
            self.set(0, result);
            return Ok(true);
        }
        let (d, s) = (self.number(0), self.number(1));
        let result = combine(bare, self.get(d), self.get(s), round);
        self.set(d, result);
        if pops {
            self.pop();
        }
        Ok(true)
    }

    fn moves(&mut self, name: &str) -> Result<bool, Trap> {
        let i = self.m.instruction;
        let in_memory = i.op_count() > 0 && i.op0_kind() == OpKind::Memory;
        match name {
            "FLD" if in_memory => {
                let value = self.float()?;
                self.push(value);
            }
            "FLD" => {
                let value = self.get(self.number(0));
                self.push(value);
            }
            "FILD" => {
                let value = self.integer()?;
                self.push(value);
            }
            "FST" | "FSTP" | "FSTPNCE" => {
                let value = self.get(0);
                if in_memory {
                    self.store_float(value)?;
                } else {
                    self.set(self.number(0), value);
                }
                if name != "FST" {
                    self.pop();
                }
            }
            "FIST" | "FISTP" | "FISTTP" => self.store_integer(name)?,
            "FXCH" => {
                let number = self.number(if i.op_count() > 1 { 1 } else { 0 });
                let (a, b) = (self.get(0), self.get(number));
                self.set(0, b);
                self.set(number, a);
            }
            "FLD1" => self.push(double(1.0)),
            "FLDZ" => self.push(double(0.0)),
            "FLDPI" => self.push(from_bits((0xc90f_daa2_2168_c235, 0x4000))),
            "FLDL2E" => self.push(from_bits((0xb8aa_3b29_5c17_f0bc, 0x3fff))),
            "FLDL2T" => self.push(from_bits((0xd49a_784b_cd1b_8afe, 0x4000))),
            "FLDLG2" => self.push(from_bits((0x9a20_9a84_fbcf_f799, 0x3ffd))),
            "FLDLN2" => self.push(from_bits((0xb172_17f7_d1cf_79ac, 0x3ffe))),
            _ => match name.strip_prefix("FCMOV") {
                Some(condition) => return Ok(self.conditional_move(condition)),
                None => return Ok(false),
            },
        }
        Ok(true)
    }

    fn store_integer(&mut self, name: &str) -> Done {
        let round = if name == "FISTTP" { Round::TowardZero } else { self.round() };
        let bytes = self.m.instruction.memory_size().size();
        let value = self.get(0);
        let result = value.to_i128_r(8 * bytes, round, &mut false);
        let is_bad = result.status.contains(rustc_apfloat::Status::INVALID_OP) || value.is_nan();
        let smallest = 1u64 << (8 * bytes - 1);
        let bits = if is_bad { smallest } else { result.value as u64 };
        self.m.store(self.m.address(), bits, bytes)?;
        if name != "FIST" {
            self.pop();
        }
        Ok(())
    }

    /// FCMOVcc. Returns false if the condition does not exist.
    fn conditional_move(&mut self, condition: &str) -> bool {
        let flags = flags_of(self.m.state);
        let (negated, condition) = match condition.strip_prefix('N') {
            Some(rest) => (true, rest),
            None => (false, condition),
        };
        let holds = match condition {
            "B" => flags & CF != 0,
            "E" => flags & ZF != 0,
            "BE" => flags & (CF | ZF) != 0,
            "U" => flags & PF != 0,
            _ => return false,
        };
        if holds != negated {
            let value = self.get(self.number(1));
            self.set(0, value);
        }
        true
    }

    fn store_float(&mut self, value: Extended) -> Done {
        let (address, round) = (self.m.address(), self.round());
        match self.m.instruction.memory_size().size() {
            4 => {
                let single: Single = value.convert_r(round, &mut false).value;
                self.m.store(address, single.to_bits() as u64, 4)
            }
            8 => {
                let double: Double = value.convert_r(round, &mut false).value;
                self.m.store(address, double.to_bits() as u64, 8)
            }
            _ => {
                let (mantissa, exponent) = to_bits(value);
                let mut bytes = [0; 10];
                bytes[..8].copy_from_slice(&mantissa.to_le_bytes());
                bytes[8..].copy_from_slice(&exponent.to_le_bytes());
                self.m.store_bytes(address, &bytes)
            }
        }
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
        let order = self.get(0).partial_cmp(&other);
        let [carry, parity, zero] = match order {
            Some(std::cmp::Ordering::Greater) => [false; 3],
            Some(std::cmp::Ordering::Less) => [true, false, false],
            Some(std::cmp::Ordering::Equal) => [false, false, true],
            None => [true; 3],
        };
        let bit = |set: bool, bit: u64| if set { bit } else { 0 };
        if name.contains("COMI") {
            let others = flags_of(self.m.state) & !(CF | PF | ZF | OF | SF | AF);
            let found = bit(carry, CF) | bit(parity, PF) | bit(zero, ZF);
            set_flags_of(self.m.state, others | found);
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

    fn controls(&mut self, name: &str) -> Result<bool, Trap> {
        let mut words = words(self.m.state);
        let i = self.m.instruction;
        match name {
            "FLDCW" => {
                words.control = self.m.load(self.m.address(), 2)? as u16;
                set_words(self.m.state, words);
            }
            "FNSTCW" | "FSTCW" => self.m.store(self.m.address(), words.control.into(), 2)?,
            "FNSTSW" | "FSTSW" if i.op0_kind() == OpKind::Register => {
                self.m.set_register(Register::AX, words.status.into());
            }
            "FNSTSW" | "FSTSW" => self.m.store(self.m.address(), words.status.into(), 2)?,
            "FNCLEX" | "FCLEX" => {
                words.status &= 0x7f00;
                set_words(self.m.state, words);
            }
            "FNINIT" | "FINIT" => initialise(self.m.state),
            "FFREE" => self.mark(self.number(0), true),
            "FINCSTP" => self.turn(1),
            "FDECSTP" => self.turn(-1),
            "FNSTENV" | "FSTENV" => {
                let mut environment = [0; 28];
                let tags = (0..8)
                    .fold(0u16, |tags, n| tags | if words.empty >> n & 1 != 0 { 3 << (2 * n) } else { 0 });
                for (at, word) in [(0, words.control), (4, words.status), (8, tags)] {
                    environment[at..at + 2].copy_from_slice(&word.to_le_bytes());
                    environment[at + 2..at + 4].copy_from_slice(&[0xff; 2]);
                }
                self.m.store_bytes(self.m.address(), &environment)?;
                words.control |= 0x3f;
                set_words(self.m.state, words);
            }
            "FLDENV" => {
                let mut environment = [0; 28];
                self.m.load_bytes(self.m.address(), &mut environment)?;
                let half = |at: usize| u16::from_le_bytes([environment[at], environment[at + 1]]);
                let tags = half(8);
                let empty = (0..8).fold(0, |all, n| all | u8::from(tags >> (2 * n) & 3 == 3) << n);
                set_words(self.m.state, Words { control: half(0), status: half(4), empty });
            }
            "FNOP" | "WAIT" => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// FPREM, which truncates, and FPREM1, which rounds to nearest.
    fn remainder(&mut self, truncates: bool, x: Extended, y: Extended) {
        let rest = if truncates { x.c_fmod(y).value } else { x.ieee_rem(y).value };
        let to = if truncates { Round::TowardZero } else { Round::NearestTiesToEven };
        let quotient = ((x - rest).value / y).value.round_to_integral(to).value;
        let low = quotient.c_fmod(double(8.0)).value.to_i128(32).value.unsigned_abs() as u64;
        self.set(0, rest);
        self.conditions((low >> 2 & 1) | (low & 1) << 1 | (low >> 1 & 1) << 3);
    }

    fn functions(&mut self, name: &str) -> bool {
        let (x, y) = (self.get(0), self.get(1));
        let round = self.round();
        let result = match name {
            "FCHS" | "FABS" => {
                let (mantissa, exponent) = bits(self.m.state, 0);
                let exponent = if name == "FCHS" { exponent ^ 0x8000 } else { exponent & 0x7fff };
                set_bits(self.m.state, 0, (mantissa, exponent));
                return true;
            }
            "FSQRT" => root(x),
            "FRNDINT" => x.round_to_integral(round).value,
            "FSCALE" => {
                let by = y.to_i128_r(32, Round::TowardZero, &mut false).value;
                x.scalbn_r(by.clamp(-100_000, 100_000) as i32, round)
            }
            "FPREM" | "FPREM1" => {
                self.remainder(name == "FPREM", x, y);
                return true;
            }
            "FXTRACT" => {
                let (exponent, significand) = match x.category() {
                    Category::Zero => (-Extended::INFINITY, x),
                    Category::Infinity => (Extended::INFINITY, x),
                    Category::NaN => (x, x),
                    Category::Normal => {
                        let exponent = x.ilogb();
                        (Extended::from_i128(exponent.into()).value, x.scalbn(-exponent))
                    }
                };
                self.set(0, exponent);
                self.push(significand);
                return true;
            }
            "F2XM1" => double((by_double(x) * std::f64::consts::LN_2).exp_m1()),
            "FSIN" => double(by_double(x).sin()),
            "FCOS" => double(by_double(x).cos()),
            "FSINCOS" => {
                self.set(0, double(by_double(x).sin()));
                self.push(double(by_double(x).cos()));
                self.conditions(0);
                return true;
            }
            "FPTAN" => {
                self.set(0, double(by_double(x).tan()));
                self.push(double(1.0));
                self.conditions(0);
                return true;
            }
            "FYL2X" | "FYL2XP1" | "FPATAN" => {
                let (x, y) = (by_double(x), by_double(y));
                let value = match name {
                    "FYL2X" => y * x.log2(),
                    "FYL2XP1" => y * x.ln_1p() / std::f64::consts::LN_2,
                    _ => y.atan2(x),
                };
                self.pop();
                double(value)
            }
            _ => return false,
        };
        self.set(0, result);
        if matches!(name, "FSIN" | "FCOS") {
            self.conditions(0);
        }
        true
    }
}
