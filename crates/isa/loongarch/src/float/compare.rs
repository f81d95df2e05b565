//! Comparison, minimum and maximum, classification.
//! Not the condition flags or masks that a comparison is written to.
//! Source: LoongArch Reference Manual, volume 1, sections 3.2.1 and 3.2.2; IEEE 754-2008, sections 5.11 and 5.3.1 (maxNum).

use super::{
    ExceptionFlags, Format,
    format::{Unpacked, is_negative, unpack},
    nan::{is_nan, is_signaling, propagate},
};

/// How two operands stand to each other; the numbers are the bits of FCMP's condition field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Relation {
    /// The first is less.
    Less = 1,
    /// They are equal (zeros of both signs are).
    Equal = 2,
    /// One is a NaN.
    Unordered = 4,
    /// The first is greater; FCMP's bit stands for it together with `Less`.
    Greater = 8,
}

/// Compares. A quiet NaN is invalid only if `signaling`; a signaling NaN always.
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

/// Compares as FCMP and VFCMP do: `condition` is their five-bit field. Bit 0 makes quiet NaNs invalid; the others choose the
/// relations that hold: 1 less, 2 equal, 3 unordered, 4 less or greater.
pub fn compare_condition<F: Format>(a: u64, b: u64, condition: u32) -> (bool, ExceptionFlags) {
    let (relation, flags) = compare::<F>(a, b, condition & 1 != 0);
    let either_way = if condition & 0x10 != 0 { Relation::Less as u32 } else { 0 };
    let accepted = condition >> 1 | either_way;
    (accepted & relation as u32 != 0, flags)
}

/// The lesser operand (minNum): a number rather than a quiet NaN, -0 rather than +0.
pub fn min<F: Format>(a: u64, b: u64) -> (u64, ExceptionFlags) {
    choose::<F>(a, b, |a, b| signed_key::<F>(a) <= signed_key::<F>(b))
}

/// The greater operand (maxNum): a number rather than a quiet NaN, +0 rather than -0.
pub fn max<F: Format>(a: u64, b: u64) -> (u64, ExceptionFlags) {
    choose::<F>(a, b, |a, b| signed_key::<F>(a) >= signed_key::<F>(b))
}

/// The operand of lesser magnitude (minNumMag); of equal ones as [`min`].
pub fn min_magnitude<F: Format>(a: u64, b: u64) -> (u64, ExceptionFlags) {
    choose::<F>(a, b, |a, b| {
        (magnitude::<F>(a), signed_key::<F>(a)) <= (magnitude::<F>(b), signed_key::<F>(b))
    })
}

/// The operand of greater magnitude (maxNumMag); of equal ones as [`max`].
pub fn max_magnitude<F: Format>(a: u64, b: u64) -> (u64, ExceptionFlags) {
    choose::<F>(a, b, |a, b| {
        (magnitude::<F>(a), signed_key::<F>(a)) >= (magnitude::<F>(b), signed_key::<F>(b))
    })
}

/// FCLASS: one bit of ten. 0 signaling NaN, 1 quiet NaN; 2 infinity, 3 normal, 4 subnormal, 5 zero if negative; 6 to 9 the same if
/// positive.
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

/// A number that orders as the operands do, zeros of both signs being one.
fn ordinal<F: Format>(a: u64) -> i64 {
    let magnitude = magnitude::<F>(a) as i64;
    if is_negative::<F>(a) { -magnitude } else { magnitude }
}

/// A number that orders as the operands do, -0 before +0.
fn signed_key<F: Format>(a: u64) -> i64 {
    let magnitude = magnitude::<F>(a) as i64;
    if is_negative::<F>(a) { !magnitude } else { magnitude }
}
