//! Floating-point arithmetic on bit patterns, exact to the last flag; shared by the scalar and the vector instructions.
//! Not the registers and not FCSR's traps but for [`Fcsr::record`](crate::Fcsr::record).
//! Source: LoongArch Reference Manual, volume 1, section 3.1 (formats, exceptions, NaN results); IEEE 754-2008.
//!
//! Every operation is a function of bit patterns (in the low bits of a `u64`) and a rounding mode, and gives a bit pattern and the
//! exceptions it raised. Tininess is detected after rounding; subnormals are never flushed.

mod arithmetic;
mod compare;
mod control;
mod convert;
mod extended;
mod format;
mod nan;
mod round;

pub use arithmetic::{add, div, logb, mul, mul_add, recip, rsqrt, scaleb, sqrt, sub};
pub use compare::{Relation, classify, compare, compare_condition, max, max_magnitude, min, min_magnitude};
pub use convert::{Integer, convert, from_signed, from_unsigned, round_to_integral, to_integer};
pub use extended::Extended;
pub use format::{Double, Format, Half, Single};

/// The direction in which a result is rounded; the numbers are FCSR's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RoundingMode {
    /// To the nearest, ties to even (RNE).
    #[default]
    NearestEven = 0,
    /// Toward zero (RZ).
    TowardZero = 1,
    /// Toward positive infinity (RP).
    Upward = 2,
    /// Toward negative infinity (RM).
    Downward = 3,
}

impl RoundingMode {
    /// The four modes in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::NearestEven, Self::TowardZero, Self::Upward, Self::Downward];
}

/// A set of floating-point exceptions; the low five bits are in FCSR's order (V Z O U I from high to low).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExceptionFlags(
    /// The bits.
    pub u8,
);

impl ExceptionFlags {
    /// No exception.
    pub const NONE: Self = Self(0);
    /// The result was rounded.
    pub const INEXACT: Self = Self(1);
    /// The result is tiny and was rounded.
    pub const UNDERFLOW: Self = Self(2);
    /// The result is too large for the format.
    pub const OVERFLOW: Self = Self(4);
    /// A finite number was divided by zero.
    pub const DIVISION_BY_ZERO: Self = Self(8);
    /// The operation has no defined result.
    pub const INVALID: Self = Self(16);
    /// The result is tiny and exact: no exception, unless the underflow trap is enabled.
    pub const TINY_EXACT: Self = Self(32);

    /// True if one of `other`'s exceptions is in the set.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl std::ops::BitOr for ExceptionFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl std::ops::BitOrAssign for ExceptionFlags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}
