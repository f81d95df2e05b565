//! Lowers rounding to integral numbers, conversions to integers and fixed-point numbers, and comparisons of absolute
//! values. Source: Arm Architecture Reference Manual (Arm DDI 0487), section C7.2 (FRINTA, FCVTAS, FCVTZS, FACGE and
//! related instructions); LoongArch Reference Manual, volume 2.

use longma_loongarch::Op as La;

use super::shifts::amounts;
use crate::code::lower::Lowering;
use crate::instruction::{Instruction, Op};

/// An operation in single and double precision.
type Pair = [La; 2];

/// The conversions to signed integers in a rounding mode.
fn to_signed(op: Op) -> Option<Pair> {
    use Op::*;
    Some(match op {
        FcvtnsV | FcvtnsScalar => [La::VftintrneWS, La::VftintrneLD],
        FcvtmsV | FcvtmsScalar => [La::VftintrmWS, La::VftintrmLD],
        FcvtpsV | FcvtpsScalar => [La::VftintrpWS, La::VftintrpLD],
        _ => return None,
    })
}

/// The rounding mode of an instruction that rounds to integral numbers without recording inexact results: in the encoding
/// of FCSR, or 4 for the current mode.
fn integral_mode(op: Op) -> Option<i32> {
    use Op::*;
    Some(match op {
        Frintn | FrintnV => 0,
        Frintz | FrintzV => TOWARD_ZERO,
        Frintp | FrintpV => 2,
        Frintm | FrintmV => 3,
        Frinti | FrintiV => 4,
        _ => return None,
    })
}

/// The rounding mode toward zero in the encoding of FCSR.
const TOWARD_ZERO: i32 = 1;

const ROUND_EXACT: Pair = [La::VfrintSExact, La::VfrintDExact];

/// The rounding that precedes a conversion to unsigned integers.
fn before_unsigned(op: Op) -> Option<Pair> {
    use Op::*;
    Some(match op {
        FcvtnuV | FcvtnuScalar => [La::VfrintrneS, La::VfrintrneD],
        FcvtmuV | FcvtmuScalar => [La::VfrintrmS, La::VfrintrmD],
        FcvtpuV | FcvtpuScalar => [La::VfrintrpS, La::VfrintrpD],
        _ => return None,
    })
}

const TRUNCATE_SIGNED: Pair = [La::VftintrzWS, La::VftintrzLD];
const TRUNCATE_UNSIGNED: Pair = [La::VftintrzWuS, La::VftintrzLuD];

impl Lowering<'_> {
    pub(super) fn vector_rounding(&mut self, i: Instruction) -> bool {
        use Op::*;
        let double = usize::from(i.is_double());
        let d = i.rd();
        if let Some(mode) = integral_mode(i.op) {
            let n = self.rounded_operand(i);
            self.assembler.immediate(ROUND_EXACT[double], d, n, mode);
            self.put_rounded(i);
            return true;
        }
        if let Some(ops) = to_signed(i.op) {
            let n = self.replicated_scalar(i);
            self.assembler.two(ops[double], d, n);
            self.put_rounded(i);
            return true;
        }
        if let Some(ops) = before_unsigned(i.op) {
            let n = self.replicated_scalar(i);
            self.assembler.two(ops[double], d, n);
            self.assembler.two(TRUNCATE_UNSIGNED[double], d, d);
            self.put_rounded(i);
            return true;
        }
        match i.op {
            FrintaV | Frinta => {
                let n = self.rounded_operand(i);
                let rounded = self.round_away(i, n, &[d, n]);
                self.assembler.three(La::VorV, d, rounded, rounded);
            }
            FcvtasV | FcvtasScalar | FcvtauV | FcvtauScalar => {
                let n = self.rounded_operand(i);
                let rounded = self.round_away(i, n, &[d, n]);
                let is_signed = matches!(i.op, FcvtasV | FcvtasScalar);
                let ops = if is_signed { TRUNCATE_SIGNED } else { TRUNCATE_UNSIGNED };
                self.assembler.two(ops[double], d, rounded);
            }
            FacgeV | FacgtV | FacgeScalar | FacgtScalar => self.compare_absolute(i, double),
            FcvtzsVFixed | FcvtzuVFixed | ScvtfVFixed | UcvtfVFixed => return self.fixed_lanes(i),
            _ => return false,
        }
        self.put_rounded(i);
        true
    }

    /// Whether the instruction operates on one element.
    fn is_scalar(i: Instruction) -> bool {
        i.bits(28, 1) != 0
    }

    fn rounded_operand(&mut self, i: Instruction) -> u8 {
        if Self::is_scalar(i) { self.scalar(i.rn(), i) } else { self.lanes(i.rn(), i.is_whole()) }
    }

    /// The operand. If it is a scalar, its copies are in all elements of the destination, so that an instruction on all
    /// elements raises the scalar's exceptions only.
    fn replicated_scalar(&mut self, i: Instruction) -> u8 {
        let n = self.rounded_operand(i);
        if Self::is_scalar(i) {
            return self.spread(i.rd(), n, i);
        }
        if !i.is_whole() {
            self.assembler.immediate(La::VreplveiD, i.rd(), n, 0);
            return i.rd();
        }
        n
    }

    /// Copies the lowest element of `n` to all elements of `to`. Returns `to`.
    pub(crate) fn spread(&mut self, to: u8, n: u8, i: Instruction) -> u8 {
        let op = if i.is_double() { La::VreplveiD } else { La::VreplveiW };
        self.assembler.immediate(op, to, n, 0);
        to
    }

    fn put_rounded(&mut self, i: Instruction) {
        if Self::is_scalar(i) {
            self.put_scalar(i.rd(), i.is_double());
        } else {
            self.put_lanes(i.rd(), i.is_whole());
        }
    }

    /// Rounds to the nearest integral number, ties away from zero. Returns a borrowed vector. FRINTA does not record
    /// inexact results.
    pub(crate) fn round_away(&mut self, i: Instruction, n: u8, used: &[u8]) -> u8 {
        let double = usize::from(i.is_double());
        let [small, rest, half, result] = [(); 4].map(|()| self.borrow_vector(used));
        let (clear, sign) = ([La::VbitclriW, La::VbitclriD][double], [31, 63][double]);
        let constants: [i64; 4] = [
            // At and above this magnitude, all numbers are integral.
            [0x4b00_0000_4b00_0000, 0x4330_0000_0000_0000],
            [0x3f00_0000_3f00_0000, 0x3fe0_0000_0000_0000],
            [0x3f80_0000_3f80_0000, 0x3ff0_0000_0000_0000],
            [0x8000_0000_8000_0000u64 as i64, i64::MIN],
        ]
        .map(|pair| pair[double]);
        let value = self.temporary();
        let replicate = |lowering: &mut Self, to: u8, number: usize| {
            lowering.assembler.constant(value, constants[number]);
            lowering.assembler.two(La::Vreplgr2vrD, to, value);
        };
        replicate(self, small, 0);
        let from = if Self::is_scalar(i) { self.spread(half, n, i) } else { n };
        self.assembler.immediate(clear, rest, from, sign);
        self.assembler.three([La::VfcmpCltS, La::VfcmpCltD][double], small, rest, small);
        if matches!(i.op, Op::Frinta | Op::FrintaV) {
            self.assembler.immediate(ROUND_EXACT[double], result, from, TOWARD_ZERO);
        } else {
            self.assembler.two([La::VfrintrzS, La::VfrintrzD][double], result, from);
        }
        // The difference is exact, and is computed only for small numbers.
        self.assembler.three(La::VandV, rest, from, small);
        self.assembler.three(La::VandV, half, result, small);
        self.assembler.three([La::VfsubS, La::VfsubD][double], rest, rest, half);
        self.assembler.immediate(clear, rest, rest, sign);
        replicate(self, half, 1);
        self.assembler.three([La::VfcmpCleS, La::VfcmpCleD][double], half, half, rest);
        replicate(self, rest, 2);
        self.assembler.three(La::VandV, rest, rest, half);
        // Adds 1 or 0 with the sign of the operand.
        replicate(self, small, 3);
        self.assembler.three(La::VandV, small, n, small);
        self.assembler.three(La::VorV, rest, rest, small);
        self.assembler.three([La::VfaddS, La::VfaddD][double], result, result, rest);
        self.free(value);
        result
    }

    fn compare_absolute(&mut self, i: Instruction, double: usize) {
        let n = self.rounded_operand(i);
        let is_scalar = Self::is_scalar(i);
        let m = if is_scalar { self.scalar(i.rm(), i) } else { self.lanes(i.rm(), i.is_whole()) };
        let [first, second] = [(); 2].map(|()| self.borrow_vector(&[i.rd(), n, m]));
        let (clear, sign) = ([La::VbitclriW, La::VbitclriD][double], [31, 63][double]);
        self.assembler.immediate(clear, first, n, sign);
        self.assembler.immediate(clear, second, m, sign);
        if is_scalar {
            self.spread(first, first, i);
            self.spread(second, second, i);
        } else if !i.is_whole() {
            // Copy the lower halves to the upper ones, so that these raise no other exceptions.
            self.assembler.immediate(La::VreplveiD, first, first, 0);
            self.assembler.immediate(La::VreplveiD, second, second, 0);
        }
        let op = match i.op {
            Op::FacgeV | Op::FacgeScalar => [La::VfcmpSleS, La::VfcmpSleD],
            _ => [La::VfcmpSltS, La::VfcmpSltD],
        };
        self.assembler.three(op[double], i.rd(), second, first);
    }

    /// Conversions to and from fixed-point numbers of single and double precision: scales by a power of two.
    fn fixed_lanes(&mut self, i: Instruction) -> bool {
        let (size, fraction_bits, _) = amounts(i);
        let Some(double) = size.checked_sub(2) else { return false };
        let (d, is_whole) = (i.rd(), i.is_whole());
        let n = self.lanes(i.rn(), is_whole);
        let scale = self.borrow_vector(&[d, n]);
        let multiply = [La::VfmulS, La::VfmulD][double];
        let from_integer = match i.op {
            Op::ScvtfVFixed => Some([La::VffintSW, La::VffintDL]),
            Op::UcvtfVFixed => Some([La::VffintSWu, La::VffintDLu]),
            _ => None,
        };
        let exponent = if from_integer.is_some() { -fraction_bits } else { fraction_bits };
        let value = self.constant(power_of_two(exponent, double));
        self.assembler.two(La::Vreplgr2vrD, scale, value);
        if let Some(ops) = from_integer {
            self.assembler.two(ops[double], d, n);
            self.assembler.three(multiply, d, d, scale);
        } else {
            let ops = if i.op == Op::FcvtzsVFixed { TRUNCATE_SIGNED } else { TRUNCATE_UNSIGNED };
            self.assembler.three(multiply, scale, n, scale);
            self.assembler.two(ops[double], d, scale);
        }
        self.put_lanes(d, is_whole);
        true
    }
}

/// The pattern of a power of two, in both halves for single precision.
pub(crate) fn power_of_two(exponent: i32, double: usize) -> i64 {
    match double {
        0 => i64::from(127 + exponent) << 23 | i64::from(127 + exponent) << 55,
        _ => i64::from(1023 + exponent) << 52,
    }
}
