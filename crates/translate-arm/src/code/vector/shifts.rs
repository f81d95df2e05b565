//! Shifts by immediates, widening and narrowing ones included.
//! Not the rounding ones by a whole lane, those that insert, and those by registers: they are the engine's.
//! Source: Arm Architecture Reference Manual (Arm DDI 0487), section C7.2; LoongArch Reference Manual, volume 2.

use longma_loongarch::Op as La;

use super::Sizes;
use crate::code::lower::Lowering;
use crate::instruction::{Instruction, Op};

const LEFT: Sizes = [La::VslliB, La::VslliH, La::VslliW, La::VslliD];
const RIGHT: Sizes = [La::VsrliB, La::VsrliH, La::VsrliW, La::VsrliD];
const RIGHT_SIGNED: Sizes = [La::VsraiB, La::VsraiH, La::VsraiW, La::VsraiD];
const ROUNDED: Sizes = [La::VsrlriB, La::VsrlriH, La::VsrlriW, La::VsrlriD];
const ROUNDED_SIGNED: Sizes = [La::VsrariB, La::VsrariH, La::VsrariW, La::VsrariD];
const ADD: Sizes = [La::VaddB, La::VaddH, La::VaddW, La::VaddD];

/// The size of lanes, by the highest one of the immediate, and how far to the right and to the left.
pub(crate) fn amounts(i: Instruction) -> (usize, i32, i32) {
    let bits = i.bits(16, 7);
    let size = (bits >> 3).max(1).ilog2() as usize;
    let lane = 8 << size;
    (size, 2 * lane - bits as i32, bits as i32 - lane)
}

impl Lowering<'_> {
    pub(super) fn vector_shift(&mut self, i: Instruction) -> bool {
        use Op::*;
        let (size, right, left) = amounts(i);
        // Scalars of 64 bits have bit 30 set, too.
        let is_whole = i.is_whole() && i.bits(28, 1) == 0;
        let d = i.rd();
        match i.op {
            ShlV | ShlD => {
                let n = self.lanes(i.rn(), is_whole);
                self.assembler.immediate(LEFT[size], d, n, left);
                self.put_lanes(d, is_whole);
            }
            SshrV | SshrD | UshrV | UshrD => {
                let n = self.lanes(i.rn(), is_whole);
                self.shift_right(d, n, size, right, matches!(i.op, SshrV | SshrD));
                self.put_lanes(d, is_whole);
            }
            SsraV | UsraV => {
                let (d, n) = (self.lanes(d, is_whole), self.lanes(i.rn(), is_whole));
                let part = self.borrow_vector(&[d, n]);
                self.shift_right(part, n, size, right, i.op == SsraV);
                self.assembler.three(ADD[size], d, d, part);
                self.put_lanes(d, is_whole);
            }
            SrshrV | UrshrV if right < 8 << size => {
                let n = self.lanes(i.rn(), is_whole);
                let ops = if i.op == SrshrV { ROUNDED_SIGNED } else { ROUNDED };
                self.assembler.immediate(ops[size], d, n, right);
                self.put_lanes(d, is_whole);
            }
            Sshll | Ushll | Sshll2 | Ushll2 => self.widen_lanes(i, size, left),
            Shrn | Shrn2 => {
                let n = self.lanes(i.rn(), true);
                self.shift_and_narrow(i, n, size, right);
            }
            _ => return false,
        }
        true
    }

    fn shift_right(&mut self, d: u8, n: u8, size: usize, amount: i32, is_signed: bool) {
        let lane = 8 << size;
        if is_signed {
            self.assembler.immediate(RIGHT_SIGNED[size], d, n, amount.min(lane - 1));
        } else if amount == lane {
            self.assembler.two(La::Vreplgr2vrD, d, 0);
        } else {
            self.assembler.immediate(RIGHT[size], d, n, amount);
        }
    }

    fn widen_lanes(&mut self, i: Instruction, size: usize, amount: i32) {
        let (d, is_high) = (i.rd(), matches!(i.op, Op::Sshll2 | Op::Ushll2));
        let unsigned = usize::from(matches!(i.op, Op::Ushll | Op::Ushll2));
        let n = self.lanes(i.rn(), is_high);
        if is_high {
            let ops =
                [[La::VexthHB, La::VexthWH, La::VexthDW], [La::VexthHuBu, La::VexthWuHu, La::VexthDuWu]];
            self.assembler.two(ops[unsigned][size], d, n);
            if amount != 0 {
                self.assembler.immediate(LEFT[size + 1], d, d, amount);
            }
        } else {
            let ops = [
                [La::VsllwilHB, La::VsllwilWH, La::VsllwilDW],
                [La::VsllwilHuBu, La::VsllwilWuHu, La::VsllwilDuWu],
            ];
            self.assembler.immediate(ops[unsigned][size], d, n, amount);
        }
        self.put_lanes(d, true);
    }

    fn shift_and_narrow(&mut self, i: Instruction, n: u8, size: usize, amount: i32) {
        let shifted = self.borrow_vector(&[i.rd(), n]);
        self.assembler.immediate(RIGHT[size + 1], shifted, n, amount);
        self.narrow(i, [La::VpickevB, La::VpickevH, La::VpickevW][size], [shifted, shifted]);
    }
}
