//! SSE instructions with an equivalent LoongArch instruction. Source: Intel SDM, volume 2; LoongArch Reference Manual,
//! LSX volume.

use iced_x86::Mnemonic;
use longma_loongarch::Op as La;

/// The order of operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Destination first.
    Straight,
    /// Source first.
    Swapped,
}

/// The LoongArch equivalent of an instruction that combines destination and source.
#[rustfmt::skip]
pub(super) fn binary(mnemonic: Mnemonic) -> Option<(La, Order)> {
    use Mnemonic::*;
    use Order::{Straight, Swapped};
    Some(match mnemonic {
        Paddb => (La::VaddB, Straight), Paddw => (La::VaddH, Straight),
        Paddd => (La::VaddW, Straight), Paddq => (La::VaddD, Straight),
        Psubb => (La::VsubB, Straight), Psubw => (La::VsubH, Straight),
        Psubd => (La::VsubW, Straight), Psubq => (La::VsubD, Straight),
        Paddsb => (La::VsaddB, Straight), Paddsw => (La::VsaddH, Straight),
        Paddusb => (La::VsaddBu, Straight), Paddusw => (La::VsaddHu, Straight),
        Psubsb => (La::VssubB, Straight), Psubsw => (La::VssubH, Straight),
        Psubusb => (La::VssubBu, Straight), Psubusw => (La::VssubHu, Straight),
        Pmullw => (La::VmulH, Straight), Pmulld => (La::VmulW, Straight),
        Pmulhw => (La::VmuhH, Straight), Pmulhuw => (La::VmuhHu, Straight),
        Pmuludq => (La::VmulwevDWu, Straight), Pmuldq => (La::VmulwevDW, Straight),
        Pavgb => (La::VavgrBu, Straight), Pavgw => (La::VavgrHu, Straight),
        Pminsb => (La::VminB, Straight), Pminsw => (La::VminH, Straight), Pminsd => (La::VminW, Straight),
        Pminub => (La::VminBu, Straight), Pminuw => (La::VminHu, Straight), Pminud => (La::VminWu, Straight),
        Pmaxsb => (La::VmaxB, Straight), Pmaxsw => (La::VmaxH, Straight), Pmaxsd => (La::VmaxW, Straight),
        Pmaxub => (La::VmaxBu, Straight), Pmaxuw => (La::VmaxHu, Straight), Pmaxud => (La::VmaxWu, Straight),
        Pand | Andps | Andpd => (La::VandV, Straight),
        Por | Orps | Orpd => (La::VorV, Straight),
        Pxor | Xorps | Xorpd => (La::VxorV, Straight),
        Pandn | Andnps | Andnpd => (La::VandnV, Straight),
        Pcmpeqb => (La::VseqB, Straight), Pcmpeqw => (La::VseqH, Straight),
        Pcmpeqd => (La::VseqW, Straight), Pcmpeqq => (La::VseqD, Straight),
        Pcmpgtb => (La::VsltB, Swapped), Pcmpgtw => (La::VsltH, Swapped),
        Pcmpgtd => (La::VsltW, Swapped), Pcmpgtq => (La::VsltD, Swapped),
        Punpcklbw => (La::VilvlB, Swapped), Punpcklwd => (La::VilvlH, Swapped),
        Punpckldq | Unpcklps => (La::VilvlW, Swapped),
        Punpcklqdq | Unpcklpd => (La::VilvlD, Swapped),
        Punpckhbw => (La::VilvhB, Swapped), Punpckhwd => (La::VilvhH, Swapped),
        Punpckhdq | Unpckhps => (La::VilvhW, Swapped),
        Punpckhqdq | Unpckhpd => (La::VilvhD, Swapped),
        Addps => (La::VfaddS, Straight), Addpd => (La::VfaddD, Straight),
        Subps => (La::VfsubS, Straight), Subpd => (La::VfsubD, Straight),
        Mulps => (La::VfmulS, Straight), Mulpd => (La::VfmulD, Straight),
        Divps => (La::VfdivS, Straight), Divpd => (La::VfdivD, Straight),
        _ => return None,
    })
}

/// The LoongArch equivalent of an instruction that reads only the source.
pub(super) fn unary(mnemonic: Mnemonic) -> Option<La> {
    Some(match mnemonic {
        Mnemonic::Sqrtps => La::VfsqrtS,
        Mnemonic::Sqrtpd => La::VfsqrtD,
        Mnemonic::Cvtdq2ps => La::VffintSW,
        _ => return None,
    })
}

/// The sequence of instructions that widens the low elements, each to the next size.
pub(super) fn widening(mnemonic: Mnemonic) -> Option<&'static [La]> {
    use Mnemonic::*;
    Some(match mnemonic {
        Pmovsxbw => &[La::VsllwilHB],
        Pmovsxbd => &[La::VsllwilHB, La::VsllwilWH],
        Pmovsxbq => &[La::VsllwilHB, La::VsllwilWH, La::VsllwilDW],
        Pmovsxwd => &[La::VsllwilWH],
        Pmovsxwq => &[La::VsllwilWH, La::VsllwilDW],
        Pmovsxdq => &[La::VsllwilDW],
        Pmovzxbw => &[La::VsllwilHuBu],
        Pmovzxbd => &[La::VsllwilHuBu, La::VsllwilWuHu],
        Pmovzxbq => &[La::VsllwilHuBu, La::VsllwilWuHu, La::VsllwilDuWu],
        Pmovzxwd => &[La::VsllwilWuHu],
        Pmovzxwq => &[La::VsllwilWuHu, La::VsllwilDuWu],
        Pmovzxdq => &[La::VsllwilDuWu],
        _ => return None,
    })
}
