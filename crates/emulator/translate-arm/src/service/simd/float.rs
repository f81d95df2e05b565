//! Floating-point operations on elements of 16, 32 and 64 bits. Source: Arm Architecture Reference Manual (Arm DDI
//! 0487), section C7.2 and shared pseudocode (FPAdd, FPMulAdd, FPMaxNum, FPRecipStepFused, FPToFixed, FixedToFP).

use longma_loongarch::float::{self, Double, ExceptionFlags, Format, Half, Integer, RoundingMode, Single};

use super::super::environment::{Environment, INEXACT, INVALID, is_nan};
use super::estimate::{frecpe, frecpx, frsqrte};
use super::{Form, Kernel, Lane};

/// Evaluates an expression with `$format` as the format of `$bits` bits.
macro_rules! in_format {
    ($bits:expr, $format:ident => $value:expr) => {
        match $bits {
            16 => {
                type $format = Half;
                $value
            }
            32 => {
                type $format = Single;
                $value
            }
            _ => {
                type $format = Double;
                $value
            }
        }
    };
}
pub(super) use in_format;

/// Returns how to compute the elements of a floating-point instruction.
pub(super) fn find(mnemonic: &str) -> Option<(Form, Kernel)> {
    let pairs = |name: &str| mnemonic.strip_suffix('p').filter(|rest| *rest == name).and_then(extreme);
    let across = |name: &str| mnemonic.strip_suffix('v').filter(|rest| *rest == name).and_then(extreme);
    let extremes = ["fmax", "fmin", "fmaxnm", "fminnm"];
    if let Some(kernel) = extremes.iter().find_map(|name| pairs(name)) {
        return Some((Form::Pairs, kernel));
    }
    if let Some(kernel) = extremes.iter().find_map(|name| across(name)) {
        return Some((Form::Across, kernel));
    }
    let kernel: Option<(Form, Kernel)> = match mnemonic {
        "faddp" => Some((Form::Pairs, arithmetic("fadd")?)),
        "fcvtl" => Some((Form::Long, widened)),
        "fcvtn" => Some((Form::Narrow, narrowed)),
        "fcvtxn" => Some((Form::Narrow, |e, l| rounded_to_odd(e, l.n))),
        _ => None,
    };
    let same = arithmetic(mnemonic)
        .or_else(|| extreme(mnemonic))
        .or_else(|| comparison(mnemonic))
        .or_else(|| rounding(mnemonic))
        .or_else(|| conversion(mnemonic));
    kernel.or_else(|| same.map(|kernel| (Form::Same, kernel)))
}

fn two<F: Format>(
    e: &mut Environment,
    l: Lane,
    operation: impl Fn(u64, u64, RoundingMode) -> (u64, ExceptionFlags),
) -> u64 {
    let (n, m) = (e.operand::<F>(l.n), e.operand::<F>(l.m));
    e.result::<F>(|mode| operation(n, m, mode))
}

/// `addend + n * m`, with operands negated first.
fn fused<F: Format>(e: &mut Environment, l: Lane, negates_product: bool, negates_addend: bool) -> u64 {
    let sign = |negates: bool| if negates { F::SIGN } else { 0 };
    let n = e.operand::<F>(l.n ^ sign(negates_product));
    let m = e.operand::<F>(l.m);
    let d = e.operand::<F>(l.d ^ sign(negates_addend));
    // A quiet NaN as addend does not hide an invalid product.
    if is_nan::<F>(d) && d & F::QUIET != 0 && is_invalid_product::<F>(n, m) {
        return e.invalid::<F>();
    }
    e.result::<F>(|mode| float::mul_add::<F>(n, m, d, false, false, mode))
}

fn is_invalid_product<F: Format>(n: u64, m: u64) -> bool {
    let [n, m] = [n, m].map(|bits| bits & (F::SIGN - 1));
    n == F::INFINITY && m == 0 || n == 0 && m == F::INFINITY
}

/// FMULX: infinity times zero is 2.
fn extended_product<F: Format>(e: &mut Environment, l: Lane) -> u64 {
    let (n, m) = (e.operand::<F>(l.n), e.operand::<F>(l.m));
    if is_invalid_product::<F>(n, m) {
        let two = F::ONE + (1 << F::FRACTION_BITS);
        return (n ^ m) & F::SIGN | two;
    }
    e.result::<F>(|mode| float::mul::<F>(n, m, mode))
}

/// FRECPS: 2 - n * m; FRSQRTS: (3 - n * m) / 2.
fn step<F: Format>(e: &mut Environment, l: Lane, halves: bool) -> u64 {
    let (n, m) = (e.operand::<F>(l.n ^ F::SIGN), e.operand::<F>(l.m));
    if let Some(nan) = e.first_nan::<F>(&[n, m]) {
        return nan;
    }
    let two = F::ONE + (1 << F::FRACTION_BITS);
    let one_and_a_half = F::ONE | F::QUIET;
    let addend = if halves { one_and_a_half } else { two };
    if is_invalid_product::<F>(n, m) {
        return addend;
    }
    if !halves {
        return e.result::<F>(|mode| float::mul_add::<F>(n, m, addend, false, false, mode));
    }
    // Halves a factor that has an exact half. If neither has one, the product is negligible.
    let has_half = |bits: u64| bits & F::INFINITY > 1 << F::FRACTION_BITS;
    let half = |bits: u64| float::scaleb::<F>(bits, -1, RoundingMode::TowardZero).0;
    let (n, m) = match (has_half(n), has_half(m)) {
        (true, _) => (half(n), m),
        (_, true) => (n, half(m)),
        _ => (n, m),
    };
    e.result::<F>(|mode| float::mul_add::<F>(n, m, addend, false, false, mode))
}

fn arithmetic(mnemonic: &str) -> Option<Kernel> {
    Some(match mnemonic {
        "fadd" => |e, l| in_format!(l.bits, F => two::<F>(e, l, float::add::<F>)),
        "fsub" => |e, l| in_format!(l.bits, F => two::<F>(e, l, float::sub::<F>)),
        "fmul" => |e, l| in_format!(l.bits, F => two::<F>(e, l, float::mul::<F>)),
        "fdiv" => |e, l| in_format!(l.bits, F => two::<F>(e, l, float::div::<F>)),
        "fnmul" => |e, l| in_format!(l.bits, F => two::<F>(e, l, float::mul::<F>) ^ F::SIGN),
        "fabd" => |e, l| in_format!(l.bits, F => two::<F>(e, l, float::sub::<F>) & (F::SIGN - 1)),
        "fmulx" => |e, l| in_format!(l.bits, F => extended_product::<F>(e, l)),
        "fmla" | "fmadd" => |e, l| in_format!(l.bits, F => fused::<F>(e, l, false, false)),
        "fmls" | "fmsub" => |e, l| in_format!(l.bits, F => fused::<F>(e, l, true, false)),
        "fnmadd" => |e, l| in_format!(l.bits, F => fused::<F>(e, l, true, true)),
        "fnmsub" => |e, l| in_format!(l.bits, F => fused::<F>(e, l, false, true)),
        "frecps" => |e, l| in_format!(l.bits, F => step::<F>(e, l, false)),
        "frsqrts" => |e, l| in_format!(l.bits, F => step::<F>(e, l, true)),
        "frecpe" => |e, l| in_format!(l.bits, F => frecpe::<F>(e, l.n)),
        "frecpx" => |e, l| in_format!(l.bits, F => frecpx::<F>(e, l.n)),
        "frsqrte" => |e, l| in_format!(l.bits, F => frsqrte::<F>(e, l.n)),
        "fabs" => |_, l| in_format!(l.bits, F => l.n & (F::SIGN - 1)),
        "fneg" => |_, l| in_format!(l.bits, F => l.n ^ F::SIGN),
        "fsqrt" => |e, l| {
            in_format!(l.bits, F => {
                let n = e.operand::<F>(l.n);
                e.result::<F>(|mode| float::sqrt::<F>(n, mode))
            })
        },
        _ => return None,
    })
}

/// The greater or the lesser operand. A NaN wins, except that FMAXNM and FMINNM prefer a number to a quiet NaN.
fn chosen<F: Format>(
    e: &mut Environment,
    l: Lane,
    prefers_numbers: bool,
    operation: impl Fn(u64, u64) -> (u64, ExceptionFlags),
) -> u64 {
    let (n, m) = (e.operand::<F>(l.n), e.operand::<F>(l.m));
    if !prefers_numbers && let Some(nan) = e.first_nan::<F>(&[n, m]) {
        return nan;
    }
    let (value, flags) = operation(n, m);
    e.raise(flags);
    e.nan::<F>(value)
}

fn extreme(mnemonic: &str) -> Option<Kernel> {
    Some(match mnemonic {
        "fmax" => |e, l| in_format!(l.bits, F => chosen::<F>(e, l, false, float::max::<F>)),
        "fmin" => |e, l| in_format!(l.bits, F => chosen::<F>(e, l, false, float::min::<F>)),
        "fmaxnm" => |e, l| in_format!(l.bits, F => chosen::<F>(e, l, true, float::max::<F>)),
        "fminnm" => |e, l| in_format!(l.bits, F => chosen::<F>(e, l, true, float::min::<F>)),
        _ => return None,
    })
}

fn compared(e: &mut Environment, l: Lane, signals: bool, holds: fn(u64) -> bool) -> u64 {
    let flags = in_format!(l.bits, F => e.compare::<F>(l.n, l.m, signals));
    if holds(flags) { u64::MAX } else { 0 }
}

fn absolute(l: Lane) -> Lane {
    let rest = u64::MAX >> (65 - l.bits);
    Lane { n: l.n & rest, m: l.m & rest, ..l }
}

fn comparison(mnemonic: &str) -> Option<Kernel> {
    // N, Z, C and V are in bits 3 to 0. C is also set if the operands are unordered.
    Some(match mnemonic {
        "fcmeq" => |e, l| compared(e, l, false, |flags| flags == 6),
        "fcmge" => |e, l| compared(e, l, true, |flags| flags & 3 == 2),
        "fcmgt" => |e, l| compared(e, l, true, |flags| flags == 2),
        "fcmle" => |e, l| compared(e, l, true, |flags| flags & 12 != 0),
        "fcmlt" => |e, l| compared(e, l, true, |flags| flags == 8),
        "facge" => |e, l| compared(e, absolute(l), true, |flags| flags & 3 == 2),
        "facgt" => |e, l| compared(e, absolute(l), true, |flags| flags == 2),
        _ => return None,
    })
}

/// A rounding mode of FRINT and FCVT.
#[derive(Clone, Copy)]
enum Rounding {
    Current,
    To(RoundingMode),
    /// To the nearest, ties away from zero.
    Away,
}

/// The rounding mode named by the last letter of a mnemonic.
fn rounding_of(letter: char) -> Rounding {
    match letter {
        'n' => Rounding::To(RoundingMode::NearestEven),
        'p' => Rounding::To(RoundingMode::Upward),
        'm' => Rounding::To(RoundingMode::Downward),
        'z' => Rounding::To(RoundingMode::TowardZero),
        'a' => Rounding::Away,
        _ => Rounding::Current,
    }
}

/// Rounds to an integral number, and returns whether that changed it. The operand is not a NaN.
fn integral<F: Format>(e: &Environment, value: u64, rounding: Rounding) -> (u64, bool) {
    let mode = match rounding {
        Rounding::Current => e.mode,
        Rounding::To(mode) => mode,
        Rounding::Away => return away::<F>(value),
    };
    let (rounded, flags) = float::round_to_integral::<F>(value, mode);
    (rounded, flags.intersects(ExceptionFlags::INEXACT))
}

fn away<F: Format>(value: u64) -> (u64, bool) {
    let (down, flags) = float::round_to_integral::<F>(value, RoundingMode::TowardZero);
    if !flags.intersects(ExceptionFlags::INEXACT) {
        return (down, false);
    }
    // The difference is exact.
    let (rest, _) = float::sub::<F>(value, down, RoundingMode::NearestEven);
    let is_less = rest & (F::SIGN - 1) < F::ONE - (1 << F::FRACTION_BITS);
    let one = F::ONE | value & F::SIGN;
    let away = if is_less { down } else { float::add::<F>(down, one, RoundingMode::NearestEven).0 };
    (away | value & F::SIGN, true)
}

fn rounded<F: Format>(e: &mut Environment, l: Lane, letter: char) -> u64 {
    let value = e.operand::<F>(l.n);
    if let Some(nan) = e.first_nan::<F>(&[value]) {
        return nan;
    }
    let (result, is_inexact) = integral::<F>(e, value, rounding_of(letter));
    if is_inexact && letter == 'x' {
        e.raised |= INEXACT;
    }
    result
}

fn rounding(mnemonic: &str) -> Option<Kernel> {
    Some(match mnemonic {
        "frintn" => |e, l| in_format!(l.bits, F => rounded::<F>(e, l, 'n')),
        "frintm" => |e, l| in_format!(l.bits, F => rounded::<F>(e, l, 'm')),
        "frintp" => |e, l| in_format!(l.bits, F => rounded::<F>(e, l, 'p')),
        "frintz" => |e, l| in_format!(l.bits, F => rounded::<F>(e, l, 'z')),
        "frinta" => |e, l| in_format!(l.bits, F => rounded::<F>(e, l, 'a')),
        "frintx" => |e, l| in_format!(l.bits, F => rounded::<F>(e, l, 'x')),
        "frinti" => |e, l| in_format!(l.bits, F => rounded::<F>(e, l, 'i')),
        _ => return None,
    })
}

/// A number as an integer with `fraction_bits` bits after the point.
pub(super) fn to_integer(
    e: &mut Environment,
    (value, bits): (u64, u32),
    to: Integer,
    fraction_bits: i64,
    letter: char,
) -> u64 {
    // Each number is exact in double precision, and so is the scaled number unless it is out of range.
    let value = in_format!(bits, F => {
        let operand = e.operand::<F>(value);
        float::convert::<F, Double>(operand, RoundingMode::NearestEven).0
    });
    if is_nan::<Double>(value) {
        e.raised |= INVALID;
        return 0;
    }
    let (scaled, _) = float::scaleb::<Double>(value, fraction_bits, RoundingMode::NearestEven);
    let (integral_value, is_inexact) = integral::<Double>(e, scaled, rounding_of(letter));
    let (result, flags) = float::to_integer::<Double>(integral_value, to, RoundingMode::TowardZero);
    e.raise(flags);
    if is_inexact && !flags.intersects(ExceptionFlags::INVALID) {
        e.raised |= INEXACT;
    }
    result
}

/// An integer with `fraction_bits` bits after the point as a number.
pub(super) fn from_integer(
    e: &mut Environment,
    (value, is_signed): (u64, bool),
    bits: u32,
    fraction_bits: i64,
) -> u64 {
    let is_negative = is_signed && (value as i64) < 0;
    let magnitude = if is_negative { value.wrapping_neg() } else { value };
    // With the lost bits merged into the last one, 53 bits suffice to round to fewer correctly.
    let shift = if bits == 64 { 0 } else { 11u32.saturating_sub(magnitude.leading_zeros()) };
    let sticky = u64::from(magnitude & ((1 << shift) - 1) != 0);
    let shifted = magnitude >> shift | sticky;
    let scale = i64::from(shift) - fraction_bits;
    in_format!(bits, F => e.result::<F>(|mode| {
        // The scaling is exact.
        let (number, flags) = match is_negative {
            true => float::from_signed::<Double>(shifted.wrapping_neg() as i64, mode),
            false => float::from_unsigned::<Double>(shifted, mode),
        };
        let scaled = float::scaleb::<Double>(number, scale, mode).0;
        let (result, more) = float::convert::<Double, F>(scaled, mode);
        (result, flags | more)
    }))
}

fn integer_of(bits: u32, is_signed: bool) -> Integer {
    Integer { bits, signed: is_signed }
}

fn lane_to_integer(e: &mut Environment, l: Lane, is_signed: bool, letter: char) -> u64 {
    to_integer(e, (l.n, l.bits), integer_of(l.bits, is_signed), l.fraction_bits(), letter)
}

fn lane_from_integer(e: &mut Environment, l: Lane, is_signed: bool) -> u64 {
    let value = if is_signed { ((l.n << (64 - l.bits)) as i64 >> (64 - l.bits)) as u64 } else { l.n };
    from_integer(e, (value, is_signed), l.bits, l.fraction_bits())
}

fn conversion(mnemonic: &str) -> Option<Kernel> {
    Some(match mnemonic {
        "scvtf" => |e, l| lane_from_integer(e, l, true),
        "ucvtf" => |e, l| lane_from_integer(e, l, false),
        "fcvtns" => |e, l| lane_to_integer(e, l, true, 'n'),
        "fcvtnu" => |e, l| lane_to_integer(e, l, false, 'n'),
        "fcvtps" => |e, l| lane_to_integer(e, l, true, 'p'),
        "fcvtpu" => |e, l| lane_to_integer(e, l, false, 'p'),
        "fcvtms" => |e, l| lane_to_integer(e, l, true, 'm'),
        "fcvtmu" => |e, l| lane_to_integer(e, l, false, 'm'),
        "fcvtzs" => |e, l| lane_to_integer(e, l, true, 'z'),
        "fcvtzu" => |e, l| lane_to_integer(e, l, false, 'z'),
        "fcvtas" => |e, l| lane_to_integer(e, l, true, 'a'),
        "fcvtau" => |e, l| lane_to_integer(e, l, false, 'a'),
        _ => return None,
    })
}

/// A number in another format. Half precision is never flushed.
pub(super) fn converted<From: Format, To: Format>(e: &mut Environment, value: u64) -> u64 {
    let value = if From::BITS == 16 { value & 0xffff } else { e.operand::<From>(value) };
    let flushes = To::BITS != 16 && e.flushes::<To>();
    e.rounded::<To>(flushes, |mode| float::convert::<From, To>(value, mode))
}

fn widened(e: &mut Environment, l: Lane) -> u64 {
    if l.bits == 16 { converted::<Half, Single>(e, l.n) } else { converted::<Single, Double>(e, l.n) }
}

fn narrowed(e: &mut Environment, l: Lane) -> u64 {
    if l.bits == 16 { converted::<Single, Half>(e, l.n) } else { converted::<Double, Single>(e, l.n) }
}

/// FCVTXN: the last bit of an inexact result is 1.
fn rounded_to_odd(e: &mut Environment, value: u64) -> u64 {
    let value = e.operand::<Double>(value);
    let flushes = e.flushes::<Single>();
    e.rounded::<Single>(flushes, |_| {
        let (result, flags) = float::convert::<Double, Single>(value, RoundingMode::TowardZero);
        (result | u64::from(flags.intersects(ExceptionFlags::INEXACT)), flags)
    })
}
