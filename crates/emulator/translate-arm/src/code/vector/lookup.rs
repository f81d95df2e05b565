//! Lowers table lookups in one or two vectors. The engine executes lookups in three or four. Source: Arm Architecture
//! Reference Manual (Arm DDI 0487), sections C7.2 (TBL, TBX); LoongArch Reference Manual, volume 2.

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
        let indices = self.lanes(i.rm(), is_whole);
        let used = [d, first, second, indices];
        let is_in_range = self.borrow_vector(&used);
        // Out-of-range indices yield zero or keep the destination byte. The LSX result for them is undefined.
        self.assembler.immediate(La::VsleiBu, is_in_range, indices, 16 * vectors - 1);
        let looked_up = if keeps { self.borrow_vector(&used) } else { d };
        self.four(La::VshufB, [looked_up, second, first, indices]);
        if keeps {
            self.lanes(d, is_whole);
            self.four(La::VbitselV, [d, d, looked_up, is_in_range]);
        } else {
            self.assembler.three(La::VandV, d, looked_up, is_in_range);
        }
        self.put_lanes(d, is_whole);
        true
    }
}
