//! Lookup tables from LSX and LASX instructions to AVX2 instructions. Source: the manual's LSX and LASX volumes; Intel
//! SDM, volume 2.

use iced_x86::Code;
use longma_guest::host::locks::Lazy;
use longma_loongarch::Op;
use rustc_hash::FxHashMap;

use super::host_vectors::*;

/// Rows indexed by their LSX and LASX instructions.
pub(super) struct Table<T: 'static> {
    rows: Lazy<FxHashMap<Op, (T, bool)>>,
}

impl<T: Clone> Table<T> {
    const fn new(rows: fn() -> FxHashMap<Op, (T, bool)>) -> Self {
        Self { rows: Lazy::new(rows) }
    }

    /// The row of `op`, and whether it is the 256-bit form.
    pub fn find(&self, op: Op) -> Option<(&T, bool)> {
        self.rows.get(&op).map(|(row, is_wide)| (row, *is_wide))
    }
}

fn index<T: Clone>(rows: &[(Op, Op, T)]) -> FxHashMap<Op, (T, bool)> {
    rows.iter()
        .flat_map(|(lsx, lasx, row)| [(*lsx, (row.clone(), false)), (*lasx, (row.clone(), true))])
        .collect()
}

/// A host instruction with three operands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binary {
    pub code: Pair,
    /// The sources are swapped.
    pub swapped: bool,
    /// The result is inverted.
    pub inverted: bool,
}

/// The width of elements with separate shift counts.
#[derive(Clone, Copy, Debug)]
pub(super) enum ElementWidth {
    Word,
    Doubleword,
}

/// Instructions with two sources.
#[rustfmt::skip]
pub(super) static BINARY: Table<Binary> = Table::new(|| {
    let row = |code, swapped, inverted| Binary { code, swapped, inverted };
    index(&[
        (Op::VaddB, Op::XvaddB, row(PADDB, false, false)),
        (Op::VsubB, Op::XvsubB, row(PSUBB, false, false)),
        (Op::VseqB, Op::XvseqB, row(PCMPEQB, false, false)),
        (Op::VsltB, Op::XvsltB, row(PCMPGTB, true, false)),
        (Op::VsleB, Op::XvsleB, row(PCMPGTB, false, true)),
        (Op::VaddH, Op::XvaddH, row(PADDW, false, false)),
        (Op::VsubH, Op::XvsubH, row(PSUBW, false, false)),
        (Op::VseqH, Op::XvseqH, row(PCMPEQW, false, false)),
        (Op::VsltH, Op::XvsltH, row(PCMPGTW, true, false)),
        (Op::VsleH, Op::XvsleH, row(PCMPGTW, false, true)),
        (Op::VaddW, Op::XvaddW, row(PADDD, false, false)),
        (Op::VsubW, Op::XvsubW, row(PSUBD, false, false)),
        (Op::VseqW, Op::XvseqW, row(PCMPEQD, false, false)),
        (Op::VsltW, Op::XvsltW, row(PCMPGTD, true, false)),
        (Op::VsleW, Op::XvsleW, row(PCMPGTD, false, true)),
        (Op::VaddD, Op::XvaddD, row(PADDQ, false, false)),
        (Op::VsubD, Op::XvsubD, row(PSUBQ, false, false)),
        (Op::VseqD, Op::XvseqD, row(PCMPEQQ, false, false)),
        (Op::VsltD, Op::XvsltD, row(PCMPGTQ, true, false)),
        (Op::VsleD, Op::XvsleD, row(PCMPGTQ, false, true)),
        (Op::VmulH, Op::XvmulH, row(PMULLW, false, false)),
        (Op::VmulW, Op::XvmulW, row(PMULLD, false, false)),
        (Op::VmuhH, Op::XvmuhH, row(PMULHW, false, false)),
        (Op::VmuhHu, Op::XvmuhHu, row(PMULHUW, false, false)),
        (Op::VmaxB, Op::XvmaxB, row(PMAXSB, false, false)),
        (Op::VminB, Op::XvminB, row(PMINSB, false, false)),
        (Op::VmaxH, Op::XvmaxH, row(PMAXSW, false, false)),
        (Op::VminH, Op::XvminH, row(PMINSW, false, false)),
        (Op::VmaxW, Op::XvmaxW, row(PMAXSD, false, false)),
        (Op::VminW, Op::XvminW, row(PMINSD, false, false)),
        (Op::VmaxBu, Op::XvmaxBu, row(PMAXUB, false, false)),
        (Op::VminBu, Op::XvminBu, row(PMINUB, false, false)),
        (Op::VmaxHu, Op::XvmaxHu, row(PMAXUW, false, false)),
        (Op::VminHu, Op::XvminHu, row(PMINUW, false, false)),
        (Op::VmaxWu, Op::XvmaxWu, row(PMAXUD, false, false)),
        (Op::VminWu, Op::XvminWu, row(PMINUD, false, false)),
        (Op::VsaddB, Op::XvsaddB, row(PADDSB, false, false)),
        (Op::VssubB, Op::XvssubB, row(PSUBSB, false, false)),
        (Op::VsaddH, Op::XvsaddH, row(PADDSW, false, false)),
        (Op::VssubH, Op::XvssubH, row(PSUBSW, false, false)),
        (Op::VsaddBu, Op::XvsaddBu, row(PADDUSB, false, false)),
        (Op::VssubBu, Op::XvssubBu, row(PSUBUSB, false, false)),
        (Op::VsaddHu, Op::XvsaddHu, row(PADDUSW, false, false)),
        (Op::VssubHu, Op::XvssubHu, row(PSUBUSW, false, false)),
        (Op::VavgrBu, Op::XvavgrBu, row(PAVGB, false, false)),
        (Op::VavgrHu, Op::XvavgrHu, row(PAVGW, false, false)),
        (Op::VandV, Op::XvandV, row(PAND, false, false)),
        (Op::VorV, Op::XvorV, row(POR, false, false)),
        (Op::VxorV, Op::XvxorV, row(PXOR, false, false)),
        (Op::VandnV, Op::XvandnV, row(PANDN, false, false)),
        (Op::VilvlB, Op::XvilvlB, row(PUNPCKLBW, true, false)),
        (Op::VilvhB, Op::XvilvhB, row(PUNPCKHBW, true, false)),
        (Op::VilvlH, Op::XvilvlH, row(PUNPCKLWD, true, false)),
        (Op::VilvhH, Op::XvilvhH, row(PUNPCKHWD, true, false)),
        (Op::VilvlW, Op::XvilvlW, row(PUNPCKLDQ, true, false)),
        (Op::VilvhW, Op::XvilvhW, row(PUNPCKHDQ, true, false)),
        (Op::VilvlD, Op::XvilvlD, row(PUNPCKLQDQ, true, false)),
        (Op::VilvhD, Op::XvilvhD, row(PUNPCKHQDQ, true, false)),
        (Op::VpackevD, Op::XvpackevD, row(PUNPCKLQDQ, true, false)),
        (Op::VpackodD, Op::XvpackodD, row(PUNPCKHQDQ, true, false)),
        (Op::VpickevD, Op::XvpickevD, row(PUNPCKLQDQ, true, false)),
        (Op::VpickodD, Op::XvpickodD, row(PUNPCKHQDQ, true, false)),
        (Op::VfaddS, Op::XvfaddS, row(ADDPS, false, false)),
        (Op::VfsubS, Op::XvfsubS, row(SUBPS, false, false)),
        (Op::VfmulS, Op::XvfmulS, row(MULPS, false, false)),
        (Op::VfdivS, Op::XvfdivS, row(DIVPS, false, false)),
        (Op::VfaddD, Op::XvfaddD, row(ADDPD, false, false)),
        (Op::VfsubD, Op::XvfsubD, row(SUBPD, false, false)),
        (Op::VfmulD, Op::XvfmulD, row(MULPD, false, false)),
        (Op::VfdivD, Op::XvfdivD, row(DIVPD, false, false)),
    ])
});

/// Shifts of all elements by one immediate.
#[rustfmt::skip]
pub(super) static SHIFT: Table<Pair> = Table::new(|| {
    index(&[
        (Op::VslliH, Op::XvslliH, PSLLW),
        (Op::VslliW, Op::XvslliW, PSLLD),
        (Op::VslliD, Op::XvslliD, PSLLQ),
        (Op::VsrliH, Op::XvsrliH, PSRLW),
        (Op::VsrliW, Op::XvsrliW, PSRLD),
        (Op::VsrliD, Op::XvsrliD, PSRLQ),
        (Op::VsraiH, Op::XvsraiH, PSRAW),
        (Op::VsraiW, Op::XvsraiW, PSRAD),
    ])
});

/// Shifts with a separate count for each element.
#[rustfmt::skip]
pub(super) static VARIABLE_SHIFT: Table<(Pair, ElementWidth)> = Table::new(|| {
    index(&[
        (Op::VsllW, Op::XvsllW, (PSLLVD, ElementWidth::Word)),
        (Op::VsllD, Op::XvsllD, (PSLLVQ, ElementWidth::Doubleword)),
        (Op::VsrlW, Op::XvsrlW, (PSRLVD, ElementWidth::Word)),
        (Op::VsrlD, Op::XvsrlD, (PSRLVQ, ElementWidth::Doubleword)),
        (Op::VsraW, Op::XvsraW, (PSRAVD, ElementWidth::Word)),
    ])
});

/// Fused multiply-add instructions and the comparisons that find NaNs in their results.
#[rustfmt::skip]
pub(super) static FUSED: Table<(Pair, Pair)> = Table::new(|| {
    index(&[
        (Op::VfmaddS, Op::XvfmaddS, (FMADD213PS, CMPPS)),
        (Op::VfmaddD, Op::XvfmaddD, (FMADD213PD, CMPPD)),
        (Op::VfmsubS, Op::XvfmsubS, (FMSUB213PS, CMPPS)),
        (Op::VfmsubD, Op::XvfmsubD, (FMSUB213PD, CMPPD)),
    ])
});

/// Instructions with one source.
#[rustfmt::skip]
pub(super) static UNARY: Table<Pair> = Table::new(|| {
    index(&[
        (Op::VfsqrtS, Op::XvfsqrtS, SQRTPS),
        (Op::VfsqrtD, Op::XvfsqrtD, SQRTPD),
        (Op::VffintSW, Op::XvffintSW, CVTDQ2PS),
        (Op::VftintrzWS, Op::XvftintrzWS, CVTTPS2DQ),
        (Op::VftintWS, Op::XvftintWS, CVTPS2DQ),
    ])
});

/// Tests of elements against zero: the comparison, and whether a zero must be present (or absent).
#[rustfmt::skip]
pub(super) static ELEMENT_TESTS: Table<(Pair, bool)> = Table::new(|| {
    index(&[
        (Op::VsetanyeqzB, Op::XvsetanyeqzB, (PCMPEQB, true)),
        (Op::VsetallnezB, Op::XvsetallnezB, (PCMPEQB, false)),
        (Op::VsetanyeqzH, Op::XvsetanyeqzH, (PCMPEQW, true)),
        (Op::VsetallnezH, Op::XvsetallnezH, (PCMPEQW, false)),
        (Op::VsetanyeqzW, Op::XvsetanyeqzW, (PCMPEQD, true)),
        (Op::VsetallnezW, Op::XvsetallnezW, (PCMPEQD, false)),
        (Op::VsetanyeqzD, Op::XvsetanyeqzD, (PCMPEQQ, true)),
        (Op::VsetallnezD, Op::XvsetallnezD, (PCMPEQQ, false)),
    ])
});

/// The host's predicate for each floating-point comparison.
const PREDICATES: [(&str, i32); 22] = [
    ("caf", 0x0b),
    ("saf", 0x1b),
    ("clt", 0x11),
    ("slt", 0x01),
    ("ceq", 0x00),
    ("seq", 0x10),
    ("cle", 0x12),
    ("sle", 0x02),
    ("cun", 0x03),
    ("sun", 0x13),
    ("cult", 0x19),
    ("sult", 0x09),
    ("cueq", 0x08),
    ("sueq", 0x18),
    ("cule", 0x1a),
    ("sule", 0x0a),
    ("cne", 0x0c),
    ("sne", 0x1c),
    ("cor", 0x07),
    ("sor", 0x17),
    ("cune", 0x04),
    ("sune", 0x14),
];

/// The host's comparison, its predicate, and whether it is the 256-bit form.
pub(super) fn compare_of(op: Op) -> Option<(Code, i32, bool)> {
    let name = op.mnemonic();
    let (name, is_wide) = match name.strip_prefix("xvfcmp.") {
        Some(name) => (name, true),
        None => (name.strip_prefix("vfcmp.")?, false),
    };
    let (relation, element) = name.split_once('.')?;
    let predicate = PREDICATES.iter().find(|(name, _)| *name == relation)?.1;
    let pair = match element {
        "s" => CMPPS,
        _ => CMPPD,
    };
    Some((pair.of(is_wide), predicate, is_wide))
}
