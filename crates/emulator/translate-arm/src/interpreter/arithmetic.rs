//! Additions, logic, comparisons, selections, multiplications and divisions. Source: Arm Architecture Reference Manual
//! (Arm DDI 0487), section C6.2 and the pseudocode of shared/functions/integer.

use longma_translate::front_end::DataMemory;

use super::registers::{sign, truncated};
use super::{DecodedInstruction, Machine};
use crate::registers::CARRY;

impl<M: DataMemory> Machine<'_, M> {
    /// The sum of two operands and a carry. Sets the flags if `sets_flags`.
    fn sum(&mut self, a: u64, b: u64, carry: bool, is_wide: bool, sets_flags: bool) -> u64 {
        let (a, b) = (truncated(a, is_wide), truncated(b, is_wide));
        let wide = u128::from(a) + u128::from(b) + u128::from(carry);
        let result = truncated(wide as u64, is_wide);
        if sets_flags {
            let bits = if is_wide { 64 } else { 32 };
            let overflows = sign((a ^ result) & (b ^ result), is_wide);
            self.set_flags(sign(result, is_wide), result == 0, wide >> bits & 1 != 0, overflows);
        }
        result
    }

    /// Adds `b` to `a` or subtracts it (bit 30), and sets the flags if bit 29 is set.
    fn add_or_subtract(&mut self, step: &DecodedInstruction, a: u64, b: u64) -> u64 {
        let is_subtraction = step.bit(30);
        let b = if is_subtraction { !b } else { b };
        self.sum(a, b, is_subtraction, step.is_wide(), step.bit(29))
    }

    /// Writes a sum to the destination. In the forms that do not set the flags, register 31 is the stack pointer.
    fn set_sum(&mut self, step: &DecodedInstruction, value: u64) {
        if step.bit(29) {
            self.set_x(step.register(0), value);
        } else {
            self.set_x_or_sp(step.register(0), value);
        }
    }

    pub(super) fn add_immediate(&mut self, step: &DecodedInstruction) {
        let a = self.x_or_sp(step.register(5));
        let result = self.add_or_subtract(step, a, step.value);
        self.set_sum(step, result);
    }

    pub(super) fn add_shifted(&mut self, step: &DecodedInstruction) {
        let (a, b) = (self.x(step.register(5)), self.shifted(step));
        let result = self.add_or_subtract(step, a, b);
        self.set_x(step.register(0), result);
    }

    pub(super) fn add_extended(&mut self, step: &DecodedInstruction) {
        let value = self.x(step.register(16));
        let extended = match step.bits(13, 3) {
            0 => u64::from(value as u8),
            1 => u64::from(value as u16),
            2 => u64::from(value as u32),
            4 => value as i8 as u64,
            5 => value as i16 as u64,
            6 => value as i32 as u64,
            _ => value,
        };
        let (a, b) = (self.x_or_sp(step.register(5)), extended << step.bits(10, 3));
        let result = self.add_or_subtract(step, a, b);
        self.set_sum(step, result);
    }

    /// ADC and SBC.
    pub(super) fn add_carry(&mut self, step: &DecodedInstruction) {
        let (a, b) = (self.x(step.register(5)), self.x(step.register(16)));
        let b = if step.bit(30) { !b } else { b };
        let result = self.sum(a, b, self.flag(CARRY), step.is_wide(), step.bit(29));
        self.set_x(step.register(0), result);
    }

    /// AND, ORR, EOR and ANDS, selected by bits 30 and 29.
    pub(super) fn logic(&mut self, step: &DecodedInstruction, b: u64) {
        let is_wide = step.is_wide();
        let a = self.x(step.register(5));
        let operation = step.bits(29, 2);
        let result = truncated(
            match operation {
                1 => a | b,
                2 => a ^ b,
                _ => a & b,
            },
            is_wide,
        );
        if operation == 3 {
            self.set_flags(sign(result, is_wide), result == 0, false, false);
        }
        // The immediate forms without flags can write the stack pointer.
        if operation != 3 && step.bit(28) {
            self.set_x_or_sp(step.register(0), result);
        } else {
            self.set_x(step.register(0), result);
        }
    }

    pub(super) fn logic_shifted(&mut self, step: &DecodedInstruction) {
        let b = self.shifted(step);
        self.logic(step, if step.bit(21) { !b } else { b });
    }

    /// CCMP and CCMN.
    pub(super) fn compare_if(&mut self, step: &DecodedInstruction) {
        if self.holds(step.bits(12, 4) as u8) {
            let a = self.x(step.register(5));
            let b = if step.bit(11) { step.bits(16, 5).into() } else { self.x(step.register(16)) };
            self.add_or_subtract(step, a, b);
        } else {
            self.set_flags(step.bit(3), step.bit(2), step.bit(1), step.bit(0));
        }
    }

    /// CSEL, CSINC, CSINV and CSNEG.
    pub(super) fn select(&mut self, step: &DecodedInstruction) {
        let value = if self.holds(step.bits(12, 4) as u8) {
            self.x(step.register(5))
        } else {
            let other = self.x(step.register(16));
            match (step.bit(30), step.bit(10)) {
                (false, false) => other,
                (false, true) => other.wrapping_add(1),
                (true, false) => !other,
                (true, true) => other.wrapping_neg(),
            }
        };
        self.set_x(step.register(0), truncated(value, step.is_wide()));
    }

    /// UDIV, SDIV, LSLV, LSRV, ASRV and RORV. A division by zero gives zero.
    pub(super) fn two_sources(&mut self, step: &DecodedInstruction) {
        let is_wide = step.is_wide();
        let (a, b) = (self.operand(step.register(5), is_wide), self.operand(step.register(16), is_wide));
        let count = b as u32 & if is_wide { 63 } else { 31 };
        let result = match (step.bits(10, 6), is_wide) {
            (2, _) => a.checked_div(b).unwrap_or(0),
            (3, true) => {
                if b == 0 {
                    0
                } else {
                    (a as i64).wrapping_div(b as i64) as u64
                }
            }
            (3, false) => {
                if b == 0 {
                    0
                } else {
                    (a as i32).wrapping_div(b as i32) as u64
                }
            }
            (operation, _) => super::bits::shifted(a, operation - 8, count, is_wide),
        };
        self.set_x(step.register(0), truncated(result, is_wide));
    }

    /// MADD, MSUB, SMADDL, SMSUBL, UMADDL and UMSUBL.
    pub(super) fn multiply_add(&mut self, step: &DecodedInstruction) {
        let (n, m) = (self.x(step.register(5)), self.x(step.register(16)));
        let product = match step.bits(21, 3) {
            1 => (n as i32 as i64).wrapping_mul(m as i32 as i64) as u64,
            5 => u64::from(n as u32).wrapping_mul(u64::from(m as u32)),
            _ => n.wrapping_mul(m),
        };
        let a = self.x(step.register(10));
        let result = if step.bit(15) { a.wrapping_sub(product) } else { a.wrapping_add(product) };
        self.set_x(step.register(0), truncated(result, step.is_wide()));
    }

    /// SMULH and UMULH.
    pub(super) fn multiply_high(&mut self, step: &DecodedInstruction) {
        let (n, m) = (self.x(step.register(5)), self.x(step.register(16)));
        let high = if step.bit(23) {
            ((u128::from(n) * u128::from(m)) >> 64) as u64
        } else {
            ((i128::from(n as i64) * i128::from(m as i64)) >> 64) as u64
        };
        self.set_x(step.register(0), high);
    }
}
