//! Comparison, minimum, maximum and classification. Source: LoongArch Reference Manual, volume 1, sections 3.2.1 and
//! 3.2.2; IEEE 754-2008, sections 5.11 and 5.3.1 (maxNum).

use super::{
    ExceptionFlags, Format,
    format::{Unpacked, is_negative, unpack},
    nan::{is_nan, is_signaling, propagate},
};

/// The relation of two operands. The values are bits of FCMP's condition field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Relation {
    /// The first is less.
    Less = 1,
    /// They are equal; zeros of different signs are equal.
    Equal = 2,
    /// At least one is a NaN.
    Unordered = 4,
    /// The first is greater. FCMP has one bit for "less or greater".
    Greater = 8,
}

/// Compares two numbers. A signaling NaN is always invalid, a quiet NaN only if `signaling`.
pub fn compare<F: Format>(a: u64, b: u64, signaling: bool) -> (Relation, ExceptionFlags) {
    if is_nan::<F>(a) || is_nan::<F>(b) {
        let invalid = signaling || is_signaling::<F>(a) || is_signaling::<F>(b);
        let flags = if invalid { ExceptionFlags::INVALID } else { ExceptionFlags::NONE };
        return (Relation::Unordered, flags);
    }
    let relation = match ordinal::<F>(a).cmp(&ordinal::<F>(b)) {
        std::cmp::Ordering::Less => Relation::Less,
        std::cmp::Ordering::Equal => Relation::Equal,
        std::cmp::Ordering::Greater => Relation::Greater,
    };
    (relation, ExceptionFlags::NONE)
}

/// Compares as FCMP and VFCMP do. `condition` is their five-bit condition field. Bit 0 makes quiet NaNs invalid. The
/// other bits select the relations for which the result is true: bit 1 less, 2 equal, 3 unordered, 4 less or greater.
pub fn compare_condition<F: Format>(a: u64, b: u64, condition: u32) -> (bool, ExceptionFlags) {
    let (relation, flags) = compare::<F>(a, b, condition & 1 != 0);
    let either_way = if condition & 0x10 != 0 { Relation::Less as u32 } else { 0 };
    let accepted = condition >> 1 | either_way;
    (accepted & relation as u32 != 0, flags)
}

/// The lesser operand (minNum). A number is preferred to a quiet NaN, and -0 is less than +0.
pub fn min<F: Format>(a: u64, b: u64) -> (u64, ExceptionFlags) {
    choose::<F>(a, b, |a, b| signed_key::<F>(a) <= signed_key::<F>(b))
}

/// The greater operand (maxNum). A number is preferred to a quiet NaN, and +0 is greater than -0.
pub fn max<F: Format>(a: u64, b: u64) -> (u64, ExceptionFlags) {
    choose::<F>(a, b, |a, b| signed_key::<F>(a) >= signed_key::<F>(b))
}

/// The operand of lesser magnitude (minNumMag); [`min`] if the magnitudes are equal.
pub fn min_magnitude<F: Format>(a: u64, b: u64) -> (u64, ExceptionFlags) {
    choose::<F>(a, b, |a, b| {
        (magnitude::<F>(a), signed_key::<F>(a)) <= (magnitude::<F>(b), signed_key::<F>(b))
    })
}

/// The operand of greater magnitude (maxNumMag); [`max`] if the magnitudes are equal.
pub fn max_magnitude<F: Format>(a: u64, b: u64) -> (u64, ExceptionFlags) {
    choose::<F>(a, b, |a, b| {
        (magnitude::<F>(a), signed_key::<F>(a)) >= (magnitude::<F>(b), signed_key::<F>(b))
    })
}

/// FCLASS: sets one of ten bits. 0 signaling NaN, 1 quiet NaN; for negative numbers 2 infinity, 3 normal, 4 subnormal,
/// 5 zero; 6 to 9 the same for positive numbers.
pub fn classify<F: Format>(a: u64) -> u64 {
    let kind = match unpack::<F>(a) {
        Unpacked::NaN => return if is_signaling::<F>(a) { 1 } else { 1 << 1 },
        Unpacked::Infinity { .. } => 2,
        Unpacked::Finite(_) if a & F::INFINITY != 0 => 3,
        Unpacked::Finite(_) => 4,
        Unpacked::Zero { .. } => 5,
    };
    1 << if is_negative::<F>(a) { kind } else { kind + 4 }
}

fn choose<F: Format>(a: u64, b: u64, first: impl Fn(u64, u64) -> bool) -> (u64, ExceptionFlags) {
    let pattern = F::SIGN | (F::SIGN - 1);
    let (a, b) = (a & pattern, b & pattern);
    if is_signaling::<F>(a) || is_signaling::<F>(b) || is_nan::<F>(a) && is_nan::<F>(b) {
        return propagate::<F>(&[a, b]).unwrap_or_default();
    }
    let first = !is_nan::<F>(a) && (is_nan::<F>(b) || first(a, b));
    (if first { a } else { b }, ExceptionFlags::NONE)
}

fn magnitude<F: Format>(a: u64) -> u64 {
    a & (F::SIGN - 1)
}

/// An integer with the order of the operands, in which both zeros are equal.
fn ordinal<F: Format>(a: u64) -> i64 {
    let magnitude = magnitude::<F>(a) as i64;
    if is_negative::<F>(a) { -magnitude } else { magnitude }
}

/// An integer with the order of the operands, in which -0 is less than +0.
fn signed_key<F: Format>(a: u64) -> i64 {
    let magnitude = magnitude::<F>(a) as i64;
    if is_negative::<F>(a) { !magnitude } else { magnitude }
}
