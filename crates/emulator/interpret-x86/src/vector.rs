//! SSE2 moves, integer operations and logic on XMM registers. The upper lanes of a LoongArch vector register are not
//! part of the XMM register.

use super::operands::mask;
use super::{DecodedInstruction, Form, Machine, Memory, VectorOperation};

/// Applies `combine` to the lanes of `size` bytes.
fn lanes(a: [u64; 2], b: [u64; 2], size: u8, combine: impl Fn(u64, u64) -> u64) -> [u64; 2] {
    let bits = 8 * u32::from(size);
    let half = |a: u64, b: u64| {
        (0..64).step_by(bits as usize).fold(0, |result, shift| {
            result | (combine(a >> shift & mask(size), b >> shift & mask(size)) & mask(size)) << shift
        })
    };
    [half(a[0], b[0]), half(a[1], b[1])]
}

/// Interleaves the lanes of `size` bytes of two halves.
fn interleaved(a: u64, b: u64, size: u8) -> [u64; 2] {
    let (bytes, from_a, from_b) = (usize::from(size), a.to_le_bytes(), b.to_le_bytes());
    let mut result = [0; 16];
    for lane in 0..8 / bytes {
        let from = lane * bytes..(lane + 1) * bytes;
        result[2 * lane * bytes..][..bytes].copy_from_slice(&from_a[from.clone()]);
        result[(2 * lane + 1) * bytes..][..bytes].copy_from_slice(&from_b[from]);
    }
    let wide = u128::from_le_bytes(result);
    [wide as u64, (wide >> 64) as u64]
}

fn wide([low, high]: [u64; 2]) -> u128 {
    u128::from(low) | u128::from(high) << 64
}

fn halves(value: u128) -> [u64; 2] {
    [value as u64, (value >> 64) as u64]
}

impl<M: Memory> Machine<'_, M> {
    fn vector_register(&self, number: u8) -> [u64; 2] {
        let lanes = &self.state.v[usize::from(number & 31)].0;
        [lanes[0], lanes[1]]
    }

    fn set_vector_register(&mut self, number: u8, value: [u64; 2]) {
        self.state.v[usize::from(number & 31)].0[..2].copy_from_slice(&value);
    }

    /// An operand of 16 bytes. In memory it must be aligned.
    fn vector_source(&self, step: &DecodedInstruction) -> Option<[u64; 2]> {
        match step.form {
            Form::FromMemory => {
                let address = step.address(&self.state.x);
                address.is_multiple_of(16).then(|| self.memory.load_wide(address)).flatten()
            }
            _ => Some(self.vector_register(step.from)),
        }
    }

    pub(super) fn vector(&mut self, step: &DecodedInstruction, operation: VectorOperation) -> Option<()> {
        use VectorOperation::*;
        let value = match operation {
            Move => return self.move_vector(step),
            MoveScalar | MergeScalar | FromGeneral | ToGeneral => return self.move_scalar(step, operation),
            LoadHalf | StoreHigh | CopyHalf => return self.move_half(step, operation),
            MoveMask => {
                let bits = wide(self.vector_register(step.from)).to_le_bytes();
                let mask = bits.iter().rev().fold(0, |mask, byte| mask << 1 | u64::from(byte >> 7));
                self.set_register(step.to, 4, mask);
                return Some(());
            }
            Shuffle => {
                let lanes = wide(self.vector_source(step)?);
                let lane = |number: u32| (lanes >> (32 * (step.immediate >> (2 * number) & 3))) as u32;
                halves((0..4).fold(0, |value, number| value | u128::from(lane(number)) << (32 * number)))
            }
            ShiftLeftBytes | ShiftRightBytes => {
                let value = wide(self.vector_register(step.to));
                let bits = 8 * step.immediate.min(16) as u32;
                let is_left = operation == ShiftLeftBytes;
                let shifted = if is_left { value.checked_shl(bits) } else { value.checked_shr(bits) };
                halves(shifted.unwrap_or(0))
            }
            _ => {
                let (a, b) = (self.vector_register(step.to), self.vector_source(step)?);
                let both = |combine: fn(u64, u64) -> u64| [combine(a[0], b[0]), combine(a[1], b[1])];
                match operation {
                    And => both(|a, b| a & b),
                    AndNot => both(|a, b| !a & b),
                    Or => both(|a, b| a | b),
                    Xor => both(|a, b| a ^ b),
                    Add => lanes(a, b, step.size, u64::wrapping_add),
                    Subtract => lanes(a, b, step.size, u64::wrapping_sub),
                    CompareEqual => lanes(a, b, step.size, |a, b| if a == b { u64::MAX } else { 0 }),
                    MinimumUnsignedBytes => lanes(a, b, 1, u64::min),
                    UnpackLow => interleaved(a[0], b[0], step.size),
                    _ => interleaved(a[1], b[1], step.size),
                }
            }
        };
        self.set_vector_register(step.to, value);
        Some(())
    }

    /// MOVAPS, MOVUPS and their variants.
    fn move_vector(&mut self, step: &DecodedInstruction) -> Option<()> {
        let address = step.address(&self.state.x);
        let is_aligned = step.size == 1 || address.is_multiple_of(16);
        match step.form {
            Form::FromMemory => {
                let value = is_aligned.then(|| self.memory.load_wide(address)).flatten()?;
                self.set_vector_register(step.to, value);
            }
            Form::ToMemory => {
                let value = self.vector_register(step.from);
                return (is_aligned && self.memory.store_wide(address, value)).then_some(());
            }
            _ => {
                let value = self.vector_register(step.from);
                self.set_vector_register(step.to, value);
            }
        }
        Some(())
    }

    /// Moves of 4 or 8 bytes.
    fn move_scalar(&mut self, step: &DecodedInstruction, operation: VectorOperation) -> Option<()> {
        let address = step.address(&self.state.x);
        match (step.form, operation) {
            (Form::ToMemory, _) => {
                let value = self.vector_register(step.from)[0];
                return self.memory.store(address, step.size, value).then_some(());
            }
            (_, VectorOperation::ToGeneral) => {
                let value = self.vector_register(step.from)[0] & mask(step.size);
                self.set_register(step.to, step.size, value);
            }
            (Form::FromMemory, _) => {
                let value = self.memory.load(address, step.size)?;
                self.set_vector_register(step.to, [value, 0]);
            }
            (_, VectorOperation::FromGeneral) => {
                let value = self.register(step.from, step.size);
                self.set_vector_register(step.to, [value, 0]);
            }
            (_, VectorOperation::MergeScalar) => {
                let [old, high] = self.vector_register(step.to);
                let new = self.vector_register(step.from)[0];
                let kept = !mask(step.size);
                self.set_vector_register(step.to, [old & kept | new & !kept, high]);
            }
            _ => {
                let value = self.vector_register(step.from)[0] & mask(step.size);
                self.set_vector_register(step.to, [value, 0]);
            }
        }
        Some(())
    }

    /// Moves of one half. `step.condition` is the destination's half, and for copies `step.from_size` the source's.
    fn move_half(&mut self, step: &DecodedInstruction, operation: VectorOperation) -> Option<()> {
        let address = step.address(&self.state.x);
        let new = match operation {
            VectorOperation::StoreHigh => {
                let value = self.vector_register(step.from)[1];
                return self.memory.store(address, 8, value).then_some(());
            }
            VectorOperation::LoadHalf => self.memory.load(address, 8)?,
            _ => self.vector_register(step.from)[usize::from(step.from_size & 1)],
        };
        let mut value = self.vector_register(step.to);
        value[usize::from(step.condition & 1)] = new;
        self.set_vector_register(step.to, value);
        Some(())
    }
}
