//! Estimates of reciprocals and of reciprocal square roots, with eight bits. Source: Arm Architecture Reference Manual
//! (Arm DDI 0487), shared pseudocode (RecipEstimate, RecipSqrtEstimate, FPRecipEstimate, FPRecpX, FPRSqrtEstimate).

use longma_loongarch::float::{Format, RoundingMode};

use super::super::environment::{DIVISION_BY_ZERO, Environment, INEXACT, OVERFLOW, UNDERFLOW};

/// An estimate of 2^17 / `a`, for `a` in 256..512. The result is in the same range.
pub(super) fn reciprocal(a: u32) -> u32 {
    ((1 << 19) / (2 * a + 1)).div_ceil(2)
}

/// An estimate of the reciprocal square root of `a` / 512, times 256, for `a` in 128..512. The result is in 256..512.
pub(super) fn reciprocal_root(a: u32) -> u32 {
    let a = if a < 256 { 2 * a + 1 } else { ((a >> 1 << 1) + 1) * 2 };
    let fits = |b: &u32| u64::from(a) * u64::from(b + 1) * u64::from(b + 1) < 1 << 28;
    let b = 512 + (512..1024).take_while(fits).count() as u32;
    b.div_ceil(2)
}

/// Splits a number into its fraction, as 52 bits, and its biased exponent.
fn parts<F: Format>(bits: u64) -> (u64, i64) {
    let fraction = (bits & ((1 << F::FRACTION_BITS) - 1)) << (52 - F::FRACTION_BITS);
    (fraction, ((bits & F::INFINITY) >> F::FRACTION_BITS) as i64)
}

/// The inverse of [`parts`]. `sign` is the sign bit in its position.
fn number<F: Format>(sign: u64, exponent: i64, fraction: u64) -> u64 {
    sign | (exponent as u64) << F::FRACTION_BITS | fraction >> (52 - F::FRACTION_BITS)
}

/// FRECPE: an estimate of the reciprocal.
pub(super) fn frecpe<F: Format>(e: &mut Environment, operand: u64) -> u64 {
    let value = e.operand::<F>(operand);
    if let Some(nan) = e.first_nan::<F>(&[value]) {
        return nan;
    }
    let (sign, magnitude) = (value & F::SIGN, value & (F::SIGN - 1));
    if magnitude == F::INFINITY {
        return sign;
    }
    if magnitude == 0 {
        e.raised |= DIVISION_BY_ZERO;
        return sign | F::INFINITY;
    }
    // The reciprocal of a number below a quarter of the least normal number overflows.
    if magnitude < 1 << (F::FRACTION_BITS - 2) {
        e.raised |= OVERFLOW | INEXACT;
        let to_infinity = match e.mode {
            RoundingMode::NearestEven => true,
            RoundingMode::Upward => sign == 0,
            RoundingMode::Downward => sign != 0,
            RoundingMode::TowardZero => false,
        };
        return sign | if to_infinity { F::INFINITY } else { F::INFINITY - 1 };
    }
    let (mut fraction, mut exponent) = parts::<F>(magnitude);
    // The reciprocal of a number of at least 2^(bias - 1) is subnormal.
    if e.flushes::<F>() && exponent >= i64::from(2 * F::BIAS - 1) {
        e.raised |= UNDERFLOW;
        return sign;
    }
    if exponent == 0 {
        let is_small = fraction >> 51 == 0;
        exponent -= i64::from(is_small);
        fraction = fraction << (1 + u32::from(is_small)) & ((1 << 52) - 1);
    }
    let estimate = reciprocal(256 | (fraction >> 44) as u32);
    let mut fraction = u64::from(estimate & 255) << 44;
    let mut exponent = i64::from(2 * F::BIAS - 1) - exponent;
    if exponent == 0 {
        fraction = 1 << 51 | fraction >> 1;
    } else if exponent == -1 {
        fraction = 1 << 50 | fraction >> 2;
        exponent = 0;
    }
    number::<F>(sign, exponent, fraction)
}

/// FRECPX: a number with the same sign and the inverted bits of the exponent. For zero and subnormal numbers, it has the
/// greatest exponent of a finite number.
pub(super) fn frecpx<F: Format>(e: &mut Environment, operand: u64) -> u64 {
    let value = e.operand::<F>(operand);
    if let Some(nan) = e.first_nan::<F>(&[value]) {
        return nan;
    }
    let sign = value & F::SIGN;
    match value & F::INFINITY {
        0 => sign | (F::INFINITY - (1 << F::FRACTION_BITS)),
        exponent => sign | exponent ^ F::INFINITY,
    }
}

/// FRSQRTE: an estimate of the reciprocal square root.
pub(super) fn frsqrte<F: Format>(e: &mut Environment, operand: u64) -> u64 {
    let value = e.operand::<F>(operand);
    if let Some(nan) = e.first_nan::<F>(&[value]) {
        return nan;
    }
    let (sign, magnitude) = (value & F::SIGN, value & (F::SIGN - 1));
    if magnitude == 0 {
        e.raised |= DIVISION_BY_ZERO;
        return sign | F::INFINITY;
    }
    if sign != 0 {
        return e.invalid::<F>();
    }
    if magnitude == F::INFINITY {
        return 0;
    }
    let (mut fraction, mut exponent) = parts::<F>(magnitude);
    if exponent == 0 {
        let zeros = i64::from(fraction.leading_zeros()) - 12;
        exponent -= zeros;
        fraction = fraction << (zeros + 1) & ((1 << 52) - 1);
    }
    let scaled = match exponent & 1 {
        0 => 256 | (fraction >> 44) as u32,
        _ => 128 | (fraction >> 45) as u32,
    };
    let exponent = (i64::from(3 * F::BIAS - 1) - exponent) >> 1;
    number::<F>(0, exponent, u64::from(reciprocal_root(scaled) & 255) << 44)
}
