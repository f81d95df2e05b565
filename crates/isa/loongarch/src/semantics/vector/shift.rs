//! Shifts, rotations, narrowing shifts, bit counts and single-bit operations on vector lanes. Source: the LSX and LASX
//! definitions of the unofficial LoongArch intrinsics guide, tested there on hardware.

use super::half::{Element, Families, Half, Narrow, binary, family, lanes, unary};

/// Shift families. An immediate form uses the same function, with the immediate repeated in each lane.
pub(super) const FAMILIES: Families = &[
    family!(plain "vsll" left),
    family!(plain "vslli" left),
    family!(plain "vsrl" right),
    family!(plain "vsrli" right),
    family!(signed "vsra" right),
    family!(signed "vsrai" right),
    family!(plain "vrotr" rotate),
    family!(plain "vrotri" rotate),
    family!(plain "vsrlr" right_rounded),
    family!(plain "vsrlri" right_rounded),
    family!(signed "vsrar" right_rounded),
    family!(signed "vsrari" right_rounded),
    family!(plain "vbitclr" clear_bit),
    family!(plain "vbitclri" clear_bit),
    family!(plain "vbitset" set_bit),
    family!(plain "vbitseti" set_bit),
    family!(plain "vbitrev" flip_bit),
    family!(plain "vbitrevi" flip_bit),
    family!(plain "vclo" count_leading_ones),
    family!(plain "vclz" count_leading_zeros),
    family!(plain "vpcnt" count_ones),
    &[
        ("vsllwil.h.b", widen_left::<i8>),
        ("vsllwil.w.h", widen_left::<i16>),
        ("vsllwil.d.w", widen_left::<i32>),
        ("vextl.q.d", extend_low::<i64>),
        ("vsllwil.hu.bu", widen_left::<u8>),
        ("vsllwil.wu.hu", widen_left::<u16>),
        ("vsllwil.du.wu", widen_left::<u32>),
        ("vextl.qu.du", extend_low::<u64>),
    ],
    family!(widen "vexth" extend_high),
    family!(widen_to_unsigned "vexth" extend_high),
    family!(narrow_logical "vsrln" narrow, TRUNCATE),
    family!(narrow_arithmetic "vsran" narrow, TRUNCATE),
    family!(narrow_logical "vsrlrn" narrow, TRUNCATE | ROUND),
    family!(narrow_arithmetic "vsrarn" narrow, TRUNCATE | ROUND),
    family!(narrow_logical "vssrln" narrow, SATURATE),
    family!(narrow_arithmetic "vssran" narrow, SATURATE),
    family!(narrow_logical "vssrlrn" narrow, SATURATE | ROUND),
    family!(narrow_arithmetic "vssrarn" narrow, SATURATE | ROUND),
    family!(narrow_logical_unsigned "vssrln" narrow, SATURATE),
    family!(narrow_arithmetic_unsigned "vssran" narrow, SATURATE),
    family!(narrow_logical_unsigned "vssrlrn" narrow, SATURATE | ROUND),
    family!(narrow_arithmetic_unsigned "vssrarn" narrow, SATURATE | ROUND),
    family!(narrow_logical "vsrlni" narrow_both, TRUNCATE),
    family!(narrow_arithmetic "vsrani" narrow_both, TRUNCATE),
    family!(narrow_logical "vsrlrni" narrow_both, TRUNCATE | ROUND),
    family!(narrow_arithmetic "vsrarni" narrow_both, TRUNCATE | ROUND),
    family!(narrow_logical "vssrlni" narrow_both, SATURATE),
    family!(narrow_arithmetic "vssrani" narrow_both, SATURATE),
    family!(narrow_logical "vssrlrni" narrow_both, SATURATE | ROUND),
    family!(narrow_arithmetic "vssrarni" narrow_both, SATURATE | ROUND),
    family!(narrow_logical_unsigned "vssrlni" narrow_both, SATURATE),
    family!(narrow_arithmetic_unsigned "vssrani" narrow_both, SATURATE),
    family!(narrow_logical_unsigned "vssrlrni" narrow_both, SATURATE | ROUND),
    family!(narrow_arithmetic_unsigned "vssrarni" narrow_both, SATURATE | ROUND),
    &[
        ("vsrlni.d.q", narrow_both::<u128, i64, TRUNCATE>),
        ("vsrani.d.q", narrow_both::<i128, i64, TRUNCATE>),
        ("vsrlrni.d.q", narrow_both::<u128, i64, { TRUNCATE | ROUND }>),
        ("vsrarni.d.q", narrow_both::<i128, i64, { TRUNCATE | ROUND }>),
        ("vssrlni.d.q", narrow_both::<u128, i64, SATURATE>),
        ("vssrani.d.q", narrow_both::<i128, i64, SATURATE>),
        ("vssrlrni.d.q", narrow_both::<u128, i64, { SATURATE | ROUND }>),
        ("vssrarni.d.q", narrow_both::<i128, i64, { SATURATE | ROUND }>),
        ("vssrlni.du.q", narrow_both::<u128, u64, SATURATE>),
        ("vssrani.du.q", narrow_both::<i128, u64, SATURATE>),
        ("vssrlrni.du.q", narrow_both::<u128, u64, { SATURATE | ROUND }>),
        ("vssrarni.du.q", narrow_both::<i128, u64, { SATURATE | ROUND }>),
    ],
];

/// A narrowing shift that drops the high bits.
const TRUNCATE: u8 = 0;
/// A narrowing shift that saturates.
const SATURATE: u8 = 1;
/// A narrowing shift that rounds half up.
const ROUND: u8 = 2;

fn left<T: Element>(half: &Half) -> u128 {
    binary(half, |j: T, k: T| j << k.as_amount())
}

fn right<T: Element>(half: &Half) -> u128 {
    binary(half, |j: T, k: T| j >> k.as_amount())
}

fn rotate<T: Element>(half: &Half) -> u128 {
    binary(half, |j: T, k: T| j.rotate_right(k.as_amount()))
}

fn right_rounded<T: Element>(half: &Half) -> u128 {
    binary(half, |j: T, k: T| j.shift_right_rounded(k.as_amount()))
}

fn clear_bit<T: Element>(half: &Half) -> u128 {
    binary(half, |j: T, k: T| j & !(T::ONE << k.as_amount()))
}

fn set_bit<T: Element>(half: &Half) -> u128 {
    binary(half, |j: T, k: T| j | T::ONE << k.as_amount())
}

fn flip_bit<T: Element>(half: &Half) -> u128 {
    binary(half, |j: T, k: T| j ^ T::ONE << k.as_amount())
}

fn count_leading_ones<T: Element>(half: &Half) -> u128 {
    unary(half.j, |j: T| T::truncate((!j).leading_zeros().into()))
}

fn count_leading_zeros<T: Element>(half: &Half) -> u128 {
    unary(half.j, |j: T| T::truncate(j.leading_zeros().into()))
}

fn count_ones<T: Element>(half: &Half) -> u128 {
    unary(half.j, |j: T| T::truncate(j.count_ones().into()))
}

/// Widens the lanes of the low 64 bits and shifts them left.
fn widen_left<T: Narrow>(half: &Half) -> u128 {
    lanes(|i| T::lane(half.j, i).widen() << half.imm as u32)
}

fn extend_low<T: Narrow>(half: &Half) -> u128 {
    lanes(|i| T::lane(half.j, i).widen())
}

fn extend_high<T: Narrow>(half: &Half) -> u128 {
    lanes(|i| T::lane(half.j, i + T::Wide::LANES).widen())
}

/// Shifts one wide lane right and narrows it according to `HOW`.
fn narrowed<W: Element, N: Element + TryFrom<W>, const HOW: u8>(x: W, amount: u32) -> N {
    let shifted = if HOW & ROUND != 0 { x.shift_right_rounded(amount) } else { x >> amount };
    if HOW & SATURATE == 0 {
        return N::truncate(shifted.bits());
    }
    N::try_from(shifted).unwrap_or(if shifted < W::default() { N::MIN } else { N::MAX })
}

/// Shifts j's lanes by k's lanes into the low 64 bits. The high 64 bits become zero.
fn narrow<W: Element, N: Element + TryFrom<W>, const HOW: u8>(half: &Half) -> u128 {
    lanes(|i| {
        if i < W::LANES {
            narrowed::<W, N, HOW>(W::lane(half.j, i), W::lane(half.k, i).as_amount())
        } else {
            N::default()
        }
    })
}

/// Shifts j's lanes into the low 64 bits and d's lanes into the high 64 bits, by the immediate.
fn narrow_both<W: Element, N: Element + TryFrom<W>, const HOW: u8>(half: &Half) -> u128 {
    lanes(|i| {
        let source = if i < W::LANES { half.j } else { half.d };
        narrowed::<W, N, HOW>(W::lane(source, i % W::LANES), half.imm as u32)
    })
}
