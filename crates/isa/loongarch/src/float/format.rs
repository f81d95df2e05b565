//! The three interchange formats, and the decomposition of bit patterns. Source: IEEE 754-2008, section 3.4.

/// A binary interchange format. Patterns are in the low bits of a `u64`. Higher bits are ignored in operands and 0 in
/// results.
pub trait Format: Copy + 'static {
    /// The width of the stored fraction in bits.
    const FRACTION_BITS: u32;
    /// The width of the exponent in bits.
    const EXPONENT_BITS: u32;
    /// The number of significant bits, including the hidden one.
    const PRECISION: u32 = Self::FRACTION_BITS + 1;
    /// The width of the pattern in bits.
    const BITS: u32 = 1 + Self::EXPONENT_BITS + Self::FRACTION_BITS;
    /// The exponent bias.
    const BIAS: i32 = (1 << (Self::EXPONENT_BITS - 1)) - 1;
    /// The smallest exponent of a normal number.
    const MIN_EXPONENT: i32 = 1 - Self::BIAS;
    /// The sign bit.
    const SIGN: u64 = 1 << (Self::BITS - 1);
    /// The pattern of positive infinity, which has all exponent bits set.
    const INFINITY: u64 = Self::SIGN - (1 << Self::FRACTION_BITS);
    /// The bit that makes a NaN quiet.
    const QUIET: u64 = 1 << (Self::FRACTION_BITS - 1);
    /// The NaN result of an operation without a NaN operand: positive and quiet.
    const DEFAULT_NAN: u64 = Self::INFINITY | Self::QUIET;
    /// The pattern of 1.
    const ONE: u64 = (Self::BIAS as u64) << Self::FRACTION_BITS;
}

/// binary16.
#[derive(Clone, Copy, Debug)]
pub struct Half;
/// binary32.
#[derive(Clone, Copy, Debug)]
pub struct Single;
/// binary64.
#[derive(Clone, Copy, Debug)]
pub struct Double;

impl Format for Half {
    const FRACTION_BITS: u32 = 10;
    const EXPONENT_BITS: u32 = 5;
}
impl Format for Single {
    const FRACTION_BITS: u32 = 23;
    const EXPONENT_BITS: u32 = 8;
}
impl Format for Double {
    const FRACTION_BITS: u32 = 52;
    const EXPONENT_BITS: u32 = 11;
}

/// A finite nonzero number: `significand * 2^exponent`, negative if `negative`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finite {
    pub negative: bool,
    pub exponent: i32,
    pub significand: u128,
}

impl Finite {
    /// The same number with the highest significand bit at position `top`.
    ///
    /// The significand must not have bits above that position.
    pub fn normalised(self, top: u32) -> Self {
        let shift = self.significand.leading_zeros() - (127 - top);
        Self { significand: self.significand << shift, exponent: self.exponent - shift as i32, ..self }
    }
}

/// A decomposed bit pattern.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unpacked {
    Zero { negative: bool },
    Finite(Finite),
    Infinity { negative: bool },
    NaN,
}

pub(super) fn is_negative<F: Format>(bits: u64) -> bool {
    bits & F::SIGN != 0
}

pub(super) fn unpack<F: Format>(bits: u64) -> Unpacked {
    let negative = is_negative::<F>(bits);
    let fraction = bits & ((1 << F::FRACTION_BITS) - 1);
    let biased = (bits & F::INFINITY) >> F::FRACTION_BITS;
    if bits & F::INFINITY == F::INFINITY {
        return if fraction == 0 { Unpacked::Infinity { negative } } else { Unpacked::NaN };
    }
    if biased == 0 && fraction == 0 {
        return Unpacked::Zero { negative };
    }
    let hidden = u64::from(biased != 0) << F::FRACTION_BITS;
    Unpacked::Finite(Finite {
        negative,
        exponent: biased.max(1) as i32 - F::BIAS - F::FRACTION_BITS as i32,
        significand: u128::from(fraction | hidden),
    })
}

pub(super) fn zero<F: Format>(negative: bool) -> u64 {
    if negative { F::SIGN } else { 0 }
}

pub(super) fn infinity<F: Format>(negative: bool) -> u64 {
    zero::<F>(negative) | F::INFINITY
}
