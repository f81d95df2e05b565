//! Floating-point arithmetic on bit patterns, exact including flags, for scalar and vector instructions. Source:
//! LoongArch Reference Manual, volume 1, section 3.1 (formats, exceptions, NaN results); IEEE 754-2008.
//!
//! Operations take bit patterns (in the low bits of a `u64`) and a rounding mode, and return a bit pattern and the
//! raised exceptions. Tininess is detected after rounding. Subnormals are flushed to zero only by [`Rules`].

mod arithmetic;
mod compare;
mod control;
mod convert;
mod extended;
mod format;
mod nan;
mod round;
mod rules;

pub use arithmetic::{add, div, logb, mul, mul_add, recip, rsqrt, scaleb, sqrt, sub};
pub use compare::{Relation, classify, compare, compare_condition, max, max_magnitude, min, min_magnitude};
pub use convert::{Integer, convert, from_signed, from_unsigned, round_to_integral, to_integer};
pub use extended::Extended;
pub use format::{Double, Format, Half, Single};
pub use rules::Rules;

/// The rounding mode, with the numbers of FCSR.
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
    /// The four modes in numerical order.
    pub const ALL: [Self; 4] = [Self::NearestEven, Self::TowardZero, Self::Upward, Self::Downward];
}

/// A set of floating-point exceptions. The low five bits are in the order of FCSR (V Z O U I from high to low).
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
    /// The result is tiny and exact. This is an exception only if the underflow trap is enabled.
    pub const TINY_EXACT: Self = Self(32);
    /// An operand is subnormal. Only [`Rules`] raises it.
    pub const SUBNORMAL_OPERAND: Self = Self(64);

    /// The set without the exceptions of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether the set contains any exception of `other`.
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
