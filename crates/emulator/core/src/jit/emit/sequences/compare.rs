//! Sequences for comparisons, maximum, minimum and saturation.

use super::super::host_vectors::*;
use super::steps::{Place, Place::*, Step, Step::*};
use super::{Element, Named, Steps};

pub(super) const EQUAL: [Pair; 4] = [PCMPEQB, PCMPEQW, PCMPEQD, PCMPEQQ];
pub(super) const GREATER: [Pair; 4] = [PCMPGTB, PCMPGTW, PCMPGTD, PCMPGTQ];
const LESSER_SIGNED: [Pair; 3] = [PMINSB, PMINSW, PMINSD];
const GREATER_SIGNED: [Pair; 3] = [PMAXSB, PMAXSW, PMAXSD];
const LESSER_UNSIGNED: [Pair; 3] = [PMINUB, PMINUW, PMINUD];
const GREATER_UNSIGNED: [Pair; 3] = [PMAXUB, PMAXUW, PMAXUD];

/// The host's minimum instruction; `None` for doublewords, for which AVX2 has none.
pub(super) fn lesser(element: Element) -> Option<Pair> {
    let table = if element.is_unsigned { LESSER_UNSIGNED } else { LESSER_SIGNED };
    table.get(element.index()).copied()
}

/// The host's maximum instruction; `None` for doublewords, for which AVX2 has none.
pub(super) fn greater(element: Element) -> Option<Pair> {
    let table = if element.is_unsigned { GREATER_UNSIGNED } else { GREATER_SIGNED };
    table.get(element.index()).copied()
}

pub(super) fn steps(named: &Named<'_>) -> Option<Steps> {
    let element = named.only()?;
    // The decoder has sign-extended the signed immediates and zero-extended the unsigned ones.
    let constant = Splat(B, element.splat(named.imm as u64));
    match named.stem {
        "sle" => ordered(element, K, true),
        "slt" => ordered(element, K, false),
        "slei" => with(constant, ordered(element, B, true)?),
        "slti" => with(constant, ordered(element, B, false)?),
        "seqi" => with(constant, vec![Two(EQUAL[element.index()], D, J, B)]),
        "max" => extreme(element, K, greater(element), true),
        "min" => extreme(element, K, lesser(element), false),
        "maxi" => with(constant, extreme(element, B, greater(element), true)?),
        "mini" => with(constant, extreme(element, B, lesser(element), false)?),
        "sat" => clamped(element, named.imm),
        _ => None,
    }
}

/// Prepends the constant that the steps use.
pub(super) fn with(constant: Step, mut steps: Steps) -> Option<Steps> {
    steps.insert(0, constant);
    Some(steps)
}

/// `j < k` or `j <= k`. `k` may be B, which is then overwritten.
fn ordered(element: Element, k: Place, or_equal: bool) -> Option<Steps> {
    let greater_than = GREATER[element.index()];
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
    let equal = EQUAL[element.index()];
    Some(match (lesser(element), greater(element)) {
        (Some(lesser), _) if or_equal => vec![Two(lesser, C, J, k), Two(equal, D, C, J)],
        (_, Some(greater)) => [vec![Two(greater, C, J, k), Two(equal, C, C, J)], not_c.to_vec()].concat(),
        _ => {
            let mut steps = signs_changed(k);
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
fn signs_changed(k: Place) -> Steps {
    vec![Splat(C, 1 << 63), Two(PXOR, A, C, J), Two(PXOR, B, C, k)]
}

fn extreme(element: Element, k: Place, host: Option<Pair>, greatest: bool) -> Option<Steps> {
    if let Some(host) = host {
        return Some(vec![Two(host, D, J, k)]);
    }
    if k.is_scratch() {
        // Here `k` is B, which holds the immediate. An unsigned comparison would overwrite it before the blend reads
        // it.
        return (!element.is_unsigned).then(|| vec![Two(PCMPGTQ, C, J, k), choice(k, greatest)]);
    }
    let mut steps = if element.is_unsigned { signs_changed(k) } else { Vec::new() };
    steps.push(if element.is_unsigned { Two(PCMPGTQ, C, A, B) } else { Two(PCMPGTQ, C, J, k) });
    steps.push(choice(k, greatest));
    Some(steps)
}

/// Selects the maximum or minimum of j and k, where C is the result of j > k.
fn choice(k: Place, greatest: bool) -> Step {
    if greatest { Blend(D, k, J, C) } else { Blend(D, J, k, C) }
}

/// Signed or unsigned saturation to `imm + 1` bits. `imm` is a bit number.
fn clamped(element: Element, imm: i32) -> Option<Steps> {
    let (lesser, greater) = (lesser(element)?, greater(element)?);
    // The immediate field may be wider than a bit number; the bit number is its value modulo the element width.
    let bits = imm as u32 & (element.bits - 1);
    if element.is_unsigned {
        let max = u64::MAX >> (63 - bits);
        return Some(vec![Splat(B, element.splat(max)), Two(lesser, D, J, B)]);
    }
    let max = (1u64 << bits) - 1;
    Some(vec![
        Splat(B, element.splat(max)),
        Two(lesser, A, J, B),
        Splat(B, element.splat(!max)),
        Two(greater, D, A, B),
    ])
}
