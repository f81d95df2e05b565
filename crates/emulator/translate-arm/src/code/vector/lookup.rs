//! Bytes by their numbers, from one vector or two.
//! Not from three or four: those are the engine's.
//! Source: Arm Architecture Reference Manual (Arm DDI 0487), sections C7.2 (TBL, TBX); LoongArch Reference Manual, volume 2.

use longma_loongarch::Op as La;

use crate::code::lower::Lowering;
use crate::instruction::{Instruction, Op};

impl Lowering<'_> {
    pub(super) fn look_up(&mut self, i: Instruction) -> bool {
        let (vectors, keeps) = match i.op {
            Op::Tbl1 => (1, false),
            Op::Tbl2 => (2, false),
            Op::Tbx1 => (1, true),
            Op::Tbx2 => (2, true),
            _ => return false,
        };
        let (d, is_whole) = (i.rd(), i.is_whole());
        let first = self.lanes(i.rn(), true);
        let second = if vectors == 2 { self.lanes((i.rn() + 1) & 31, true) } else { first };
        let numbers = self.lanes(i.rm(), is_whole);
        let used = [d, first, second, numbers];
        let is_there = self.borrow_vector(&used);
        // What has no byte of that number is zero, or stays; LSX says nothing of it.
        self.assembler.immediate(La::VsleiBu, is_there, numbers, 16 * vectors - 1);
        let found = if keeps { self.borrow_vector(&used) } else { d };
        self.four(La::VshufB, [found, second, first, numbers]);
        if keeps {
            self.lanes(d, is_whole);
            self.four(La::VbitselV, [d, d, found, is_there]);
        } else {
            self.assembler.three(La::VandV, d, found, is_there);
        }
        self.put_lanes(d, is_whole);
        true
    }
}
