//! Registers, flags and conditions. Source: Arm Architecture Reference Manual (Arm DDI 0487), section C1.2.4
//! (conditions).

use longma_translate::front_end::DataMemory;

use super::Machine;
use crate::registers::{CARRY, Location, NEGATIVE, OVERFLOW, SLOTS, STACK_POINTER, ZERO, place};

/// The locations of x0 to x30.
const PLACES: [Location; 31] = {
    let mut places = [Location::Register(0); 31];
    let mut number = 0;
    while number < places.len() {
        places[number] = place(number as u8);
        number += 1;
    }
    places
};

impl<M: DataMemory> Machine<'_, M> {
    /// The value of x`number`; 31 is the zero register.
    pub(super) fn x(&self, number: u8) -> u64 {
        match PLACES.get(usize::from(number)) {
            Some(Location::Register(register)) => self.state.r(*register),
            Some(Location::Scratch(scratch)) => self.state.lbt.scratch[usize::from(*scratch)],
            // The slots are always mapped.
            Some(Location::Slot(offset)) => {
                self.memory.load(self.state.r(SLOTS).wrapping_add_signed((*offset).into()), 8).unwrap_or(0)
            }
            None => 0,
        }
    }

    /// Sets x`number`; 31 is the zero register.
    pub(super) fn set_x(&mut self, number: u8, value: u64) {
        match PLACES.get(usize::from(number)) {
            Some(Location::Register(register)) => self.state.set_r(*register, value),
            Some(Location::Scratch(scratch)) => self.state.lbt.scratch[usize::from(*scratch)] = value,
            Some(Location::Slot(offset)) => {
                self.memory.store(self.state.r(SLOTS).wrapping_add_signed((*offset).into()), 8, value);
            }
            None => {}
        }
    }

    /// The value of x`number`; 31 is the stack pointer.
    pub(super) fn x_or_sp(&self, number: u8) -> u64 {
        if number == 31 { self.state.r(STACK_POINTER) } else { self.x(number) }
    }

    /// Sets x`number`; 31 is the stack pointer.
    pub(super) fn set_x_or_sp(&mut self, number: u8, value: u64) {
        if number == 31 { self.state.set_r(STACK_POINTER, value) } else { self.set_x(number, value) }
    }

    /// The value of x`number`, or of its low half.
    pub(super) fn operand(&self, number: u8, is_wide: bool) -> u64 {
        truncated(self.x(number), is_wide)
    }

    pub(super) fn vector(&self, number: u8) -> [u64; 2] {
        let lanes = &self.state.v[usize::from(number)].0;
        [lanes[0], lanes[1]]
    }

    pub(super) fn set_vector(&mut self, number: u8, value: [u64; 2]) {
        self.state.v[usize::from(number)].0[..2].copy_from_slice(&value);
    }

    pub(super) fn flag(&self, flag: u8) -> bool {
        self.state.fcc[usize::from(flag)] & 1 != 0
    }

    /// Sets NZCV.
    pub(super) fn set_flags(&mut self, negative: bool, zero: bool, carry: bool, overflow: bool) {
        for (flag, value) in [(NEGATIVE, negative), (ZERO, zero), (CARRY, carry), (OVERFLOW, overflow)] {
            self.state.fcc[usize::from(flag)] = value.into();
        }
    }

    /// Whether a condition holds; the lowest bit of its code inverts it, except in 15, which always holds.
    pub(super) fn holds(&self, condition: u8) -> bool {
        let holds = match condition >> 1 {
            0 => self.flag(ZERO),
            1 => self.flag(CARRY),
            2 => self.flag(NEGATIVE),
            3 => self.flag(OVERFLOW),
            4 => self.flag(CARRY) && !self.flag(ZERO),
            5 => self.flag(NEGATIVE) == self.flag(OVERFLOW),
            6 => self.flag(NEGATIVE) == self.flag(OVERFLOW) && !self.flag(ZERO),
            _ => return true,
        };
        holds != (condition & 1 != 0)
    }
}

/// A value of 64 bits, or its low 32 bits.
pub(super) fn truncated(value: u64, is_wide: bool) -> u64 {
    if is_wide { value } else { u64::from(value as u32) }
}

/// Whether the highest bit of a value of 64 or 32 bits is set.
pub(super) fn sign(value: u64, is_wide: bool) -> bool {
    value >> if is_wide { 63 } else { 31 } & 1 != 0
}
