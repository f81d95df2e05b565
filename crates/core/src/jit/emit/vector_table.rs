//! Which AVX2 instruction does what an LSX or LASX instruction does.
//! Not how operands get there (see `vector.rs`).
//! Source: the manual's LSX and LASX volumes; Intel SDM, volume 2.

use iced_x86::Code;
use longma_guest::host::locks::Lazy;
use longma_loongarch::Op;
use rustc_hash::FxHashMap;

/// The two widths of one host instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair(pub Code, pub Code);

impl Pair {
    /// The 256-bit form if `is_wide`.
    pub fn of(self, is_wide: bool) -> Code {
        if is_wide { self.1 } else { self.0 }
    }
}

/// Rows by the LSX and the LASX instruction they are for.
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

/// A host instruction of three operands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binary {
    pub code: Pair,
    /// The sources change places.
    pub swapped: bool,
    /// The result is inverted.
    pub inverted: bool,
}

/// The width of an element that is shifted by its own count.
#[derive(Clone, Copy, Debug)]
pub(super) enum ElementWidth {
    Word,
    Doubleword,
}

pub(super) const PCMPEQD: Pair = Pair(Code::VEX_Vpcmpeqd_xmm_xmm_xmmm128, Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256);
pub(super) const PXOR: Pair = Pair(Code::VEX_Vpxor_xmm_xmm_xmmm128, Code::VEX_Vpxor_ymm_ymm_ymmm256);
pub(super) const POR: Pair = Pair(Code::VEX_Vpor_xmm_xmm_xmmm128, Code::VEX_Vpor_ymm_ymm_ymmm256);
pub(super) const PAND: Pair = Pair(Code::VEX_Vpand_xmm_xmm_xmmm128, Code::VEX_Vpand_ymm_ymm_ymmm256);
pub(super) const PANDN: Pair = Pair(Code::VEX_Vpandn_xmm_xmm_xmmm128, Code::VEX_Vpandn_ymm_ymm_ymmm256);
pub(super) const MOVAPS: Pair = Pair(Code::VEX_Vmovaps_xmm_xmmm128, Code::VEX_Vmovaps_ymm_ymmm256);
pub(super) const PTEST: Pair = Pair(Code::VEX_Vptest_xmm_xmmm128, Code::VEX_Vptest_ymm_ymmm256);
pub(super) const PBROADCASTQ: Pair =
    Pair(Code::VEX_Vpbroadcastq_xmm_xmmm64, Code::VEX_Vpbroadcastq_ymm_xmmm64);
pub(super) const PSHUFD: Pair = Pair(Code::VEX_Vpshufd_xmm_xmmm128_imm8, Code::VEX_Vpshufd_ymm_ymmm256_imm8);

/// Instructions of two sources.
pub(super) static BINARY: Table<Binary> = Table::new(|| {
    let row = |code, swapped, inverted| Binary { code, swapped, inverted };
    index(&[
        (
            Op::VaddB,
            Op::XvaddB,
            row(Pair(Code::VEX_Vpaddb_xmm_xmm_xmmm128, Code::VEX_Vpaddb_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VsubB,
            Op::XvsubB,
            row(Pair(Code::VEX_Vpsubb_xmm_xmm_xmmm128, Code::VEX_Vpsubb_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VseqB,
            Op::XvseqB,
            row(Pair(Code::VEX_Vpcmpeqb_xmm_xmm_xmmm128, Code::VEX_Vpcmpeqb_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VsltB,
            Op::XvsltB,
            row(Pair(Code::VEX_Vpcmpgtb_xmm_xmm_xmmm128, Code::VEX_Vpcmpgtb_ymm_ymm_ymmm256), true, false),
        ),
        (
            Op::VsleB,
            Op::XvsleB,
            row(Pair(Code::VEX_Vpcmpgtb_xmm_xmm_xmmm128, Code::VEX_Vpcmpgtb_ymm_ymm_ymmm256), false, true),
        ),
        (
            Op::VaddH,
            Op::XvaddH,
            row(Pair(Code::VEX_Vpaddw_xmm_xmm_xmmm128, Code::VEX_Vpaddw_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VsubH,
            Op::XvsubH,
            row(Pair(Code::VEX_Vpsubw_xmm_xmm_xmmm128, Code::VEX_Vpsubw_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VseqH,
            Op::XvseqH,
            row(Pair(Code::VEX_Vpcmpeqw_xmm_xmm_xmmm128, Code::VEX_Vpcmpeqw_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VsltH,
            Op::XvsltH,
            row(Pair(Code::VEX_Vpcmpgtw_xmm_xmm_xmmm128, Code::VEX_Vpcmpgtw_ymm_ymm_ymmm256), true, false),
        ),
        (
            Op::VsleH,
            Op::XvsleH,
            row(Pair(Code::VEX_Vpcmpgtw_xmm_xmm_xmmm128, Code::VEX_Vpcmpgtw_ymm_ymm_ymmm256), false, true),
        ),
        (
            Op::VaddW,
            Op::XvaddW,
            row(Pair(Code::VEX_Vpaddd_xmm_xmm_xmmm128, Code::VEX_Vpaddd_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VsubW,
            Op::XvsubW,
            row(Pair(Code::VEX_Vpsubd_xmm_xmm_xmmm128, Code::VEX_Vpsubd_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VseqW,
            Op::XvseqW,
            row(Pair(Code::VEX_Vpcmpeqd_xmm_xmm_xmmm128, Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VsltW,
            Op::XvsltW,
            row(Pair(Code::VEX_Vpcmpgtd_xmm_xmm_xmmm128, Code::VEX_Vpcmpgtd_ymm_ymm_ymmm256), true, false),
        ),
        (
            Op::VsleW,
            Op::XvsleW,
            row(Pair(Code::VEX_Vpcmpgtd_xmm_xmm_xmmm128, Code::VEX_Vpcmpgtd_ymm_ymm_ymmm256), false, true),
        ),
        (
            Op::VaddD,
            Op::XvaddD,
            row(Pair(Code::VEX_Vpaddq_xmm_xmm_xmmm128, Code::VEX_Vpaddq_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VsubD,
            Op::XvsubD,
            row(Pair(Code::VEX_Vpsubq_xmm_xmm_xmmm128, Code::VEX_Vpsubq_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VseqD,
            Op::XvseqD,
            row(Pair(Code::VEX_Vpcmpeqq_xmm_xmm_xmmm128, Code::VEX_Vpcmpeqq_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VsltD,
            Op::XvsltD,
            row(Pair(Code::VEX_Vpcmpgtq_xmm_xmm_xmmm128, Code::VEX_Vpcmpgtq_ymm_ymm_ymmm256), true, false),
        ),
        (
            Op::VsleD,
            Op::XvsleD,
            row(Pair(Code::VEX_Vpcmpgtq_xmm_xmm_xmmm128, Code::VEX_Vpcmpgtq_ymm_ymm_ymmm256), false, true),
        ),
        (
            Op::VmulH,
            Op::XvmulH,
            row(Pair(Code::VEX_Vpmullw_xmm_xmm_xmmm128, Code::VEX_Vpmullw_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VmulW,
            Op::XvmulW,
            row(Pair(Code::VEX_Vpmulld_xmm_xmm_xmmm128, Code::VEX_Vpmulld_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VmuhH,
            Op::XvmuhH,
            row(Pair(Code::VEX_Vpmulhw_xmm_xmm_xmmm128, Code::VEX_Vpmulhw_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VmuhHu,
            Op::XvmuhHu,
            row(Pair(Code::VEX_Vpmulhuw_xmm_xmm_xmmm128, Code::VEX_Vpmulhuw_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VmaxB,
            Op::XvmaxB,
            row(Pair(Code::VEX_Vpmaxsb_xmm_xmm_xmmm128, Code::VEX_Vpmaxsb_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VminB,
            Op::XvminB,
            row(Pair(Code::VEX_Vpminsb_xmm_xmm_xmmm128, Code::VEX_Vpminsb_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VmaxH,
            Op::XvmaxH,
            row(Pair(Code::VEX_Vpmaxsw_xmm_xmm_xmmm128, Code::VEX_Vpmaxsw_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VminH,
            Op::XvminH,
            row(Pair(Code::VEX_Vpminsw_xmm_xmm_xmmm128, Code::VEX_Vpminsw_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VmaxW,
            Op::XvmaxW,
            row(Pair(Code::VEX_Vpmaxsd_xmm_xmm_xmmm128, Code::VEX_Vpmaxsd_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VminW,
            Op::XvminW,
            row(Pair(Code::VEX_Vpminsd_xmm_xmm_xmmm128, Code::VEX_Vpminsd_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VmaxBu,
            Op::XvmaxBu,
            row(Pair(Code::VEX_Vpmaxub_xmm_xmm_xmmm128, Code::VEX_Vpmaxub_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VminBu,
            Op::XvminBu,
            row(Pair(Code::VEX_Vpminub_xmm_xmm_xmmm128, Code::VEX_Vpminub_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VmaxHu,
            Op::XvmaxHu,
            row(Pair(Code::VEX_Vpmaxuw_xmm_xmm_xmmm128, Code::VEX_Vpmaxuw_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VminHu,
            Op::XvminHu,
            row(Pair(Code::VEX_Vpminuw_xmm_xmm_xmmm128, Code::VEX_Vpminuw_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VmaxWu,
            Op::XvmaxWu,
            row(Pair(Code::VEX_Vpmaxud_xmm_xmm_xmmm128, Code::VEX_Vpmaxud_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VminWu,
            Op::XvminWu,
            row(Pair(Code::VEX_Vpminud_xmm_xmm_xmmm128, Code::VEX_Vpminud_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VsaddB,
            Op::XvsaddB,
            row(Pair(Code::VEX_Vpaddsb_xmm_xmm_xmmm128, Code::VEX_Vpaddsb_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VssubB,
            Op::XvssubB,
            row(Pair(Code::VEX_Vpsubsb_xmm_xmm_xmmm128, Code::VEX_Vpsubsb_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VsaddH,
            Op::XvsaddH,
            row(Pair(Code::VEX_Vpaddsw_xmm_xmm_xmmm128, Code::VEX_Vpaddsw_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VssubH,
            Op::XvssubH,
            row(Pair(Code::VEX_Vpsubsw_xmm_xmm_xmmm128, Code::VEX_Vpsubsw_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VsaddBu,
            Op::XvsaddBu,
            row(Pair(Code::VEX_Vpaddusb_xmm_xmm_xmmm128, Code::VEX_Vpaddusb_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VssubBu,
            Op::XvssubBu,
            row(Pair(Code::VEX_Vpsubusb_xmm_xmm_xmmm128, Code::VEX_Vpsubusb_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VsaddHu,
            Op::XvsaddHu,
            row(Pair(Code::VEX_Vpaddusw_xmm_xmm_xmmm128, Code::VEX_Vpaddusw_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VssubHu,
            Op::XvssubHu,
            row(Pair(Code::VEX_Vpsubusw_xmm_xmm_xmmm128, Code::VEX_Vpsubusw_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VavgrBu,
            Op::XvavgrBu,
            row(Pair(Code::VEX_Vpavgb_xmm_xmm_xmmm128, Code::VEX_Vpavgb_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VavgrHu,
            Op::XvavgrHu,
            row(Pair(Code::VEX_Vpavgw_xmm_xmm_xmmm128, Code::VEX_Vpavgw_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VandV,
            Op::XvandV,
            row(Pair(Code::VEX_Vpand_xmm_xmm_xmmm128, Code::VEX_Vpand_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VorV,
            Op::XvorV,
            row(Pair(Code::VEX_Vpor_xmm_xmm_xmmm128, Code::VEX_Vpor_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VxorV,
            Op::XvxorV,
            row(Pair(Code::VEX_Vpxor_xmm_xmm_xmmm128, Code::VEX_Vpxor_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VandnV,
            Op::XvandnV,
            row(Pair(Code::VEX_Vpandn_xmm_xmm_xmmm128, Code::VEX_Vpandn_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VilvlB,
            Op::XvilvlB,
            row(
                Pair(Code::VEX_Vpunpcklbw_xmm_xmm_xmmm128, Code::VEX_Vpunpcklbw_ymm_ymm_ymmm256),
                true,
                false,
            ),
        ),
        (
            Op::VilvhB,
            Op::XvilvhB,
            row(
                Pair(Code::VEX_Vpunpckhbw_xmm_xmm_xmmm128, Code::VEX_Vpunpckhbw_ymm_ymm_ymmm256),
                true,
                false,
            ),
        ),
        (
            Op::VilvlH,
            Op::XvilvlH,
            row(
                Pair(Code::VEX_Vpunpcklwd_xmm_xmm_xmmm128, Code::VEX_Vpunpcklwd_ymm_ymm_ymmm256),
                true,
                false,
            ),
        ),
        (
            Op::VilvhH,
            Op::XvilvhH,
            row(
                Pair(Code::VEX_Vpunpckhwd_xmm_xmm_xmmm128, Code::VEX_Vpunpckhwd_ymm_ymm_ymmm256),
                true,
                false,
            ),
        ),
        (
            Op::VilvlW,
            Op::XvilvlW,
            row(
                Pair(Code::VEX_Vpunpckldq_xmm_xmm_xmmm128, Code::VEX_Vpunpckldq_ymm_ymm_ymmm256),
                true,
                false,
            ),
        ),
        (
            Op::VilvhW,
            Op::XvilvhW,
            row(
                Pair(Code::VEX_Vpunpckhdq_xmm_xmm_xmmm128, Code::VEX_Vpunpckhdq_ymm_ymm_ymmm256),
                true,
                false,
            ),
        ),
        (
            Op::VilvlD,
            Op::XvilvlD,
            row(
                Pair(Code::VEX_Vpunpcklqdq_xmm_xmm_xmmm128, Code::VEX_Vpunpcklqdq_ymm_ymm_ymmm256),
                true,
                false,
            ),
        ),
        (
            Op::VilvhD,
            Op::XvilvhD,
            row(
                Pair(Code::VEX_Vpunpckhqdq_xmm_xmm_xmmm128, Code::VEX_Vpunpckhqdq_ymm_ymm_ymmm256),
                true,
                false,
            ),
        ),
        (
            Op::VpackevD,
            Op::XvpackevD,
            row(
                Pair(Code::VEX_Vpunpcklqdq_xmm_xmm_xmmm128, Code::VEX_Vpunpcklqdq_ymm_ymm_ymmm256),
                true,
                false,
            ),
        ),
        (
            Op::VpackodD,
            Op::XvpackodD,
            row(
                Pair(Code::VEX_Vpunpckhqdq_xmm_xmm_xmmm128, Code::VEX_Vpunpckhqdq_ymm_ymm_ymmm256),
                true,
                false,
            ),
        ),
        (
            Op::VpickevD,
            Op::XvpickevD,
            row(
                Pair(Code::VEX_Vpunpcklqdq_xmm_xmm_xmmm128, Code::VEX_Vpunpcklqdq_ymm_ymm_ymmm256),
                true,
                false,
            ),
        ),
        (
            Op::VpickodD,
            Op::XvpickodD,
            row(
                Pair(Code::VEX_Vpunpckhqdq_xmm_xmm_xmmm128, Code::VEX_Vpunpckhqdq_ymm_ymm_ymmm256),
                true,
                false,
            ),
        ),
        (
            Op::VfaddS,
            Op::XvfaddS,
            row(Pair(Code::VEX_Vaddps_xmm_xmm_xmmm128, Code::VEX_Vaddps_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VfsubS,
            Op::XvfsubS,
            row(Pair(Code::VEX_Vsubps_xmm_xmm_xmmm128, Code::VEX_Vsubps_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VfmulS,
            Op::XvfmulS,
            row(Pair(Code::VEX_Vmulps_xmm_xmm_xmmm128, Code::VEX_Vmulps_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VfdivS,
            Op::XvfdivS,
            row(Pair(Code::VEX_Vdivps_xmm_xmm_xmmm128, Code::VEX_Vdivps_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VfaddD,
            Op::XvfaddD,
            row(Pair(Code::VEX_Vaddpd_xmm_xmm_xmmm128, Code::VEX_Vaddpd_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VfsubD,
            Op::XvfsubD,
            row(Pair(Code::VEX_Vsubpd_xmm_xmm_xmmm128, Code::VEX_Vsubpd_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VfmulD,
            Op::XvfmulD,
            row(Pair(Code::VEX_Vmulpd_xmm_xmm_xmmm128, Code::VEX_Vmulpd_ymm_ymm_ymmm256), false, false),
        ),
        (
            Op::VfdivD,
            Op::XvfdivD,
            row(Pair(Code::VEX_Vdivpd_xmm_xmm_xmmm128, Code::VEX_Vdivpd_ymm_ymm_ymmm256), false, false),
        ),
    ])
});

/// Shifts of every element by one immediate.
pub(super) static SHIFT: Table<Pair> = Table::new(|| {
    index(&[
        (Op::VslliH, Op::XvslliH, Pair(Code::VEX_Vpsllw_xmm_xmm_imm8, Code::VEX_Vpsllw_ymm_ymm_imm8)),
        (Op::VslliW, Op::XvslliW, Pair(Code::VEX_Vpslld_xmm_xmm_imm8, Code::VEX_Vpslld_ymm_ymm_imm8)),
        (Op::VslliD, Op::XvslliD, Pair(Code::VEX_Vpsllq_xmm_xmm_imm8, Code::VEX_Vpsllq_ymm_ymm_imm8)),
        (Op::VsrliH, Op::XvsrliH, Pair(Code::VEX_Vpsrlw_xmm_xmm_imm8, Code::VEX_Vpsrlw_ymm_ymm_imm8)),
        (Op::VsrliW, Op::XvsrliW, Pair(Code::VEX_Vpsrld_xmm_xmm_imm8, Code::VEX_Vpsrld_ymm_ymm_imm8)),
        (Op::VsrliD, Op::XvsrliD, Pair(Code::VEX_Vpsrlq_xmm_xmm_imm8, Code::VEX_Vpsrlq_ymm_ymm_imm8)),
        (Op::VsraiH, Op::XvsraiH, Pair(Code::VEX_Vpsraw_xmm_xmm_imm8, Code::VEX_Vpsraw_ymm_ymm_imm8)),
        (Op::VsraiW, Op::XvsraiW, Pair(Code::VEX_Vpsrad_xmm_xmm_imm8, Code::VEX_Vpsrad_ymm_ymm_imm8)),
    ])
});

/// Shifts of each element by its own count.
pub(super) static VARIABLE_SHIFT: Table<(Pair, ElementWidth)> = Table::new(|| {
    index(&[
        (
            Op::VsllW,
            Op::XvsllW,
            (Pair(Code::VEX_Vpsllvd_xmm_xmm_xmmm128, Code::VEX_Vpsllvd_ymm_ymm_ymmm256), ElementWidth::Word),
        ),
        (
            Op::VsllD,
            Op::XvsllD,
            (
                Pair(Code::VEX_Vpsllvq_xmm_xmm_xmmm128, Code::VEX_Vpsllvq_ymm_ymm_ymmm256),
                ElementWidth::Doubleword,
            ),
        ),
        (
            Op::VsrlW,
            Op::XvsrlW,
            (Pair(Code::VEX_Vpsrlvd_xmm_xmm_xmmm128, Code::VEX_Vpsrlvd_ymm_ymm_ymmm256), ElementWidth::Word),
        ),
        (
            Op::VsrlD,
            Op::XvsrlD,
            (
                Pair(Code::VEX_Vpsrlvq_xmm_xmm_xmmm128, Code::VEX_Vpsrlvq_ymm_ymm_ymmm256),
                ElementWidth::Doubleword,
            ),
        ),
        (
            Op::VsraW,
            Op::XvsraW,
            (Pair(Code::VEX_Vpsravd_xmm_xmm_xmmm128, Code::VEX_Vpsravd_ymm_ymm_ymmm256), ElementWidth::Word),
        ),
    ])
});

/// Fused multiply-add, and the comparison that finds NaNs in its result.
pub(super) static FUSED: Table<(Pair, Pair)> = Table::new(|| {
    index(&[
        (
            Op::VfmaddS,
            Op::XvfmaddS,
            (
                Pair(Code::VEX_Vfmadd213ps_xmm_xmm_xmmm128, Code::VEX_Vfmadd213ps_ymm_ymm_ymmm256),
                Pair(Code::VEX_Vcmpps_xmm_xmm_xmmm128_imm8, Code::VEX_Vcmpps_ymm_ymm_ymmm256_imm8),
            ),
        ),
        (
            Op::VfmaddD,
            Op::XvfmaddD,
            (
                Pair(Code::VEX_Vfmadd213pd_xmm_xmm_xmmm128, Code::VEX_Vfmadd213pd_ymm_ymm_ymmm256),
                Pair(Code::VEX_Vcmppd_xmm_xmm_xmmm128_imm8, Code::VEX_Vcmppd_ymm_ymm_ymmm256_imm8),
            ),
        ),
        (
            Op::VfmsubS,
            Op::XvfmsubS,
            (
                Pair(Code::VEX_Vfmsub213ps_xmm_xmm_xmmm128, Code::VEX_Vfmsub213ps_ymm_ymm_ymmm256),
                Pair(Code::VEX_Vcmpps_xmm_xmm_xmmm128_imm8, Code::VEX_Vcmpps_ymm_ymm_ymmm256_imm8),
            ),
        ),
        (
            Op::VfmsubD,
            Op::XvfmsubD,
            (
                Pair(Code::VEX_Vfmsub213pd_xmm_xmm_xmmm128, Code::VEX_Vfmsub213pd_ymm_ymm_ymmm256),
                Pair(Code::VEX_Vcmppd_xmm_xmm_xmmm128_imm8, Code::VEX_Vcmppd_ymm_ymm_ymmm256_imm8),
            ),
        ),
    ])
});

/// Instructions of one source.
pub(super) static UNARY: Table<Pair> = Table::new(|| {
    index(&[
        (Op::VfsqrtS, Op::XvfsqrtS, Pair(Code::VEX_Vsqrtps_xmm_xmmm128, Code::VEX_Vsqrtps_ymm_ymmm256)),
        (Op::VfsqrtD, Op::XvfsqrtD, Pair(Code::VEX_Vsqrtpd_xmm_xmmm128, Code::VEX_Vsqrtpd_ymm_ymmm256)),
        (Op::VffintSW, Op::XvffintSW, Pair(Code::VEX_Vcvtdq2ps_xmm_xmmm128, Code::VEX_Vcvtdq2ps_ymm_ymmm256)),
        (
            Op::VftintrzWS,
            Op::XvftintrzWS,
            Pair(Code::VEX_Vcvttps2dq_xmm_xmmm128, Code::VEX_Vcvttps2dq_ymm_ymmm256),
        ),
    ])
});

/// Tests of elements against zero: the comparison, and whether one zero is wanted (or none).
pub(super) static ELEMENT_TESTS: Table<(Pair, bool)> = Table::new(|| {
    index(&[
        (
            Op::VsetanyeqzB,
            Op::XvsetanyeqzB,
            (Pair(Code::VEX_Vpcmpeqb_xmm_xmm_xmmm128, Code::VEX_Vpcmpeqb_ymm_ymm_ymmm256), true),
        ),
        (
            Op::VsetallnezB,
            Op::XvsetallnezB,
            (Pair(Code::VEX_Vpcmpeqb_xmm_xmm_xmmm128, Code::VEX_Vpcmpeqb_ymm_ymm_ymmm256), false),
        ),
        (
            Op::VsetanyeqzH,
            Op::XvsetanyeqzH,
            (Pair(Code::VEX_Vpcmpeqw_xmm_xmm_xmmm128, Code::VEX_Vpcmpeqw_ymm_ymm_ymmm256), true),
        ),
        (
            Op::VsetallnezH,
            Op::XvsetallnezH,
            (Pair(Code::VEX_Vpcmpeqw_xmm_xmm_xmmm128, Code::VEX_Vpcmpeqw_ymm_ymm_ymmm256), false),
        ),
        (
            Op::VsetanyeqzW,
            Op::XvsetanyeqzW,
            (Pair(Code::VEX_Vpcmpeqd_xmm_xmm_xmmm128, Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256), true),
        ),
        (
            Op::VsetallnezW,
            Op::XvsetallnezW,
            (Pair(Code::VEX_Vpcmpeqd_xmm_xmm_xmmm128, Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256), false),
        ),
        (
            Op::VsetanyeqzD,
            Op::XvsetanyeqzD,
            (Pair(Code::VEX_Vpcmpeqq_xmm_xmm_xmmm128, Code::VEX_Vpcmpeqq_ymm_ymm_ymmm256), true),
        ),
        (
            Op::VsetallnezD,
            Op::XvsetallnezD,
            (Pair(Code::VEX_Vpcmpeqq_xmm_xmm_xmmm128, Code::VEX_Vpcmpeqq_ymm_ymm_ymmm256), false),
        ),
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
        "s" => Pair(Code::VEX_Vcmpps_xmm_xmm_xmmm128_imm8, Code::VEX_Vcmpps_ymm_ymm_ymmm256_imm8),
        _ => Pair(Code::VEX_Vcmppd_xmm_xmm_xmmm128_imm8, Code::VEX_Vcmppd_ymm_ymm_ymmm256_imm8),
    };
    Some((pair.of(is_wide), predicate, is_wide))
}
