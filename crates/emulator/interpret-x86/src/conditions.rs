//! Condition codes and flags. Source: Intel SDM, volume 1, appendix B (condition codes).

use super::operands::sign_extended;
use super::{Machine, Memory};
use crate::registers::{ADJUST, CARRY, NOT_ZERO, OVERFLOW, PARITY, SIGN};

impl<M: Memory> Machine<'_, M> {
    /// Whether a condition holds; the lowest bit of its code inverts it.
    pub(super) fn holds(&self, condition: u8) -> bool {
        let register = |number: u8| self.state.x[usize::from(number)];
        let is_carry = || register(CARRY) & 1 != 0;
        let is_zero = || register(NOT_ZERO) == 0;
        let is_less = || ((register(SIGN) ^ register(OVERFLOW)) as i64) < 0;
        let holds = match condition >> 1 {
            0 => (register(OVERFLOW) as i64) < 0,
            1 => is_carry(),
            2 => is_zero(),
            3 => is_carry() || is_zero(),
            4 => (register(SIGN) as i64) < 0,
            5 => (register(PARITY) as u8).count_ones().is_multiple_of(2),
            6 => is_less(),
            _ => is_less() || is_zero(),
        };
        holds != (condition & 1 != 0)
    }

    fn flag(&mut self, number: u8, value: u64) {
        self.state.x[usize::from(number)] = value;
    }

    /// Sets ZF, SF and PF.
    pub(super) fn set_result_flags(&mut self, result: u64, size: u8) {
        let result = sign_extended(result, size);
        self.flag(NOT_ZERO, result);
        self.flag(SIGN, result);
        self.flag(PARITY, result);
    }

    pub(super) fn set_carry(&mut self, is_set: bool) {
        self.flag(CARRY, is_set.into());
    }

    /// Sets OF.
    pub(super) fn set_overflow(&mut self, is_set: bool) {
        self.flag(OVERFLOW, u64::from(is_set) << 63);
    }

    /// Sets AF to bit 4 of `bits`.
    pub(super) fn set_adjust(&mut self, bits: u64) {
        self.flag(ADJUST, bits);
    }

    /// Sets ZF.
    pub(super) fn set_zero(&mut self, is_set: bool) {
        self.flag(NOT_ZERO, (!is_set).into());
    }

    pub(super) fn carry(&self) -> u64 {
        self.state.r(CARRY) & 1
    }
}
