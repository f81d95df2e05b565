//! Shapes: the state of an in-order pipeline that affects later timing, relative to the current cycle, numbered.
//! Pipelines with equal shapes behave equally. The front end, the load and store queues and the memory are not part of
//! a shape.
//!
//! Source: the configurations of Schnarr and Larus, Fast Out-of-Order Processor Simulation Using Memoization (ASPLOS
//! 1998).

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Value;
use crate::{registers::SLOTS, stack::Cause, units::Units};

/// Maximum time until a result is available in a shape, cycles. Longer waits come from memory and seldom repeat.
const MAX_CYCLES: u64 = 4095;

/// Maximum number of shapes: some six megabytes.
const MAX_SHAPES: usize = 1 << 16;

/// A shape's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ShapeNumber(u32);

/// All known shapes.
///
/// A shape is a sequence of words: one with the slots used in the current cycle, the units in use and the number of
/// units held beyond it; one for each held unit; and one for each register whose value is pending.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    numbers: FxHashMap<Arc<[u64]>, ShapeNumber>,
    words: Vec<Arc<[u64]>>,
    words_of_shape: Vec<u64>,
}

const USED_BITS: u32 = 8;
const UNITS_BITS: u32 = 32;
const SLOT_BITS: u32 = 8;
const CAUSE_BITS: u32 = 8;
const CYCLES_BITS: u32 = 16;

impl Shapes {
    /// Returns the number of the pipeline's shape at `cycle`, in which `used` slots are already used. `None` if a wait
    /// is too long, or if the shape is new and the table is full. No value is available later than `last_result`.
    pub fn number(
        &mut self,
        (cycle, used): (u64, u64),
        last_result: u64,
        values: &[Value; SLOTS],
        units: &mut Units,
    ) -> Option<ShapeNumber> {
        self.words_of_shape.clear();
        let (busy, held_units) = units.taken_at(cycle);
        let head = used | u64::from(busy) << USED_BITS;
        self.words_of_shape.push(head | u64::from(held_units.count_ones()) << (USED_BITS + UNITS_BITS));
        for unit in bits(held_units) {
            self.words_of_shape.push(u64::from(unit) | (units.held_until(unit) - cycle) << SLOT_BITS);
        }
        if last_result > cycle {
            if last_result - cycle > MAX_CYCLES {
                return None;
            }
            for (slot, value) in values.iter().enumerate().filter(|(_, value)| value.ready > cycle) {
                self.words_of_shape.push(word(slot, value, cycle)?);
            }
        }
        if let Some(number) = self.numbers.get(&*self.words_of_shape) {
            return Some(*number);
        }
        if self.is_full() {
            return None;
        }
        let number = ShapeNumber(self.words.len() as u32);
        let words: Arc<[u64]> = self.words_of_shape.as_slice().into();
        self.words.push(words.clone());
        self.numbers.insert(words, number);
        Some(number)
    }

    /// Restores the pipeline to shape `number` at `cycle`.
    pub fn restore(&self, number: ShapeNumber, cycle: u64, values: &mut [Value; SLOTS], units: &mut Units) {
        values.fill(Value::EARLY);
        let Some((head, rest)) = self.words[number.0 as usize].split_first() else { return };
        let (held_units, late_values) = rest.split_at((head >> (USED_BITS + UNITS_BITS)) as usize);
        let held_units = held_units.iter().map(|word| (*word as u8, cycle + (word >> SLOT_BITS)));
        units.take_at(cycle, (head >> USED_BITS) as u32, held_units);
        for word in late_values {
            values[*word as usize % SLOTS] = Value {
                cause: Cause::ALL[(word >> SLOT_BITS) as usize % (1 << CAUSE_BITS)],
                ready: cycle + (word >> (SLOT_BITS + CAUSE_BITS)) % (1 << CYCLES_BITS),
                translation_cycles: (word >> (SLOT_BITS + CAUSE_BITS + CYCLES_BITS)) as u32,
            };
        }
    }

    /// Returns whether the table is full.
    pub fn is_full(&self) -> bool {
        self.words.len() == MAX_SHAPES
    }

    /// Discards all shapes.
    pub fn clear(&mut self) {
        self.numbers.clear();
        self.words.clear();
    }
}

/// The word of a register whose value is available after `cycle`; `None` if the wait is too long.
fn word(slot: usize, value: &Value, cycle: u64) -> Option<u64> {
    let (cycles, translation) = (value.ready - cycle, value.translation_cycles);
    let fits = cycles <= MAX_CYCLES && u64::from(translation) <= MAX_CYCLES;
    let (cause, translation) = ((value.cause as u64) << SLOT_BITS, u64::from(translation));
    let translation = translation << (SLOT_BITS + CAUSE_BITS + CYCLES_BITS);
    fits.then_some(slot as u64 | cause | cycles << (SLOT_BITS + CAUSE_BITS) | translation)
}

/// Iterates over the set bits of `mask`, lowest first.
fn bits(mut mask: u32) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        let lowest = (mask != 0).then(|| mask.trailing_zeros() as u8)?;
        mask &= mask - 1;
        Some(lowest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_restored_pipeline_has_its_shape(
            cycle in 1_000u64..2_000,
            used in 0u64..5,
            late in prop::collection::vec((1usize..79, 900u64..7_000, 0u32..5_000), 0..12),
            taken in prop::collection::vec((1u32..256, 1u16..40), 0..6),
            later in 1u64..100,
        ) {
            let (mut values, mut units) = ([Value::EARLY; SLOTS], Units::new());
            for (slot, ready, translation_cycles) in &late {
                let (ready, translation_cycles) = (*ready, *translation_cycles);
                values[*slot] = Value { ready, cause: Cause::Level3, translation_cycles };
            }
            // The last operation issues in this cycle or earlier.
            let issued = taken.iter().map(|(mask, interval)| units.issue(cycle - 3, *mask, *interval));
            let cycle = issued.max().unwrap_or(0).max(cycle);
            let last_result = values.iter().map(|value| value.ready).max().unwrap();
            let mut shapes = Shapes::default();
            let number = shapes.number((cycle, used), last_result, &values, &mut units);
            let waits = |value: &Value| value.ready > cycle;
            let is_long = |value: &Value| value.ready - cycle > MAX_CYCLES || value.translation_cycles > MAX_CYCLES as u32;
            let is_too_long = values.iter().any(|value| waits(value) && is_long(value));
            prop_assert_eq!(number.is_none(), is_too_long);
            let Some(number) = number else { return Ok(()) };

            let (mut other_values, mut other_units) = ([Value { ready: u64::MAX, ..Value::EARLY }; SLOTS], Units::new());
            shapes.restore(number, cycle + later, &mut other_values, &mut other_units);
            for (value, other) in values.iter().zip(&other_values) {
                prop_assert_eq!(waits(value).then_some(value.ready + later), (other.ready > 0).then_some(other.ready));
                prop_assert!(!waits(value) || value.translation_cycles == other.translation_cycles);
            }
            let same_shape = shapes.number((cycle + later, used), last_result + later, &other_values, &mut other_units);
            prop_assert_eq!(same_shape, Some(number));
            for mask in [1, 6, 255, 1] {
                let (one, other) = (units.issue(cycle, mask, 3), other_units.issue(cycle + later, mask, 3));
                prop_assert_eq!(one + later, other);
            }
        }
    }
}
