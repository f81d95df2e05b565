//! Lowers Advanced SIMD scalar instructions: conversions in vector registers, comparisons, sums of two lanes. Source:
//! Arm Architecture Reference Manual (Arm DDI 0487), section C7.2; LoongArch Reference Manual, volume 2.

use longma_loongarch::Op as La;

use crate::code::lower::Lowering;
use crate::instruction::{Instruction, Op};

impl Lowering<'_> {
    pub(super) fn vector_scalar(&mut self, i: Instruction) -> bool {
        use Op::*;
        let (d, is_double) = (i.rd(), i.is_double());
        let two = match i.op {
            ScvtfScalar => [La::FfintSW, La::FfintDL],
            UcvtfScalar => [La::VffintSWu, La::VffintDLu],
            FcvtzsScalar => [La::FtintrzWS, La::FtintrzLD],
            FcvtzuScalar => [La::VftintrzWuS, La::VftintrzLuD],
            _ => return self.scalar_of_two(i),
        };
        let n = self.scalar(i.rn(), i);
        let n = if i.op == FcvtzuScalar { self.spread(d, n, i) } else { n };
        self.assembler.two(two[usize::from(is_double)], d, n);
        self.put_scalar(d, is_double);
        true
    }

    fn scalar_of_two(&mut self, i: Instruction) -> bool {
        use Op::*;
        let (d, is_double) = (i.rd(), i.is_double());
        match i.op {
            FcmeqScalar | FcmgeScalar | FcmgtScalar => {
                let (n, m) = (self.scalar(i.rn(), i), self.scalar(i.rm(), i));
                let [n, m] = self.repeated(if is_double { La::VreplveiD } else { La::VreplveiW }, [n, m], d);
                let (ops, j, k) = match i.op {
                    FcmeqScalar => ([La::VfcmpCeqS, La::VfcmpCeqD], n, m),
                    FcmgeScalar => ([La::VfcmpSleS, La::VfcmpSleD], m, n),
                    _ => ([La::VfcmpSltS, La::VfcmpSltD], m, n),
                };
                self.assembler.three(ops[usize::from(is_double)], d, j, k);
            }
            AddpD => {
                let n = self.lanes(i.rn(), true);
                self.assembler.three(La::VhaddwQD, d, n, n);
                self.put_lanes(d, false);
                return true;
            }
            FaddpScalar => {
                let n = self.lanes(i.rn(), true);
                let second = if d == n { self.borrow_vector(&[d]) } else { d };
                let (pick, add) =
                    if is_double { (La::VreplveiD, La::FaddD) } else { (La::VreplveiW, La::FaddS) };
                self.assembler.immediate(pick, second, n, 1);
                self.assembler.three(add, d, n, second);
            }
            _ => return false,
        }
        self.put_scalar(d, is_double);
        true
    }
}
