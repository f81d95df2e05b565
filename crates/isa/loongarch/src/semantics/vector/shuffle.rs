//! Lane movement within 128 bits, sign masks and constants. Source: the LSX and LASX definitions of the unofficial
//! LoongArch intrinsics guide, tested there on hardware.

use super::half::{Element, Families, Half, family, lanes, splat, unary};

/// Shuffle families.
pub(super) const FAMILIES: Families = &[
    family!(plain "vpackev" pack, EVEN),
    family!(plain "vpackod" pack, ODD),
    family!(plain "vpickev" pick, EVEN),
    family!(plain "vpickod" pick, ODD),
    family!(plain "vilvl" interleave_low),
    family!(plain "vilvh" interleave_high),
    family!(plain "vreplve" replicate),
    family!(plain "vreplvei" replicate_immediate),
    family!(plain "vrepl128vei" replicate_immediate),
    family!(plain "vreplgr2vr" replicate_general),
    family!(plain "vextrins" extract_insert),
    &[
        ("vshuf.b", shuffle_bytes),
        ("vshuf.h", shuffle::<u16>),
        ("vshuf.w", shuffle::<u32>),
        ("vshuf.d", shuffle::<u64>),
        ("vshuf4i.b", shuffle_fours::<u8>),
        ("vshuf4i.h", shuffle_fours::<u16>),
        ("vshuf4i.w", shuffle_fours::<u32>),
        ("vshuf4i.d", shuffle_pairs),
        ("vpermi.w", permute_words),
        ("vbsll.v", shift_bytes_left),
        ("vbsrl.v", shift_bytes_right),
        ("vfrstp.b", first_negative::<i8>),
        ("vfrstp.h", first_negative::<i16>),
        ("vfrstpi.b", first_negative::<i8>),
        ("vfrstpi.h", first_negative::<i16>),
        ("vmskgez.b", mask_not_negative),
        ("vmsknz.b", mask_not_zero),
    ],
    family!(signed "vmskltz" mask_negative),
];

const EVEN: usize = 0;
const ODD: usize = 1;

/// Interleaves the even (odd) lanes of k and j.
fn pack<T: Element, const PARITY: usize>(half: &Half) -> u128 {
    let [j, k] = [half.j, half.k].map(T::split);
    lanes(|i| if i % 2 == 0 { &k } else { &j }.as_ref()[i - i % 2 + PARITY])
}

/// The even (odd) lanes of k, followed by those of j.
fn pick<T: Element, const PARITY: usize>(half: &Half) -> u128 {
    let ([j, k], middle) = ([half.j, half.k].map(T::split), T::LANES / 2);
    lanes(|i| if i < middle { &k } else { &j }.as_ref()[i % middle * 2 + PARITY])
}

fn interleave_low<T: Element>(half: &Half) -> u128 {
    let [j, k] = [half.j, half.k].map(T::split);
    lanes(|i| if i % 2 == 0 { &k } else { &j }.as_ref()[i / 2])
}

fn interleave_high<T: Element>(half: &Half) -> u128 {
    let [j, k] = [half.j, half.k].map(T::split);
    lanes(|i| if i % 2 == 0 { &k } else { &j }.as_ref()[i / 2 + T::LANES / 2])
}

/// Replicates a lane. Only the low bits of the index are used.
fn replicate<T: Element>(half: &Half) -> u128 {
    splat(T::lane(half.j, half.k as usize % T::LANES))
}

fn replicate_immediate<T: Element>(half: &Half) -> u128 {
    splat(T::lane(half.j, half.imm as usize))
}

fn replicate_general<T: Element>(half: &Half) -> u128 {
    splat(T::lane(half.j, 0))
}

/// Copies lane `imm[3:0]` of j to lane `imm[7:4]` of d.
fn extract_insert<T: Element>(half: &Half) -> u128 {
    let imm = half.imm as usize;
    let (from, to) = (imm % T::LANES, (imm >> 4) % T::LANES);
    lanes(|i| if i == to { T::lane(half.j, from) } else { T::lane(half.d, i) })
}

/// Selects lanes of k, and above them of j, by `indices`.
///
/// Unused index bits are ignored, as on the 3A6000 and in QEMU. The 3A5000 returns zero if bit 6 or 7 is set.
fn select<T: Element>(half: &Half, indices: u128) -> u128 {
    let [j, k] = [half.j, half.k].map(T::split);
    unary(indices, |index: T| {
        let index = index.bits() as usize % (2 * T::LANES);
        if index < T::LANES { &k } else { &j }.as_ref()[index % T::LANES]
    })
}

fn shuffle_bytes(half: &Half) -> u128 {
    select::<u8>(half, half.a)
}

/// The wider forms take their indices from register d.
fn shuffle<T: Element>(half: &Half) -> u128 {
    select::<T>(half, half.d)
}

/// Bits `2 * index` and up of the immediate, as a number from 0 to 3.
fn two_bits(imm: i32, index: usize) -> usize {
    (imm >> (2 * index)) as usize & 3
}

/// Applies the same permutation to each group of four lanes.
fn shuffle_fours<T: Element>(half: &Half) -> u128 {
    let j = T::split(half.j);
    lanes(|i| j.as_ref()[i / 4 * 4 + two_bits(half.imm, i % 4)])
}

/// Selects each 64-bit lane from the lanes of d and j.
fn shuffle_pairs(half: &Half) -> u128 {
    lanes(|i| {
        let index = two_bits(half.imm, i);
        u64::lane(if index < 2 { half.d } else { half.j }, index % 2)
    })
}

/// Selects two words of j, then two of d.
fn permute_words(half: &Half) -> u128 {
    lanes(|i| u32::lane(if i < 2 { half.j } else { half.d }, two_bits(half.imm, i)))
}

fn shift_bytes_left(half: &Half) -> u128 {
    half.j << (half.imm % 16 * 8)
}

fn shift_bytes_right(half: &Half) -> u128 {
    half.j >> (half.imm % 16 * 8)
}

/// Writes the index of j's first negative lane, or the number of lanes if there is none, to the lane of d that k
/// selects.
fn first_negative<T: Element>(half: &Half) -> u128 {
    let first = (0..T::LANES).find(|&i| T::lane(half.j, i) < T::default()).unwrap_or(T::LANES);
    let to = T::lane(half.k, 0).bits() as usize % T::LANES;
    lanes(|i| if i == to { T::truncate(first as u128) } else { T::lane(half.d, i) })
}

/// A bit mask with one bit for each lane, in the lowest bits.
fn lane_mask<T: Element>(x: u128, condition: impl Fn(T) -> bool) -> u128 {
    (0..T::LANES).fold(0, |mask, i| mask | u128::from(condition(T::lane(x, i))) << i)
}

fn mask_negative<T: Element>(half: &Half) -> u128 {
    lane_mask(half.j, |x: T| x < T::default())
}

fn mask_not_negative(half: &Half) -> u128 {
    lane_mask(half.j, |x: i8| x >= 0)
}

fn mask_not_zero(half: &Half) -> u128 {
    lane_mask(half.j, |x: u8| x != 0)
}
