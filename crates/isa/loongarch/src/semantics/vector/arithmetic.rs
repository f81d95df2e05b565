//! Integer arithmetic, comparison and logic on vector lanes. Source: the LSX and LASX definitions of the unofficial
//! LoongArch intrinsics guide, tested there on hardware.

use super::half::{Element, Families, Half, Narrow, binary, family, lanes, unary};

/// Arithmetic families. An immediate form uses the same function, with the immediate repeated in each lane.
pub(super) const FAMILIES: Families = &[
    family!(plain "vadd" add),
    family!("vadd.q" add::<u128>),
    family!(unsigned "vaddi" add),
    family!(plain "vsub" sub),
    family!("vsub.q" sub::<u128>),
    family!(unsigned "vsubi" sub),
    family!(plain "vneg" negate),
    family!(signed "vsadd" saturating_add),
    family!(unsigned "vsadd" saturating_add),
    family!(signed "vssub" saturating_sub),
    family!(unsigned "vssub" saturating_sub),
    family!(signed "vadda" add_absolute),
    family!(signed "vabsd" absolute_difference),
    family!(unsigned "vabsd" absolute_difference),
    family!(signed "vavg" average),
    family!(unsigned "vavg" average),
    family!(signed "vavgr" average_rounded),
    family!(unsigned "vavgr" average_rounded),
    family!(signed "vmax" maximum),
    family!(unsigned "vmax" maximum),
    family!(signed "vmaxi" maximum),
    family!(unsigned "vmaxi" maximum),
    family!(signed "vmin" minimum),
    family!(unsigned "vmin" minimum),
    family!(signed "vmini" minimum),
    family!(unsigned "vmini" minimum),
    family!(signed "vsigncov" copy_sign),
    family!(signed "vsat" saturate),
    family!(unsigned "vsat" saturate),
    family!(plain "vseq" equal),
    family!(plain "vseqi" equal),
    family!(signed "vsle" less_or_equal),
    family!(unsigned "vsle" less_or_equal),
    family!(signed "vslei" less_or_equal),
    family!(unsigned "vslei" less_or_equal),
    family!(signed "vslt" less),
    family!(unsigned "vslt" less),
    family!(signed "vslti" less),
    family!(unsigned "vslti" less),
    family!(plain "vmul" mul),
    family!(signed "vmuh" mul_high),
    family!(unsigned "vmuh" mul_high),
    family!(plain "vmadd" mul_add),
    family!(plain "vmsub" mul_sub),
    family!(signed "vdiv" divide),
    family!(unsigned "vdiv" divide),
    family!(signed "vmod" remainder),
    family!(unsigned "vmod" remainder),
    family!(widen "vaddwev" add_wide, EVEN),
    family!(widen "vaddwod" add_wide, ODD),
    family!(widen_unsigned "vaddwev" add_wide, EVEN),
    family!(widen_unsigned "vaddwod" add_wide, ODD),
    family!(widen_mixed "vaddwev" add_wide_mixed, EVEN),
    family!(widen_mixed "vaddwod" add_wide_mixed, ODD),
    family!(widen "vsubwev" sub_wide, EVEN),
    family!(widen "vsubwod" sub_wide, ODD),
    family!(widen_unsigned "vsubwev" sub_wide, EVEN),
    family!(widen_unsigned "vsubwod" sub_wide, ODD),
    family!(widen "vmulwev" mul_wide, EVEN),
    family!(widen "vmulwod" mul_wide, ODD),
    family!(widen_unsigned "vmulwev" mul_wide, EVEN),
    family!(widen_unsigned "vmulwod" mul_wide, ODD),
    family!(widen_mixed "vmulwev" mul_wide_mixed, EVEN),
    family!(widen_mixed "vmulwod" mul_wide_mixed, ODD),
    family!(widen "vmaddwev" mul_add_wide, EVEN),
    family!(widen "vmaddwod" mul_add_wide, ODD),
    family!(widen_unsigned "vmaddwev" mul_add_wide, EVEN),
    family!(widen_unsigned "vmaddwod" mul_add_wide, ODD),
    family!(widen_mixed "vmaddwev" mul_add_wide_mixed, EVEN),
    family!(widen_mixed "vmaddwod" mul_add_wide_mixed, ODD),
    family!(widen "vhaddw" horizontal_add),
    family!(widen_to_unsigned "vhaddw" horizontal_add),
    family!(widen "vhsubw" horizontal_sub),
    family!(widen_to_unsigned "vhsubw" horizontal_sub),
    family!("vand.v" and),
    family!("vandi.b" and),
    family!("vor.v" or),
    family!("vori.b" or),
    family!("vxor.v" xor),
    family!("vxori.b" xor),
    family!("vnor.v" nor),
    family!("vnori.b" nor),
    family!("vandn.v" and_not),
    family!("vorn.v" or_not),
    family!("vbitsel.v" select_bits),
    family!("vbitseli.b" select_bits_immediate),
];

const EVEN: usize = 0;
const ODD: usize = 1;

fn add<T: Element>(half: &Half) -> u128 {
    binary(half, T::wrapping_add)
}

fn sub<T: Element>(half: &Half) -> u128 {
    binary(half, T::wrapping_sub)
}

fn negate<T: Element>(half: &Half) -> u128 {
    unary(half.j, |j: T| T::default().wrapping_sub(j))
}

fn saturating_add<T: Element>(half: &Half) -> u128 {
    binary(half, T::saturating_add)
}

fn saturating_sub<T: Element>(half: &Half) -> u128 {
    binary(half, T::saturating_sub)
}

/// The absolute value. The minimum wraps to itself.
fn magnitude<T: Element>(x: T) -> T {
    if x < T::default() { T::default().wrapping_sub(x) } else { x }
}

fn add_absolute<T: Element>(half: &Half) -> u128 {
    binary(half, |j: T, k| magnitude(j).wrapping_add(magnitude(k)))
}

/// The absolute difference, which is unsigned for all operand types.
fn absolute_difference<T: Element>(half: &Half) -> u128 {
    binary(half, |j: T, k| j.max(k).wrapping_sub(j.min(k)))
}

/// The average, rounded down: bits set in both operands count fully, other bits half.
fn average<T: Element>(half: &Half) -> u128 {
    binary(half, |j: T, k| (j & k).wrapping_add((j ^ k) >> 1))
}

/// The average, rounded up.
fn average_rounded<T: Element>(half: &Half) -> u128 {
    binary(half, |j: T, k| (j | k).wrapping_sub((j ^ k) >> 1))
}

fn maximum<T: Element>(half: &Half) -> u128 {
    binary(half, T::max)
}

fn minimum<T: Element>(half: &Half) -> u128 {
    binary(half, T::min)
}

/// k multiplied by the sign of j.
fn copy_sign<T: Element>(half: &Half) -> u128 {
    binary(half, |j: T, k: T| match j.cmp(&T::default()) {
        std::cmp::Ordering::Less => T::default().wrapping_sub(k),
        std::cmp::Ordering::Equal => T::default(),
        std::cmp::Ordering::Greater => k,
    })
}

/// Saturates to `imm + 1` bits.
fn saturate<T: Element>(half: &Half) -> u128 {
    let surplus = T::BITS - 1 - half.imm as u32;
    unary(half.j, |j: T| j.clamp(T::MIN >> surplus, T::MAX >> surplus))
}

fn equal<T: Element>(half: &Half) -> u128 {
    binary(half, |j: T, k| T::mask(j == k))
}

fn less_or_equal<T: Element>(half: &Half) -> u128 {
    binary(half, |j: T, k| T::mask(j <= k))
}

fn less<T: Element>(half: &Half) -> u128 {
    binary(half, |j: T, k| T::mask(j < k))
}

fn mul<T: Element>(half: &Half) -> u128 {
    binary(half, T::wrapping_mul)
}

fn mul_high<T: Narrow>(half: &Half) -> u128 {
    binary(half, |j: T, k: T| {
        let product = j.widen().wrapping_mul(k.widen()) >> T::BITS;
        T::truncate(product.bits())
    })
}

fn mul_add<T: Element>(half: &Half) -> u128 {
    lanes(|i| {
        let product = T::lane(half.j, i).wrapping_mul(T::lane(half.k, i));
        T::lane(half.d, i).wrapping_add(product)
    })
}

fn mul_sub<T: Element>(half: &Half) -> u128 {
    lanes(|i| {
        let product = T::lane(half.j, i).wrapping_mul(T::lane(half.k, i));
        T::lane(half.d, i).wrapping_sub(product)
    })
}

/// Division by zero yields zero, and the minimum divided by -1 wraps to itself.
fn divide<T: Element>(half: &Half) -> u128 {
    binary(half, |j: T, k| if k == T::default() { k } else { j.wrapping_div(k) })
}

/// Division by zero yields zero.
fn remainder<T: Element>(half: &Half) -> u128 {
    binary(half, |j: T, k| if k == T::default() { k } else { j.wrapping_rem(k) })
}

/// Applies `f` to the even or odd lanes of j and k, widened.
fn wide<T: Narrow, const PARITY: usize>(half: &Half, f: impl Fn(T::Wide, T::Wide) -> T::Wide) -> u128 {
    lanes(|i| f(T::lane(half.j, 2 * i + PARITY).widen(), T::lane(half.k, 2 * i + PARITY).widen()))
}

/// Like [`wide`], with j's lanes zero-extended.
fn wide_mixed<T: Narrow, const PARITY: usize>(half: &Half, f: impl Fn(T::Wide, T::Wide) -> T::Wide) -> u128 {
    lanes(|i| f(T::lane(half.j, 2 * i + PARITY).widen_unsigned(), T::lane(half.k, 2 * i + PARITY).widen()))
}

fn add_wide<T: Narrow, const PARITY: usize>(half: &Half) -> u128 {
    wide::<T, PARITY>(half, Element::wrapping_add)
}

fn add_wide_mixed<T: Narrow, const PARITY: usize>(half: &Half) -> u128 {
    wide_mixed::<T, PARITY>(half, Element::wrapping_add)
}

fn sub_wide<T: Narrow, const PARITY: usize>(half: &Half) -> u128 {
    wide::<T, PARITY>(half, Element::wrapping_sub)
}

fn mul_wide<T: Narrow, const PARITY: usize>(half: &Half) -> u128 {
    wide::<T, PARITY>(half, Element::wrapping_mul)
}

fn mul_wide_mixed<T: Narrow, const PARITY: usize>(half: &Half) -> u128 {
    wide_mixed::<T, PARITY>(half, Element::wrapping_mul)
}

/// Adds `sum` to register d in wide lanes.
fn accumulate<W: Element>(half: &Half, sum: u128) -> u128 {
    lanes(|i| W::lane(half.d, i).wrapping_add(W::lane(sum, i)))
}

fn mul_add_wide<T: Narrow, const PARITY: usize>(half: &Half) -> u128 {
    accumulate::<T::Wide>(half, mul_wide::<T, PARITY>(half))
}

fn mul_add_wide_mixed<T: Narrow, const PARITY: usize>(half: &Half) -> u128 {
    accumulate::<T::Wide>(half, mul_wide_mixed::<T, PARITY>(half))
}

/// Applies `f` to j's odd and k's even lanes, widened.
fn horizontal<T: Narrow>(half: &Half, f: impl Fn(T::Wide, T::Wide) -> T::Wide) -> u128 {
    lanes(|i| f(T::lane(half.j, 2 * i + 1).widen(), T::lane(half.k, 2 * i).widen()))
}

fn horizontal_add<T: Narrow>(half: &Half) -> u128 {
    horizontal::<T>(half, Element::wrapping_add)
}

fn horizontal_sub<T: Narrow>(half: &Half) -> u128 {
    horizontal::<T>(half, Element::wrapping_sub)
}

fn and(half: &Half) -> u128 {
    half.j & half.k
}

fn or(half: &Half) -> u128 {
    half.j | half.k
}

fn xor(half: &Half) -> u128 {
    half.j ^ half.k
}

fn nor(half: &Half) -> u128 {
    !(half.j | half.k)
}

fn and_not(half: &Half) -> u128 {
    !half.j & half.k
}

fn or_not(half: &Half) -> u128 {
    half.j | !half.k
}

/// Selects bits of k where register a has a one, and of j elsewhere.
fn select_bits(half: &Half) -> u128 {
    half.a & half.k | !half.a & half.j
}

/// Selects bits of the immediate where register d has a one, and of j elsewhere.
fn select_bits_immediate(half: &Half) -> u128 {
    half.d & half.k | !half.d & half.j
}
