//! Operands: registers of all sizes, immediates and memory.

use super::{DecodedInstruction, Form, Machine, Memory};
use crate::registers::STACK_POINTER;

/// Marks AH, CH, DH and BH, which are bits 8 to 15 of the register.
pub(super) const HIGH: u8 = 0x40;

/// The bits of a value of `size` bytes.
pub(super) fn mask(size: u8) -> u64 {
    u64::MAX >> (64 - 8 * u32::from(size))
}

/// Sign-extends a value of `size` bytes.
pub(super) fn sign_extended(value: u64, size: u8) -> u64 {
    let unused = 64 - 8 * u32::from(size);
    ((value << unused) as i64 >> unused) as u64
}

impl<M: Memory> Machine<'_, M> {
    /// The value of a general register, zero-extended.
    pub(super) fn register(&self, number: u8, size: u8) -> u64 {
        let value = self.state.x[usize::from(number & 31)];
        (value >> if number & HIGH != 0 { 8 } else { 0 }) & mask(size)
    }

    /// Sets a general register: 4 bytes clear the upper half, 1 and 2 bytes keep the other bytes.
    pub(super) fn set_register(&mut self, number: u8, size: u8, value: u64) {
        let register = &mut self.state.x[usize::from(number & 31)];
        *register = match size {
            8 => value,
            4 => u64::from(value as u32),
            _ => {
                let shift = if number & HIGH != 0 { 8 } else { 0 };
                *register & !(mask(size) << shift) | (value & mask(size)) << shift
            }
        };
    }

    fn load(&self, step: &DecodedInstruction, size: u8) -> Option<u64> {
        self.memory.load(step.address(&self.state.x), size)
    }

    /// The source operand, zero-extended.
    pub(super) fn source(&self, step: &DecodedInstruction) -> Option<u64> {
        match step.form {
            Form::Registers | Form::ToMemory => Some(self.register(step.from, step.size)),
            Form::Immediate | Form::ImmediateToMemory => Some(step.immediate & mask(step.size)),
            Form::FromMemory => self.load(step, step.size),
        }
    }

    /// The destination's value, zero-extended.
    pub(super) fn destination(&self, step: &DecodedInstruction) -> Option<u64> {
        match step.form {
            Form::ToMemory | Form::ImmediateToMemory => self.load(step, step.size),
            _ => Some(self.register(step.to, step.size)),
        }
    }

    /// Writes the destination.
    pub(super) fn put(&mut self, step: &DecodedInstruction, value: u64) -> Option<()> {
        match step.form {
            Form::ToMemory | Form::ImmediateToMemory => {
                self.memory.store(step.address(&self.state.x), step.size, value).then_some(())
            }
            _ => {
                self.set_register(step.to, step.size, value);
                Some(())
            }
        }
    }

    /// MOVZX, MOVSX and MOVSXD.
    pub(super) fn extend(&mut self, step: &DecodedInstruction) -> Option<()> {
        let value = match step.form {
            Form::FromMemory => self.load(step, step.from_size)?,
            _ => self.register(step.from, step.from_size),
        };
        let is_signed = step.operation == super::Operation::SignExtend;
        let value = if is_signed { sign_extended(value, step.from_size) } else { value };
        self.set_register(step.to, step.size, value);
        Some(())
    }

    /// Pushes 8 bytes.
    pub(super) fn push(&mut self, value: u64) -> Option<()> {
        let top = self.state.r(STACK_POINTER).wrapping_sub(8);
        self.memory.store(top, 8, value).then(|| self.state.set_r(STACK_POINTER, top))
    }

    /// Pops 8 bytes.
    pub(super) fn pop(&mut self) -> Option<u64> {
        let top = self.state.r(STACK_POINTER);
        let value = self.memory.load(top, 8)?;
        self.state.set_r(STACK_POINTER, top.wrapping_add(8));
        Some(value)
    }

    pub(super) fn push_operand(&mut self, step: &DecodedInstruction) -> Option<()> {
        let value = self.source(step)?;
        self.push(value)
    }

    pub(super) fn pop_operand(&mut self, step: &DecodedInstruction) -> Option<()> {
        let value = self.pop()?;
        self.set_register(step.to, 8, value);
        Some(())
    }

    pub(super) fn leave(&mut self) -> Option<()> {
        let frame = self.state.r(crate::registers::RBP);
        let value = self.memory.load(frame, 8)?;
        self.state.set_r(STACK_POINTER, frame.wrapping_add(8));
        self.state.set_r(crate::registers::RBP, value);
        Some(())
    }
}
