//! Lowers shifts by immediates, including widening and narrowing ones, and shifts by lanes. The engine executes
//! rounding shifts by the full lane width. Source: Arm Architecture Reference Manual (Arm DDI 0487), section C7.2;
//! LoongArch Reference Manual, volume 2.

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

/// The lane size, encoded by the highest set bit of the immediate, and the amounts of a right and of a left shift.
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
        // 64-bit scalar operations also set bit 30.
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
            SliV | SriV => self.shift_and_insert(i, size, if i.op == SliV { left } else { right }),
            UshlV | SshlV => self.shift_by_lanes(i),
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

    /// SLI and SRI: keep the destination bits that the shift vacates.
    fn shift_and_insert(&mut self, i: Instruction, size: usize, amount: i32) {
        let (d, is_whole, lane) = (i.rd(), i.is_whole(), 8 << size);
        if amount == lane {
            // SRI by the full lane width only clears the upper part of the register.
            self.lanes(d, is_whole);
            return self.put_lanes(d, is_whole);
        }
        let (d, n) = (self.lanes(d, is_whole), self.lanes(i.rn(), is_whole));
        let shifted = self.borrow_vector(&[d, n]);
        let (shift, reverse_shift) = if i.op == Op::SliV { (LEFT, RIGHT) } else { (RIGHT, LEFT) };
        self.assembler.immediate(shift[size], shifted, n, amount);
        if amount == 0 {
            self.assembler.three(La::VorV, d, shifted, shifted);
        } else {
            self.assembler.immediate(shift[size], d, d, lane - amount);
            self.assembler.immediate(reverse_shift[size], d, d, lane - amount);
            self.assembler.three(La::VorV, d, d, shifted);
        }
        self.put_lanes(d, is_whole);
    }

    /// USHL and SSHL: shifts each lane left by the lowest byte of the other operand's lane, or right if that byte is
    /// negative.
    fn shift_by_lanes(&mut self, i: Instruction) {
        let (d, is_whole, size) = (i.rd(), i.is_whole(), i.size());
        let is_signed = i.op == Op::SshlV;
        let (n, m) = (self.lanes(i.rn(), is_whole), self.lanes(i.rm(), is_whole));
        let used = [d, n, m];
        let [by, right, limit, is_right] = [(); 4].map(|()| self.borrow_vector(&used));
        let lane = 8 << size;
        let all_but_byte = lane - 8;
        // The amounts of the left and right shifts.
        if all_but_byte == 0 {
            self.assembler.three(La::VorV, by, m, m);
        } else {
            self.assembler.immediate(LEFT[size], by, m, all_but_byte);
            self.assembler.immediate(RIGHT_SIGNED[size], by, by, all_but_byte);
        }
        self.assembler.two([La::VnegB, La::VnegH, La::VnegW, La::VnegD][size], right, by);
        // For bytes, a right shift by 128 has no positive counterpart. The direction is therefore determined before the
        // negation.
        self.assembler.immediate([La::VsltiB, La::VsltiH, La::VsltiW, La::VsltiD][size], is_right, by, 0);
        self.within(limit, by, size);
        let by_lanes = [La::VsllB, La::VsllH, La::VsllW, La::VsllD][size];
        self.assembler.three(by_lanes, by, n, by);
        self.assembler.three(La::VandV, by, by, limit);
        if is_signed {
            // Clamp the amount: a shift by at least the lane width yields the sign.
            let last_bit = self.constant(i64::from(lane - 1));
            let replicate = [La::Vreplgr2vrB, La::Vreplgr2vrH, La::Vreplgr2vrW, La::Vreplgr2vrD][size];
            self.assembler.two(replicate, limit, last_bit);
            let minimum = [La::VminBu, La::VminHu, La::VminWu, La::VminDu][size];
            let arithmetic = [La::VsraB, La::VsraH, La::VsraW, La::VsraD][size];
            self.assembler.three(minimum, right, right, limit);
            self.assembler.three(arithmetic, right, n, right);
        } else {
            self.within(limit, right, size);
            let logical = [La::VsrlB, La::VsrlH, La::VsrlW, La::VsrlD][size];
            self.assembler.three(logical, right, n, right);
            self.assembler.three(La::VandV, right, right, limit);
        }
        self.assembler.three(La::VandV, right, right, is_right);
        self.assembler.three(La::VorV, d, by, right);
        self.put_lanes(d, is_whole);
    }

    /// Sets the lanes whose unsigned value is less than the lane width to all ones.
    fn within(&mut self, to: u8, from: u8, size: usize) {
        self.assembler.immediate(RIGHT[size], to, from, 3 + size as i32);
        self.assembler.immediate([La::VseqiB, La::VseqiH, La::VseqiW, La::VseqiD][size], to, to, 0);
    }
}
