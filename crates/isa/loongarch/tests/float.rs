//! Compares floating-point arithmetic with a library and with the host. Source: rustc_apfloat, LLVM's arithmetic in
//! Rust; the host's f32 and f64, which round to nearest.
//!
//! The library reports no overflow if the result is the greatest finite number, and reports underflow only if the
//! rounded result is subnormal. IEEE 754's tininess after rounding also covers a result that is rounded up to the smallest
//! normal number but would be smaller if the exponent were unbounded. These flags are compared only with QEMU.

use longma_loongarch::float::{
    self, Double, ExceptionFlags, Format, Half, Integer, Relation, RoundingMode, Single,
};
use proptest::prelude::*;
use rustc_apfloat::{
    Float, FloatConvert, Round, Status, StatusAnd,
    ieee::{Double as ApDouble, Half as ApHalf, Single as ApSingle},
};

/// A format of this crate and the corresponding format of the library.
trait LibraryFormat: Format {
    type Library: Float;
}
impl LibraryFormat for Half {
    type Library = ApHalf;
}
impl LibraryFormat for Single {
    type Library = ApSingle;
}
impl LibraryFormat for Double {
    type Library = ApDouble;
}

fn library_mode(mode: RoundingMode) -> Round {
    match mode {
        RoundingMode::NearestEven => Round::NearestTiesToEven,
        RoundingMode::TowardZero => Round::TowardZero,
        RoundingMode::Upward => Round::TowardPositive,
        RoundingMode::Downward => Round::TowardNegative,
    }
}

fn library_flags(status: Status) -> ExceptionFlags {
    [
        (Status::INVALID_OP, ExceptionFlags::INVALID),
        (Status::DIV_BY_ZERO, ExceptionFlags::DIVISION_BY_ZERO),
        (Status::OVERFLOW, ExceptionFlags::OVERFLOW),
        (Status::UNDERFLOW, ExceptionFlags::UNDERFLOW),
        (Status::INEXACT, ExceptionFlags::INEXACT),
    ]
    .into_iter()
    .filter(|(theirs, _)| status.contains(*theirs))
    .fold(ExceptionFlags::NONE, |all, (_, ours)| all | ours)
}

fn is_nan<F: Format>(bits: u64) -> bool {
    bits & (F::SIGN - 1) > F::INFINITY
}

/// Compares result and exceptions, except for NaN payloads and the borderline cases described above.
fn agrees<F: LibraryFormat>(
    ours: (u64, ExceptionFlags),
    theirs: StatusAnd<F::Library>,
) -> Result<(), String> {
    let (bits, flags) = ours;
    let (their_bits, their_flags) = (theirs.value.to_bits() as u64, library_flags(theirs.status));
    let mut significant = 0x1f;
    if bits & (F::SIGN - 1) == F::INFINITY - 1 {
        significant &= !ExceptionFlags::OVERFLOW.0;
    }
    let smallest_normal = bits & (F::SIGN - 1) == 1 << F::FRACTION_BITS;
    if smallest_normal {
        significant &= !ExceptionFlags::UNDERFLOW.0;
    }
    let same_flags = flags.0 & significant == their_flags.0 & significant;
    let same_bits = bits == their_bits || is_nan::<F>(bits) && is_nan::<F>(their_bits);
    if same_flags && same_bits {
        return Ok(());
    }
    Err(format!("{bits:#x} {flags:?}, and the library {their_bits:#x} {their_flags:?}"))
}

fn value<F: LibraryFormat>(bits: u64) -> F::Library {
    F::Library::from_bits(bits.into())
}

fn arithmetic_agrees<F: LibraryFormat>(a: u64, b: u64, c: u64, mode: RoundingMode) -> Result<(), String> {
    let (x, y, z, round) = (value::<F>(a), value::<F>(b), value::<F>(c), library_mode(mode));
    let named = |name: &'static str| {
        move |difference: String| format!("{name} {a:#x} {b:#x} {c:#x} {mode:?}: {difference}")
    };
    agrees::<F>(float::add::<F>(a, b, mode), x.add_r(y, round)).map_err(named("add"))?;
    agrees::<F>(float::sub::<F>(a, b, mode), x.sub_r(y, round)).map_err(named("sub"))?;
    agrees::<F>(float::mul::<F>(a, b, mode), x.mul_r(y, round)).map_err(named("mul"))?;
    agrees::<F>(float::div::<F>(a, b, mode), x.div_r(y, round)).map_err(named("div"))?;
    let fused = float::mul_add::<F>(a, b, c, false, false, mode);
    // Infinity times zero plus a NaN: IEEE 754 leaves open whether that is invalid, and implementations differ.
    if !is_nan::<F>(c) {
        agrees::<F>(fused, x.mul_add_r(y, z, round)).map_err(named("mul_add"))?;
    }
    agrees::<F>(float::round_to_integral::<F>(a, mode), x.round_to_integral(round)).map_err(named("rint"))?;
    let (relation, _) = float::compare::<F>(a, b, false);
    let theirs = match x.partial_cmp(&y) {
        None => Relation::Unordered,
        Some(std::cmp::Ordering::Less) => Relation::Less,
        Some(std::cmp::Ordering::Equal) => Relation::Equal,
        Some(std::cmp::Ordering::Greater) => Relation::Greater,
    };
    if relation != theirs {
        return Err(named("compare")(format!("{relation:?}, and the library {theirs:?}")));
    }
    for integer in [Integer::I32, Integer::I64, Integer::U32, Integer::U64] {
        let (ours, flags) = float::to_integer::<F>(a, integer, mode);
        let width = integer.bits as usize;
        let (theirs, status) = if integer.signed {
            let result = x.to_i128_r(width, round, &mut false);
            (result.value as u64, result.status)
        } else {
            let result = x.to_u128_r(width, round, &mut false);
            (result.value as u64, result.status)
        };
        let theirs = if is_nan::<F>(a) { 0 } else { theirs };
        if (ours, flags) != (theirs, library_flags(status)) {
            return Err(named("to_integer")(format!(
                "{integer:?} {ours:#x} {flags:?}, and the library {theirs:#x} {status:?}"
            )));
        }
    }
    Ok(())
}

/// Bit patterns of a format: arbitrary, close to each other, and at the ends of its ranges.
fn patterns<F: Format>() -> impl Strategy<Value = u64> + Clone {
    let all = F::SIGN | (F::SIGN - 1);
    let edge = prop::sample::select(vec![
        0,
        1,
        F::QUIET - 1,
        1 << F::FRACTION_BITS,
        (1 << F::FRACTION_BITS) - 1,
        (1 << F::FRACTION_BITS) + 1,
        F::ONE,
        F::ONE - 1,
        F::ONE + 1,
        F::ONE + F::QUIET,
        F::INFINITY - 1,
        F::INFINITY,
        F::DEFAULT_NAN,
        F::INFINITY + 1,
    ]);
    prop_oneof![
        3 => any::<u64>().prop_map(move |bits| bits & all),
        3 => any::<(u64, u64)>().prop_map(move |(bits, exponent)| {
            let near_one = F::ONE.wrapping_sub(4 << F::FRACTION_BITS) + ((exponent % 8) << F::FRACTION_BITS);
            bits & !F::INFINITY & all | near_one & F::INFINITY
        }),
        2 => (edge, any::<bool>()).prop_map(move |(bits, negative)| bits | if negative { F::SIGN } else { 0 }),
    ]
}

fn modes() -> impl Strategy<Value = RoundingMode> {
    prop::sample::select(RoundingMode::ALL.to_vec())
}

fn conversion_agrees<From: LibraryFormat, To: LibraryFormat>(a: u64, mode: RoundingMode) -> Result<(), String>
where
    From::Library: FloatConvert<To::Library>,
{
    let theirs = value::<From>(a).convert_r(library_mode(mode), &mut false);
    agrees::<To>(float::convert::<From, To>(a, mode), theirs)
        .map_err(|difference| format!("convert {a:#x} {mode:?}: {difference}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn double_arithmetic_matches_the_library(
        a in patterns::<Double>(), b in patterns::<Double>(), c in patterns::<Double>(), mode in modes(),
    ) {
        arithmetic_agrees::<Double>(a, b, c, mode).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn single_arithmetic_matches_the_library(
        a in patterns::<Single>(), b in patterns::<Single>(), c in patterns::<Single>(), mode in modes(),
    ) {
        arithmetic_agrees::<Single>(a, b, c, mode).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn half_arithmetic_matches_the_library(
        a in patterns::<Half>(), b in patterns::<Half>(), c in patterns::<Half>(), mode in modes(),
    ) {
        arithmetic_agrees::<Half>(a, b, c, mode).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn conversions_match_the_library(a in patterns::<Double>(), b in patterns::<Single>(), mode in modes()) {
        conversion_agrees::<Double, Single>(a, mode).map_err(TestCaseError::fail)?;
        conversion_agrees::<Double, Half>(a, mode).map_err(TestCaseError::fail)?;
        conversion_agrees::<Single, Double>(b, mode).map_err(TestCaseError::fail)?;
        conversion_agrees::<Single, Half>(b, mode).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn integer_conversions_match_the_library(integer: u64, shift in 0u32..64, mode in modes()) {
        let (unsigned, signed) = (integer >> shift, integer as i64 >> shift);
        let round = library_mode(mode);
        agrees::<Double>(float::from_unsigned::<Double>(unsigned, mode), ApDouble::from_u128_r(unsigned.into(), round))
            .map_err(TestCaseError::fail)?;
        agrees::<Single>(float::from_unsigned::<Single>(unsigned, mode), ApSingle::from_u128_r(unsigned.into(), round))
            .map_err(TestCaseError::fail)?;
        agrees::<Double>(float::from_signed::<Double>(signed, mode), ApDouble::from_i128_r(signed.into(), round))
            .map_err(TestCaseError::fail)?;
        agrees::<Single>(float::from_signed::<Single>(signed, mode), ApSingle::from_i128_r(signed.into(), round))
            .map_err(TestCaseError::fail)?;
    }

    /// The host rounds to nearest.
    #[test]
    fn square_roots_and_fused_multiply_adds_match_the_host(a: f64, b: f64, c: f64, d: f32) {
        let nearest = RoundingMode::NearestEven;
        let root = float::sqrt::<Double>(a.abs().to_bits(), nearest).0;
        prop_assert_eq!(root, a.abs().sqrt().to_bits());
        let root = float::sqrt::<Single>(d.abs().to_bits().into(), nearest).0;
        prop_assert_eq!(root, u64::from(d.abs().sqrt().to_bits()));
        let fused = float::mul_add::<Double>(a.to_bits(), b.to_bits(), c.to_bits(), false, false, nearest).0;
        prop_assert_eq!(fused, a.mul_add(b, c).to_bits());
    }

    /// The square of a single is exact as a double, so it shows whether the root is the neighbour in the rounding direction.
    #[test]
    fn directed_square_roots_enclose_the_exact_root(a in patterns::<Single>(), mode in modes()) {
        let a = a & !Single::SIGN;
        let number = f32::from_bits(a as u32);
        if number == 0.0 || !number.is_finite() {
            return Ok(());
        }
        let (root, flags) = float::sqrt::<Single>(a, mode);
        let square = |bits: u64| f64::from(f32::from_bits(bits as u32)).powi(2);
        let number = f64::from(number);
        prop_assert_eq!(flags == ExceptionFlags::NONE, square(root) == number);
        match mode {
            RoundingMode::Upward => prop_assert!(square(root) >= number && square(root - 1) < number),
            RoundingMode::NearestEven => {}
            _ => prop_assert!(square(root) <= number && square(root + 1) > number),
        }
    }
}

#[test]
fn every_half_converts_and_compares_as_in_the_library() {
    for a in 0..=0xffffu64 {
        conversion_agrees::<Half, Single>(a, RoundingMode::NearestEven).unwrap();
        conversion_agrees::<Half, Double>(a, RoundingMode::NearestEven).unwrap();
        for mode in RoundingMode::ALL {
            arithmetic_agrees::<Half>(a, a.wrapping_mul(0x9e37) & 0xffff, 0x3c00, mode).unwrap();
        }
    }
}

/// Section 3.1.1.3 of the manual: the sign and the high bits of the payload are preserved, and the quiet bit is set.
#[test]
fn a_nan_keeps_its_sign_and_the_high_bits_of_its_payload_through_conversions() {
    let nearest = RoundingMode::NearestEven;
    let (invalid, none) = (ExceptionFlags::INVALID, ExceptionFlags::NONE);
    assert_eq!(float::convert::<Double, Single>(0xfff4_5678_9abc_def0, nearest), (0xffe2_b3c4, invalid));
    assert_eq!(float::convert::<Double, Single>(0x7ff0_0000_0000_0001, nearest), (0x7fc0_0000, invalid));
    assert_eq!(float::convert::<Double, Single>(0x7ff8_0000_4000_0000, nearest), (0x7fc0_0002, none));
    assert_eq!(float::convert::<Single, Double>(0xffa0_0001, nearest), (0xfffc_0000_2000_0000, invalid));
    assert_eq!(float::convert::<Single, Half>(0x7fc1_2345, nearest), (0x7e09, none));
    assert_eq!(float::convert::<Half, Single>(0xfd01, nearest), (0xffe0_2000, invalid));
}

/// Section 3.1.1.3: signaling NaNs have priority over quiet ones, then fa, fj, fk.
#[test]
fn the_nan_of_highest_priority_is_the_result() {
    const SIGNALING: [u64; 3] = [0x7f80_0001, 0x7f80_0002, 0x7f80_0003];
    const QUIET: [u64; 3] = [0x7fc0_0011, 0x7fc0_0012, 0x7fc0_0013];
    let one = Single::ONE;
    let nearest = RoundingMode::NearestEven;
    let fused = |j, k, a| float::mul_add::<Single>(j, k, a, true, true, nearest);
    let ([sj, sk, sa], [qj, qk, qa]) = (SIGNALING, QUIET);
    let quieted = |bits: u64| (bits | Single::QUIET, ExceptionFlags::INVALID);
    assert_eq!(fused(sj, sk, sa), quieted(sa));
    assert_eq!(fused(sj, sk, qa), quieted(sj));
    assert_eq!(fused(qj, sk, qa), quieted(sk));
    assert_eq!(fused(qj, qk, qa), (qa, ExceptionFlags::NONE));
    assert_eq!(fused(qj, qk, one), (qj, ExceptionFlags::NONE));
    assert_eq!(fused(one, qk, one), (qk, ExceptionFlags::NONE));
    assert_eq!(fused(0, Single::INFINITY, qa), (qa, ExceptionFlags::INVALID));
    assert_eq!(fused(0, Single::INFINITY, one), (Single::DEFAULT_NAN, ExceptionFlags::INVALID));
    assert_eq!(float::sub::<Single>(qj, sk, nearest), quieted(sk));
    assert_eq!(float::sub::<Single>(qj, qk, nearest), (qj, ExceptionFlags::NONE));
    assert_eq!(float::sub::<Single>(one, qk, nearest), (qk, ExceptionFlags::NONE));
    assert_eq!(float::max::<Single>(qj, one), (one, ExceptionFlags::NONE));
    assert_eq!(float::min::<Single>(sj, one), quieted(sj));
    assert_eq!(float::min::<Single>(qj, qk), (qj, ExceptionFlags::NONE));
}

/// A case that distinguishes tininess after rounding from a subnormal result: the result rounds up to the smallest
/// normal number, but with an unbounded exponent it would stay below.
#[test]
fn tininess_is_detected_after_rounding_with_an_unbounded_exponent() {
    let below_one = 1f64.to_bits() - 1;
    let smallest = f64::MIN_POSITIVE.to_bits();
    let underflow = ExceptionFlags::UNDERFLOW | ExceptionFlags::INEXACT;
    // (1 - 2^-53) * 2^-1022 has 53 bits, so it is representable except for its exponent.
    let product = float::mul::<Double>(below_one, smallest, RoundingMode::NearestEven);
    assert_eq!(product, (smallest, underflow));
    // (1 - 2^-52) * 2^-1022 is subnormal and exact.
    let sum =
        float::mul_add::<Double>(smallest, 1f64.to_bits(), 1 | 1 << 63, false, false, RoundingMode::Upward);
    assert_eq!(sum, (smallest - 1, ExceptionFlags::TINY_EXACT));
    // (1 - 2^-112) * 2^-1022 rounds to 2^-1022 even with an unbounded exponent.
    let tiny = 2f64.powi(-60).to_bits();
    let sum = float::mul_add::<Double>(1 | 1 << 63, tiny, smallest, false, false, RoundingMode::NearestEven);
    assert_eq!(sum, (smallest, ExceptionFlags::INEXACT));
}
