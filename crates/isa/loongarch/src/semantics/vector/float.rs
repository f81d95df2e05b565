//! Floating-point arithmetic, comparison and conversion on vector lanes. `mod.rs` records the exceptions of all lanes
//! in FCSR. Source: the LSX and LASX definitions of the unofficial LoongArch intrinsics guide; LoongArch Reference
//! Manual, volume 1, section 3.

use super::half::{Families, Half as Operands};
use crate::float::{self, Double, ExceptionFlags, Format, Half, Integer, RoundingMode, Rules, Single};

/// The rounding mode and the exceptions, shared by the lanes of an instruction.
pub(super) struct Rounding {
    /// FCSR's rounding mode.
    pub mode: RoundingMode,
    /// FCSR's private rules.
    pub rules: Rules,
    /// The union of the exceptions of all lanes so far.
    pub raised: ExceptionFlags,
}

/// Computes 128 bits of a floating-point result.
pub(super) type FloatFunction = fn(&Operands, &mut Rounding) -> u128;

/// A family of two instructions, in single and in double precision.
macro_rules! both {
    ($stem:literal $function:ident $(, $more:expr)*) => {
        &[
            (concat!($stem, ".s"), $function::<Single $(, { $more })*>),
            (concat!($stem, ".d"), $function::<Double $(, { $more })*>),
        ]
    };
}

/// A family of conversions in five rounding variants. The letters of the mode are in the middle of the mnemonic.
macro_rules! roundings {
    ($stem:literal $($suffix:literal $function:ident::<$($type:ty),*>),*) => {
        &[$(
            (concat!($stem, "", $suffix), $function::<$($type,)* CURRENT>),
            (concat!($stem, "rm", $suffix), $function::<$($type,)* DOWNWARD>),
            (concat!($stem, "rp", $suffix), $function::<$($type,)* UPWARD>),
            (concat!($stem, "rz", $suffix), $function::<$($type,)* TOWARD_ZERO>),
            (concat!($stem, "rne", $suffix), $function::<$($type,)* NEAREST_EVEN>)
        ),*]
    };
}

/// The family of comparisons: 22 conditions with their encodings, each in single and double precision.
macro_rules! comparisons {
    ($($condition:literal $number:literal),*) => {
        &[$(
            (concat!("vfcmp.", $condition, ".s"), compare::<Single, $number>),
            (concat!("vfcmp.", $condition, ".d"), compare::<Double, $number>)
        ),*]
    };
}

/// Floating-point instructions in families. The mnemonics are those of LSX; LASX prefixes them with an x.
pub(super) const FAMILIES: &[&[(&str, FloatFunction)]] = &[
    both!("vfadd" add),
    both!("vfsub" sub),
    both!("vfmul" mul),
    both!("vfdiv" div),
    both!("vfmadd" mul_add, false, false),
    both!("vfmsub" mul_add, true, false),
    both!("vfnmadd" mul_add, false, true),
    both!("vfnmsub" mul_add, true, true),
    both!("vfmax" max),
    both!("vfmin" min),
    both!("vfmaxa" max_magnitude),
    both!("vfmina" min_magnitude),
    both!("vflogb" logb),
    both!("vfsqrt" sqrt),
    both!("vfrecip" recip),
    both!("vfrsqrt" rsqrt),
    // Approximations. The exact result is a valid one, and the scalar FRECIPE and FRSQRTE return it too.
    both!("vfrecipe" recip),
    both!("vfrsqrte" rsqrt),
    roundings!("vfrint" ".s" round::<Single>, ".d" round::<Double>),
    roundings!("vftint" ".w.s" to_integer::<Single, Word>, ".l.d" to_integer::<Double, Long>,
        ".w.d" to_words::<Double, Word>, "l.l.s" low_to_long::<Single, Long>, "h.l.s" high_to_long::<Single, Long>),
    &[
        ("vftint.wu.s", to_integer::<Single, UnsignedWord, CURRENT>),
        ("vftint.lu.d", to_integer::<Double, UnsignedLong, CURRENT>),
        ("vftintrz.wu.s", to_integer::<Single, UnsignedWord, TOWARD_ZERO>),
        ("vftintrz.lu.d", to_integer::<Double, UnsignedLong, TOWARD_ZERO>),
        ("vffint.s.w", from_integer::<Single, Word>),
        ("vffint.s.wu", from_integer::<Single, UnsignedWord>),
        ("vffint.d.l", from_integer::<Double, Long>),
        ("vffint.d.lu", from_integer::<Double, UnsignedLong>),
        ("vffintl.d.w", from_low_words),
        ("vffinth.d.w", from_high_words),
        ("vffint.s.l", from_longs),
        ("vfcvt.h.s", narrow::<Single, Half>),
        ("vfcvt.s.d", narrow::<Double, Single>),
        ("vfcvtl.s.h", widen_low::<Half, Single>),
        ("vfcvth.s.h", widen_high::<Half, Single>),
        ("vfcvtl.d.s", widen_low::<Single, Double>),
        ("vfcvth.d.s", widen_high::<Single, Double>),
    ],
    comparisons!(
        "caf" 0x00, "saf" 0x01, "clt" 0x02, "slt" 0x03, "ceq" 0x04, "seq" 0x05, "cle" 0x06, "sle" 0x07,
        "cun" 0x08, "sun" 0x09, "cult" 0x0a, "sult" 0x0b, "cueq" 0x0c, "sueq" 0x0d, "cule" 0x0e, "sule" 0x0f,
        "cne" 0x10, "sne" 0x11, "cor" 0x14, "sor" 0x15, "cune" 0x18, "sune" 0x19
    ),
];

/// Floating-point families that raise no exceptions and leave FCSR unchanged.
pub(super) const QUIET_FAMILIES: Families =
    &[&[("vfclass.s", classify::<Single>), ("vfclass.d", classify::<Double>)]];

const NEAREST_EVEN: u8 = 0;
const TOWARD_ZERO: u8 = 1;
const UPWARD: u8 = 2;
const DOWNWARD: u8 = 3;
/// The mode selected by FCSR.
const CURRENT: u8 = 4;

/// The rounding mode that the mnemonic specifies.
fn mode<const MODE: u8>(rounding: &Rounding) -> RoundingMode {
    RoundingMode::ALL.get(usize::from(MODE)).copied().unwrap_or(rounding.mode)
}

/// The integer type of a conversion.
trait Int {
    const TYPE: Integer;
}
struct Word;
struct UnsignedWord;
struct Long;
struct UnsignedLong;
impl Int for Word {
    const TYPE: Integer = Integer::I32;
}
impl Int for UnsignedWord {
    const TYPE: Integer = Integer::U32;
}
impl Int for Long {
    const TYPE: Integer = Integer::I64;
}
impl Int for UnsignedLong {
    const TYPE: Integer = Integer::U64;
}

/// Lane `index` of `half`, `bits` wide, zero-extended.
fn lane(half: u128, bits: u32, index: u32) -> u64 {
    (half >> (index * bits)) as u64 & u64::MAX >> (64 - bits)
}

/// The half whose lane `i` is the low `bits` bits of `f(i)`. Collects the exceptions.
fn lanes(bits: u32, rounding: &mut Rounding, f: impl Fn(u32, RoundingMode) -> (u64, ExceptionFlags)) -> u128 {
    (0..128 / bits).fold(0, |half, i| {
        let (value, raised) = f(i, rounding.mode);
        rounding.raised |= raised;
        half | u128::from(value & u64::MAX >> (64 - bits)) << (i * bits)
    })
}

/// Applies `f` to the lanes of register j, by FCSR's rules.
fn of_one<F: Format>(
    half: &Operands,
    rounding: &mut Rounding,
    f: impl Fn(u64, RoundingMode) -> (u64, ExceptionFlags),
) -> u128 {
    let rules = rounding.rules;
    unary::<F>(half, rounding, |j, mode| rules.apply::<F, F, 1>([j], |[j]| f(j, mode)))
}

/// Applies `f` to the lanes of registers j and k, by FCSR's rules.
fn of_two<F: Format>(
    half: &Operands,
    rounding: &mut Rounding,
    f: impl Fn(u64, u64, RoundingMode) -> (u64, ExceptionFlags),
) -> u128 {
    let rules = rounding.rules;
    binary::<F>(half, rounding, |j, k, mode| rules.apply::<F, F, 2>([j, k], |[j, k]| f(j, k, mode)))
}

/// Applies `f` to the lanes of register j.
fn unary<F: Format>(
    half: &Operands,
    rounding: &mut Rounding,
    f: impl Fn(u64, RoundingMode) -> (u64, ExceptionFlags),
) -> u128 {
    lanes(F::BITS, rounding, |i, mode| f(lane(half.j, F::BITS, i), mode))
}

/// Applies `f` to the lanes of registers j and k.
fn binary<F: Format>(
    half: &Operands,
    rounding: &mut Rounding,
    f: impl Fn(u64, u64, RoundingMode) -> (u64, ExceptionFlags),
) -> u128 {
    lanes(F::BITS, rounding, |i, mode| f(lane(half.j, F::BITS, i), lane(half.k, F::BITS, i), mode))
}

fn add<F: Format>(half: &Operands, rounding: &mut Rounding) -> u128 {
    of_two::<F>(half, rounding, float::add::<F>)
}

fn sub<F: Format>(half: &Operands, rounding: &mut Rounding) -> u128 {
    of_two::<F>(half, rounding, float::sub::<F>)
}

fn mul<F: Format>(half: &Operands, rounding: &mut Rounding) -> u128 {
    of_two::<F>(half, rounding, float::mul::<F>)
}

fn div<F: Format>(half: &Operands, rounding: &mut Rounding) -> u128 {
    of_two::<F>(half, rounding, float::div::<F>)
}

fn mul_add<F: Format, const NEGATE_ADDEND: bool, const NEGATE_RESULT: bool>(
    half: &Operands,
    rounding: &mut Rounding,
) -> u128 {
    let rules = rounding.rules;
    lanes(F::BITS, rounding, |i, mode| {
        let operands = [half.j, half.k, half.a].map(|register| lane(register, F::BITS, i));
        rules.mul_add::<F>(operands, [NEGATE_ADDEND, NEGATE_RESULT], mode)
    })
}

fn max<F: Format>(half: &Operands, rounding: &mut Rounding) -> u128 {
    binary::<F>(half, rounding, |j, k, _| float::max::<F>(j, k))
}

fn min<F: Format>(half: &Operands, rounding: &mut Rounding) -> u128 {
    binary::<F>(half, rounding, |j, k, _| float::min::<F>(j, k))
}

fn max_magnitude<F: Format>(half: &Operands, rounding: &mut Rounding) -> u128 {
    binary::<F>(half, rounding, |j, k, _| float::max_magnitude::<F>(j, k))
}

fn min_magnitude<F: Format>(half: &Operands, rounding: &mut Rounding) -> u128 {
    binary::<F>(half, rounding, |j, k, _| float::min_magnitude::<F>(j, k))
}

fn logb<F: Format>(half: &Operands, rounding: &mut Rounding) -> u128 {
    unary::<F>(half, rounding, |j, _| float::logb::<F>(j))
}

fn classify<F: Format>(half: &Operands) -> u128 {
    (0..128 / F::BITS).fold(0, |result, i| {
        let class = float::classify::<F>(lane(half.j, F::BITS, i));
        result | u128::from(class) << (i * F::BITS)
    })
}

fn sqrt<F: Format>(half: &Operands, rounding: &mut Rounding) -> u128 {
    of_one::<F>(half, rounding, float::sqrt::<F>)
}

fn recip<F: Format>(half: &Operands, rounding: &mut Rounding) -> u128 {
    of_one::<F>(half, rounding, float::recip::<F>)
}

fn rsqrt<F: Format>(half: &Operands, rounding: &mut Rounding) -> u128 {
    of_one::<F>(half, rounding, float::rsqrt::<F>)
}

fn round<F: Format, const MODE: u8>(half: &Operands, rounding: &mut Rounding) -> u128 {
    let (mode, rules) = (mode::<MODE>(rounding), rounding.rules);
    unary::<F>(half, rounding, |j, _| float::round_to_integral::<F>(rules.flushed::<F>(j), mode))
}

/// Sets all bits of a lane if the condition holds, and none otherwise.
fn compare<F: Format, const CONDITION: u32>(half: &Operands, rounding: &mut Rounding) -> u128 {
    let rules = rounding.rules;
    binary::<F>(half, rounding, |j, k, _| {
        let (holds, raised) =
            rules.examine::<F, _>([j, k], |j, k| float::compare_condition::<F>(j, k, CONDITION));
        (if holds { u64::MAX } else { 0 }, raised)
    })
}

/// Converts each lane to an integer of the same width.
fn to_integer<F: Format, I: Int, const MODE: u8>(half: &Operands, rounding: &mut Rounding) -> u128 {
    let (mode, rules) = (mode::<MODE>(rounding), rounding.rules);
    unary::<F>(half, rounding, |j, _| rules.to_integer::<F>(j, I::TYPE, mode))
}

/// Converts to integers of half the width. The lanes of k become the low 64 bits, those of j the high 64 bits.
fn to_words<F: Format, I: Int, const MODE: u8>(half: &Operands, rounding: &mut Rounding) -> u128 {
    let (mode, rules) = (mode::<MODE>(rounding), rounding.rules);
    lanes(I::TYPE.bits, rounding, |i, _| {
        let (source, i) = pair(half, i, 128 / F::BITS);
        rules.to_integer::<F>(lane(source, F::BITS, i), I::TYPE, mode)
    })
}

/// Maps lane `index` of the result to a source: the first `count` lanes come from register k, the others from register
/// j.
fn pair(half: &Operands, index: u32, count: u32) -> (u128, u32) {
    if index < count { (half.k, index) } else { (half.j, index - count) }
}

/// Converts the lanes in the low 64 bits of j to integers of twice the width.
fn low_to_long<F: Format, I: Int, const MODE: u8>(half: &Operands, rounding: &mut Rounding) -> u128 {
    let (mode, rules) = (mode::<MODE>(rounding), rounding.rules);
    lanes(I::TYPE.bits, rounding, |i, _| rules.to_integer::<F>(lane(half.j, F::BITS, i), I::TYPE, mode))
}

/// Like [`low_to_long`], for the lanes in the high 64 bits.
fn high_to_long<F: Format, I: Int, const MODE: u8>(half: &Operands, rounding: &mut Rounding) -> u128 {
    low_to_long::<F, I, MODE>(&high(half), rounding)
}

/// The operands with the high 64 bits of j moved to the low 64 bits.
fn high(half: &Operands) -> Operands {
    Operands { j: half.j >> 64, ..*half }
}

/// Converts an integer lane to format `F`.
fn converted<F: Format, I: Int>(value: u64, mode: RoundingMode) -> (u64, ExceptionFlags) {
    let unused = 64 - I::TYPE.bits;
    if I::TYPE.signed {
        float::from_signed::<F>((value << unused) as i64 >> unused, mode)
    } else {
        float::from_unsigned::<F>(value << unused >> unused, mode)
    }
}

fn from_integer<F: Format, I: Int>(half: &Operands, rounding: &mut Rounding) -> u128 {
    unary::<F>(half, rounding, converted::<F, I>)
}

fn from_low_words(half: &Operands, rounding: &mut Rounding) -> u128 {
    lanes(Double::BITS, rounding, |i, mode| converted::<Double, Word>(lane(half.j, 32, i), mode))
}

fn from_high_words(half: &Operands, rounding: &mut Rounding) -> u128 {
    from_low_words(&high(half), rounding)
}

fn from_longs(half: &Operands, rounding: &mut Rounding) -> u128 {
    lanes(Single::BITS, rounding, |i, mode| {
        let (source, i) = pair(half, i, 2);
        converted::<Single, Long>(lane(source, 64, i), mode)
    })
}

/// Converts to a format of half the width. The lanes of k become the low 64 bits, those of j the high 64 bits.
fn narrow<From: Format, To: Format>(half: &Operands, rounding: &mut Rounding) -> u128 {
    let rules = rounding.rules;
    lanes(To::BITS, rounding, |i, mode| {
        let (source, i) = pair(half, i, 128 / From::BITS);
        let operand = lane(source, From::BITS, i);
        rules.apply::<From, To, 1>([operand], |[operand]| float::convert::<From, To>(operand, mode))
    })
}

/// Converts the lanes in the low 64 bits of j to a format of twice the width.
fn widen_low<From: Format, To: Format>(half: &Operands, rounding: &mut Rounding) -> u128 {
    // Operands in half precision are neither flushed nor recorded.
    let rules = if From::BITS > 16 { rounding.rules } else { Rules::default() };
    lanes(To::BITS, rounding, |i, mode| {
        let operand = lane(half.j, From::BITS, i);
        rules.apply::<From, To, 1>([operand], |[operand]| float::convert::<From, To>(operand, mode))
    })
}

fn widen_high<From: Format, To: Format>(half: &Operands, rounding: &mut Rounding) -> u128 {
    widen_low::<From, To>(&high(half), rounding)
}
