//! Compares conversions to and from 80-bit numbers with exact arithmetic and with the host's x87. Source: Intel SDM
//! volume 1, section 4.2.2 and 8.5; jiegec/unofficial-loongarch-intrinsics-guide, measured `fcvt` formulas.

use longma_loongarch::{Instruction, Op, State, Trap};
use longma_random::SplitMix64;

use super::after;

pub fn tested() -> Vec<Op> {
    vec![Op::FcvtLdD, Op::FcvtUdD, Op::FcvtDLd]
}

const INVALID: u32 = 1 << 4;
const OVERFLOW: u32 = 1 << 2;
const UNDERFLOW: u32 = 1 << 1;
const INEXACT: u32 = 1;

/// The result of `op` on f1 and f2, and its exceptions, which must be set as flags and as causes.
fn convert(op: Op, first: u64, second: u64, rounding: u32) -> (u64, u32) {
    let mut state = State::default();
    state.set_f(1, first);
    state.set_f(2, second);
    state.fcsr.0 = rounding << 8;
    let after =
        after(&state, &Instruction { d: 3, j: 1, k: 2, ..Instruction::new(op) }).expect("nothing is enabled");
    let exceptions = after.fcsr.0 >> 16 & 31;
    assert_eq!(after.fcsr.0, rounding << 8 | exceptions << 16 | exceptions << 24);
    (after.f(3), exceptions)
}

fn doubles() -> Vec<u64> {
    let edges = [
        0,
        1,
        2,
        0x000f_ffff_ffff_ffff,
        0x0010_0000_0000_0000,
        0x3ff0_0000_0000_0000,
        0x4009_21fb_5444_2d18,
        0x7fef_ffff_ffff_ffff,
        0x7ff0_0000_0000_0000,
        0x7ff0_0000_0000_0001,
        0x7ff7_ffff_ffff_ffff,
        0x7ff8_0000_0000_0000,
        0x7ff8_0000_0000_1234,
        0x7fff_ffff_ffff_ffff,
    ];
    let mut random = SplitMix64::new(0xabcd_ef01_2345_6789);
    let random = (0..4000).map(|i| {
        let bits = random.next_u64();
        if i % 4 == 0 { bits & !(0x7ff << 52) } else { bits }
    });
    edges.into_iter().flat_map(|bits| [bits, bits | 1 << 63]).chain(random.collect::<Vec<_>>()).collect()
}

/// Extended numbers near the limits of doubles: (significand, sign and exponent).
fn extendeds() -> Vec<(u64, u16)> {
    let mut random = SplitMix64::new(0x5a5a_1234_dead_beef);
    let significands = [
        1 << 63,
        1 << 63 | 1,
        1 << 63 | 0x400,
        1 << 63 | 0x3ff,
        1 << 63 | 0x401,
        1 << 63 | 0xc00,
        1 << 63 | 0x800,
        u64::MAX,
        u64::MAX - 0x3ff,
        u64::MAX - 0x400,
        u64::MAX - 0x7ff,
        1 << 63 | 1 << 62,
        1 << 63 | 1 << 61,
        0,
        1,
        u64::MAX >> 1,
        1 << 62,
    ];
    let exponents = [
        0, 1, 2, 15306, 15307, 15308, 15309, 15310, 15359, 15360, 15361, 15362, 16382, 16383, 16384, 17405,
        17406, 17407, 20000, 0x7ffe, 0x7fff,
    ];
    let mut all = Vec::new();
    for exponent in exponents {
        for significand in significands {
            all.extend([(significand, exponent), (significand, exponent | 0x8000)]);
        }
    }
    for _ in 0..6000 {
        let (bits, choice) = (random.next_u64(), random.next_u64());
        let exponent = match choice % 3 {
            0 => (choice >> 8) as u16 & 0x7fff,
            1 => 15360 - 70 + (choice >> 8) as u16 % 80,
            _ => 15300 + (choice >> 8) as u16 % 2200,
        };
        let normal = if choice >> 40 & 7 == 0 { bits } else { bits | 1 << 63 };
        all.push((normal, exponent | (choice >> 32) as u16 & 0x8000));
    }
    all
}

/// Rounds by comparing with both neighbours in exact integer arithmetic.
fn reference_to_double(significand: u64, sign_and_exponent: u16, rounding: u32) -> (u64, u32) {
    let negative = sign_and_exponent >> 15 == 1;
    let sign = u64::from(negative) << 63;
    let exponent = i32::from(sign_and_exponent & 0x7fff);
    let integer_bit = significand >> 63 == 1;
    if exponent != 0 && !integer_bit {
        return (0x7ff8 << 48, INVALID);
    }
    if exponent == 0x7fff {
        let quiet = significand >> 62 & 1 == 1;
        return match significand << 1 {
            0 => (sign | 0x7ff << 52, 0),
            _ => (sign | 0x7ff8 << 48 | (significand << 1) >> 12, if quiet { 0 } else { INVALID }),
        };
    }
    if significand == 0 {
        return (sign, 0);
    }
    // The value is significand * 2^power. A double's last place is 2^(e-52), and at least 2^-1074.
    let power = exponent.max(1) - 16383 - 63;
    let top = power + 63 - significand.leading_zeros() as i32;
    let round_at = |last_place: i32| {
        // (units of the last place, whether there is a remainder, its comparison with half a unit)
        let drop = last_place - power;
        match drop {
            ..=0 => (u128::from(significand) << -drop.max(-64), false, std::cmp::Ordering::Less),
            1..=64 => {
                let wide = u128::from(significand);
                let rest = wide & ((1 << drop) - 1);
                (wide >> drop, rest != 0, rest.cmp(&(1 << (drop - 1))))
            }
            _ => (0, true, std::cmp::Ordering::Less),
        }
    };
    let rounded = |last_place: i32| {
        let (units, inexact, half) = round_at(last_place);
        let up = match rounding {
            0 => half.is_gt() || half.is_eq() && units & 1 == 1,
            1 => false,
            2 => inexact && !negative,
            _ => inexact && negative,
        };
        (units + u128::from(up), inexact)
    };
    let (unbounded, _) = rounded(top - 52);
    let top_after = top + i32::from(unbounded >> 53 == 1);
    let tiny = top_after < -1022;
    let last_place = (top - 52).max(-1074);
    let (units, inexact) = rounded(last_place);
    if top_after > 1023 {
        let to_infinity = matches!((rounding, negative), (0, _) | (2, false) | (3, true));
        return (sign | if to_infinity { 0x7ff << 52 } else { (0x7ff << 52) - 1 }, OVERFLOW | INEXACT);
    }
    // The significand is short enough for two exact multiplications by powers of two.
    let magnitude =
        (units as f64) * 2f64.powi(last_place.max(-1000)) * 2f64.powi(last_place.min(-1000) + 1000);
    let exceptions = if inexact { INEXACT | if tiny { UNDERFLOW } else { 0 } } else { 0 };
    (sign | magnitude.to_bits(), exceptions)
}

#[test]
fn a_double_becomes_the_same_number_in_80_bits() {
    for bits in doubles() {
        let (low, low_exceptions) = convert(Op::FcvtLdD, bits, 0, 0);
        let (high, high_exceptions) = convert(Op::FcvtUdD, bits, 0, 0);
        let number = f64::from_bits(bits);
        let signalling = number.is_nan() && bits >> 51 & 1 == 0;
        let exceptions = if signalling { INVALID } else { 0 };
        assert_eq!((low_exceptions, high_exceptions), (exceptions, exceptions), "{bits:#x}");
        assert_eq!(high >> 15, u64::from(number.is_sign_negative()), "{bits:#x}");
        let exponent = high & 0x7fff;
        if number.is_nan() {
            assert_eq!((exponent, low), (0x7fff, 3 << 62 | bits << 12 >> 1), "{bits:#x}");
        } else if number.is_infinite() {
            assert_eq!((exponent, low), (0x7fff, 1 << 63), "{bits:#x}");
        } else if number == 0.0 {
            assert_eq!((exponent, low), (0, 0), "{bits:#x}");
        } else {
            assert_eq!(low >> 63, 1, "{bits:#x} is normalised");
            // At least 2^-1074, so two exact steps suffice.
            let power = exponent as i32 - 16383 - 63;
            let magnitude = (low >> 11) as f64
                * 2f64.powi((power + 11).max(-1000))
                * 2f64.powi((power + 11).min(-1000) + 1000);
            assert_eq!((magnitude, low & 0x7ff), (number.abs(), 0), "{bits:#x}");
        }
    }
}

#[test]
fn a_number_of_80_bits_becomes_the_double_next_to_it_in_every_rounding_mode() {
    for (significand, sign_and_exponent) in extendeds() {
        for rounding in 0..4 {
            let actual = convert(Op::FcvtDLd, significand, sign_and_exponent.into(), rounding);
            let expected = reference_to_double(significand, sign_and_exponent, rounding);
            assert_eq!(
                actual, expected,
                "{significand:#x}, {sign_and_exponent:#x}, rounding {rounding}: {:#x}",
                actual.0
            );
        }
    }
}

#[test]
fn a_round_trip_changes_only_signalling_nans() {
    for bits in doubles() {
        let (low, high) = (convert(Op::FcvtLdD, bits, 0, 0).0, convert(Op::FcvtUdD, bits, 0, 0).0);
        let expected = if f64::from_bits(bits).is_nan() { bits | 1 << 51 } else { bits };
        assert_eq!(convert(Op::FcvtDLd, low, high, 0), (expected, 0), "{bits:#x}");
    }
}

#[test]
fn an_enabled_exception_traps_with_its_cause_and_leaves_the_register() {
    let mut state = State::default();
    state.set_f(1, 1 << 63 | 1);
    state.set_f(2, 16383);
    state.set_f(3, 0x1234);
    state.fcsr.0 = INEXACT;
    let instruction = Instruction { d: 3, j: 1, k: 2, ..Instruction::new(Op::FcvtDLd) };
    let before = state.clone();
    let trap = longma_loongarch::semantics::execute(&mut state, &instruction, &super::Memory::new(&[]));
    assert_eq!(trap, Err(Trap::FloatingPoint));
    assert_eq!(state.fcsr.0, INEXACT | INEXACT << 24, "the cause, and no flag");
    assert_eq!((state.f(3), state.pc), (before.f(3), before.pc));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn conversions_match_the_host_except_for_the_sign_of_the_default_nan() {
    use super::host;
    // The x87's status word has I at bit 0, D 1, Z 2, O 3, U 4, P 5; FCSR has V Z O U I from bit 4 down.
    let exceptions = |status: u16| {
        let bits = [(0, INVALID), (3, OVERFLOW), (4, UNDERFLOW), (5, INEXACT)];
        bits.iter().map(|&(bit, exception)| if status >> bit & 1 == 1 { exception } else { 0 }).sum::<u32>()
    };
    for bits in doubles() {
        let (significand, sign_and_exponent, status) = host::double_to_extended(bits);
        let exceptions = exceptions(status);
        assert_eq!(convert(Op::FcvtLdD, bits, 0, 0), (significand, exceptions), "{bits:#x}");
        assert_eq!(convert(Op::FcvtUdD, bits, 0, 0), (sign_and_exponent.into(), exceptions), "{bits:#x}");
    }
    for (significand, sign_and_exponent) in extendeds() {
        // FCSR: nearest, zero, up, down. The x87: nearest, down, up, zero.
        for (rounding, x87) in [(0, 0), (1, 3), (2, 2), (3, 1)] {
            let (mut double, status) = host::extended_to_double(significand, sign_and_exponent, x87);
            if sign_and_exponent & 0x7fff != 0 && significand >> 63 == 0 {
                // Invalid, so the default NaN: negative on the x87, positive on LoongArch.
                assert_eq!(double, 0xfff8 << 48);
                double = 0x7ff8 << 48;
            }
            let actual = convert(Op::FcvtDLd, significand, sign_and_exponent.into(), rounding);
            assert_eq!(
                actual,
                (double, exceptions(status)),
                "{significand:#x}, {sign_and_exponent:#x}, rounding {rounding}"
            );
        }
    }
}
