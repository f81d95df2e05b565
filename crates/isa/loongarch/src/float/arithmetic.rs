//! Sums, products, quotients, roots, and scaling by powers of two. Source: LoongArch Reference Manual, volume 1,
//! section 3.2.1; IEEE 754-2008, sections 5.4.1 and 5.3.3.

use super::{
    ExceptionFlags, Format, RoundingMode,
    format::{Finite, Unpacked, infinity, is_negative, unpack, zero},
    nan::{invalid, propagate},
    round::{round, shift_right_sticky},
};

/// `a + b`.
pub fn add<F: Format>(a: u64, b: u64, mode: RoundingMode) -> (u64, ExceptionFlags) {
    if let Some(nan) = propagate::<F>(&[a, b]) {
        return nan;
    }
    match (unpack::<F>(a), unpack::<F>(b)) {
        (Unpacked::Infinity { negative: x }, Unpacked::Infinity { negative: y }) if x != y => invalid::<F>(),
        (Unpacked::Infinity { negative }, _) | (_, Unpacked::Infinity { negative }) => {
            (infinity::<F>(negative), ExceptionFlags::NONE)
        }
        (Unpacked::Finite(x), Unpacked::Finite(y)) => sum::<F>(x, y, mode),
        (Unpacked::Finite(x), _) | (_, Unpacked::Finite(x)) => round::<F>(x, mode),
        _ => (zero::<F>(zero_sum_sign(is_negative::<F>(a), is_negative::<F>(b), mode)), ExceptionFlags::NONE),
    }
}

/// `a - b`.
pub fn sub<F: Format>(a: u64, b: u64, mode: RoundingMode) -> (u64, ExceptionFlags) {
    // A NaN keeps its sign.
    propagate::<F>(&[a, b]).unwrap_or_else(|| add::<F>(a, b ^ F::SIGN, mode))
}

/// `a * b`.
pub fn mul<F: Format>(a: u64, b: u64, mode: RoundingMode) -> (u64, ExceptionFlags) {
    if let Some(nan) = propagate::<F>(&[a, b]) {
        return nan;
    }
    let negative = is_negative::<F>(a ^ b);
    match (unpack::<F>(a), unpack::<F>(b)) {
        (Unpacked::Infinity { .. }, Unpacked::Zero { .. })
        | (Unpacked::Zero { .. }, Unpacked::Infinity { .. }) => invalid::<F>(),
        (Unpacked::Infinity { .. }, _) | (_, Unpacked::Infinity { .. }) => {
            (infinity::<F>(negative), ExceptionFlags::NONE)
        }
        (Unpacked::Finite(x), Unpacked::Finite(y)) => round::<F>(product(x, y), mode),
        _ => (zero::<F>(negative), ExceptionFlags::NONE),
    }
}

/// `a * b + c` with one rounding. Of several NaNs, `c` has the highest priority, then `a`, then `b`.
///
/// `negate_addend` computes `a * b - c`. `negate_result` negates the rounded result, as in the manual's formulas. A NaN
/// keeps its sign.
pub fn mul_add<F: Format>(
    a: u64,
    b: u64,
    c: u64,
    negate_addend: bool,
    negate_result: bool,
    mode: RoundingMode,
) -> (u64, ExceptionFlags) {
    use Unpacked::{Infinity, Zero};
    let (x, y) = (unpack::<F>(a), unpack::<F>(b));
    let no_product = matches!((x, y), (Infinity { .. }, Zero { .. }) | (Zero { .. }, Infinity { .. }));
    if let Some((nan, flags)) = propagate::<F>(&[c, a, b]) {
        let invalid = if no_product { ExceptionFlags::INVALID } else { ExceptionFlags::NONE };
        return (nan, flags | invalid);
    }
    if no_product {
        return invalid::<F>();
    }
    let c = if negate_addend { c ^ F::SIGN } else { c };
    let negative = is_negative::<F>(a ^ b);
    let (bits, flags) = match (x, y, unpack::<F>(c)) {
        (Infinity { .. }, _, Infinity { negative: addend })
        | (_, Infinity { .. }, Infinity { negative: addend })
            if addend != negative =>
        {
            return invalid::<F>();
        }
        (Infinity { .. }, ..) | (_, Infinity { .. }, _) => (infinity::<F>(negative), ExceptionFlags::NONE),
        (.., Infinity { negative }) => (infinity::<F>(negative), ExceptionFlags::NONE),
        (Unpacked::Finite(x), Unpacked::Finite(y), Unpacked::Finite(z)) => sum::<F>(product(x, y), z, mode),
        (Unpacked::Finite(x), Unpacked::Finite(y), _) => round::<F>(product(x, y), mode),
        (.., Unpacked::Finite(z)) => round::<F>(z, mode),
        _ => (zero::<F>(zero_sum_sign(negative, is_negative::<F>(c), mode)), ExceptionFlags::NONE),
    };
    (if negate_result { bits ^ F::SIGN } else { bits }, flags)
}

/// `a / b`.
pub fn div<F: Format>(a: u64, b: u64, mode: RoundingMode) -> (u64, ExceptionFlags) {
    if let Some(nan) = propagate::<F>(&[a, b]) {
        return nan;
    }
    let negative = is_negative::<F>(a ^ b);
    match (unpack::<F>(a), unpack::<F>(b)) {
        (Unpacked::Infinity { .. }, Unpacked::Infinity { .. })
        | (Unpacked::Zero { .. }, Unpacked::Zero { .. }) => invalid::<F>(),
        (Unpacked::Infinity { .. }, _) => (infinity::<F>(negative), ExceptionFlags::NONE),
        (Unpacked::Finite(_), Unpacked::Zero { .. }) => {
            (infinity::<F>(negative), ExceptionFlags::DIVISION_BY_ZERO)
        }
        (Unpacked::Finite(x), Unpacked::Finite(y)) => {
            let (x, y) = (x.normalised(127), y.normalised(63));
            let quotient = x.significand / y.significand;
            let rest = x.significand % y.significand;
            let exponent = x.exponent - y.exponent;
            let significand = quotient | u128::from(rest != 0);
            round::<F>(Finite { negative, exponent, significand }, mode)
        }
        _ => (zero::<F>(negative), ExceptionFlags::NONE),
    }
}

/// `1 / a`.
pub fn recip<F: Format>(a: u64, mode: RoundingMode) -> (u64, ExceptionFlags) {
    div::<F>(F::ONE, a, mode)
}

/// The square root of `a`.
pub fn sqrt<F: Format>(a: u64, mode: RoundingMode) -> (u64, ExceptionFlags) {
    if let Some(nan) = propagate::<F>(&[a]) {
        return nan;
    }
    match unpack::<F>(a) {
        Unpacked::Zero { negative } => (zero::<F>(negative), ExceptionFlags::NONE),
        Unpacked::Infinity { negative: false } => (F::INFINITY, ExceptionFlags::NONE),
        Unpacked::Finite(x) if !x.negative => {
            // Make the exponent even, so that halving it is exact. The root of a 127-bit or 128-bit significand has 64
            // bits.
            let mut x = x.normalised(127);
            if x.exponent & 1 != 0 {
                x = Finite { significand: x.significand >> 1, exponent: x.exponent + 1, ..x };
            }
            let root = x.significand.isqrt();
            let significand = root << 1 | u128::from(root * root != x.significand);
            round::<F>(Finite { exponent: x.exponent / 2 - 1, significand, ..x }, mode)
        }
        _ => invalid::<F>(),
    }
}

/// `1 / sqrt(a)` with two roundings in `mode`, of the root and of the quotient, as in the manual's formula.
pub fn rsqrt<F: Format>(a: u64, mode: RoundingMode) -> (u64, ExceptionFlags) {
    let (root, flags) = sqrt::<F>(a, mode);
    let (bits, more) = recip::<F>(root, mode);
    (bits, flags | more)
}

/// `a * 2^n`.
pub fn scaleb<F: Format>(a: u64, n: i64, mode: RoundingMode) -> (u64, ExceptionFlags) {
    if let Some(nan) = propagate::<F>(&[a]) {
        return nan;
    }
    match unpack::<F>(a) {
        Unpacked::Finite(x) => {
            // Any number overflows or underflows beyond this range.
            let n = n.clamp(-0x8000, 0x8000) as i32;
            round::<F>(Finite { exponent: x.exponent + n, ..x }, mode)
        }
        _ => (a & (F::SIGN | F::INFINITY), ExceptionFlags::NONE),
    }
}

/// The base-2 exponent of `a` in the same format. A negative operand is invalid, because the manual defines the
/// operation as a logarithm. QEMU does the same. logB of IEEE 754 uses the magnitude.
pub fn logb<F: Format>(a: u64) -> (u64, ExceptionFlags) {
    if let Some(nan) = propagate::<F>(&[a]) {
        return nan;
    }
    match unpack::<F>(a) {
        Unpacked::Zero { .. } => (infinity::<F>(true), ExceptionFlags::DIVISION_BY_ZERO),
        Unpacked::Infinity { negative: false } => (F::INFINITY, ExceptionFlags::NONE),
        Unpacked::Finite(x) if !x.negative => {
            let logarithm = x.exponent + x.significand.ilog2() as i32;
            super::from_signed::<F>(logarithm.into(), RoundingMode::NearestEven)
        }
        _ => invalid::<F>(),
    }
}

fn product(a: Finite, b: Finite) -> Finite {
    Finite {
        negative: a.negative != b.negative,
        exponent: a.exponent + b.exponent,
        significand: a.significand * b.significand,
    }
}

/// The rounded sum of two numbers whose significands have at most 106 bits.
fn sum<F: Format>(a: Finite, b: Finite, mode: RoundingMode) -> (u64, ExceptionFlags) {
    // With the highest bits at position 125, a shift by one loses nothing. After a longer shift at most one leading bit
    // cancels, so the sticky bit stays well below the rounding position.
    let (a, b) = (a.normalised(125), b.normalised(125));
    let (large, small) = if a.exponent >= b.exponent { (a, b) } else { (b, a) };
    let addend = shift_right_sticky(small.significand, (large.exponent - small.exponent) as u32);
    let (significand, negative) = if large.negative == small.negative {
        (large.significand + addend, large.negative)
    } else if large.significand >= addend {
        (large.significand - addend, large.negative)
    } else {
        (addend - large.significand, small.negative)
    };
    if significand == 0 {
        return (zero::<F>(mode == RoundingMode::Downward), ExceptionFlags::NONE);
    }
    round::<F>(Finite { negative, exponent: large.exponent, significand }, mode)
}

/// The sign of a sum of zeros.
fn zero_sum_sign(a: bool, b: bool, mode: RoundingMode) -> bool {
    if a == b { a } else { mode == RoundingMode::Downward }
}
