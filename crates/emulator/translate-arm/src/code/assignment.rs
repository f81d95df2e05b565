//! Changes the register assignment at loop boundaries. Within a loop, source registers that have no LoongArch register
//! can take over the LoongArch registers of source registers that the loop does not use, and an unused vector can be
//! spilled. `loops` chooses the assignments.

use longma_loongarch::Op as La;

use super::loops::{OUTSIDE, RegisterAssignment};
use super::lower::Lowering;
use crate::registers::{Location, SLOT_OF_LENT, SLOTS};

impl Lowering<'_> {
    /// Switches to the assignment outside of loops.
    pub fn leave_loop(&mut self) {
        self.go_home(&OUTSIDE);
    }

    /// Switches to the given assignment.
    pub fn go_home(&mut self, homes: &RegisterAssignment) {
        if self.known.homes == *homes {
            return;
        }
        let from = self.known.homes;
        self.move_between(&from, &OUTSIDE);
        self.move_between(&OUTSIDE, homes);
        self.known.homes = *homes;
    }

    /// Spills and loads registers for a change of assignment. One of the two assignments is the one outside of loops.
    fn move_between(&mut self, from: &RegisterAssignment, to: &RegisterAssignment) {
        if let Some(vector) = to.lent {
            self.widen(vector, 16);
            self.assembler.immediate(La::Vst, vector, SLOTS, SLOT_OF_LENT);
        }
        if let Some(vector) = from.lent {
            self.assembler.immediate(La::Vld, vector, SLOTS, SLOT_OF_LENT);
        }
        let moved = || (0..31u8).map(|n| (n, from.general[usize::from(n)], to.general[usize::from(n)]));
        for (number, from, to) in moved().filter(|(_, from, to)| from != to) {
            if let Location::Register(register) = from {
                self.tighten_at(number, register);
                self.take_step(number);
                self.put_at(to, register);
            }
        }
        for (_, from, to) in moved().filter(|(_, from, to)| from != to) {
            if let Location::Register(register) = to {
                self.load_at(from, register);
            }
        }
    }

    fn load_at(&mut self, place: Location, register: u8) {
        match place {
            Location::Scratch(scratch) => self.assembler.two(La::Movscr2gr, register, scratch),
            Location::Slot(offset) => self.assembler.immediate(La::LdD, register, SLOTS, offset.into()),
            Location::Register(_) => {}
        }
    }

    fn put_at(&mut self, place: Location, register: u8) {
        match place {
            Location::Scratch(scratch) => self.assembler.two(La::Movgr2scr, scratch, register),
            Location::Slot(offset) => self.assembler.immediate(La::StD, register, SLOTS, offset.into()),
            Location::Register(_) => {}
        }
    }
}
