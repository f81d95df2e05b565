//! Changes the register assignment at loop boundaries. Within a loop, source registers that have no LoongArch register
//! can take over the LoongArch registers of source registers that the loop does not use, and an unused vector can be
//! spilled. `loops` chooses the assignments.

use longma_loongarch::Op as La;

use super::loops::{OUTSIDE, RegisterAssignment};
use super::lower::Lowering;
use crate::registers::{Location, SLOT_OF_SPILLED_VECTOR, SLOTS};

impl Lowering<'_> {
    /// Switches to the assignment outside of loops.
    pub fn restore_outer_assignment(&mut self) {
        self.restore_assignment(&OUTSIDE);
    }

    /// Switches to the given assignment.
    pub fn restore_assignment(&mut self, assignment: &RegisterAssignment) {
        if self.known.assignment == *assignment {
            return;
        }
        let from = self.known.assignment;
        self.transfer_registers(&from, &OUTSIDE);
        self.transfer_registers(&OUTSIDE, assignment);
        self.known.assignment = *assignment;
    }

    /// Spills and loads registers for a change of assignment. One of the two assignments is that of code outside loops.
    fn transfer_registers(&mut self, from: &RegisterAssignment, to: &RegisterAssignment) {
        if let Some(vector) = to.spilled_vector {
            self.widen(vector, 16);
            self.assembler.immediate(La::Vst, vector, SLOTS, SLOT_OF_SPILLED_VECTOR);
        }
        if let Some(vector) = from.spilled_vector {
            self.assembler.immediate(La::Vld, vector, SLOTS, SLOT_OF_SPILLED_VECTOR);
        }
        let moved = || (0..31u8).map(|n| (n, from.general[usize::from(n)], to.general[usize::from(n)]));
        for (number, from, to) in moved().filter(|(_, from, to)| from != to) {
            if let Location::Register(register) = from {
                self.clear_upper_in(number, register);
                self.apply_increment(number);
                self.put_at(to, register);
            }
        }
        for (_, from, to) in moved().filter(|(_, from, to)| from != to) {
            if let Location::Register(register) = to {
                self.load_at(from, register);
            }
        }
    }

    fn load_at(&mut self, location: Location, register: u8) {
        match location {
            Location::Scratch(scratch) => self.assembler.two(La::Movscr2gr, register, scratch),
            Location::Slot(offset) => self.assembler.immediate(La::LdD, register, SLOTS, offset.into()),
            Location::Register(_) => {}
        }
    }

    fn put_at(&mut self, location: Location, register: u8) {
        match location {
            Location::Scratch(scratch) => self.assembler.two(La::Movgr2scr, scratch, register),
            Location::Slot(offset) => self.assembler.immediate(La::StD, register, SLOTS, offset.into()),
            Location::Register(_) => {}
        }
    }
}
