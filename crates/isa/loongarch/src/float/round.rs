//! Rounds an exact number to a format and determines the exceptions. Source: IEEE 754-2008, sections 4.3 (rounding) and
//! 7.4, 7.5 (overflow, underflow).

use super::{
    ExceptionFlags, Format, RoundingMode,
    format::{Finite, infinity},
};

/// `significand >> shift`. The lowest bit is also set if any bit shifted out was set, which suffices for later
/// rounding.
pub(super) fn shift_right_sticky(significand: u128, shift: u32) -> u128 {
    match shift {
        0 => significand,
        1..128 => significand >> shift | u128::from(significand << (128 - shift) != 0),
        _ => u128::from(significand != 0),
    }
}

/// Rounds `number` to a multiple of `2^quantum`. Returns the factor of `2^quantum`, which must fit into 128 bits, and
/// whether the result is inexact.
pub(super) fn to_multiple(number: Finite, quantum: i32, mode: RoundingMode) -> (u128, bool) {
    let Finite { negative, exponent, significand } = number;
    let shift = quantum - exponent;
    if shift <= 0 {
        return (significand << -shift, false);
    }
    // Keep two bits below the quantum: the half bit, and a sticky bit for the rest.
    let (integral, rest) = match shift {
        1 => (significand >> 1, (significand & 1) << 1),
        _ => {
            let with_rest = shift_right_sticky(significand, shift as u32 - 2);
            (with_rest >> 2, with_rest & 3)
        }
    };
    let up = match mode {
        RoundingMode::NearestEven => rest > 2 || rest == 2 && integral & 1 == 1,
        RoundingMode::TowardZero => false,
        RoundingMode::Upward => rest != 0 && !negative,
        RoundingMode::Downward => rest != 0 && negative,
    };
    (integral + u128::from(up), rest != 0)
}

/// Rounds `number` to a bit pattern in the direction `mode`. The lowest significand bit may be sticky if the
/// significand has at least two more bits than the format's precision.
pub(super) fn round<F: Format>(number: Finite, mode: RoundingMode) -> (u64, ExceptionFlags) {
    let top = number.exponent + 127 - number.significand.leading_zeros() as i32;
    let unbounded_quantum = top - F::FRACTION_BITS as i32;
    let quantum = unbounded_quantum.max(F::MIN_EXPONENT - F::FRACTION_BITS as i32);
    let (multiple, inexact) = to_multiple(number, quantum, mode);

    // A carry out of the fraction increments the exponent field, also from subnormal to normal.
    let biased_below = quantum + F::FRACTION_BITS as i32 + F::BIAS - 1;
    let sign = if number.negative { F::SIGN } else { 0 };
    let overflow =
        (multiple >> F::FRACTION_BITS) as i64 + i64::from(biased_below) >= (1 << F::EXPONENT_BITS) - 1;
    if overflow {
        return overflowed::<F>(number.negative, mode);
    }
    let bits = sign | (((biased_below as u64) << F::FRACTION_BITS) + multiple as u64);

    let tiny = top < F::MIN_EXPONENT && {
        let (unbounded, _) = to_multiple(number, unbounded_quantum, mode);
        top + 1 < F::MIN_EXPONENT || unbounded >> F::PRECISION == 0
    };
    let flags = match (tiny, inexact) {
        (true, true) => ExceptionFlags::UNDERFLOW | ExceptionFlags::INEXACT,
        (true, false) => ExceptionFlags::TINY_EXACT,
        (false, true) => ExceptionFlags::INEXACT,
        (false, false) => ExceptionFlags::NONE,
    };
    (bits, flags)
}

fn overflowed<F: Format>(negative: bool, mode: RoundingMode) -> (u64, ExceptionFlags) {
    let to_infinity = match mode {
        RoundingMode::NearestEven => true,
        RoundingMode::TowardZero => false,
        RoundingMode::Upward => !negative,
        RoundingMode::Downward => negative,
    };
    let infinity = infinity::<F>(negative);
    let bits = if to_infinity { infinity } else { infinity - 1 };
    (bits, ExceptionFlags::OVERFLOW | ExceptionFlags::INEXACT)
}
