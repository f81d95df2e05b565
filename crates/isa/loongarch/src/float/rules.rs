//! Floating-point rules of x86-64, which programs translated from it follow: subnormal numbers flushed to zero, subnormal
//! operands recorded, the results of invalid operations, and the choice among several NaNs. Source: Intel SDM, volume 1,
//! sections 4.8.3.5 (NaNs), 4.9.2 (precedence of exceptions), 10.2.3 (MXCSR), 11.5.2.1 (invalid operations) and 14.5.2
//! (FMA).

use super::{
    ExceptionFlags, Format, Integer, RoundingMode, mul_add, nan::is_nan, nan::propagate, to_integer,
};
use crate::Fcsr;

impl Fcsr {
    /// Private: an operand was subnormal. Only recorded with [`SSE_RULES`](Self::SSE_RULES).
    pub const SUBNORMAL: u32 = 1 << 21;
    /// Private: subnormal operands are recorded; operations return the first NaN of their operands, or a negative
    /// default NaN; a number that does not fit an integer becomes the smallest one.
    pub const SSE_RULES: u32 = 1 << 29;
    /// Private: subnormal operands count as zeros.
    pub const FLUSH_OPERANDS: u32 = 1 << 30;
    /// Private: tiny results are replaced by zeros. The trap of underflow must be disabled.
    pub const FLUSH_RESULTS: u32 = 1 << 31;

    /// The rules of x86-64 that apply.
    pub fn rules(self) -> Rules {
        Rules(self.0 & (Self::SSE_RULES | Self::FLUSH_OPERANDS | Self::FLUSH_RESULTS))
    }
}

/// Which rules of x86-64 apply.
///
/// The rules do not affect operations that compute minimum, maximum, scaling or exponents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules(u32);

impl Rules {
    fn has(self, rule: u32) -> bool {
        self.0 & rule != 0
    }

    /// The operand, or zero if it is subnormal and such operands are flushed.
    pub fn flushed<F: Format>(self, operand: u64) -> u64 {
        if self.has(Fcsr::FLUSH_OPERANDS) && is_subnormal::<F>(operand) { operand & F::SIGN } else { operand }
    }

    /// Computes `of` on operands of format `From`; the result has format `To`.
    pub fn apply<From: Format, To: Format, const N: usize>(
        self,
        operands: [u64; N],
        of: impl FnOnce([u64; N]) -> (u64, ExceptionFlags),
    ) -> (u64, ExceptionFlags) {
        if self == Self::default() {
            return of(operands);
        }
        let (value, raised) = of(operands.map(|operand| self.flushed::<From>(operand)));
        let raised = raised | self.recorded::<From>(&operands, raised);
        let is_tiny = raised.intersects(ExceptionFlags::UNDERFLOW | ExceptionFlags::TINY_EXACT);
        // Tiny results in half precision are not flushed.
        if self.has(Fcsr::FLUSH_RESULTS) && is_tiny && To::BITS > 16 {
            return (value & To::SIGN, raised | ExceptionFlags::UNDERFLOW | ExceptionFlags::INEXACT);
        }
        // A conversion to another format keeps the only NaN there is.
        if self.has(Fcsr::SSE_RULES) && From::BITS == To::BITS && is_nan::<To>(value) {
            let first = operands.into_iter().find(|operand| is_nan::<From>(*operand));
            return (first.map_or(To::SIGN | To::DEFAULT_NAN, |nan| nan | To::QUIET), raised);
        }
        (value, raised)
    }

    /// Rounds `operand` to an integer of type `to`, as [`to_integer`] does.
    pub fn to_integer<F: Format>(
        self,
        operand: u64,
        to: Integer,
        mode: RoundingMode,
    ) -> (u64, ExceptionFlags) {
        let (value, raised) = to_integer::<F>(self.flushed::<F>(operand), to, mode);
        if self.has(Fcsr::SSE_RULES) && raised.intersects(ExceptionFlags::INVALID) {
            return (1 << (to.bits - 1), raised);
        }
        (value, raised)
    }

    /// As [`Self::apply`], for a function without a floating-point result.
    pub fn examine<F: Format, R>(
        self,
        operands: [u64; 2],
        of: impl FnOnce(u64, u64) -> (R, ExceptionFlags),
    ) -> (R, ExceptionFlags) {
        let [a, b] = operands.map(|operand| self.flushed::<F>(operand));
        let (value, raised) = of(a, b);
        (value, raised | self.recorded::<F>(&operands, raised))
    }

    /// `a * b + c` with the options of [`mul_add`].
    pub fn mul_add<F: Format>(
        self,
        [a, b, c]: [u64; 3],
        [negate_addend, negate_result]: [bool; 2],
        mode: RoundingMode,
    ) -> (u64, ExceptionFlags) {
        self.apply::<F, F, 3>([a, b, c], |[a, b, c]| {
            let first = [a, b, c].into_iter().find(|operand| is_nan::<F>(*operand));
            match first.filter(|_| self.has(Fcsr::SSE_RULES)) {
                None => mul_add::<F>(a, b, c, negate_addend, negate_result, mode),
                Some(nan) => {
                    let raised = propagate::<F>(&[a, b, c]).unwrap_or_default().1;
                    (nan | F::QUIET, raised)
                }
            }
        })
    }

    /// The exception of a subnormal operand. Invalid operations, divisions by zero and NaNs take precedence.
    fn recorded<F: Format>(self, operands: &[u64], raised: ExceptionFlags) -> ExceptionFlags {
        let is_recorded = self.has(Fcsr::SSE_RULES)
            && !self.has(Fcsr::FLUSH_OPERANDS)
            && operands.iter().any(|operand| is_subnormal::<F>(*operand))
            && !operands.iter().any(|operand| is_nan::<F>(*operand))
            && !raised.intersects(ExceptionFlags::INVALID | ExceptionFlags::DIVISION_BY_ZERO);
        if is_recorded { ExceptionFlags::SUBNORMAL_OPERAND } else { ExceptionFlags::NONE }
    }
}

fn is_subnormal<F: Format>(bits: u64) -> bool {
    bits & F::INFINITY == 0 && bits & (F::SIGN - 1) != 0
}
