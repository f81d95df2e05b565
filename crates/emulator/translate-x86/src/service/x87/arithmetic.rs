//! x87 arithmetic: precision and rounding control, NaNs and exception flags. Source: Intel SDM, volume 1, sections
//! 4.8.3 (NaNs), 8.1.5 (control word) and 8.5 (exceptions); volume 2.

use std::cmp::Ordering;

use iced_x86::OpKind;
use longma_loongarch::Trap;
use rustc_apfloat::ieee::{Quad, X87DoubleExtended as Extended};
use rustc_apfloat::{Category, Float, FloatConvert, Round, Status, StatusAnd};

use super::{
    DENORMAL, INEXACT, INVALID, OVERFLOW, Stack, UNDERFLOW, ZERO_DIVIDE, bits, double, from_bits, functions,
    set_bits, to_bits, words,
};
use crate::service::exceptions_of;

/// The default NaN.
pub(super) const INDEFINITE: (u64, u16) = (0xc000_0000_0000_0000, 0xffff);
/// The largest exponent of a number.
const MAX_EXPONENT: i32 = 16383;
/// The bit of a mantissa that is set in quiet NaNs.
const QUIET: u64 = 1 << 62;

pub(super) fn is_signalling(value: Extended) -> bool {
    value.is_nan() && to_bits(value).0 & QUIET == 0
}

/// A key by which magnitudes of numbers are ordered.
pub(super) fn magnitude(value: Extended) -> (u16, u64) {
    let (mantissa, exponent) = to_bits(value);
    (exponent & 0x7fff, mantissa)
}

fn quieted(value: Extended) -> Extended {
    let (mantissa, exponent) = to_bits(value);
    from_bits((mantissa | QUIET, exponent))
}

/// Rounds a result to `precision` bits of mantissa. `down` is the result rounded toward zero, and `is_inexact` is true
/// if that lost bits. Returns the rounded result, whether it is inexact, and whether its magnitude was rounded up.
fn round_to_precision(
    down: Extended,
    is_inexact: bool,
    precision: u32,
    round: Round,
) -> (Extended, bool, bool) {
    let (mantissa, exponent) = to_bits(down);
    if !down.is_finite_non_zero() || exponent & 0x7fff == 0 {
        return (down, is_inexact, false);
    }
    let dropped = 64 - precision;
    let low = mantissa & ((1 << dropped) - 1);
    let (was_inexact, is_inexact) = (is_inexact, is_inexact || low != 0);
    let half = 1 << (dropped - 1);
    let truncated = mantissa - low;
    let is_odd = truncated >> dropped & 1 != 0;
    let is_up = match round {
        Round::TowardZero => false,
        Round::TowardPositive => is_inexact && !down.is_negative(),
        Round::TowardNegative => is_inexact && down.is_negative(),
        // If bits were lost before, a remainder of exactly one half represents more than a half.
        _ => low > half || low == half && (is_odd || was_inexact),
    };
    let (value, carry) = if is_up { truncated.overflowing_add(1 << dropped) } else { (truncated, false) };
    let rounded = if carry { (1 << 63, exponent + 1) } else { (value, exponent) };
    (from_bits(rounded), is_inexact, is_up)
}

/// Whether a finite result overflows. It does if rounding to nearest would have made it infinite.
fn is_finite_overflow(
    value: Extended,
    is_inexact: bool,
    operation: impl Fn(Round) -> StatusAnd<Extended>,
) -> bool {
    let is_greatest = value.is_finite_non_zero() && value.ilogb() == MAX_EXPONENT;
    is_inexact && is_greatest && operation(Round::NearestTiesToEven).value.is_infinite()
}

impl Stack<'_, '_> {
    /// The number of mantissa bits of results.
    fn precision(&self) -> u32 {
        match words(self.m.state).control >> 8 & 3 {
            0 => 24,
            2 => 53,
            _ => 64,
        }
    }

    /// The result of an operation that can be rounded in any direction, with exceptions recorded.
    fn rounded(&mut self, operation: impl Fn(Round) -> StatusAnd<Extended>) -> Extended {
        let (round, precision) = (self.round(), self.precision());
        let down = operation(Round::TowardZero);
        if precision < 64 {
            let inexact = down.status.contains(Status::INEXACT);
            let (value, is_inexact, is_up) = round_to_precision(down.value, inexact, precision, round);
            self.raised |= exceptions_of(down.status) as u16 & !INEXACT;
            self.raised |= if is_inexact { INEXACT } else { 0 };
            self.raised |= if value.is_infinite() && is_inexact { OVERFLOW } else { 0 };
            self.raised |= if is_finite_overflow(value, is_inexact, &operation) { OVERFLOW } else { 0 };
            self.c1 = Some(is_up);
            return value;
        }
        let result = operation(round);
        self.raised |= exceptions_of(result.status) as u16;
        let is_inexact = result.status.contains(Status::INEXACT);
        self.raised |= if is_finite_overflow(result.value, is_inexact, &operation) { OVERFLOW } else { 0 };
        let is_up = is_inexact && magnitude(result.value) > magnitude(down.value);
        self.c1 = Some(is_up);
        result.value
    }

    /// The result if an operand is a NaN: the quiet NaN with the larger mantissa.
    pub(super) fn nan_of(&mut self, a: Extended, b: Extended) -> Option<Extended> {
        if !a.is_nan() && !b.is_nan() {
            return None;
        }
        self.raised &= !DENORMAL;
        if is_signalling(a) || is_signalling(b) {
            self.raised |= INVALID;
        }
        let chosen = match (a.is_nan(), b.is_nan()) {
            (true, false) => a,
            (false, _) => b,
            _ => match (to_bits(a).0 & !QUIET).cmp(&(to_bits(b).0 & !QUIET)) {
                Ordering::Greater => a,
                Ordering::Less => b,
                Ordering::Equal if a.is_negative() => b,
                Ordering::Equal => a,
            },
        };
        self.c1 = Some(false);
        Some(quieted(chosen))
    }

    /// Raises the exception for a denormal operand if there is one.
    pub(super) fn note_denormals(&mut self, operands: &[Extended]) {
        if operands.iter().any(|value| value.is_denormal()) {
            self.raised |= DENORMAL;
        }
    }

    pub(super) fn invalid(&mut self) -> Extended {
        self.raised |= INVALID;
        self.c1 = Some(false);
        from_bits(INDEFINITE)
    }

    /// Addition, subtraction, multiplication and division.
    pub(super) fn combine(&mut self, name: &str, a: Extended, b: Extended) -> Extended {
        if let Some(nan) = self.nan_of(a, b) {
            return nan;
        }
        let (a, b) = if name.ends_with('R') { (b, a) } else { (a, b) };
        let kind = name.trim_end_matches('R');
        let is_invalid = match kind {
            "ADD" => a.is_infinite() && b.is_infinite() && a.is_negative() != b.is_negative(),
            "SUB" => a.is_infinite() && b.is_infinite() && a.is_negative() == b.is_negative(),
            "MUL" => a.is_infinite() && b.is_zero() || a.is_zero() && b.is_infinite(),
            _ => a.is_infinite() && b.is_infinite() || a.is_zero() && b.is_zero(),
        };
        if is_invalid {
            return self.invalid();
        }
        self.note_denormals(&[a, b]);
        match kind {
            // A sum of zeros depends on the rounding direction.
            "ADD" | "SUB" if a.is_zero() && b.is_zero() => {
                self.c1 = Some(false);
                let b = if kind == "SUB" { -b } else { b };
                a.add_r(b, self.round()).value
            }
            "ADD" => self.sum(a, b),
            "SUB" => self.sum(a, -b),
            "MUL" => self.rounded(|round| a.mul_r(b, round)),
            _ => self.rounded(|round| a.div_r(b, round)),
        }
    }

    fn sum(&mut self, a: Extended, b: Extended) -> Extended {
        let round = self.round();
        let sum = self.rounded(|round| a.add_r(b, round));
        // An exact zero is negative only when rounding down.
        if sum.is_zero() && !a.is_zero() {
            let zero = double(0.0);
            return if round == Round::TowardNegative { -zero } else { zero };
        }
        sum
    }

    /// FSQRT.
    fn root(&mut self, value: Extended) -> Extended {
        if let Some(nan) = self.nan_of(value, value) {
            return nan;
        }
        self.c1 = Some(false);
        if value.is_zero() || value.is_infinite() && !value.is_negative() {
            return value;
        }
        if value.is_negative() {
            return self.invalid();
        }
        self.note_denormals(&[value]);
        let exponent = value.ilogb();
        let even = exponent & !1;
        // A value between 1 and 4, with 62 more fraction bits than a mantissa has.
        let wide = value.scalbn(-even).scalbn(63).to_u128(128).value << 63;
        let mut low: u128 = 0;
        for bit in (0..64).rev() {
            let next = low | 1 << bit;
            if next * next <= wide {
                low = next;
            }
        }
        let rest = wide - low * low;
        let scaled = |mantissa: u128| Extended::from_u128(mantissa).value.scalbn(-63 + even / 2);
        let (round, precision) = (self.round(), self.precision());
        let is_up = match round {
            Round::TowardPositive => rest != 0,
            Round::NearestTiesToEven => rest > low,
            _ => false,
        };
        let (result, is_inexact, is_up) = match precision {
            64 => (scaled(low + u128::from(is_up)), rest != 0, is_up),
            _ => round_to_precision(scaled(low), rest != 0, precision, round),
        };
        self.raised |= if is_inexact { INEXACT } else { 0 };
        self.c1 = Some(is_up);
        result
    }

    /// FRNDINT.
    fn integral(&mut self, value: Extended) -> Extended {
        if let Some(nan) = self.nan_of(value, value) {
            return nan;
        }
        self.note_denormals(&[value]);
        let result = value.round_to_integral(self.round()).value;
        let differs = result != value;
        self.raised |= if differs { INEXACT } else { 0 };
        self.c1 = Some(differs && magnitude(result) > magnitude(value));
        if result.is_zero() && value.is_negative() { -double(0.0) } else { result }
    }

    /// FSCALE: `x` times two to the truncated `y`.
    fn scaled(&mut self, x: Extended, y: Extended) -> Extended {
        if let Some(nan) = self.nan_of(x, y) {
            return nan;
        }
        self.c1 = Some(false);
        if y.is_infinite() {
            let is_invalid = if y.is_negative() { x.is_infinite() } else { x.is_zero() };
            let limit = if y.is_negative() { double(0.0) } else { Extended::INFINITY };
            return match is_invalid {
                true => self.invalid(),
                false => limit.copy_sign(x),
            };
        }
        self.note_denormals(&[x, y]);
        let by = y.to_i128_r(32, Round::TowardZero, &mut false).value.clamp(-100_000, 100_000) as i32;
        let result = x.scalbn_r(by, self.round());
        if x.is_finite_non_zero() && by >= 0 && x.ilogb() + by > MAX_EXPONENT {
            self.raised |= OVERFLOW | INEXACT;
            self.c1 = Some(result.is_infinite());
        } else if (result.is_denormal() || result.is_zero()) && result.scalbn(-by) != x {
            self.raised |= UNDERFLOW | INEXACT;
            let down = x.scalbn_r(by, Round::TowardZero);
            self.c1 = Some(magnitude(result) > magnitude(down));
        }
        result
    }

    /// FPREM, which truncates, and FPREM1, which rounds to nearest. If the exponents differ by 64 or more, the result
    /// is partial: it is closer to the remainder, and C2 is set.
    fn remainder(&mut self, truncates: bool, x: Extended, y: Extended) {
        if let Some(nan) = self.nan_of(x, y) {
            self.set(0, nan);
            return self.conditions(0);
        }
        if x.is_infinite() || y.is_zero() {
            let nan = self.invalid();
            self.set(0, nan);
            return self.conditions(0);
        }
        self.note_denormals(&[x, y]);
        self.c1 = None;
        if x.is_zero() || y.is_infinite() {
            return self.conditions(0);
        }
        let distance = x.ilogb() - y.ilogb();
        if distance >= 64 {
            // As the processor does, reduce the difference by between 32 and 63.
            let by = distance - (32 + distance % 32);
            let rest = x.c_fmod(y.scalbn(by)).value;
            self.set(0, if rest.is_zero() { double(0.0).copy_sign(x) } else { rest });
            return self.conditions(4);
        }
        let rest = if truncates { x.c_fmod(y).value } else { x.ieee_rem(y).value };
        let rest = if rest.is_zero() { double(0.0).copy_sign(x) } else { rest };
        let low = quotient_bits(x, y, rest);
        self.set(0, rest);
        self.conditions((low >> 2 & 1) | (low & 1) << 1 | (low >> 1 & 1) << 3);
    }

    /// FXTRACT.
    fn extract(&mut self, x: Extended) {
        self.c1 = Some(false);
        let (exponent, significand) = match x.category() {
            Category::Zero => {
                self.raised |= ZERO_DIVIDE;
                (-Extended::INFINITY, x)
            }
            Category::Infinity => (Extended::INFINITY, x),
            Category::NaN => {
                let nan = self.nan_of(x, x).unwrap_or(x);
                (nan, nan)
            }
            Category::Normal => {
                self.note_denormals(&[x]);
                let exponent = x.ilogb();
                (Extended::from_i128(exponent.into()).value, x.scalbn(-exponent))
            }
        };
        self.set(0, exponent);
        self.push(significand);
    }

    /// FADD, FSUB, FMUL, FDIV and their variants. Returns false for others.
    pub(super) fn arithmetic(&mut self, name: &str) -> Result<bool, Trap> {
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
        let Some(bare) = NAMES.into_iter().find(|candidate| *candidate == bare) else { return Ok(false) };
        if i.op0_kind() == OpKind::Memory {
            let b = if integer { self.integer()? } else { self.float()? };
            let a = self.get(0);
            let result = self.combine(bare, a, b);
            self.set(0, result);
            return Ok(true);
        }
        let (d, s) = (self.number(0), self.number(1));
        let (a, b) = (self.get(d), self.get(s));
        let result = self.combine(bare, a, b);
        self.set(d, result);
        if pops {
            self.pop();
        }
        Ok(true)
    }

    /// Functions of the top of the stack. Returns false for other instructions.
    pub(super) fn functions(&mut self, name: &str) -> bool {
        if matches!(name, "FCHS" | "FABS") {
            let _ = self.get(0);
            let (mantissa, exponent) = bits(self.m.state, 0);
            let exponent = if name == "FCHS" { exponent ^ 0x8000 } else { exponent & 0x7fff };
            set_bits(self.m.state, 0, (mantissa, exponent));
            self.c1 = Some(false);
            return true;
        }
        let x = self.get(0);
        let result = match name {
            "FSQRT" => self.root(x),
            "FRNDINT" => self.integral(x),
            "FSCALE" => {
                let y = self.get(1);
                self.scaled(x, y)
            }
            "FPREM" | "FPREM1" => {
                let y = self.get(1);
                self.remainder(name == "FPREM", x, y);
                return true;
            }
            "FXTRACT" => {
                self.extract(x);
                return true;
            }
            _ => return self.transcendental(name, x),
        };
        self.set(0, result);
        true
    }

    /// Rounds the result of a transcendental function, which is practically never exact.
    fn near(&mut self, value: Quad) -> Extended {
        let result: StatusAnd<Extended> = value.convert_r(self.round(), &mut false);
        let down: Extended = value.convert_r(Round::TowardZero, &mut false).value;
        self.raised |= exceptions_of(result.status) as u16;
        self.raised |= if result.value.is_zero() { 0 } else { INEXACT };
        self.c1 = Some(magnitude(result.value) > magnitude(down));
        result.value
    }

    fn transcendental(&mut self, name: &str, x: Extended) -> bool {
        match name {
            "F2XM1" => {
                let result = match self.nan_of(x, x) {
                    Some(nan) => nan,
                    None if x.is_zero() => x,
                    None if x.is_infinite() => {
                        if x.is_negative() {
                            double(-1.0)
                        } else {
                            x
                        }
                    }
                    None => self.near(functions::power_minus_1(x)),
                };
                self.note_denormals(&[x]);
                self.set(0, result);
            }
            "FSIN" | "FCOS" | "FSINCOS" | "FPTAN" => return self.trigonometric(name, x),
            "FYL2X" | "FYL2XP1" | "FPATAN" => {
                let y = self.get(1);
                let result = match self.nan_of(x, y) {
                    Some(nan) => nan,
                    None => {
                        self.note_denormals(&[x, y]);
                        match name {
                            "FPATAN" => self.near(functions::partial_arc_tangent(y, x)),
                            _ => self.logarithm(name == "FYL2X", x, y),
                        }
                    }
                };
                self.pop();
                self.set(0, result);
            }
            _ => return false,
        }
        true
    }

    fn trigonometric(&mut self, name: &str, x: Extended) -> bool {
        let nan = match x.is_infinite() {
            true => Some(self.invalid()),
            false => self.nan_of(x, x),
        };
        let is_far = x.is_finite_non_zero() && x.ilogb() >= 63;
        if nan.is_none() && is_far {
            self.conditions(4);
            return true;
        }
        self.conditions(0);
        let (first, second) = match (nan, name) {
            (Some(nan), _) => (nan, nan),
            (_, "FPTAN") if x.is_zero() => (x, double(1.0)),
            (_, "FPTAN") => (self.near(functions::tangent(x)), double(1.0)),
            _ if x.is_zero() => (x, double(1.0)),
            _ => {
                let (sine, cosine) = functions::sine_cosine(x);
                match name {
                    "FSIN" => (self.near(sine), x),
                    "FCOS" => (x, self.near(cosine)),
                    _ => (self.near(sine), self.near(cosine)),
                }
            }
        };
        self.note_denormals(&[x]);
        self.set(0, if name == "FCOS" { second } else { first });
        if matches!(name, "FSINCOS" | "FPTAN") {
            self.push(second);
        }
        true
    }

    /// FYL2X, or FYL2XP1 if `is_whole` is false.
    fn logarithm(&mut self, is_whole: bool, x: Extended, y: Extended) -> Extended {
        if !is_whole {
            if x.is_zero() || y.is_zero() || !x.is_finite() || !y.is_finite() {
                // The processor's result outside of the permitted range is undefined.
                return (x * y).value;
            }
            return self.near(functions::times_log_2_plus_1(x, y));
        }
        let one = double(1.0);
        if x.is_negative() && !x.is_zero()
            || x.is_zero() && y.is_zero()
            || x.is_infinite() && y.is_zero()
            || x == one && y.is_infinite()
        {
            return self.invalid();
        }
        if x.is_zero() {
            self.raised |= if y.is_infinite() { 0 } else { ZERO_DIVIDE };
            return Extended::INFINITY.copy_sign(-y);
        }
        let is_below_one = x < one;
        let sign_of = |value: Extended| if is_below_one { -value } else { value };
        if x == one || y.is_zero() {
            return sign_of(double(0.0).copy_sign(y));
        }
        if x.is_infinite() || y.is_infinite() {
            return sign_of(Extended::INFINITY.copy_sign(y));
        }
        self.near(functions::times_log_2(x, y))
    }
}

/// The three lowest bits of the quotient of a remainder.
fn quotient_bits(x: Extended, y: Extended, rest: Extended) -> u64 {
    // Dividend minus remainder is a multiple of the divisor. Reducing the dividend by multiples of eight divisors keeps
    // the quotient modulo eight and makes that difference exact.
    let eight = y.scalbn(3);
    let part = x.c_fmod(eight).value;
    let quotient = ((part - rest).value / y).value.round_to_integral(Round::NearestTiesToEven).value;
    quotient.to_i128(64).value.unsigned_abs() as u64 & 7
}
