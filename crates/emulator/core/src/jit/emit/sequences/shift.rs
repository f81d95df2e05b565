//! Sequences for shifts with and without rounding, and for narrowing shifts.

use super::super::host_vectors::*;
use super::arithmetic::{ADD, SUBTRACT};
use super::steps::{HostStep::*, Location, Location::*};
use super::{Element, Mnemonic, Steps};

pub(super) const LEFT: [Pair; 4] = [PSLLW, PSLLW, PSLLD, PSLLQ];
pub(super) const RIGHT: [Pair; 4] = [PSRLW, PSRLW, PSRLD, PSRLQ];
pub(super) const RIGHT_SIGNED: [Pair; 3] = [PSRAW, PSRAW, PSRAD];

pub(super) fn steps(mnemonic: &Mnemonic<'_>) -> Option<Steps> {
    if let [Some(to), Some(from), None] = mnemonic.elements {
        return narrowing(mnemonic, to, from);
    }
    let element = mnemonic.only()?;
    let index = element.index();
    let count = mnemonic.imm & (element.bits as i32 - 1);
    match (mnemonic.stem, element.bits) {
        ("slli", 8) => {
            Some(vec![Shift(PSLLW, A, J, count), Splat(B, element.splat(0xff << count)), Two(PAND, D, A, B)])
        }
        ("srli", 8) => {
            Some(vec![Shift(PSRLW, A, J, count), Splat(B, element.splat(0xff >> count)), Two(PAND, D, A, B)])
        }
        ("srai", 8 | 64) => {
            let mut steps = arithmetic_shift(element, A, count);
            steps.push(Two(SUBTRACT[index], D, A, B));
            Some(steps)
        }
        ("rotri", 16 | 32 | 64) => Some(vec![
            Shift(RIGHT[index], A, J, count),
            Shift(LEFT[index], B, J, element.bits as i32 - count),
            Two(POR, D, A, B),
        ]),
        ("srlri" | "srari", 16 | 32 | 64) => Some(rounded(element, mnemonic.stem == "srari", count)),
        ("sll", 16) => Some(halves_left()),
        ("srl", 16) => Some(halves_right(PSRLD, PSRLVD)),
        ("sra", 16) => Some(halves_right(PSRAD, PSRAVD)),
        // A logical shift moves the sign bit; flipping and subtracting it extends the sign.
        ("sra", 64) => Some(vec![
            Splat(A, 63),
            Two(PAND, A, A, K),
            Splat(B, 1 << 63),
            Two(PSRLVQ, B, B, A),
            Two(PSRLVQ, C, J, A),
            Two(PXOR, C, C, B),
            Two(PSUBQ, D, C, B),
        ]),
        ("rotr", 32) => Some(rotated(31, 32, PSRLVD, PSLLVD, PSUBD)),
        ("rotr", 64) => Some(rotated(63, 64, PSRLVQ, PSLLVQ, PSUBQ)),
        _ => None,
    }
}

/// The first part of an arithmetic right shift for widths without a host instruction: shifts logically, flips the sign
/// bit in its new position, and sets B to that bit. The caller computes `to - B`, which extends the sign.
fn arithmetic_shift(element: Element, to: Location, count: i32) -> Steps {
    let mut steps = vec![Shift(RIGHT[element.index()], to, J, count)];
    if element.bits == 8 {
        steps.extend([Splat(B, element.splat(0xff >> count)), Two(PAND, to, to, B)]);
    }
    let sign = 1u64 << (element.bits - 1);
    steps.extend([Splat(B, element.splat(sign >> count)), Two(PXOR, to, to, B)]);
    steps
}

/// Adds one where the last bit shifted out is set.
fn rounded(element: Element, is_signed: bool, count: i32) -> Steps {
    if count == 0 {
        return vec![Move(D, J)];
    }
    let index = element.index();
    let (right, add) = (RIGHT[index], ADD[index]);
    let lost = [Shift(right, A, J, count - 1), Splat(B, element.splat(1)), Two(PAND, A, A, B)];
    let shifted = match RIGHT_SIGNED.get(index) {
        _ if !is_signed => vec![Shift(right, C, J, count)],
        Some(&right_signed) => vec![Shift(right_signed, C, J, count)],
        None => {
            let mut steps = arithmetic_shift(element, C, count);
            steps.push(Two(SUBTRACT[index], C, C, B));
            steps
        }
    };
    [lost.to_vec(), shifted, vec![Two(add, D, A, C)]].concat()
}

const HALF_COUNT: u64 = 0x000f_000f_000f_000f;

/// Shifts the halfwords of each word left by a separate count, using word shifts for one halfword at a time.
fn halves_left() -> Steps {
    vec![
        Splat(A, HALF_COUNT),
        Two(PAND, A, A, K),
        Shift(PSLLD, B, A, 16),
        Shift(PSRLD, B, B, 16),
        Two(PSLLVD, C, J, B),
        Shift(PSRLD, A, A, 16),
        Shift(PSRLD, B, J, 16),
        Shift(PSLLD, B, B, 16),
        Two(PSLLVD, B, B, A),
        Choose(PBLENDW, D, C, B, 0b1010_1010),
    ]
}

fn halves_right(extend: Pair, shift: Pair) -> Steps {
    vec![
        Splat(A, HALF_COUNT),
        Two(PAND, A, A, K),
        Shift(PSLLD, B, J, 16),
        Shift(extend, B, B, 16),
        Shift(PSLLD, C, A, 16),
        Shift(PSRLD, C, C, 16),
        Two(shift, C, B, C),
        Shift(PSRLD, A, A, 16),
        Two(shift, B, J, A),
        Choose(PBLENDW, D, C, B, 0b1010_1010),
    ]
}

/// Shifts right by the count, and left by the width minus the count. A count of 0 shifts everything out to the left.
fn rotated(mask: u64, bits: u64, right: Pair, left: Pair, subtract: Pair) -> Steps {
    let element = Element { bits: bits as u32, is_unsigned: true };
    vec![
        Splat(A, element.splat(mask)),
        Two(PAND, A, A, K),
        Two(right, B, J, A),
        Splat(C, element.splat(bits)),
        Two(subtract, A, C, A),
        Two(left, C, J, A),
        Two(POR, D, B, C),
    ]
}

/// The lower half of the result comes from j, and the upper half from the old destination.
fn narrowing(mnemonic: &Mnemonic<'_>, to: Element, from: Element) -> Option<Steps> {
    if to.bits * 2 != from.bits {
        return None;
    }
    let (is_signed, saturates) = match mnemonic.stem {
        "srlni" => (false, false),
        "srani" => (true, false),
        "ssrlni" => (false, true),
        "ssrani" => (true, true),
        _ => return None,
    };
    let count = mnemonic.imm & (from.bits as i32 - 1);
    let index = from.index();
    // For a signed doubleword shift by more than 32, the low 32 bits differ from those of a logical shift.
    let shift = match RIGHT_SIGNED.get(index) {
        Some(&shift) if is_signed => shift,
        None if is_signed && count > 32 => return None,
        _ => RIGHT[index],
    };
    let mut steps = vec![Shift(shift, A, J, count), Shift(shift, B, Old, count)];
    if !saturates {
        if from.bits == 64 {
            steps.push(Choose(SHUFPS, D, A, B, 0b10_00_10_00));
            return Some(steps);
        }
        let result_mask = u64::MAX >> (64 - to.bits);
        steps.extend([Splat(C, from.splat(result_mask)), Two(PAND, A, A, C), Two(PAND, B, B, C)]);
        steps.push(Two(if to.bits == 8 { PACKUSWB } else { PACKUSDW }, D, A, B));
        return Some(steps);
    }
    let (lesser, pack) = match (from.bits, to.is_unsigned) {
        (16, true) => (PMINUW, PACKUSWB),
        (16, false) => (PMINUW, PACKSSWB),
        (32, true) => (PMINUD, PACKUSDW),
        (32, false) => (PMINUD, PACKSSDW),
        _ => return None,
    };
    if !is_signed {
        // The host's pack instructions treat their sources as signed.
        let max = u64::MAX >> (64 - to.bits + u32::from(!to.is_unsigned));
        steps.extend([Splat(C, from.splat(max)), Two(lesser, A, A, C), Two(lesser, B, B, C)]);
    }
    steps.push(Two(pack, D, A, B));
    Some(steps)
}
