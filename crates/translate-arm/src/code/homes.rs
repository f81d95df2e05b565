//! General registers moved where a loop begins and ends: in it, those without a LoongArch register of their own have those of others.
//! Not which (`loops`).

use longma_loongarch::Op as La;

use super::loops::{Homes, OUTSIDE};
use super::lower::Lowering;
use crate::registers::{Place, SLOTS};

impl Lowering<'_> {
    /// Brings every general register where it is outside of loops.
    pub fn go_outside(&mut self) {
        self.go_home(&OUTSIDE);
    }

    /// Brings every general register where it is to be.
    pub fn go_home(&mut self, homes: &Homes) {
        if self.known.homes == *homes {
            return;
        }
        let from = self.known.homes;
        self.move_between(&from, &OUTSIDE);
        self.move_between(&OUTSIDE, homes);
        self.known.homes = *homes;
    }

    /// Puts registers away, and loads those that come into their places. One of the two is outside of loops.
    fn move_between(&mut self, from: &Homes, to: &Homes) {
        let moved = || (0..31u8).filter(|number| from[usize::from(*number)] != to[usize::from(*number)]);
        for number in moved() {
            if let Place::Register(register) = from[usize::from(number)] {
                self.tighten_at(number, register);
                self.put_at(to[usize::from(number)], register);
                self.forget(number);
            }
        }
        for number in moved() {
            if let Place::Register(register) = to[usize::from(number)] {
                match from[usize::from(number)] {
                    Place::Scratch(scratch) => self.assembler.two(La::Movscr2gr, register, scratch),
                    Place::Slot(offset) => self.assembler.immediate(La::LdD, register, SLOTS, offset.into()),
                    Place::Register(_) => {}
                }
                self.forget(number);
            }
        }
    }

    fn put_at(&mut self, place: Place, register: u8) {
        match place {
            Place::Scratch(scratch) => self.assembler.two(La::Movgr2scr, scratch, register),
            Place::Slot(offset) => self.assembler.immediate(La::StD, register, SLOTS, offset.into()),
            Place::Register(_) => {}
        }
    }
}
