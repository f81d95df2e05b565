//! Lowers narrowing shifts, rounding narrowing sums, halving differences, and high halves of saturating products.
//! Source: Arm Architecture Reference Manual (Arm DDI 0487), section C7.2 (RSHRN, SQSHRN, RADDHN, SHSUB, SQDMULH and
//! related instructions); LoongArch Reference Manual, volume 2.

use longma_loongarch::Op as La;

use super::shifts::amounts;
use crate::code::lower::Lowering;
use crate::instruction::{Instruction, Op};

/// The variants of an operation for results of 8, 16 and 32 bits.
type Narrow = [La; 3];

/// A saturating shift: the narrowing shift, the same shift without narrowing, and the extension of the result.
fn saturating(op: Op) -> Option<(Narrow, Narrow, Narrow)> {
    use Op::*;
    let signed = [La::VsllwilHB, La::VsllwilWH, La::VsllwilDW];
    let unsigned = [La::VsllwilHuBu, La::VsllwilWuHu, La::VsllwilDuWu];
    let right = [La::VsraiH, La::VsraiW, La::VsraiD];
    let rounding = [La::VsrariH, La::VsrariW, La::VsrariD];
    let right_unsigned = [La::VsrliH, La::VsrliW, La::VsrliD];
    let rounding_unsigned = [La::VsrlriH, La::VsrlriW, La::VsrlriD];
    Some(match op {
        Sqshrn | Sqshrn2 => ([La::VssraniBH, La::VssraniHW, La::VssraniWD], right, signed),
        Sqrshrn | Sqrshrn2 => ([La::VssrarniBH, La::VssrarniHW, La::VssrarniWD], rounding, signed),
        Sqshrun | Sqshrun2 => ([La::VssraniBuH, La::VssraniHuW, La::VssraniWuD], right, unsigned),
        Sqrshrun | Sqrshrun2 => ([La::VssrarniBuH, La::VssrarniHuW, La::VssrarniWuD], rounding, unsigned),
        Uqshrn | Uqshrn2 => ([La::VssrlniBuH, La::VssrlniHuW, La::VssrlniWuD], right_unsigned, unsigned),
        Uqrshrn | Uqrshrn2 => {
            ([La::VssrlrniBuH, La::VssrlrniHuW, La::VssrlrniWuD], rounding_unsigned, unsigned)
        }
        _ => return None,
    })
}

const ROUND_AND_NARROW: Narrow = [La::VsrlrniBH, La::VsrlrniHW, La::VsrlrniWD];

impl Lowering<'_> {
    pub(super) fn vector_narrowing(&mut self, i: Instruction) -> bool {
        use Op::*;
        let d = i.rd();
        if let Some((narrow, shift, extend)) = saturating(i.op) {
            let (size, amount, _) = amounts(i);
            let n = self.lanes(i.rn(), true);
            let [to, differences, shifted] = [(); 3].map(|()| self.borrow_vector(&[d, n]));
            self.assembler.immediate(narrow[size], to, n, amount);
            self.assembler.immediate(shift[size], shifted, n, amount);
            self.assembler.immediate(extend[size], differences, to, 0);
            self.assembler.three(La::VxorV, differences, differences, shifted);
            self.note_saturation(differences, shifted, true);
            self.put_narrowed(i, to);
            return true;
        }
        match i.op {
            Rshrn | Rshrn2 => {
                let (size, amount, _) = amounts(i);
                let n = self.lanes(i.rn(), true);
                let to = self.borrow_vector(&[d, n]);
                self.assembler.immediate(ROUND_AND_NARROW[size], to, n, amount);
                self.put_narrowed(i, to);
            }
            Raddhn | Raddhn2 | Rsubhn | Rsubhn2 => {
                let (n, m, size) = (self.lanes(i.rn(), true), self.lanes(i.rm(), true), i.size());
                let sum = self.borrow_vector(&[d, n, m]);
                let op = match i.op {
                    Raddhn | Raddhn2 => [La::VaddH, La::VaddW, La::VaddD],
                    _ => [La::VsubH, La::VsubW, La::VsubD],
                };
                self.assembler.three(op[size], sum, n, m);
                self.assembler.immediate(ROUND_AND_NARROW[size], sum, sum, 8 << size);
                self.put_narrowed(i, sum);
            }
            ShsubV | UhsubV => self.halved_difference(i),
            SrsraV | UrsraV => return self.accumulate_rounded(i),
            SqdmulhV | SqrdmulhV | SqdmulhE | SqrdmulhE => self.high_products(i),
            FcvtlH | Fcvtl2H => {
                let n = self.lanes(i.rn(), i.is_whole());
                self.assembler.two(if i.is_whole() { La::VfcvthSH } else { La::VfcvtlSH }, d, n);
                self.put_lanes(d, true);
            }
            FcvtnH | Fcvtn2H => {
                let n = self.lanes(i.rn(), true);
                self.narrow(i, La::VfcvtHS, [n, n]);
            }
            _ => return false,
        }
        true
    }

    /// Writes a narrow result, which is in the low half of a borrowed vector.
    fn put_narrowed(&mut self, i: Instruction, from: u8) {
        let d = i.rd();
        if i.is_whole() {
            self.lanes(d, false);
            self.join_halves(d, from, d);
        } else {
            self.assembler.three(La::VorV, d, from, from);
        }
        self.put_lanes(d, i.is_whole());
    }

    /// SHSUB and UHSUB. n - m is n + !m + 1, and UHSUB's sum is 2^bits too large.
    fn halved_difference(&mut self, i: Instruction) {
        let (d, is_whole, size) = (i.rd(), i.is_whole(), i.size());
        let (n, m) = (self.lanes(i.rn(), is_whole), self.lanes(i.rm(), is_whole));
        let inverse = self.borrow_vector(&[d, n, m]);
        self.assembler.three(La::VnorV, inverse, m, m);
        if i.op == Op::ShsubV {
            self.assembler.three([La::VavgrB, La::VavgrH, La::VavgrW][size], d, n, inverse);
        } else {
            self.assembler.three([La::VavgrBu, La::VavgrHu, La::VavgrWu][size], d, n, inverse);
            let flip = [La::VbitreviB, La::VbitreviH, La::VbitreviW][size];
            self.assembler.immediate(flip, d, d, (8 << size) - 1);
        }
        self.put_lanes(d, is_whole);
    }

    /// SRSRA and URSRA, except for shifts by the full lane width.
    fn accumulate_rounded(&mut self, i: Instruction) -> bool {
        let (size, amount, _) = amounts(i);
        if amount == 8 << size {
            return false;
        }
        let (d, is_whole) = (i.rd(), i.is_whole());
        let (d, n) = (self.lanes(d, is_whole), self.lanes(i.rn(), is_whole));
        let part = self.borrow_vector(&[d, n]);
        let shift = match i.op {
            Op::SrsraV => [La::VsrariB, La::VsrariH, La::VsrariW, La::VsrariD],
            _ => [La::VsrlriB, La::VsrlriH, La::VsrlriW, La::VsrlriD],
        };
        self.assembler.immediate(shift[size], part, n, amount);
        self.assembler.three([La::VaddB, La::VaddH, La::VaddW, La::VaddD][size], d, d, part);
        self.put_lanes(d, is_whole);
        true
    }

    /// SQDMULH and SQRDMULH: narrows the products of the even and the odd lanes with saturation.
    fn high_products(&mut self, i: Instruction) {
        let (d, is_whole, size) = (i.rd(), i.is_whole(), i.size() - 1);
        let n = self.lanes(i.rn(), is_whole);
        let m = self.second(i, &[d, n], None);
        let [even, odd, saturated] = [(); 3].map(|()| self.borrow_vector(&[d, n, m]));
        self.assembler.three([La::VmulwevWH, La::VmulwevDW][size], even, n, m);
        self.assembler.three([La::VmulwodWH, La::VmulwodDW][size], odd, n, m);
        // Only the square of the least number saturates: it is the only product with bit 2 * bits - 2 set and the sign
        // clear.
        let width = 16 << size;
        self.assembler.three([La::VmaxW, La::VmaxD][size], saturated, even, odd);
        self.assembler.immediate([La::VsraiW, La::VsraiD][size], saturated, saturated, 2 * width - 2);
        self.assembler.immediate([La::VmaxiW, La::VmaxiD][size], saturated, saturated, 0);
        let rounds = matches!(i.op, Op::SqrdmulhV | Op::SqrdmulhE);
        let narrow = if rounds { [La::VssrarniHW, La::VssrarniWD] } else { [La::VssraniHW, La::VssraniWD] };
        self.assembler.immediate(narrow[size], even, even, width - 1);
        self.assembler.immediate(narrow[size], odd, odd, width - 1);
        self.assembler.three([La::VilvlH, La::VilvlW][size], d, odd, even);
        self.note_saturation(saturated, even, is_whole);
        self.put_lanes(d, is_whole);
    }
}
