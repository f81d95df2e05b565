//! Conversion between double precision and the x87's 80-bit format. LoongArch has no arithmetic in that format. Source:
//! Intel SDM volume 1, sections 4.2.2 and 8.2.2 (encodings); the measured formulas of `fcvt.ld.d`, `fcvt.ud.d` and
//! `fcvt.d.ld` in jiegec/unofficial-loongarch-intrinsics-guide.

use super::{
    Double, ExceptionFlags, Format, RoundingMode,
    format::{Finite, Unpacked, is_negative, unpack, zero},
    nan,
    round::round,
};

/// An 80-bit number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extended {
    /// Bits 63 to 0: the explicit integer bit and the fraction.
    pub significand: u64,
    /// Bits 79 to 64: the sign and the exponent.
    pub sign_and_exponent: u16,
}

/// The exponent bias.
const BIAS: i32 = 16383;
/// The exponent field of infinities and NaNs.
const SPECIAL: u16 = 0x7fff;
/// The explicit integer bit.
const INTEGER_BIT: u64 = 1 << 63;
/// The number of fraction bits beyond those of a double.
const LONGER: u32 = 63 - Double::FRACTION_BITS;

impl Extended {
    /// Converts a double. The result is exact, except that a signaling NaN becomes quiet.
    pub fn from_double(bits: u64) -> (Self, ExceptionFlags) {
        let (exponent, significand, raised) = match unpack::<Double>(bits) {
            Unpacked::Zero { .. } => (0, 0, ExceptionFlags::NONE),
            Unpacked::Infinity { .. } => (SPECIAL, INTEGER_BIT, ExceptionFlags::NONE),
            Unpacked::NaN => {
                let (quiet, raised) =
                    nan::propagate::<Double>(&[bits]).unwrap_or_else(nan::invalid::<Double>);
                (SPECIAL, INTEGER_BIT | quiet << LONGER, raised)
            }
            Unpacked::Finite(number) => {
                let number = number.normalised(63);
                ((number.exponent + 63 + BIAS) as u16, number.significand as u64, ExceptionFlags::NONE)
            }
        };
        let sign = u16::from(is_negative::<Double>(bits)) << 15;
        (Self { significand, sign_and_exponent: sign | exponent }, raised)
    }

    /// Rounds to a double in the direction `mode`.
    ///
    /// A pattern with a nonzero exponent but without the integer bit is invalid since the 80387 and yields the default
    /// NaN.
    pub fn to_double(self, mode: RoundingMode) -> (u64, ExceptionFlags) {
        let negative = self.sign_and_exponent >> 15 == 1;
        let sign = zero::<Double>(negative);
        match (self.sign_and_exponent & SPECIAL, self.significand) {
            (1.., significand) if significand & INTEGER_BIT == 0 => nan::invalid::<Double>(),
            (SPECIAL, INTEGER_BIT) => (sign | Double::INFINITY, ExceptionFlags::NONE),
            (SPECIAL, significand) => {
                let signaling = significand << 1 >> 63 == 0;
                let raised = if signaling { ExceptionFlags::INVALID } else { ExceptionFlags::NONE };
                (sign | Double::DEFAULT_NAN | (significand & !INTEGER_BIT) >> LONGER, raised)
            }
            (_, 0) => (sign, ExceptionFlags::NONE),
            (exponent, significand) => {
                // Exponent field 0 represents the same exponent as field 1, without an integer bit.
                let exponent = i32::from(exponent.max(1)) - BIAS - 63;
                round::<Double>(Finite { negative, exponent, significand: significand.into() }, mode)
            }
        }
    }
}
