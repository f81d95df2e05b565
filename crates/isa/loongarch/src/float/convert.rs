//! Conversions between formats and integers, and rounding to an integral number. Source: LoongArch Reference Manual,
//! volume 1, section 3.2.3; IEEE 754-2008, sections 5.4.2, 5.8 and 5.9.

use super::{
    ExceptionFlags, Format, RoundingMode,
    format::{Finite, Unpacked, infinity, unpack, zero},
    nan::{is_signaling, propagate},
    round::{round, to_multiple},
};

/// An integer type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Integer {
    /// The width in bits, 1 to 64.
    pub bits: u32,
    /// Whether it is in two's complement.
    pub signed: bool,
}

impl Integer {
    /// 32 bits, signed.
    pub const I32: Self = Self { bits: 32, signed: true };
    /// 64 bits, signed.
    pub const I64: Self = Self { bits: 64, signed: true };
    /// 32 bits, unsigned.
    pub const U32: Self = Self { bits: 32, signed: false };
    /// 64 bits, unsigned.
    pub const U64: Self = Self { bits: 64, signed: false };

    const fn least(self) -> i128 {
        if self.signed { -(1 << (self.bits - 1)) } else { 0 }
    }

    const fn greatest(self) -> i128 {
        if self.signed { (1 << (self.bits - 1)) - 1 } else { (1 << self.bits) - 1 }
    }
}

/// Converts `a` from format `From` to format `To`. A NaN keeps the high bits of its payload.
pub fn convert<From: Format, To: Format>(a: u64, mode: RoundingMode) -> (u64, ExceptionFlags) {
    match unpack::<From>(a) {
        Unpacked::Zero { negative } => (zero::<To>(negative), ExceptionFlags::NONE),
        Unpacked::Infinity { negative } => (infinity::<To>(negative), ExceptionFlags::NONE),
        Unpacked::Finite(x) => round::<To>(x, mode),
        Unpacked::NaN => {
            let fraction = u128::from(a & ((1 << From::FRACTION_BITS) - 1));
            let aligned = (fraction << To::FRACTION_BITS >> From::FRACTION_BITS) as u64;
            let sign = zero::<To>(a & From::SIGN != 0);
            let invalid = is_signaling::<From>(a);
            let flags = if invalid { ExceptionFlags::INVALID } else { ExceptionFlags::NONE };
            (sign | To::DEFAULT_NAN | aligned, flags)
        }
    }
}

/// Converts the integer `a`, rounding if it has too many bits.
pub fn from_signed<F: Format>(a: i64, mode: RoundingMode) -> (u64, ExceptionFlags) {
    from_magnitude::<F>(a < 0, a.unsigned_abs(), mode)
}

/// Converts the integer `a`, rounding if it has too many bits.
pub fn from_unsigned<F: Format>(a: u64, mode: RoundingMode) -> (u64, ExceptionFlags) {
    from_magnitude::<F>(false, a, mode)
}

fn from_magnitude<F: Format>(negative: bool, magnitude: u64, mode: RoundingMode) -> (u64, ExceptionFlags) {
    if magnitude == 0 {
        return (0, ExceptionFlags::NONE);
    }
    round::<F>(Finite { negative, exponent: 0, significand: magnitude.into() }, mode)
}

/// Rounds `a` to an integer of type `to`, in two's complement and sign-extended to 64 bits. An out-of-range value is
/// invalid and saturates; a NaN becomes 0.
pub fn to_integer<F: Format>(a: u64, to: Integer, mode: RoundingMode) -> (u64, ExceptionFlags) {
    let saturated = |negative: bool| {
        let value = if negative { to.least() } else { to.greatest() };
        (value as u64, ExceptionFlags::INVALID)
    };
    match unpack::<F>(a) {
        Unpacked::Zero { .. } => (0, ExceptionFlags::NONE),
        Unpacked::NaN => (0, ExceptionFlags::INVALID),
        Unpacked::Infinity { negative } => saturated(negative),
        // More than 64 bits: out of range for all types, and too large for the shift below.
        Unpacked::Finite(x) if x.exponent > 64 => saturated(x.negative),
        Unpacked::Finite(x) => {
            let (magnitude, inexact) = to_multiple(x, 0, mode);
            let value = if x.negative { -(magnitude as i128) } else { magnitude as i128 };
            if value < to.least() || value > to.greatest() {
                return saturated(x.negative);
            }
            (value as u64, if inexact { ExceptionFlags::INEXACT } else { ExceptionFlags::NONE })
        }
    }
}

/// Rounds `a` to an integral number of the same format. The result is inexact if it differs from `a`; a zero keeps its
/// sign.
pub fn round_to_integral<F: Format>(a: u64, mode: RoundingMode) -> (u64, ExceptionFlags) {
    if let Some(nan) = propagate::<F>(&[a]) {
        return nan;
    }
    match unpack::<F>(a) {
        Unpacked::Finite(x) if x.exponent < 0 => {
            let (significand, inexact) = to_multiple(x, 0, mode);
            let bits = match significand {
                0 => zero::<F>(x.negative),
                _ => round::<F>(Finite { exponent: 0, significand, ..x }, mode).0,
            };
            (bits, if inexact { ExceptionFlags::INEXACT } else { ExceptionFlags::NONE })
        }
        _ => (a & (F::SIGN | (F::SIGN - 1)), ExceptionFlags::NONE),
    }
}
