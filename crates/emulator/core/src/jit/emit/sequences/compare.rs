//! Sequences for comparisons, maximum, minimum and saturation.

use super::super::host_vectors::*;
use super::steps::{HostStep, HostStep::*, Location, Location::*};
use super::{Element, Mnemonic, Steps};

pub(super) const COMPARE_EQUAL: [Pair; 4] = [PCMPEQB, PCMPEQW, PCMPEQD, PCMPEQQ];
pub(super) const COMPARE_GREATER: [Pair; 4] = [PCMPGTB, PCMPGTW, PCMPGTD, PCMPGTQ];
const MIN_SIGNED: [Pair; 3] = [PMINSB, PMINSW, PMINSD];
const MAX_SIGNED: [Pair; 3] = [PMAXSB, PMAXSW, PMAXSD];
const MIN_UNSIGNED: [Pair; 3] = [PMINUB, PMINUW, PMINUD];
const MAX_UNSIGNED: [Pair; 3] = [PMAXUB, PMAXUW, PMAXUD];

/// The host's minimum instruction; `None` for doublewords, for which AVX2 has none.
pub(super) fn min_instruction(element: Element) -> Option<Pair> {
    let table = if element.is_unsigned { MIN_UNSIGNED } else { MIN_SIGNED };
    table.get(element.index()).copied()
}

/// The host's maximum instruction; `None` for doublewords, for which AVX2 has none.
pub(super) fn max_instruction(element: Element) -> Option<Pair> {
    let table = if element.is_unsigned { MAX_UNSIGNED } else { MAX_SIGNED };
    table.get(element.index()).copied()
}

pub(super) fn steps(mnemonic: &Mnemonic<'_>) -> Option<Steps> {
    let element = mnemonic.only()?;
    // The decoder has sign-extended the signed immediates and zero-extended the unsigned ones.
    let constant = Splat(B, element.splat(mnemonic.imm as u64));
    match mnemonic.stem {
        "sle" => compare_less(element, K, true),
        "slt" => compare_less(element, K, false),
        "slei" => with_constant(constant, compare_less(element, B, true)?),
        "slti" => with_constant(constant, compare_less(element, B, false)?),
        "seqi" => with_constant(constant, vec![Two(COMPARE_EQUAL[element.index()], D, J, B)]),
        "max" => min_max(element, K, max_instruction(element), true),
        "min" => min_max(element, K, min_instruction(element), false),
        "maxi" => with_constant(constant, min_max(element, B, max_instruction(element), true)?),
        "mini" => with_constant(constant, min_max(element, B, min_instruction(element), false)?),
        "sat" => saturate(element, mnemonic.imm),
        _ => None,
    }
}

/// Prepends the constant that the steps use.
pub(super) fn with_constant(constant: HostStep, mut steps: Steps) -> Option<Steps> {
    steps.insert(0, constant);
    Some(steps)
}

/// `j < k` or `j <= k`. If `k` is scratch register B, the sequence clobbers it.
fn compare_less(element: Element, k: Location, or_equal: bool) -> Option<Steps> {
    let greater_than = COMPARE_GREATER[element.index()];
    let not_c = [Splat(B, u64::MAX), Two(PXOR, D, C, B)];
    if !element.is_unsigned {
        return Some(if or_equal {
            [vec![Two(greater_than, C, J, k)], not_c.to_vec()].concat()
        } else if k.is_scratch() {
            vec![Two(greater_than, D, k, J)]
        } else {
            return None;
        });
    }
    let equal = COMPARE_EQUAL[element.index()];
    Some(match (min_instruction(element), max_instruction(element)) {
        (Some(min), _) if or_equal => vec![Two(min, C, J, k), Two(equal, D, C, J)],
        (_, Some(max)) => [vec![Two(max, C, J, k), Two(equal, C, C, J)], not_c.to_vec()].concat(),
        _ => {
            let mut steps = flip_sign_bits(k);
            match or_equal {
                true => steps.extend([vec![Two(greater_than, C, A, B)], not_c.to_vec()].concat()),
                false => steps.push(Two(greater_than, D, B, A)),
            }
            steps
        }
    })
}

/// Sets A and B to j and k with the highest bit of each doubleword flipped, so that a signed comparison of A and B
/// orders j and k as unsigned numbers.
fn flip_sign_bits(k: Location) -> Steps {
    vec![Splat(C, 1 << 63), Two(PXOR, A, C, J), Two(PXOR, B, C, k)]
}

fn min_max(element: Element, k: Location, host: Option<Pair>, is_max: bool) -> Option<Steps> {
    if let Some(host) = host {
        return Some(vec![Two(host, D, J, k)]);
    }
    if k.is_scratch() {
        // Here `k` is B, which holds the immediate. An unsigned comparison would overwrite it before the blend reads
        // it.
        return (!element.is_unsigned).then(|| vec![Two(PCMPGTQ, C, J, k), select(k, is_max)]);
    }
    let mut steps = if element.is_unsigned { flip_sign_bits(k) } else { Vec::new() };
    steps.push(if element.is_unsigned { Two(PCMPGTQ, C, A, B) } else { Two(PCMPGTQ, C, J, k) });
    steps.push(select(k, is_max));
    Some(steps)
}

/// Selects the maximum or minimum of j and k, where C is the result of j > k.
fn select(k: Location, is_max: bool) -> HostStep {
    if is_max { Blend(D, k, J, C) } else { Blend(D, J, k, C) }
}

/// Signed or unsigned saturation to `imm + 1` bits. `imm` is a bit number.
fn saturate(element: Element, imm: i32) -> Option<Steps> {
    let (min, max) = (min_instruction(element)?, max_instruction(element)?);
    // The immediate field may be wider than a bit number; the bit number is its value modulo the element width.
    let bits = imm as u32 & (element.bits - 1);
    if element.is_unsigned {
        let limit = u64::MAX >> (63 - bits);
        return Some(vec![Splat(B, element.splat(limit)), Two(min, D, J, B)]);
    }
    let limit = (1u64 << bits) - 1;
    Some(vec![
        Splat(B, element.splat(limit)),
        Two(min, A, J, B),
        Splat(B, element.splat(!limit)),
        Two(max, D, A, B),
    ])
}
