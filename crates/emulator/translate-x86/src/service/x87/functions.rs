//! The transcendental functions of x87. They are computed with 113 bits of mantissa and rounded to 64. Processors
//! return the same results for all but a few operands. Source: Intel SDM, volume 1, section 8.3.10 (accuracy, and the
//! 66-bit pi by which arguments are reduced); Taylor series.

use rustc_apfloat::ieee::{Double, Quad, X87DoubleExtended as Extended};
use rustc_apfloat::{Float, FloatConvert, Round};

use super::to_host_double;

/// ln 2 and pi/2 to 113 bits, in the encoding of Quad.
const LN_2: u128 = 0x3ffe_62e4_2fef_a39e_f357_93c7_6730_07e6;
const HALF_PI: u128 = 0x3fff_921f_b544_42d1_8469_898c_c517_01b8;
/// Half of the 66-bit pi.
const REDUCER: u128 = 0x3fff_921f_b544_42d1_8469_8000_0000_0000;
/// The number of terms: more than the precision of Quad requires.
const TERMS: u32 = 34;

fn quad(value: Extended) -> Quad {
    value.convert(&mut false).value
}

fn number(value: i128) -> Quad {
    Quad::from_i128(value).value
}

fn mul(a: Quad, b: Quad) -> Quad {
    (a * b).value
}

fn add(a: Quad, b: Quad) -> Quad {
    (a + b).value
}

fn sub(a: Quad, b: Quad) -> Quad {
    (a - b).value
}

fn div(a: Quad, b: Quad) -> Quad {
    (a / b).value
}

/// e^t - 1 for |t| < 1.
fn exp_minus_1(t: Quad) -> Quad {
    let one = number(1);
    // 1 + t/2 (1 + t/3 (1 + ...)), times t.
    let sum = (2..TERMS).rev().fold(one, |sum, n| add(one, div(mul(t, sum), number(n.into()))));
    mul(t, sum)
}

/// ln((1 + s) / (1 - s)) for |s| < 1/5.
fn ln_of_ratio(s: Quad) -> Quad {
    let square = mul(s, s);
    let sum = (0..TERMS)
        .rev()
        .fold(number(0), |sum, n| add(div(number(1), number(i128::from(2 * n + 1))), mul(square, sum)));
    mul(mul(number(2), s), sum)
}

/// log2(x) for a positive normal number.
fn log_2(x: Quad) -> Quad {
    let mut exponent = x.ilogb();
    let mut mantissa = x.scalbn(-exponent);
    // Between the square roots of 1/2 and 2, so that nothing cancels.
    if by_quad(mantissa) > std::f64::consts::SQRT_2 {
        (mantissa, exponent) = (mantissa.scalbn(-1), exponent + 1);
    }
    let ratio = div(sub(mantissa, number(1)), add(mantissa, number(1)));
    add(number(exponent.into()), div(ln_of_ratio(ratio), Quad::from_bits(LN_2)))
}

fn by_quad(value: Quad) -> f64 {
    let rounded: Double = value.convert(&mut false).value;
    f64::from_bits(rounded.to_bits() as u64)
}

/// Sine and cosine for |t| < 1.
fn sine_and_cosine(t: Quad) -> (Quad, Quad) {
    let square = mul(t, t);
    let series = |first: u32| {
        let one = number(1);
        (0..TERMS / 2).rev().fold(one, |sum, n| {
            let divisor = i128::from((2 * n + first) * (2 * n + first + 1));
            sub(one, div(mul(square, sum), number(divisor)))
        })
    };
    (mul(t, series(2)), series(1))
}

/// Sine and cosine of an argument less than 2^63, with the processor's pi.
fn reduced(x: Extended) -> (Quad, Quad) {
    let reducer = Quad::from_bits(REDUCER);
    let all = quad(x);
    let rest = all.ieee_rem(reducer).value;
    let turns = div(sub(all, rest), reducer).round_to_integral(Round::NearestTiesToEven).value;
    let turns = turns.to_i128(128).value;
    let (sine, cosine) = sine_and_cosine(rest);
    match turns & 3 {
        0 => (sine, cosine),
        1 => (cosine, -sine),
        2 => (-sine, -cosine),
        _ => (-cosine, sine),
    }
}

/// The arc tangent of y/x in the right quadrant, for finite numbers that are not zero.
fn arc_tangent(y: Quad, x: Quad) -> Quad {
    let (ay, ax) = (y.abs(), x.abs());
    let swaps = ay > ax;
    let ratio = if swaps { div(ax, ay) } else { div(ay, ax) };
    // atan(t) = a + atan((t cos a - sin a) / (cos a + t sin a)), where a is close to atan(t).
    let estimate = number_of(by_quad(ratio).atan());
    let (sine, cosine) = sine_and_cosine(estimate);
    let rest = div(sub(mul(ratio, cosine), sine), add(cosine, mul(ratio, sine)));
    let cube = mul(mul(rest, rest), rest);
    let mut angle = add(estimate, sub(rest, div(cube, number(3))));
    let half_pi = Quad::from_bits(HALF_PI);
    if swaps {
        angle = sub(half_pi, angle);
    }
    if x.is_negative() {
        angle = sub(mul(number(2), half_pi), angle);
    }
    if y.is_negative() { -angle } else { angle }
}

fn number_of(value: f64) -> Quad {
    Double::from_bits(value.to_bits().into()).convert(&mut false).value
}

/// F2XM1, for arguments between -1 and 1.
pub(super) fn power_minus_1(x: Extended) -> Quad {
    exp_minus_1(mul(quad(x), Quad::from_bits(LN_2)))
}

/// FYL2X, for a positive finite `x` and a finite `y`.
pub(super) fn times_log_2(x: Extended, y: Extended) -> Quad {
    mul(quad(y), log_2(quad(x)))
}

/// FYL2XP1, for |x| < 1 - sqrt(1/2).
pub(super) fn times_log_2_plus_1(x: Extended, y: Extended) -> Quad {
    let x = quad(x);
    let logarithm = div(ln_of_ratio(div(x, add(x, number(2)))), Quad::from_bits(LN_2));
    mul(quad(y), logarithm)
}

/// FSIN and FCOS.
pub(super) fn sine_cosine(x: Extended) -> (Quad, Quad) {
    reduced(x)
}

/// FPTAN.
pub(super) fn tangent(x: Extended) -> Quad {
    let (sine, cosine) = reduced(x);
    div(sine, cosine)
}

/// FPATAN.
pub(super) fn partial_arc_tangent(y: Extended, x: Extended) -> Quad {
    if x.is_finite_non_zero() && y.is_finite_non_zero() {
        return arc_tangent(quad(y), quad(x));
    }
    // Zeros and infinities: multiples of pi/4.
    let angle = to_host_double(y).atan2(to_host_double(x));
    let quarters = (angle / std::f64::consts::FRAC_PI_4).round() as i128;
    if quarters == 0 {
        return number_of(angle);
    }
    mul(Quad::from_bits(HALF_PI), div(number(quarters), number(2)))
}
