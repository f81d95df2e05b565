//! Lowers pairwise operations and reductions across lanes. Source: Arm Architecture Reference Manual (Arm DDI 0487),
//! section C7.2; LoongArch Reference Manual, volume 2.

use longma_loongarch::Op as La;

use super::Sizes;
use crate::code::lower::Lowering;
use crate::instruction::{Instruction, Op};

const MAX: [Sizes; 2] =
    [[La::VmaxB, La::VmaxH, La::VmaxW, La::VmaxD], [La::VmaxBu, La::VmaxHu, La::VmaxWu, La::VmaxDu]];
const MIN: [Sizes; 2] =
    [[La::VminB, La::VminH, La::VminW, La::VminD], [La::VminBu, La::VminHu, La::VminWu, La::VminDu]];
/// Widening sums of adjacent lanes, signed and unsigned.
const SUMS: [Sizes; 2] = [
    [La::VhaddwHB, La::VhaddwWH, La::VhaddwDW, La::VhaddwQD],
    [La::VhaddwHuBu, La::VhaddwWuHu, La::VhaddwDuWu, La::VhaddwQuDu],
];
const ADD: Sizes = [La::VaddB, La::VaddH, La::VaddW, La::VaddD];

impl Lowering<'_> {
    pub(super) fn vector_reduce(&mut self, i: Instruction) -> bool {
        use Op::*;
        match i.op {
            AddpV => self.pairs(i, ADD[i.size()]),
            SmaxpV => self.pairs(i, MAX[0][i.size()]),
            UmaxpV => self.pairs(i, MAX[1][i.size()]),
            SminpV => self.pairs(i, MIN[0][i.size()]),
            UminpV => self.pairs(i, MIN[1][i.size()]),
            FaddpV => self.pairs(i, if i.is_double() { La::VfaddD } else { La::VfaddS }),
            FmaxnmpV => self.pairs(i, if i.is_double() { La::VfmaxD } else { La::VfmaxS }),
            FminnmpV => self.pairs(i, if i.is_double() { La::VfminD } else { La::VfminS }),
            SaddlpV | UaddlpV => {
                let n = self.lanes(i.rn(), i.is_whole());
                self.assembler.three(SUMS[usize::from(i.op == UaddlpV)][i.size()], i.rd(), n, n);
                self.put_lanes(i.rd(), i.is_whole());
            }
            SadalpV | UadalpV => {
                let (d, n) = (self.lanes(i.rd(), i.is_whole()), self.lanes(i.rn(), i.is_whole()));
                let sum = self.borrow_vector(&[d, n]);
                self.assembler.three(SUMS[usize::from(i.op == UadalpV)][i.size()], sum, n, n);
                self.assembler.three(ADD[i.size() + 1], d, d, sum);
                self.put_lanes(d, i.is_whole());
            }
            Addv | Saddlv | Uaddlv => self.sum(i),
            Smaxv => self.extreme(i, MAX[0]),
            Umaxv => self.extreme(i, MAX[1]),
            Sminv => self.extreme(i, MIN[0]),
            Uminv => self.extreme(i, MIN[1]),
            _ => return false,
        }
        true
    }

    /// Applies an operation to adjacent pairs of Rn, then of Rm.
    fn pairs(&mut self, i: Instruction, op: La) {
        let (d, is_whole) = (i.rd(), i.is_whole());
        let size = if matches!(i.op, Op::FaddpV | Op::FmaxnmpV | Op::FminnmpV) {
            2 + usize::from(i.is_double())
        } else {
            i.size()
        };
        let even = [La::VpickevB, La::VpickevH, La::VpickevW, La::VpickevD][size];
        let odd = [La::VpickodB, La::VpickodH, La::VpickodW, La::VpickodD][size];
        let (n, m) = (self.lanes(i.rn(), is_whole), self.lanes(i.rm(), is_whole));
        let first = self.borrow_vector(&[d, n, m]);
        if is_whole {
            self.assembler.three(even, first, m, n);
            self.assembler.three(odd, d, m, n);
        } else {
            self.join_halves(first, m, n);
            self.assembler.three(odd, d, first, first);
            self.assembler.three(even, first, first, first);
        }
        self.assembler.three(op, d, first, d);
        self.put_lanes(d, is_whole);
    }

    /// Keeps only the lowest lane of Rd.
    fn keep_lowest(&mut self, d: u8, size: usize) {
        if size < 3 {
            let value = self.temporary();
            let ops = [La::Vpickve2grBu, La::Vpickve2grHu, La::Vpickve2grWu];
            self.assembler.immediate(ops[size], value, d, 0);
            self.assembler.two(La::Movgr2frD, d, value);
        }
        self.put_lanes(d, false);
    }

    fn sum(&mut self, i: Instruction) {
        let (d, size, is_whole) = (i.rd(), i.size(), i.is_whole());
        let mut from = self.lanes(i.rn(), is_whole);
        let last = if is_whole { 4 } else { 3 };
        for op in &SUMS[usize::from(i.op != Op::Saddlv)][size..last] {
            self.assembler.three(*op, d, from, from);
            from = d;
        }
        self.keep_lowest(d, if i.op == Op::Addv { size } else { size + 1 });
    }

    fn extreme(&mut self, i: Instruction, ops: Sizes) {
        let (d, size, is_whole) = (i.rd(), i.size(), i.is_whole());
        let mut from = self.lanes(i.rn(), is_whole);
        let other = self.borrow_vector(&[d, from]);
        let mut distance = if is_whole { 8 } else { 4 };
        while distance >= 1 << size {
            self.assembler.immediate(La::VbsrlV, other, from, distance);
            self.assembler.three(ops[size], d, from, other);
            from = d;
            distance /= 2;
        }
        self.keep_lowest(d, size);
    }
}
