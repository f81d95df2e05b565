//! Which memory operands of vector instructions must be aligned. Source: Intel SDM, volume 1, sections 10.4.3 and 14.9;
//! volume 2 (MOVAPS, MOVDQA, MOVNTPS).

use iced_x86::{Instruction, Mnemonic};
use longma_loongarch::Op as La;

use super::lower::{Lowering, is_register};
use super::vex::{is_vex, old};

/// Whether the memory operand of a vector instruction must be a multiple of its size. VEX-encoded instructions require
/// this only of explicitly aligned moves.
pub(crate) fn must_be_aligned(i: &Instruction) -> bool {
    use Mnemonic::*;
    let mnemonic = old(i);
    let is_explicit = matches!(mnemonic, Movaps | Movapd | Movdqa | Movntps | Movntpd | Movntdq | Movntdqa);
    let accepts_any = matches!(
        mnemonic,
        Movups
            | Movupd
            | Movdqu
            | Lddqu
            | Pcmpestri
            | Pcmpestri64
            | Pcmpestrm
            | Pcmpestrm64
            | Pcmpistri
            | Pcmpistrm
    );
    let is_vector = (0..i.op_count()).any(|operand| is_register(i, operand).is_some_and(|r| r.is_xmm()));
    is_explicit || !is_vex(i) && is_vector && !accepts_any && i.memory_size().size() == 16
}

impl Lowering<'_> {
    /// The load or store `op`, or its variant that faults if the address is not aligned as the instruction requires.
    pub fn aligned(&self, op: La) -> La {
        if !must_be_aligned(&self.instruction) {
            return op;
        }
        match op {
            La::Vld => La::VldAligned,
            La::Vldx => La::VldxAligned,
            La::Vst => La::VstAligned,
            La::Vstx => La::VstxAligned,
            La::Xvld => La::XvldAligned,
            La::Xvldx => La::XvldxAligned,
            La::Xvst => La::XvstAligned,
            La::Xvstx => La::XvstxAligned,
            _ => op,
        }
    }
}
