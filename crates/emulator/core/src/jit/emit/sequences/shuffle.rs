//! Sequences that permute elements.

use super::super::host_vectors::*;
use super::steps::{HostStep::*, Location::*};
use super::{Element, Mnemonic, Steps};

/// The byte indices 0 to 15.
const BYTES: u128 = 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100;

pub(super) fn steps(mnemonic: &Mnemonic<'_>) -> Option<Steps> {
    let imm = mnemonic.imm;
    match mnemonic.stem {
        "bsll" => return Some(vec![Shift(PSLLDQ, D, J, imm & 15)]),
        "bsrl" => return Some(vec![Shift(PSRLDQ, D, J, imm & 15)]),
        _ => {}
    }
    let element = mnemonic.only()?;
    match (mnemonic.stem, element.bits) {
        ("packev", bits) => even_packed(bits),
        ("packod", bits) => odd_packed(bits),
        ("pickev", bits) => even_picked(bits),
        ("pickod", bits) => odd_picked(bits),
        ("shuf4i", 8) => Some(vec![Pattern(A, byte_shuffle_of_groups(imm)), Two(PSHUFB, D, J, A)]),
        ("shuf4i", 16) => Some(vec![One(PSHUFLW, A, J, imm), One(PSHUFHW, D, A, imm)]),
        ("permi", 32) => Some(vec![Choose(SHUFPS, D, J, Old, imm)]),
        ("replvei" | "repl128vei", bits) => Some(replicated(element, imm & (128 / bits as i32 - 1))),
        ("shuf", 8) if mnemonic.is_same => Some(bytes_of_one()),
        ("shuf", 8) => Some(bytes_of_two()),
        ("extrins", 64) if !mnemonic.is_wide => Some(doubleword_inserted(imm)),
        _ => None,
    }
}

/// Interleaves the even elements of k and j.
fn even_packed(bits: u32) -> Option<Steps> {
    Some(match bits {
        8 => vec![
            Splat(A, 0x00ff_00ff_00ff_00ff),
            Two(PAND, A, A, K),
            Shift(PSLLW, B, J, 8),
            Two(POR, D, A, B),
        ],
        16 => vec![Shift(PSLLD, B, J, 16), Choose(PBLENDW, D, B, K, 0b0101_0101)],
        32 => vec![Shift(PSLLQ, B, J, 32), Choose(PBLENDD, D, B, K, 0b0101_0101)],
        _ => return None,
    })
}

fn odd_packed(bits: u32) -> Option<Steps> {
    Some(match bits {
        8 => vec![
            Splat(A, 0xff00_ff00_ff00_ff00),
            Two(PAND, A, A, J),
            Shift(PSRLW, B, K, 8),
            Two(POR, D, A, B),
        ],
        16 => vec![Shift(PSRLD, B, K, 16), Choose(PBLENDW, D, B, J, 0b1010_1010)],
        32 => vec![Shift(PSRLQ, B, K, 32), Choose(PBLENDD, D, B, J, 0b1010_1010)],
        _ => return None,
    })
}

/// The even elements of k, followed by those of j.
fn even_picked(bits: u32) -> Option<Steps> {
    let masked =
        |mask, pack| vec![Splat(A, mask), Two(PAND, B, A, J), Two(PAND, A, A, K), Two(pack, D, A, B)];
    Some(match bits {
        8 => masked(0x00ff_00ff_00ff_00ff, PACKUSWB),
        16 => masked(0x0000_ffff_0000_ffff, PACKUSDW),
        32 => vec![Choose(SHUFPS, D, K, J, 0b10_00_10_00)],
        _ => return None,
    })
}

fn odd_picked(bits: u32) -> Option<Steps> {
    Some(match bits {
        8 => vec![Shift(PSRLW, A, K, 8), Shift(PSRLW, B, J, 8), Two(PACKUSWB, D, A, B)],
        16 => vec![Shift(PSRLD, A, K, 16), Shift(PSRLD, B, J, 16), Two(PACKUSDW, D, A, B)],
        32 => vec![Choose(SHUFPS, D, K, J, 0b11_01_11_01)],
        _ => return None,
    })
}

/// The byte shuffle that reorders each group of four bytes.
fn byte_shuffle_of_groups(order: i32) -> u128 {
    (0..16).fold(0, |all, n| {
        let from = n & !3 | order as u32 >> (2 * (n & 3)) & 3;
        all | u128::from(from) << (8 * n)
    })
}

/// Replicates one element.
fn replicated(element: Element, number: i32) -> Steps {
    let bytes = element.bits / 8;
    let one = (BYTES >> (element.bits * number as u32)) as u64;
    debug_assert!(bytes <= 8, "an element has at most 64 bits");
    vec![Splat(A, element.splat(one)), Two(PSHUFB, D, J, A)]
}

/// Selects bytes by the lowest four bits of the indices.
fn bytes_of_one() -> Steps {
    vec![Splat(A, 0x0f0f_0f0f_0f0f_0f0f), Two(PAND, A, A, Third), Two(PSHUFB, D, K, A)]
}

/// Selects bytes of k (0 to 15) and j (16 to 31). The host's shuffle returns 0 for an index whose highest bit is set.
fn bytes_of_two() -> Steps {
    vec![
        Splat(A, 0x1f1f_1f1f_1f1f_1f1f),
        Two(PAND, A, A, Third),
        Splat(B, 0x7070_7070_7070_7070),
        Two(PADDB, B, B, A),
        Move(C, K),
        Two(PSHUFB, B, C, B),
        Splat(C, 0x1010_1010_1010_1010),
        Two(PSUBB, A, A, C),
        Move(C, J),
        Two(PSHUFB, A, C, A),
        Two(POR, D, A, B),
    ]
}

/// Replaces a doubleword of the destination with one of j.
fn doubleword_inserted(imm: i32) -> Steps {
    let (from, to) = (imm & 1, imm >> 4 & 1);
    if to == 0 {
        vec![Choose(SHUFPD, D, J, Old, from | 0b10)]
    } else {
        vec![Choose(SHUFPD, D, Old, J, from << 1)]
    }
}
