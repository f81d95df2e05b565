//! The x87's 80-bit format, converted to and from double precision.
//! Not arithmetic in it: LoongArch has none.
//! Source: Intel SDM volume 1, sections 4.2.2 and 8.2.2 (encodings); the measured formulas of `fcvt.ld.d`, `fcvt.ud.d` and
//! `fcvt.d.ld` in jiegec/unofficial-loongarch-intrinsics-guide.

use super::{
    Double, ExceptionFlags, Format, RoundingMode,
    format::{Finite, Unpacked, is_negative, unpack, zero},
    nan,
    round::round,
};

/// A number of 80 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extended {
    /// Bits 63 to 0: the explicit integer bit and the fraction.
    pub significand: u64,
    /// Bits 79 to 64: the sign and the exponent.
    pub sign_and_exponent: u16,
}

/// What is added to the exponent of 2.
const BIAS: i32 = 16383;
/// The exponent's field of infinities and NaNs.
const SPECIAL: u16 = 0x7fff;
/// The explicit integer bit.
const INTEGER_BIT: u64 = 1 << 63;
/// By how much the fraction is longer than a double's.
const LONGER: u32 = 63 - Double::FRACTION_BITS;

impl Extended {
    /// A double in this format; exact, but a signaling NaN becomes quiet.
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

    /// The double nearest to the number in the direction `mode`.
    ///
    /// A pattern with an exponent but no integer bit, which is no number since the 80387, gives the default NaN.
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
                // The field 0 has the exponent of the field 1, without an integer bit of its own.
                let exponent = i32::from(exponent.max(1)) - BIAS - 63;
                round::<Double>(Finite { negative, exponent, significand: significand.into() }, mode)
            }
        }
    }
}
