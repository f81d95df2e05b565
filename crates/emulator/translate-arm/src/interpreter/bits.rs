//! Shifts, bit fields and rearrangements of bits.

use longma_translate::front_end::DataMemory;

use super::registers::truncated;
use super::{DecodedInstruction, Machine};

/// Shifts left (0), right (1) or right with sign (2), or rotates right (3), by less than the operand's size.
pub(super) fn shifted(value: u64, kind: u32, count: u32, is_wide: bool) -> u64 {
    match (kind, is_wide) {
        (0, _) => value << count,
        (1, _) => value >> count,
        (2, true) => (value as i64 >> count) as u64,
        (2, false) => u64::from((value as i32 >> count) as u32),
        (_, true) => value.rotate_right(count),
        (_, false) => (value as u32).rotate_right(count).into(),
    }
}

impl<M: DataMemory> Machine<'_, M> {
    /// The shifted second operand.
    pub(super) fn shifted(&self, step: &DecodedInstruction) -> u64 {
        let is_wide = step.is_wide();
        let value = self.operand(step.register(16), is_wide);
        truncated(shifted(value, step.bits(22, 2), step.bits(10, 6), is_wide), is_wide)
    }

    pub(super) fn move_keep(&mut self, step: &DecodedInstruction) {
        let shift = 16 * step.bits(21, 2);
        let old = self.x(step.register(0));
        let value = old & !(0xffff << shift) | u64::from(step.bits(5, 16)) << shift;
        self.set_x(step.register(0), truncated(value, step.is_wide()));
    }

    /// SBFM, BFM and UBFM.
    pub(super) fn bit_field(&mut self, step: &DecodedInstruction) {
        let is_wide = step.is_wide();
        let size = if is_wide { 64 } else { 32 };
        let (first, last) = (step.bits(16, 6), step.bits(10, 6));
        let source = self.operand(step.register(5), is_wide);
        let ones = |count: u32| u64::MAX >> (64 - count);
        // The field, its width and its place in the result.
        let (field, width, place) = if last >= first {
            let width = last - first + 1;
            (source >> first & ones(width), width, 0)
        } else {
            (source & ones(last + 1), last + 1, size - first)
        };
        let result = match step.bits(29, 2) {
            0 => ((field << (64 - width)) as i64 >> (64 - width)) as u64,
            _ => field,
        } << place;
        let result = if step.bits(29, 2) == 1 {
            self.x(step.register(0)) & !(ones(width) << place) | result
        } else {
            result
        };
        self.set_x(step.register(0), truncated(result, is_wide));
    }

    /// EXTR.
    pub(super) fn extract(&mut self, step: &DecodedInstruction) {
        let is_wide = step.is_wide();
        let (high, low) = (self.operand(step.register(5), is_wide), self.operand(step.register(16), is_wide));
        let count = step.bits(10, 6);
        let size = if is_wide { 64 } else { 32 };
        let result = (u128::from(high) << size | u128::from(low)) >> count;
        self.set_x(step.register(0), truncated(result as u64, is_wide));
    }

    /// RBIT, REV16, REV32, REV, CLZ and CLS.
    pub(super) fn one_source(&mut self, step: &DecodedInstruction) {
        let is_wide = step.is_wide();
        let value = self.operand(step.register(5), is_wide);
        let unused = if is_wide { 0 } else { 32 };
        let result = match step.bits(10, 6) {
            0 => value.reverse_bits() >> unused,
            1 => (value & 0x00ff_00ff_00ff_00ff) << 8 | value >> 8 & 0x00ff_00ff_00ff_00ff,
            2 => value.swap_bytes().rotate_right(32) & if is_wide { u64::MAX } else { u32::MAX.into() },
            3 => value.swap_bytes(),
            4 => u64::from(value.leading_zeros() - unused),
            _ => {
                // The bits after the sign that equal it.
                let aligned = (value << unused) as i64;
                let differing = (aligned ^ (aligned >> 63)) as u64;
                u64::from(differing.leading_zeros().min(64 - unused) - 1)
            }
        };
        self.set_x(step.register(0), result);
    }
}
