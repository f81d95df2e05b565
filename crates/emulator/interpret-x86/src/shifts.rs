//! Shifts and rotations. A count of zero leaves the flags as they are.

use super::operands::{mask, sign_extended};
use super::{DecodedInstruction, Form, Machine, Memory, Operation};
use crate::registers::RCX;

impl<M: Memory> Machine<'_, M> {
    /// SHL, SHR, SAR, ROL and ROR by an immediate or CL.
    pub(super) fn shift(&mut self, step: &DecodedInstruction) -> Option<()> {
        let size = step.size;
        let bits = 8 * u32::from(size);
        let is_immediate = matches!(step.form, Form::Immediate | Form::ImmediateToMemory);
        let count = if is_immediate { step.immediate } else { self.register(RCX, 1) };
        let count = count as u32 & if size == 8 { 63 } else { 31 };
        let a = self.destination(step)?;
        let top = |value: u64| value >> (bits - 1) & 1 != 0;
        if count == 0 {
            // Even with a count of zero, the upper half of a 32-bit destination is cleared.
            return self.put(step, a);
        }
        let (result, carry, overflow) = match step.operation {
            Operation::ShiftLeft => {
                let wide = u128::from(a) << count;
                let result = wide as u64 & mask(size);
                let carry = wide >> bits & 1 != 0;
                (result, carry, top(result) != carry)
            }
            Operation::ShiftRight => {
                let result = a.checked_shr(count).unwrap_or(0);
                (result, a >> (count - 1) & 1 != 0, top(a))
            }
            Operation::ShiftRightSigned => {
                let wide = sign_extended(a, size) as i64;
                let result = (wide >> count.min(63)) as u64 & mask(size);
                (result, wide >> (count - 1) & 1 != 0, false)
            }
            Operation::RotateLeft => {
                let turns = count % bits;
                let result = (a << turns | a.checked_shr(bits - turns).unwrap_or(0)) & mask(size);
                (result, result & 1 != 0, top(result) != (result & 1 != 0))
            }
            _ => {
                let turns = count % bits;
                let result = (a >> turns | a.checked_shl(bits - turns).unwrap_or(0)) & mask(size);
                (result, top(result), top(result) != (result >> (bits - 2) & 1 != 0))
            }
        };
        self.put(step, result)?;
        self.set_carry(carry);
        self.set_overflow(overflow);
        if !matches!(step.operation, Operation::RotateLeft | Operation::RotateRight) {
            self.set_adjust(0);
            self.set_result_flags(result, size);
        }
        Some(())
    }
}
