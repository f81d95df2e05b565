//! Lowers widening and narrowing operations, and operations by a single lane. Source: Arm Architecture Reference Manual
//! (Arm DDI 0487), section C7.2; LoongArch Reference Manual, volume 2.

use longma_loongarch::Op as La;

use super::Sizes;
use crate::code::lower::Lowering;
use crate::instruction::{Instruction, Op, lane_of};

const ADD: Sizes = [La::VaddB, La::VaddH, La::VaddW, La::VaddD];
const SUB: Sizes = [La::VsubB, La::VsubH, La::VsubW, La::VsubD];
const MUL: Sizes = [La::VmulB, La::VmulH, La::VmulW, La::VmulD];
const MUL_ADD: Sizes = [La::VmaddB, La::VmaddH, La::VmaddW, La::VmaddD];
const MUL_SUB: Sizes = [La::VmsubB, La::VmsubH, La::VmsubW, La::VmsubD];
const DIFFERENCE: Sizes = [La::VabsdB, La::VabsdH, La::VabsdW, La::VabsdD];
const LOW: [[La; 3]; 2] =
    [[La::VsllwilHB, La::VsllwilWH, La::VsllwilDW], [La::VsllwilHuBu, La::VsllwilWuHu, La::VsllwilDuWu]];
const HIGH: [[La; 3]; 2] =
    [[La::VexthHB, La::VexthWH, La::VexthDW], [La::VexthHuBu, La::VexthWuHu, La::VexthDuWu]];

impl Lowering<'_> {
    pub(super) fn vector_long(&mut self, i: Instruction) -> bool {
        use Op::*;
        match i.op {
            SaddlV | UaddlV => self.long(i, ADD, false),
            SsublV | UsublV => self.long(i, SUB, false),
            SmullV | UmullV | SmullE | UmullE => self.long(i, MUL, false),
            SmlalV | UmlalV | SmlalE | UmlalE => self.long(i, MUL_ADD, true),
            SmlslV | UmlslV | SmlslE | UmlslE => self.long(i, MUL_SUB, true),
            SabdlV | UabdlV => self.long(i, DIFFERENCE, false),
            SabalV | UabalV => self.long_difference(i),
            SaddwV | UaddwV => self.wide(i, ADD),
            SsubwV | UsubwV => self.wide(i, SUB),
            Addhn | Addhn2 => self.high_half(i, ADD),
            Subhn | Subhn2 => self.high_half(i, SUB),
            Shll => {
                let n = self.lanes(i.rn(), i.is_whole());
                self.widen_part(i, i.rd(), n, 1);
                let shift = [La::VslliH, La::VslliW, La::VslliD][i.size()];
                self.assembler.immediate(shift, i.rd(), i.rd(), 8 << i.size());
                self.put_lanes(i.rd(), true);
            }
            SdotV | SdotE | UdotV | UdotE => self.dot(i),
            MlaE | MlsE | MulE => self.by_lane(i),
            FmlaE | FmlsE | FmulE | FmlaSE | FmlsSE | FmulSE => self.float_by_lane(i),
            _ => return false,
        }
        true
    }

    /// Widens the lanes of the half that the instruction selects.
    fn widen_part(&mut self, i: Instruction, to: u8, from: u8, unsigned: usize) {
        if i.is_whole() {
            self.assembler.two(HIGH[unsigned][i.size()], to, from);
        } else {
            self.assembler.immediate(LOW[unsigned][i.size()], to, from, 0);
        }
    }

    /// Returns the second operand: a vector, or a single lane replicated to all lanes of a temporary vector (`free` if
    /// given).
    pub(super) fn second(&mut self, i: Instruction, used: &[u8], free: Option<u8>) -> u8 {
        if i.bits(24, 1) == 0 {
            return self.lanes(i.rm(), i.is_whole());
        }
        let (number, lane) = lane_of(i);
        self.widen(number, ((lane as u8 + 1) << i.size()).next_power_of_two());
        let m = number;
        if lane == 0 && i.bits(28, 1) != 0 {
            // A scalar operation can use lane 0 directly.
            return m;
        }
        let to = match free {
            Some(free) => free,
            None => self.borrow_vector(&[used, &[m]].concat()),
        };
        self.assembler.immediate(
            [La::VreplveiB, La::VreplveiH, La::VreplveiW, La::VreplveiD][i.size()],
            to,
            m,
            lane,
        );
        to
    }

    fn long(&mut self, i: Instruction, ops: Sizes, accumulates: bool) {
        let (d, unsigned) = (i.rd(), i.bits(29, 1) as usize);
        let n = self.lanes(i.rn(), i.is_whole());
        let second = self.second(i, &[d, n], None);
        let first = self.borrow_vector(&[d, n, second]);
        let other = self.borrow_vector(&[d, n, second]);
        self.widen_part(i, first, n, unsigned);
        self.widen_part(i, other, second, unsigned);
        if accumulates {
            self.lanes(d, true);
        }
        self.assembler.three(ops[i.size() + 1], d, first, other);
        self.put_lanes(d, true);
    }

    fn long_difference(&mut self, i: Instruction) {
        let (d, unsigned) = (i.rd(), i.bits(29, 1) as usize);
        let (n, m) = (self.lanes(i.rn(), i.is_whole()), self.lanes(i.rm(), i.is_whole()));
        let (first, other) = (self.borrow_vector(&[d, n, m]), self.borrow_vector(&[d, n, m]));
        self.widen_part(i, first, n, unsigned);
        self.widen_part(i, other, m, unsigned);
        self.assembler.three(DIFFERENCE[i.size() + 1], first, first, other);
        let d = self.lanes(d, true);
        self.assembler.three(ADD[i.size() + 1], d, d, first);
        self.put_lanes(d, true);
    }

    fn wide(&mut self, i: Instruction, ops: Sizes) {
        let (d, n, m) = (i.rd(), self.lanes(i.rn(), true), self.lanes(i.rm(), i.is_whole()));
        let other = self.borrow_vector(&[d, n, m]);
        self.widen_part(i, other, m, i.bits(29, 1) as usize);
        self.assembler.three(ops[i.size() + 1], d, n, other);
        self.put_lanes(d, true);
    }

    /// ADDHN and SUBHN: returns the upper half of each lane.
    fn high_half(&mut self, i: Instruction, ops: Sizes) {
        let (n, m, size) = (self.lanes(i.rn(), true), self.lanes(i.rm(), true), i.size());
        let sum = self.borrow_vector(&[i.rd(), n, m]);
        self.assembler.three(ops[size + 1], sum, n, m);
        self.narrow(i, [La::VpickodB, La::VpickodH, La::VpickodW][size], [sum, sum]);
    }

    /// SDOT and UDOT: adds four products of bytes to each word.
    fn dot(&mut self, i: Instruction) {
        let (d, is_whole, unsigned) = (i.rd(), i.is_whole(), i.bits(29, 1) as usize);
        let n = self.lanes(i.rn(), is_whole);
        let m = self.second(i, &[d, n], None);
        let [even, odd] = [(); 2].map(|()| self.borrow_vector(&[d, n, m]));
        self.assembler.three([La::VmulwevHB, La::VmulwevHBu][unsigned], even, n, m);
        self.assembler.three([La::VmulwodHB, La::VmulwodHBu][unsigned], odd, n, m);
        let add_pairs = [La::VhaddwWH, La::VhaddwWuHu][unsigned];
        self.assembler.three(add_pairs, even, even, even);
        self.assembler.three(add_pairs, odd, odd, odd);
        self.assembler.three(La::VaddW, even, even, odd);
        let d = self.lanes(d, is_whole);
        self.assembler.three(La::VaddW, d, d, even);
        self.put_lanes(d, is_whole);
    }

    fn by_lane(&mut self, i: Instruction) {
        let (d, is_whole) = (i.rd(), i.is_whole());
        let n = self.lanes(i.rn(), is_whole);
        let second = self.second(i, &[d, n], (i.op == Op::MulE && d != n).then_some(d));
        let ops = match i.op {
            Op::MlaE => MUL_ADD,
            Op::MlsE => MUL_SUB,
            _ => MUL,
        };
        if i.op != Op::MulE {
            self.lanes(d, is_whole);
        }
        self.assembler.three(ops[i.size()], d, n, second);
        self.put_lanes(d, is_whole);
    }

    fn float_by_lane(&mut self, i: Instruction) {
        let (d, double) = (i.rd(), usize::from(i.is_double()));
        let is_scalar = i.bits(28, 1) != 0;
        let is_whole = i.is_whole() && !is_scalar;
        let n = if is_scalar { self.scalar(i.rn(), i) } else { self.lanes(i.rn(), is_whole) };
        let multiplies = matches!(i.op, Op::FmulE | Op::FmulSE);
        let factor = self.second(i, &[d, n], (multiplies && d != n).then_some(d));
        let mut n = n;
        if matches!(i.op, Op::FmlsE | Op::FmlsSE) {
            // Negate the product by negating its first factor.
            let (op, bit) = if i.is_double() { (La::VbitreviD, 63) } else { (La::VbitreviW, 31) };
            let to = self.borrow_vector(&[d, n, factor]);
            self.assembler.immediate(op, to, n, bit);
            n = to;
        }
        if is_scalar {
            if multiplies {
                self.assembler.three([La::FmulS, La::FmulD][double], d, n, factor);
            } else {
                self.scalar(d, i);
                self.four([La::FmaddS, La::FmaddD][double], [d, n, factor, d]);
            }
            return self.put_scalar(d, i.is_double());
        }
        if multiplies {
            self.assembler.three([La::VfmulS, La::VfmulD][double], d, n, factor);
        } else {
            self.lanes(d, is_whole);
            self.four([La::VfmaddS, La::VfmaddD][double], [d, n, factor, d]);
        }
        self.put_lanes(d, is_whole);
    }
}
