//! Lowers lane-wise arithmetic, logic and comparisons. Source: Arm Architecture Reference Manual (Arm DDI 0487),
//! section C7.2; LoongArch Reference Manual, volume 2.

use longma_loongarch::Op as La;

use super::Sizes;
use crate::code::lower::Lowering;
use crate::instruction::{Instruction, Op};

const ADD: Sizes = [La::VaddB, La::VaddH, La::VaddW, La::VaddD];
const SUB: Sizes = [La::VsubB, La::VsubH, La::VsubW, La::VsubD];
const EQUAL_ZERO: Sizes = [La::VseqiB, La::VseqiH, La::VseqiW, La::VseqiD];
const CLZ: Sizes = [La::VclzB, La::VclzH, La::VclzW, La::VclzD];
const ABSOLUTE_DIFFERENCE: [Sizes; 2] =
    [[La::VabsdB, La::VabsdH, La::VabsdW, La::VabsdD], [La::VabsdBu, La::VabsdHu, La::VabsdWu, La::VabsdDu]];

/// The direct LSX equivalent of an instruction for each element size, and whether its operands are swapped.
fn plain(op: Op) -> Option<(Sizes, bool)> {
    use Op::*;
    let in_order = |sizes| Some((sizes, false));
    let swapped = |sizes| Some((sizes, true));
    match op {
        AddV | AddD => in_order(ADD),
        SubV | SubD => in_order(SUB),
        MulV => in_order([La::VmulB, La::VmulH, La::VmulW, La::VmulD]),
        MlaV => in_order([La::VmaddB, La::VmaddH, La::VmaddW, La::VmaddD]),
        MlsV => in_order([La::VmsubB, La::VmsubH, La::VmsubW, La::VmsubD]),
        ShaddV => in_order([La::VavgB, La::VavgH, La::VavgW, La::VavgD]),
        UhaddV => in_order([La::VavgBu, La::VavgHu, La::VavgWu, La::VavgDu]),
        SrhaddV => in_order([La::VavgrB, La::VavgrH, La::VavgrW, La::VavgrD]),
        UrhaddV => in_order([La::VavgrBu, La::VavgrHu, La::VavgrWu, La::VavgrDu]),
        SmaxV => in_order([La::VmaxB, La::VmaxH, La::VmaxW, La::VmaxD]),
        UmaxV => in_order([La::VmaxBu, La::VmaxHu, La::VmaxWu, La::VmaxDu]),
        SminV => in_order([La::VminB, La::VminH, La::VminW, La::VminD]),
        UminV => in_order([La::VminBu, La::VminHu, La::VminWu, La::VminDu]),
        SabdV => in_order(ABSOLUTE_DIFFERENCE[0]),
        UabdV => in_order(ABSOLUTE_DIFFERENCE[1]),
        SqaddV => in_order([La::VsaddB, La::VsaddH, La::VsaddW, La::VsaddD]),
        UqaddV => in_order([La::VsaddBu, La::VsaddHu, La::VsaddWu, La::VsaddDu]),
        SqsubV => in_order([La::VssubB, La::VssubH, La::VssubW, La::VssubD]),
        UqsubV => in_order([La::VssubBu, La::VssubHu, La::VssubWu, La::VssubDu]),
        CmeqV | CmeqD => in_order([La::VseqB, La::VseqH, La::VseqW, La::VseqD]),
        CmgtV | CmgtD => swapped([La::VsltB, La::VsltH, La::VsltW, La::VsltD]),
        CmhiV | CmhiD => swapped([La::VsltBu, La::VsltHu, La::VsltWu, La::VsltDu]),
        CmgeV | CmgeD => swapped([La::VsleB, La::VsleH, La::VsleW, La::VsleD]),
        CmhsV | CmhsD => swapped([La::VsleBu, La::VsleHu, La::VsleWu, La::VsleDu]),
        _ => None,
    }
}

/// The operation without saturation, for an operation that saturates.
fn wrapping(op: Op) -> Option<Sizes> {
    match op {
        Op::SqaddV | Op::UqaddV => Some(ADD),
        Op::SqsubV | Op::UqsubV => Some(SUB),
        _ => None,
    }
}

/// The direct LSX equivalent of a floating-point instruction (single and double), and whether its operands are swapped.
fn plain_float(op: Op) -> Option<([La; 2], bool)> {
    use Op::*;
    let in_order = |pair| Some((pair, false));
    let swapped = |pair| Some((pair, true));
    match op {
        FaddV => in_order([La::VfaddS, La::VfaddD]),
        FsubV => in_order([La::VfsubS, La::VfsubD]),
        FmulV => in_order([La::VfmulS, La::VfmulD]),
        FdivV => in_order([La::VfdivS, La::VfdivD]),
        FmaxnmV => in_order([La::VfmaxS, La::VfmaxD]),
        FminnmV => in_order([La::VfminS, La::VfminD]),
        FcmeqV => in_order([La::VfcmpCeqS, La::VfcmpCeqD]),
        FcmgeV => swapped([La::VfcmpSleS, La::VfcmpSleD]),
        FcmgtV => swapped([La::VfcmpSltS, La::VfcmpSltD]),
        _ => None,
    }
}

/// The LSX equivalent of a floating-point instruction with one operand (single and double).
fn plain_float_one(op: Op) -> Option<[La; 2]> {
    use Op::*;
    Some(match op {
        FsqrtV => [La::VfsqrtS, La::VfsqrtD],
        FcvtzsV => [La::VftintrzWS, La::VftintrzLD],
        FcvtzuV => [La::VftintrzWuS, La::VftintrzLuD],
        ScvtfV => [La::VffintSW, La::VffintDL],
        UcvtfV => [La::VffintSWu, La::VffintDLu],
        FrintxV => [La::VfrintS, La::VfrintD],
        _ => return None,
    })
}

/// Whether an instruction raises the invalid exception for bit patterns that are common in registers but are not
/// floating-point data, such as comparison masks.
fn signals(op: Op) -> bool {
    use Op::*;
    matches!(op, FcmeqV | FcmgeV | FcmgtV | FcvtzsV | FcvtzuV | FmaxnmV | FminnmV)
}

impl Lowering<'_> {
    pub(super) fn vector_arithmetic(&mut self, i: Instruction) -> bool {
        let (d, n, m, size) = (i.rd(), i.rn(), i.rm(), i.size());
        // 64-bit scalar operations also set bit 30.
        let is_whole = i.is_whole() && i.bits(28, 1) == 0;
        if let Some((ops, is_swapped)) = plain(i.op) {
            let (n, m) = (self.lanes(n, is_whole), self.lanes(m, is_whole));
            if matches!(i.op, Op::MlaV | Op::MlsV) {
                self.lanes(d, is_whole);
            }
            let (j, k) = if is_swapped { (m, n) } else { (n, m) };
            if let Some(wrapping) = wrapping(i.op) {
                let differences = self.borrow_vector(&[d, n, m]);
                self.assembler.three(wrapping[size], differences, n, m);
                self.assembler.three(ops[size], d, n, m);
                self.assembler.three(La::VxorV, differences, differences, d);
                let unsaturated = self.borrow_vector(&[d]);
                self.note_saturation(differences, unsaturated, is_whole);
            } else {
                self.assembler.three(ops[size], d, j, k);
            }
            self.put_lanes(d, is_whole);
            return true;
        }
        if let Some((ops, is_swapped)) = plain_float(i.op) {
            let (n, m) = (self.lanes(n, is_whole), self.lanes(m, is_whole));
            let [n, m] = if signals(i.op) { self.own_elements([n, m], d, is_whole) } else { [n, m] };
            let (j, k) = if is_swapped { (m, n) } else { (n, m) };
            self.assembler.three(ops[usize::from(i.is_double())], d, j, k);
            self.put_lanes(d, is_whole);
            return true;
        }
        if let Some(ops) = plain_float_one(i.op) {
            let n = self.lanes(n, is_whole);
            let n = if signals(i.op) { self.own_elements([n, n], d, is_whole)[0] } else { n };
            self.assembler.two(ops[usize::from(i.is_double())], d, n);
            self.put_lanes(d, is_whole);
            return true;
        }
        self.float_extreme(i)
            || self.logic(i)
            || self.vector_one(i, is_whole)
            || self.vector_accumulate(i)
            || self.compare_with_zero(i, is_whole)
    }

    /// FMAX and FMIN propagate NaNs, but the LSX instructions return the other operand. An addition propagates the NaN.
    /// The other elements are set to zero, because they could overflow or be inexact.
    fn float_extreme(&mut self, i: Instruction) -> bool {
        let double = usize::from(i.is_double());
        let op = match i.op {
            Op::FmaxV => [La::VfmaxS, La::VfmaxD][double],
            Op::FminV => [La::VfminS, La::VfminD][double],
            _ => return false,
        };
        let (d, is_whole) = (i.rd(), i.is_whole());
        let (n, m) = (self.lanes(i.rn(), is_whole), self.lanes(i.rm(), is_whole));
        let [n, m] = self.own_elements([n, m], d, is_whole);
        let [unordered, sum] = [(); 2].map(|()| self.borrow_vector(&[d, n, m]));
        let second = if d == n || d == m { self.borrow_vector(&[d, n, m]) } else { d };
        self.assembler.three([La::VfcmpCunS, La::VfcmpCunD][double], unordered, n, m);
        self.assembler.three(La::VandV, sum, n, unordered);
        self.assembler.three(La::VandV, second, m, unordered);
        self.assembler.three([La::VfaddS, La::VfaddD][double], sum, sum, second);
        self.assembler.three(op, d, n, m);
        self.four(La::VbitselV, [d, d, sum, unordered]);
        self.put_lanes(d, is_whole);
        true
    }

    fn logic(&mut self, i: Instruction) -> bool {
        use Op::*;
        let (d, n, m, is_whole) = (i.rd(), i.rn(), i.rm(), i.is_whole());
        if !matches!(i.op, AndV | BicV | OrrV | OrnV | EorV | BslV | BitV | BifV | CmtstV | CmtstD) {
            return false;
        }
        let is_whole = is_whole && i.op != CmtstD;
        let (n, m) = (self.lanes(n, is_whole), self.lanes(m, is_whole));
        match i.op {
            AndV => self.assembler.three(La::VandV, d, n, m),
            BicV => self.assembler.three(La::VandnV, d, m, n),
            OrrV => self.assembler.three(La::VorV, d, n, m),
            OrnV => self.assembler.three(La::VornV, d, n, m),
            EorV => self.assembler.three(La::VxorV, d, n, m),
            CmtstV | CmtstD => {
                self.assembler.three(La::VandV, d, n, m);
                self.assembler.immediate(EQUAL_ZERO[i.size()], d, d, 0);
                self.assembler.three(La::VnorV, d, d, d);
            }
            op => {
                self.lanes(d, is_whole);
                // Selects the third operand where the last one has a 1 bit, otherwise the second.
                self.four(
                    La::VbitselV,
                    match op {
                        BslV => [d, m, n, d],
                        BitV => [d, d, n, m],
                        _ => [d, n, d, m],
                    },
                );
            }
        }
        self.put_lanes(d, is_whole);
        true
    }

    fn vector_one(&mut self, i: Instruction, is_whole: bool) -> bool {
        use Op::*;
        let (d, n, size) = (i.rd(), i.rn(), i.size());
        if !matches!(i.op, NotV | CntV | ClzV | ClsV | AbsV | AbsD | NegV | NegD | FabsV | FnegV) {
            return false;
        }
        let n = self.lanes(n, is_whole);
        match i.op {
            NotV => self.assembler.three(La::VnorV, d, n, n),
            CntV => self.assembler.two(La::VpcntB, d, n),
            ClzV => self.assembler.two(CLZ[size], d, n),
            AbsV | AbsD => {
                let ops = [La::VsigncovB, La::VsigncovH, La::VsigncovW, La::VsigncovD];
                self.assembler.three(ops[size], d, n, n);
            }
            NegV | NegD => self.assembler.two([La::VnegB, La::VnegH, La::VnegW, La::VnegD][size], d, n),
            FabsV if i.is_double() => self.assembler.immediate(La::VbitclriD, d, n, 63),
            FabsV => self.assembler.immediate(La::VbitclriW, d, n, 31),
            FnegV if i.is_double() => self.assembler.immediate(La::VbitreviD, d, n, 63),
            FnegV => self.assembler.immediate(La::VbitreviW, d, n, 31),
            _ => {
                // Count the leading bits that equal the sign bit, excluding the sign bit itself.
                let to = if d == n { self.borrow_vector(&[d]) } else { d };
                let shift = [La::VsraiB, La::VsraiH, La::VsraiW, La::VsraiD][size];
                self.assembler.immediate(shift, to, n, (8 << size) - 1);
                self.assembler.three(La::VxorV, to, to, n);
                self.assembler.two(CLZ[size], d, to);
                self.assembler.immediate([La::VsubiBu, La::VsubiHu, La::VsubiWu, La::VsubiDu][size], d, d, 1);
            }
        }
        self.put_lanes(d, is_whole);
        true
    }

    fn vector_accumulate(&mut self, i: Instruction) -> bool {
        use Op::*;
        let (d, n, m, is_whole) = (i.rd(), i.rn(), i.rm(), i.is_whole());
        let double = usize::from(i.is_double());
        if !matches!(i.op, SabaV | UabaV | FmlaV | FmlsV | FabdV | FabdScalar) {
            return false;
        }
        let is_whole = is_whole && i.op != FabdScalar;
        let (n, m) = (self.lanes(n, is_whole), self.lanes(m, is_whole));
        match i.op {
            FabdV | FabdScalar => {
                // The difference of a scalar must not raise the exceptions of other elements.
                let subtract =
                    if i.op == FabdScalar { [La::FsubS, La::FsubD] } else { [La::VfsubS, La::VfsubD] };
                self.assembler.three(subtract[double], d, n, m);
                let (op, bit) = if i.is_double() { (La::VbitclriD, 63) } else { (La::VbitclriW, 31) };
                self.assembler.immediate(op, d, d, bit);
                if i.op == FabdScalar {
                    self.put_scalar(d, i.is_double());
                    return true;
                }
            }
            FmlaV | FmlsV => {
                self.lanes(d, is_whole);
                let factor = if i.op == FmlaV {
                    n
                } else {
                    let to = self.borrow_vector(&[d, n, m]);
                    let (op, bit) = if i.is_double() { (La::VbitreviD, 63) } else { (La::VbitreviW, 31) };
                    self.assembler.immediate(op, to, n, bit);
                    to
                };
                self.four([La::VfmaddS, La::VfmaddD][double], [d, factor, m, d]);
            }
            _ => {
                self.lanes(d, is_whole);
                let to = self.borrow_vector(&[d, n, m]);
                self.assembler.three(ABSOLUTE_DIFFERENCE[usize::from(i.op == UabaV)][i.size()], to, n, m);
                self.assembler.three(ADD[i.size()], d, d, to);
            }
        }
        self.put_lanes(d, is_whole);
        true
    }

    fn compare_with_zero(&mut self, i: Instruction, is_whole: bool) -> bool {
        use Op::*;
        let (d, n, size) = (i.rd(), i.rn(), i.size());
        let less = [La::VsltiB, La::VsltiH, La::VsltiW, La::VsltiD];
        let less_equal = [La::VsleiB, La::VsleiH, La::VsleiW, La::VsleiD];
        let (ops, is_opposite) = match i.op {
            CmeqZero | CmeqDZero => (EQUAL_ZERO, false),
            CmltZero | CmltDZero => (less, false),
            CmleZero | CmleDZero => (less_equal, false),
            CmgeZero | CmgeDZero => (less, true),
            CmgtZero | CmgtDZero => (less_equal, true),
            _ => return self.float_with_zero(i),
        };
        let n = self.lanes(n, is_whole);
        self.assembler.immediate(ops[size], d, n, 0);
        if is_opposite {
            self.assembler.three(La::VnorV, d, d, d);
        }
        self.put_lanes(d, is_whole);
        true
    }

    fn float_with_zero(&mut self, i: Instruction) -> bool {
        use Op::*;
        let (d, is_whole) = (i.rd(), i.is_whole());
        let (ops, is_swapped) = match i.op {
            FcmeqZero => ([La::VfcmpCeqS, La::VfcmpCeqD], false),
            FcmltZero => ([La::VfcmpSltS, La::VfcmpSltD], false),
            FcmleZero => ([La::VfcmpSleS, La::VfcmpSleD], false),
            FcmgtZero => ([La::VfcmpSltS, La::VfcmpSltD], true),
            FcmgeZero => ([La::VfcmpSleS, La::VfcmpSleD], true),
            _ => return false,
        };
        let n = self.lanes(i.rn(), is_whole);
        let n = self.own_elements([n, n], d, is_whole)[0];
        let zero = self.borrow_vector(&[d, n]);
        self.assembler.two(La::Vreplgr2vrD, zero, 0);
        let (j, k) = if is_swapped { (zero, n) } else { (n, zero) };
        self.assembler.three(ops[usize::from(i.is_double())], d, j, k);
        self.put_lanes(d, is_whole);
        true
    }
}
