//! Integer arithmetic and logic. Memory is written before flags, so that a refused instruction changes nothing.

use super::operands::{mask, sign_extended};
use super::{DecodedInstruction, Form, Machine, Memory, Operation};
use crate::registers::{RAX, RDX};

impl<M: Memory> Machine<'_, M> {
    /// ADD, ADC, SUB, SBB and CMP.
    pub(super) fn add_or_subtract(&mut self, step: &DecodedInstruction) -> Option<()> {
        let size = step.size;
        let (a, b) = (self.destination(step)?, self.source(step)?);
        let carry = match step.operation {
            Operation::AddCarry | Operation::SubtractBorrow => self.carry(),
            _ => 0,
        };
        let is_addition = matches!(step.operation, Operation::Add | Operation::AddCarry);
        let result = if is_addition {
            a.wrapping_add(b).wrapping_add(carry)
        } else {
            a.wrapping_sub(b).wrapping_sub(carry)
        };
        let result = result & mask(size);
        if step.operation != Operation::Compare {
            self.put(step, result)?;
        }
        let sign = 8 * u32::from(size) - 1;
        if is_addition {
            self.set_carry(result < a || carry != 0 && result == a);
            self.set_overflow(((a ^ result) & (b ^ result)) >> sign & 1 != 0);
        } else {
            self.set_carry(a < b || carry != 0 && a == b);
            self.set_overflow(((a ^ b) & (a ^ result)) >> sign & 1 != 0);
        }
        self.set_adjust(a ^ b ^ result);
        self.set_result_flags(result, size);
        Some(())
    }

    /// AND, TEST, OR and XOR.
    pub(super) fn logic(&mut self, step: &DecodedInstruction) -> Option<()> {
        let (a, b) = (self.destination(step)?, self.source(step)?);
        let result = match step.operation {
            Operation::Or => a | b,
            Operation::Xor => a ^ b,
            _ => a & b,
        };
        if step.operation != Operation::Test {
            self.put(step, result)?;
        }
        self.set_carry(false);
        self.set_overflow(false);
        self.set_adjust(0);
        self.set_result_flags(result, step.size);
        Some(())
    }

    /// NOT, NEG, INC and DEC.
    pub(super) fn unary(&mut self, step: &DecodedInstruction) -> Option<()> {
        let size = step.size;
        let a = self.destination(step)?;
        let result = match step.operation {
            Operation::Not => !a,
            Operation::Negate => a.wrapping_neg(),
            Operation::Increment => a.wrapping_add(1),
            _ => a.wrapping_sub(1),
        };
        let result = result & mask(size);
        self.put(step, result)?;
        let minimum = 1 << (8 * u32::from(size) - 1);
        match step.operation {
            Operation::Not => return Some(()),
            Operation::Negate => {
                self.set_carry(a != 0);
                self.set_overflow(result == minimum);
                self.set_adjust(a ^ result);
            }
            Operation::Increment => {
                self.set_overflow(result == minimum);
                self.set_adjust(a ^ 1 ^ result);
            }
            _ => {
                self.set_overflow(a == minimum);
                self.set_adjust(a ^ 1 ^ result);
            }
        }
        self.set_result_flags(result, size);
        Some(())
    }

    /// IMUL with two or three operands. Of the flags, only CF and OF are defined.
    pub(super) fn multiply(&mut self, step: &DecodedInstruction) -> Option<()> {
        let size = step.size;
        let signed = |value| i128::from(sign_extended(value, size) as i64);
        let (a, b) = match step.form {
            Form::Immediate => (self.register(step.from, size), step.immediate & mask(size)),
            Form::FromMemory if step.from_size != 0 => (self.source(step)?, step.immediate & mask(size)),
            _ => (self.register(step.to, size), self.source(step)?),
        };
        let product = signed(a) * signed(b);
        let result = product as u64 & mask(size);
        self.set_register(step.to, size, result);
        let overflows = signed(result) != product;
        self.set_carry(overflows);
        self.set_overflow(overflows);
        self.set_result_flags(result, size);
        Some(())
    }

    /// MUL and IMUL with one operand of 4 or 8 bytes.
    pub(super) fn multiply_wide(&mut self, step: &DecodedInstruction) -> Option<()> {
        let size = step.size;
        let (a, b) = (self.register(RAX, size), self.source(step)?);
        let bits = 8 * u32::from(size);
        let (low, high, overflows) = if step.operation == Operation::MultiplyWide {
            let product = u128::from(a) * u128::from(b);
            (product as u64, (product >> bits) as u64, product >> bits != 0)
        } else {
            let signed = |value| i128::from(sign_extended(value, size) as i64);
            let product = signed(a) * signed(b);
            (product as u64, (product >> bits) as u64, signed(product as u64) != product)
        };
        self.set_register(RAX, size, low);
        self.set_register(RDX, size, high);
        self.set_carry(overflows);
        self.set_overflow(overflows);
        self.set_result_flags(low, size);
        Some(())
    }

    /// DIV and IDIV of 4 or 8 bytes. Errors are refused. All flags are undefined.
    pub(super) fn divide(&mut self, step: &DecodedInstruction) -> Option<()> {
        let size = step.size;
        let bits = 8 * u32::from(size);
        let (low, high, divisor) = (self.register(RAX, size), self.register(RDX, size), self.source(step)?);
        let dividend = u128::from(high) << bits | u128::from(low);
        let (quotient, remainder) = if step.operation == Operation::Divide {
            let divisor = u128::from(divisor);
            let quotient = dividend.checked_div(divisor)?;
            if quotient >> bits != 0 {
                return None;
            }
            (quotient as u64, (dividend % divisor) as u64)
        } else {
            let unused = 128 - 2 * bits;
            let dividend = (dividend << unused) as i128 >> unused;
            let divisor = i128::from(sign_extended(divisor, size) as i64);
            let quotient = dividend.checked_div(divisor)?;
            if i128::from(sign_extended(quotient as u64, size) as i64) != quotient {
                return None;
            }
            (quotient as u64, (dividend % divisor) as u64)
        };
        self.set_register(RAX, size, quotient);
        self.set_register(RDX, size, remainder);
        Some(())
    }

    /// CBW, CWDE and CDQE; CWD, CDQ and CQO.
    pub(super) fn extend_accumulator(&mut self, step: &DecodedInstruction) {
        let size = step.size;
        if step.operation == Operation::ExtendAccumulator {
            let value = sign_extended(self.register(RAX, size / 2), size / 2);
            self.set_register(RAX, size, value);
        } else {
            let value = sign_extended(self.register(RAX, size), size);
            self.set_register(RDX, size, (value as i64 >> 63) as u64);
        }
    }

    /// BT of a register.
    pub(super) fn test_bit(&mut self, step: &DecodedInstruction) -> Option<()> {
        let number = self.source(step)? & (8 * u64::from(step.size) - 1);
        let value = self.register(step.to, step.size);
        self.set_carry(value >> number & 1 != 0);
        Some(())
    }

    /// BSF and BSR. A source of zero leaves the destination as it is.
    pub(super) fn scan(&mut self, step: &DecodedInstruction) -> Option<()> {
        let value = self.source(step)?;
        self.set_zero(value == 0);
        if value != 0 {
            let is_forward = step.operation == Operation::ScanForward;
            let bit = if is_forward { value.trailing_zeros() } else { 63 - value.leading_zeros() };
            self.set_register(step.to, step.size, bit.into());
        }
        Some(())
    }
}
