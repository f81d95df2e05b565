//! Sequences for arithmetic on elements of one width, and for bit operations.

use super::super::host_vectors::*;
use super::compare::{COMPARE_EQUAL, COMPARE_GREATER, max_instruction, min_instruction, with_constant};
use super::shift::{RIGHT, RIGHT_SIGNED};
use super::steps::{HostStep::*, Location, Location::*};
use super::{Element, Mnemonic, Steps};

pub(super) const ADD: [Pair; 4] = [PADDB, PADDW, PADDD, PADDQ];
pub(super) const SUBTRACT: [Pair; 4] = [PSUBB, PSUBW, PSUBD, PSUBQ];
/// The number of set bits in a nibble, by value.
const ONES_IN_NIBBLES: u128 = 0x0403_0302_0302_0201_0302_0201_0201_0100;

pub(super) fn steps(mnemonic: &Mnemonic<'_>) -> Option<Steps> {
    let element = mnemonic.only()?;
    let index = element.index();
    let constant = Splat(B, element.splat(mnemonic.imm as u64));
    // The immediate field may be wider than a bit number; the bit number is its value modulo the element width.
    let bit = 1u64 << (mnemonic.imm as u32 & (element.bits - 1));
    match mnemonic.stem {
        "addi" => with_constant(constant, vec![Two(ADD[index], D, J, B)]),
        "subi" => with_constant(constant, vec![Two(SUBTRACT[index], D, J, B)]),
        "andi" => with_constant(constant, vec![Two(PAND, D, J, B)]),
        "ori" => with_constant(constant, vec![Two(POR, D, J, B)]),
        "xori" => with_constant(constant, vec![Two(PXOR, D, J, B)]),
        "nori" => with_constant(constant, vec![Two(POR, A, J, B), Splat(B, u64::MAX), Two(PXOR, D, A, B)]),
        "bitclri" => with_constant(Splat(B, element.splat(!bit)), vec![Two(PAND, D, J, B)]),
        "bitseti" => with_constant(Splat(B, element.splat(bit)), vec![Two(POR, D, J, B)]),
        "bitrevi" => with_constant(Splat(B, element.splat(bit)), vec![Two(PXOR, D, J, B)]),
        "neg" => Some(vec![Splat(A, 0), Two(SUBTRACT[index], D, A, J)]),
        "absd" => difference(element),
        "adda" => absolute_sum(element),
        "avg" => average(element, false),
        "avgr" => average(element, true),
        "mul" => product(element).map(|mut steps| {
            steps.push(Two(ADD[index], D, A, B));
            steps
        }),
        "madd" => with_product(element, |steps| steps.push(Two(ADD[index], D, A, Old))),
        "msub" => with_product(element, |steps| steps.push(Two(SUBTRACT[index], D, Old, A))),
        "signcov" => signed_as(element),
        "pcnt" => Some(count_ones(element)),
        "sadd" if element.is_unsigned && element.bits == 32 => {
            Some(vec![Splat(A, u64::MAX), Two(PXOR, A, A, J), Two(PMINUD, A, A, K), Two(PADDD, D, A, J)])
        }
        "ssub" if element.is_unsigned && element.bits == 32 => {
            Some(vec![Two(PMINUD, A, J, K), Two(PSUBD, D, J, A)])
        }
        _ => None,
    }
}

/// `|j - k|`.
fn difference(element: Element) -> Option<Steps> {
    let subtract = SUBTRACT[element.index()];
    Some(match (max_instruction(element), min_instruction(element)) {
        (Some(max), Some(min)) => {
            vec![Two(max, C, J, K), Two(min, A, J, K), Two(subtract, D, C, A)]
        }
        // Negate the difference where j is not greater.
        _ if !element.is_unsigned => vec![
            Two(PCMPGTQ, C, J, K),
            Two(PSUBQ, A, J, K),
            Splat(B, u64::MAX),
            Two(PXOR, C, C, B),
            Two(PXOR, A, A, C),
            Two(PSUBQ, D, A, C),
        ],
        _ => return None,
    })
}

/// `|j| + |k|`.
fn absolute_sum(element: Element) -> Option<Steps> {
    let sign = *[PSIGNB, PSIGNW, PSIGND].get(element.index())?;
    Some(vec![Two(sign, A, J, J), Two(sign, B, K, K), Two(ADD[element.index()], D, A, B)])
}

/// The average of two elements, rounded down or up, computed without overflow.
fn average(element: Element, up: bool) -> Option<Steps> {
    let index = element.index();
    let one = Splat(B, element.splat(1));
    match (element.bits, element.is_unsigned) {
        // The host rounds up: subtract one where the lowest bits differ.
        (8, true) if !up => {
            Some(vec![Two(PAVGB, C, J, K), Two(PXOR, A, K, J), one, Two(PAND, A, A, B), Two(PSUBB, D, C, A)])
        }
        (8, false) => {
            let sign = Splat(C, element.sign());
            let mut steps = vec![sign, Two(PXOR, A, C, J), Two(PXOR, B, C, K)];
            if up {
                steps.extend([Two(PAVGB, A, A, B), Two(PXOR, D, A, C)]);
            } else {
                steps.extend([Two(PAVGB, C, A, B), Two(PXOR, A, A, B), one, Two(PAND, A, A, B)]);
                steps.extend([Two(PSUBB, A, C, A), Splat(B, element.sign()), Two(PXOR, D, A, B)]);
            }
            Some(steps)
        }
        (64, false) => None,
        (_, is_unsigned) => {
            let halve = if is_unsigned { RIGHT[index] } else { RIGHT_SIGNED[index] };
            let (shared, combine) = if up { (POR, SUBTRACT[index]) } else { (PAND, ADD[index]) };
            Some(vec![Two(shared, C, J, K), Two(PXOR, A, J, K), Shift(halve, A, A, 1), Two(combine, D, C, A)])
        }
    }
}

/// Computes the product as a sum of A and B.
fn product(element: Element) -> Option<Steps> {
    match element.bits {
        8 => Some(vec![
            Shift(PSRLW, A, J, 8),
            Shift(PSRLW, B, K, 8),
            Two(PMULLW, A, A, B),
            Shift(PSLLW, A, A, 8),
            Two(PMULLW, C, J, K),
            Splat(B, 0x00ff_00ff_00ff_00ff),
            Two(PAND, B, B, C),
        ]),
        64 => Some(vec![
            Shift(PSRLQ, B, J, 32),
            Two(PMULUDQ, B, B, K),
            Shift(PSRLQ, C, K, 32),
            Two(PMULUDQ, C, C, J),
            Two(PADDQ, B, B, C),
            Shift(PSLLQ, B, B, 32),
            Two(PMULUDQ, A, J, K),
        ]),
        _ => None,
    }
}

/// Computes the product in A, followed by the steps that `add_steps` adds.
fn with_product(element: Element, add_steps: impl FnOnce(&mut Steps)) -> Option<Steps> {
    let mut steps = match element.bits {
        16 => vec![Two(PMULLW, A, J, K)],
        32 => vec![Two(PMULLD, A, J, K)],
        _ => {
            let mut steps = product(element)?;
            steps.push(Two(ADD[element.index()], A, A, B));
            steps
        }
    };
    add_steps(&mut steps);
    Some(steps)
}

/// k, negated where j is negative, and 0 where j is 0.
fn signed_as(element: Element) -> Option<Steps> {
    if let Some(&sign) = [PSIGNB, PSIGNW, PSIGND].get(element.index()) {
        return Some(vec![Two(sign, D, K, J)]);
    }
    let zero = |to: Location| Splat(to, 0);
    Some(vec![
        zero(A),
        Two(COMPARE_GREATER[3], A, A, J),
        Two(PXOR, B, A, K),
        Two(PSUBQ, B, B, A),
        zero(C),
        Two(COMPARE_EQUAL[3], C, C, J),
        Two(PANDN, D, C, B),
    ])
}

/// Counts the set bits of each element by table lookup for nibbles.
fn count_ones(element: Element) -> Steps {
    let mut steps = vec![
        Splat(A, 0x0f0f_0f0f_0f0f_0f0f),
        Two(PAND, B, A, J),
        Shift(PSRLW, C, J, 4),
        Two(PAND, C, C, A),
        Pattern(A, ONES_IN_NIBBLES),
        Two(PSHUFB, B, A, B),
        Two(PSHUFB, C, A, C),
    ];
    match element.bits {
        8 => steps.push(Two(PADDB, D, B, C)),
        64 => steps.extend([Two(PADDB, B, B, C), Splat(A, 0), Two(PSADBW, D, B, A)]),
        bits => {
            steps.extend([Two(PADDB, B, B, C), Splat(A, 0x0101_0101_0101_0101)]);
            if bits == 16 {
                steps.push(Two(PMADDUBSW, D, B, A));
            } else {
                steps.extend([
                    Two(PMADDUBSW, B, B, A),
                    Splat(A, 0x0001_0001_0001_0001),
                    Two(PMADDWD, D, B, A),
                ]);
            }
        }
    }
    steps
}
