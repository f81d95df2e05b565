//! Lowers copies, permutations, narrowing, widening and immediates. Source: Arm Architecture Reference Manual (Arm DDI
//! 0487), section C7.2; LoongArch Reference Manual, volume 2.

use longma_loongarch::Op as La;

use super::Sizes;
use crate::code::known::Facts;
use crate::code::lower::Lowering;
use crate::code::operands::NONE;
use crate::instruction::{Instruction, Op, element, modified_immediate};

const PICK_EVEN: Sizes = [La::VpickevB, La::VpickevH, La::VpickevW, La::VpickevD];
const PICK_ODD: Sizes = [La::VpickodB, La::VpickodH, La::VpickodW, La::VpickodD];
const TO_GENERAL: Sizes = [La::Vpickve2grBu, La::Vpickve2grHu, La::Vpickve2grWu, La::Vpickve2grD];
const TO_GENERAL_SIGNED: Sizes = [La::Vpickve2grB, La::Vpickve2grH, La::Vpickve2grW, La::Vpickve2grD];
const FROM_GENERAL: Sizes = [La::Vinsgr2vrB, La::Vinsgr2vrH, La::Vinsgr2vrW, La::Vinsgr2vrD];

impl Lowering<'_> {
    pub(super) fn vector_move(&mut self, i: Instruction) -> bool {
        use Op::*;
        match i.op {
            Movi0 | Movi1 => self.move_immediate(i),
            FmovVH => {
                let from = self.constant(modified_immediate(i).unwrap_or_default() as i64);
                let is_whole = i.is_whole();
                self.assembler.two(if is_whole { La::Vreplgr2vrD } else { La::Movgr2frD }, i.rd(), from);
                self.put_lanes(i.rd(), is_whole);
            }
            DupElement | DupGeneral | Smov | Umov | InsGeneral | InsElement | DupScalar => {
                self.copy_element(i)
            }
            Uzp1 | Uzp2 | Zip1 | Zip2 | Trn1 | Trn2 => self.permute(i),
            Ext => self.extract(i),
            Rev64V | Rev32V | Rev16V => self.reverse(i),
            Xtn | Xtn2 => {
                let n = self.lanes(i.rn(), true);
                self.narrow(i, PICK_EVEN[i.size()], [n, n]);
            }
            Fcvtn | Fcvtn2 => {
                let n = self.lanes(i.rn(), true);
                self.narrow(i, La::VfcvtSD, [n, n]);
            }
            Fcvtl | Fcvtl2 => {
                let n = self.lanes(i.rn(), i.op == Fcvtl2);
                self.assembler.two(if i.op == Fcvtl { La::VfcvtlDS } else { La::VfcvthDS }, i.rd(), n);
                self.put_lanes(i.rd(), true);
            }
            _ => return false,
        }
        true
    }

    /// Applies `op`, whose result is in the low half, to two sources. The result becomes the low half of Rd, or the
    /// high half if Q is set.
    pub(super) fn narrow(&mut self, i: Instruction, op: La, [j, k]: [u8; 2]) {
        let d = i.rd();
        if !i.is_whole() {
            self.assembler.three(op, d, j, k);
            return self.put_lanes(d, false);
        }
        let to = self.borrow_vector(&[d, j, k]);
        self.assembler.three(op, to, j, k);
        self.lanes(d, false);
        self.join_halves(d, to, d);
        self.put_lanes(d, true);
    }

    /// SQXTN, UQXTN and SQXTUN: narrows with saturation.
    pub(super) fn narrow_saturating(&mut self, i: Instruction) -> bool {
        use Op::*;
        let ops = match i.op {
            Sqxtn | Sqxtn2 => [La::VssraniBH, La::VssraniHW, La::VssraniWD],
            Uqxtn | Uqxtn2 => [La::VssrlniBuH, La::VssrlniHuW, La::VssrlniWuD],
            Sqxtun | Sqxtun2 => [La::VssraniBuH, La::VssraniHuW, La::VssraniWuD],
            _ => return false,
        };
        let (d, n) = (i.rd(), self.lanes(i.rn(), true));
        // The high half is computed from the old destination and discarded.
        let to = self.borrow_vector(&[d, n]);
        self.assembler.immediate(ops[i.size()], to, n, 0);
        let extend_op = match i.op {
            Sqxtn | Sqxtn2 => [La::VsllwilHB, La::VsllwilWH, La::VsllwilDW],
            _ => [La::VsllwilHuBu, La::VsllwilWuHu, La::VsllwilDuWu],
        };
        let differences = self.borrow_vector(&[d, n]);
        self.assembler.immediate(extend_op[i.size()], differences, to, 0);
        self.assembler.three(La::VxorV, differences, differences, n);
        let before = self.borrow_vector(&[d, n]);
        self.note_saturation(differences, before, true);
        if i.is_whole() {
            self.lanes(d, false);
            self.join_halves(d, to, d);
        } else {
            self.assembler.three(La::VorV, d, to, to);
        }
        self.put_lanes(d, i.is_whole());
        true
    }

    fn move_immediate(&mut self, i: Instruction) {
        let (d, is_whole, cmode) = (i.rd(), i.is_whole(), i.bits(12, 4));
        let inverts = i.op == Op::Movi1;
        let value = modified_immediate(i).unwrap_or_default();
        let changes = cmode < 12 && cmode & 1 != 0;
        if changes {
            // ORR and BIC.
            self.lanes(d, is_whole);
            if self.clear_end(i) {
                return self.put_lanes(d, is_whole);
            }
            let part = self.borrow_vector(&[d]);
            let from = self.constant(value as i64);
            self.assembler.two(La::Vreplgr2vrD, part, from);
            if inverts {
                self.assembler.three(La::VandnV, d, part, d);
            } else {
                self.assembler.three(La::VorV, d, d, part);
            }
            return self.put_lanes(d, is_whole);
        }
        if value != 0 {
            let byte = (i.bits(16, 3) << 5 | i.bits(5, 5)) as i32;
            self.assembler.immediate(La::Vldi, d, 0, (0x1000 | mode(cmode, inverts) << 8 | byte) << 19 >> 19);
            if inverts && cmode < 14 {
                self.assembler.three(La::VnorV, d, d, d);
            }
            return self.put_lanes(d, is_whole);
        }
        let value = if inverts && cmode < 14 { !value } else { value };
        let from = self.constant(value as i64);
        if is_whole || value == 0 {
            self.assembler.two(La::Vreplgr2vrD, d, from);
            self.put_lanes(d, true);
            if value == 0 {
                self.known.used[usize::from(d)] = 4;
            }
        } else {
            self.assembler.two(La::Movgr2frD, d, from);
            self.put_lanes(d, false);
        }
    }

    /// BIC that clears the first or last byte of each lane, with two shifts.
    fn clear_end(&mut self, i: Instruction) -> bool {
        let (d, cmode) = (i.rd(), i.bits(12, 4) as usize);
        let (bits, at) = if cmode < 8 { (32, 8 * (cmode >> 1)) } else { (16, 8 * (cmode >> 1 & 1)) };
        let is_byte = i.op == Op::Movi1 && i.bits(16, 3) == 7 && i.bits(5, 5) == 31;
        let size = usize::from(bits == 32);
        let (left, right) = ([La::VslliH, La::VslliW][size], [La::VsrliH, La::VsrliW][size]);
        let (first, second) = if at + 8 == bits { (left, right) } else { (right, left) };
        if is_byte && (at == 0 || at + 8 == bits) {
            self.assembler.immediate(first, d, d, 8);
            self.assembler.immediate(second, d, d, 8);
        }
        is_byte && (at == 0 || at + 8 == bits)
    }

    fn copy_element(&mut self, i: Instruction) {
        let (d, n, is_whole) = (i.rd(), i.rn(), i.is_whole());
        let (size, lane) = element(i);
        match i.op {
            Op::DupElement => {
                let n = self.lanes(n, true);
                let ops = [La::VreplveiB, La::VreplveiH, La::VreplveiW, La::VreplveiD];
                self.assembler.immediate(ops[size], d, n, lane);
                self.put_lanes(d, is_whole);
            }
            Op::DupScalar => {
                let n = self.lanes(n, true);
                if size == 3 {
                    self.assembler.immediate(La::VreplveiD, d, n, lane);
                } else {
                    let value = self.temporary();
                    self.assembler.immediate(TO_GENERAL[size], value, n, lane);
                    self.assembler.two(La::Movgr2frD, d, value);
                }
                self.put_lanes(d, false);
            }
            Op::DupGeneral => {
                let from = self.source(n, size == 3);
                let ops = [La::Vreplgr2vrB, La::Vreplgr2vrH, La::Vreplgr2vrW, La::Vreplgr2vrD];
                self.assembler.two(ops[size], d, from);
                self.put_lanes(d, is_whole);
            }
            Op::InsGeneral => {
                let from = self.source(n, size == 3);
                self.lanes(d, true);
                self.assembler.immediate(FROM_GENERAL[size], d, from, lane);
            }
            Op::InsElement => {
                let (n, from) = (self.lanes(n, true), i.bits(11, 4) as i32 >> size);
                self.lanes(d, true);
                let ops = [La::VextrinsB, La::VextrinsH, La::VextrinsW, La::VextrinsD];
                self.assembler.immediate(ops[size], d, n, lane << 4 | from);
            }
            op => {
                let n = self.lanes(n, true);
                if d == NONE {
                    return;
                }
                let to = self.target(d);
                if op == Op::Umov {
                    self.assembler.immediate(TO_GENERAL[size], to, n, lane);
                    let facts = if size == 3 { Facts::NONE } else { Facts::of_width(8 << size) };
                    self.put(d, to, true, facts);
                } else {
                    self.assembler.immediate(TO_GENERAL_SIGNED[size], to, n, lane);
                    self.put(d, to, is_whole, Facts::WORD);
                }
            }
        }
    }

    fn permute(&mut self, i: Instruction) {
        use Op::*;
        let (d, is_whole, size) = (i.rd(), i.is_whole(), i.size());
        let (n, m) = (self.lanes(i.rn(), is_whole), self.lanes(i.rm(), is_whole));
        let low = [La::VilvlB, La::VilvlH, La::VilvlW, La::VilvlD];
        let ops = match i.op {
            Uzp1 => PICK_EVEN,
            Uzp2 => PICK_ODD,
            Trn1 => [La::VpackevB, La::VpackevH, La::VpackevW, La::VpackevD],
            Trn2 => [La::VpackodB, La::VpackodH, La::VpackodW, La::VpackodD],
            Zip2 if is_whole => [La::VilvhB, La::VilvhH, La::VilvhW, La::VilvhD],
            _ => low,
        };
        match i.op {
            Uzp1 | Uzp2 if !is_whole => {
                self.join_halves(d, m, n);
                self.assembler.three(ops[size], d, d, d);
            }
            Zip2 if !is_whole => {
                self.assembler.three(low[size], d, m, n);
                self.assembler.immediate(La::VbsrlV, d, d, 8);
            }
            _ => self.assembler.three(ops[size], d, m, n),
        }
        self.put_lanes(d, is_whole);
    }

    /// EXT: extracts bytes from a pair of vectors.
    fn extract(&mut self, i: Instruction) {
        let (d, is_whole, first) = (i.rd(), i.is_whole(), i.bits(11, 4) as i32);
        let (n, m) = (self.lanes(i.rn(), is_whole), self.lanes(i.rm(), is_whole));
        if !is_whole {
            self.join_halves(d, m, n);
            self.assembler.immediate(La::VbsrlV, d, d, first);
        } else if first == 0 {
            self.assembler.three(La::VorV, d, n, n);
        } else if first == 8 && (d == n || d == m) {
            // Selects two of four halves, numbered from the first register to the second.
            let (other, halves) = if d == n { (m, 1 | 2 << 2) } else { (n, 3) };
            self.assembler.immediate(La::Vshuf4iD, d, other, halves);
        } else if first == 8 {
            self.assembler.three(La::VorV, d, n, n);
            self.assembler.immediate(La::Vshuf4iD, d, m, 1 | 2 << 2);
        } else {
            let low = self.borrow_vector(&[d, n, m]);
            self.assembler.immediate(La::VbsrlV, low, n, first);
            self.assembler.immediate(La::VbsllV, d, m, 16 - first);
            self.assembler.three(La::VorV, d, d, low);
        }
        self.put_lanes(d, is_whole);
    }

    fn reverse(&mut self, i: Instruction) {
        /// Reverses four elements; swaps adjacent elements.
        const ALL: i32 = 0x1b;
        const PAIRS: i32 = 0xb1;
        let (d, is_whole) = (i.rd(), i.is_whole());
        let n = self.lanes(i.rn(), is_whole);
        let (op, order) = match (i.op, i.size()) {
            (Op::Rev64V, 0) => {
                self.assembler.immediate(La::Vshuf4iB, d, n, ALL);
                self.assembler.immediate(La::Vshuf4iW, d, d, PAIRS);
                return self.put_lanes(d, is_whole);
            }
            (Op::Rev64V, 1) => (La::Vshuf4iH, ALL),
            (Op::Rev64V, _) => (La::Vshuf4iW, PAIRS),
            (Op::Rev32V, 0) => (La::Vshuf4iB, ALL),
            (Op::Rev32V, _) => (La::Vshuf4iH, PAIRS),
            _ => (La::Vshuf4iB, PAIRS),
        };
        self.assembler.immediate(op, d, n, order);
        self.put_lanes(d, is_whole);
    }
}

/// The `vldi` mode that expands an immediate byte of this kind.
fn mode(cmode: u32, inverts: bool) -> i32 {
    let cmode = cmode as i32;
    match (cmode >> 1, cmode & 1, inverts) {
        (part @ 0..=3, ..) => part,
        (part @ 4..=5, ..) => part,
        (6, last, _) => 6 | last,
        (_, 0, false) => 8,
        (_, 0, true) => 9,
        (_, _, false) => 10,
        _ => 12,
    }
}
