//! The expected results of floating-point vector instructions, computed by LLVM's soft floating point and the host.
//! Source: LoongArch Reference Manual, volume 1, sections 3.1 (NaNs, exceptions) and 3.2; IEEE 754-2008.

use rustc_apfloat::{
    Float, FloatConvert, Round, Status, StatusAnd,
    ieee::{Double, Half, Single},
};

use crate::formula::{Number, Operation, Register};

const INEXACT: u32 = 1;
const UNDERFLOW: u32 = 2;
const OVERFLOW: u32 = 4;
const DIVISION_BY_ZERO: u32 = 8;
const INVALID: u32 = 16;

/// A bit pattern and the raised exceptions.
type Outcome = (u64, u32);

/// The result and FCSR of a floating-point operation; `None` for other operations.
pub fn result(o: &Operation, fcsr: u32) -> Option<(Register, u32)> {
    if !o.stem.starts_with("vf") || o.stem.starts_with("vfrstp") {
        return None;
    }
    if o.stem == "vfclass" {
        return Some((classes(o), fcsr));
    }
    let mode = fcsr >> 8 & 3;
    let mut raised = 0;
    let (bits, lane) = lane_function(o, mode)?;
    let register = o.lanes(bits, |i| {
        let (value, flags) = lane(i);
        raised |= flags;
        value.into()
    });
    Some((register, fcsr & !0x1f00_0000 | raised << 24 | raised << 16))
}

fn classes(o: &Operation) -> Register {
    let bits = width(&o.suffixes[0]);
    o.lanes(bits, |i| {
        let pattern = o.j.unsigned(bits, i) as u128;
        let class = match bits {
            32 => classify(Single::from_bits(pattern)),
            _ => classify(Double::from_bits(pattern)),
        };
        class.into()
    })
}

/// The width of the result lanes, and a function that computes lane `i`.
type Lanes<'a> = (usize, Box<dyn Fn(usize) -> Outcome + 'a>);

fn lane_function(o: &Operation, current: u32) -> Option<Lanes<'_>> {
    let suffixes: Vec<&str> = o.suffixes.iter().map(String::as_str).collect();
    let at = |register: &Register, bits: usize, i: usize| register.unsigned(bits, i) as u64;
    if o.stem == "vfcmp" {
        let bits = width(suffixes[1]);
        return Some((
            bits,
            Box::new(move |i| condition(suffixes[0], bits, at(&o.j, bits, i), at(&o.k, bits, i))),
        ));
    }
    let (named, stem) = split_rounding(&o.stem);
    let mode = named.unwrap_or(current);
    let (to, from) = (suffixes[0], *suffixes.last()?);
    let (wide, narrow) = (width(to), width(from));
    // The source of result lane `i` if the lane width changes.
    let narrowing = move |i: usize| {
        let (half, i, count) = (i * wide / 128, i % (128 / wide), 128 / narrow);
        let register = if i < count { &o.k } else { &o.j };
        at(register, narrow, half * count + i % count)
    };
    let widening = move |i: usize, high: bool| {
        let count = 128 / wide;
        at(&o.j, narrow, i / count * 2 * count + i % count + if high { count } else { 0 })
    };
    let source = move |i: usize| match (wide, narrow) {
        _ if wide < narrow => narrowing(i),
        _ if wide > narrow => widening(i, stem.ends_with('h')),
        _ => at(&o.j, narrow, i),
    };
    let lane: Box<dyn Fn(usize) -> Outcome> = match stem.trim_end_matches(['l', 'h']) {
        "vftint" => Box::new(move |i| to_integer(source(i), narrow, wide, to.ends_with('u'), mode)),
        "vffint" => Box::new(move |i| from_integer(source(i), narrow, wide, from.ends_with('u'), mode)),
        "vfcvt" => Box::new(move |i| match (from, to) {
            ("d", "s") => convert::<Double, Single>(source(i), mode),
            ("s", "d") => convert::<Single, Double>(source(i), mode),
            ("s", "h") => convert::<Single, Half>(source(i), mode),
            _ => convert::<Half, Single>(source(i), mode),
        }),
        _ => Box::new(move |i| {
            let operands = [&o.j, &o.k, &o.a].map(|register| at(register, wide, i));
            match wide {
                32 => arithmetic::<Single>(stem, operands, mode),
                _ => arithmetic::<Double>(stem, operands, mode),
            }
        }),
    };
    Some((wide, lane))
}

/// Splits a rounding mode from the mnemonic.
fn split_rounding(name: &str) -> (Option<u32>, &str) {
    if !name.starts_with("vfrint") && !name.starts_with("vftint") {
        return (None, name);
    }
    let (stem, rest) = name.split_at(6);
    let mode =
        [("rne", 0), ("rz", 1), ("rp", 2), ("rm", 3)].into_iter().find(|(text, _)| rest.starts_with(text));
    let stem = match (stem, rest.chars().last()) {
        ("vftint", Some('l')) => "vftintl",
        ("vftint", Some('h')) => "vftinth",
        _ => stem,
    };
    (mode.map(|(_, number)| number), stem)
}

fn width(suffix: &str) -> usize {
    match suffix.trim_end_matches('u') {
        "h" => 16,
        "s" | "w" => 32,
        _ => 64,
    }
}

fn round(mode: u32) -> Round {
    [Round::NearestTiesToEven, Round::TowardZero, Round::TowardPositive, Round::TowardNegative][mode as usize]
}

fn flags(status: Status) -> u32 {
    [
        (Status::INEXACT, INEXACT),
        (Status::UNDERFLOW, UNDERFLOW),
        (Status::OVERFLOW, OVERFLOW),
        (Status::DIV_BY_ZERO, DIVISION_BY_ZERO),
        (Status::INVALID_OP, INVALID),
    ]
    .into_iter()
    .filter(|(bit, _)| status.contains(*bit))
    .map(|(_, flag)| flag)
    .sum()
}

/// The fraction bit that makes a NaN quiet.
fn quiet_bit<F: Float>() -> u64 {
    1 << (F::PRECISION - 2)
}

fn default_nan<F: Float>() -> u64 {
    F::INFINITY.to_bits() as u64 | quiet_bit::<F>()
}

/// The NaN result for `operands`, which are in descending priority.
fn nan<F: Float>(operands: &[u64]) -> Option<Outcome> {
    let nans: Vec<u64> =
        operands.iter().copied().filter(|&bits| F::from_bits(bits.into()).is_nan()).collect();
    let signaling = nans.iter().find(|&bits| bits & quiet_bit::<F>() == 0);
    match (signaling, nans.first()) {
        (Some(bits), _) => Some((bits | quiet_bit::<F>(), INVALID)),
        (None, Some(bits)) => Some((*bits, 0)),
        (None, None) => None,
    }
}

/// The exponent shift used to detect underflow and overflow.
const STEP: i32 = 8;

/// Applies LoongArch's NaN and exception rules to LLVM's result.
///
/// `scaled` is the same operation with its result multiplied by 2^n. LLVM detects underflow with the bounded exponent
/// range, LoongArch with an unbounded one. LLVM reports no overflow if rounding yields the greatest finite number.
fn outcome<F: Float>(computed: StatusAnd<F>, scaled: impl Fn(i32) -> F) -> Outcome {
    let StatusAnd { status, value } = computed;
    let mut flags = flags(status);
    if value.is_nan() {
        return (default_nan::<F>(), flags);
    }
    let exceeds = |n: i32, limit: F| scaled(n).abs().cmp_abs_normal(limit.scalbn(n));
    if flags & INEXACT != 0 && value.is_smallest_normalized() && exceeds(STEP, value).is_lt() {
        flags |= UNDERFLOW;
    }
    if flags & INEXACT != 0 && value.is_largest() && exceeds(-STEP, value).is_gt() {
        flags |= OVERFLOW;
    }
    (value.to_bits() as u64, flags)
}

/// Both operands of a product. The one with more exponent range left is multiplied by 2^n.
fn scale_product<F: Float>(a: F, b: F, n: i32) -> (F, F) {
    if (a.ilogb() < b.ilogb()) == (n > 0) { (a.scalbn(n), b) } else { (a, b.scalbn(n)) }
}

fn arithmetic<F: Float + Host>(stem: &str, [j, k, a]: [u64; 3], mode: u32) -> Outcome {
    let number = |bits: u64| F::from_bits(bits.into());
    let (x, y, z) = (number(j), number(k), number(a));
    let round = round(mode);
    let operands: &[u64] = match stem {
        "vfmadd" | "vfmsub" | "vfnmadd" | "vfnmsub" => &[a, j, k],
        "vfadd" | "vfsub" | "vfmul" | "vfdiv" => &[j, k],
        _ => &[j],
    };
    match stem {
        "vfmax" | "vfmin" | "vfmaxa" | "vfmina" => return extreme::<F>(stem, j, k),
        _ => {}
    }
    if let Some((nan, mut raised)) = nan::<F>(operands) {
        let no_product =
            operands.len() == 3 && (x.is_zero() && y.is_infinite() || x.is_infinite() && y.is_zero());
        raised |= if no_product { INVALID } else { 0 };
        return (nan, raised);
    }
    match stem {
        "vfadd" => outcome(x.add_r(y, round), |n| x.scalbn(n).add_r(y.scalbn(n), round).value),
        "vfsub" => outcome(x.sub_r(y, round), |n| x.scalbn(n).sub_r(y.scalbn(n), round).value),
        "vfmul" => outcome(x.mul_r(y, round), |n| {
            let (x, y) = scale_product(x, y, n);
            x.mul_r(y, round).value
        }),
        "vfdiv" => divide(x, y, round),
        "vfrecip" | "vfrecipe" => divide(number_one(), x, round),
        "vfsqrt" => root::<F>(j, mode),
        "vfrsqrt" | "vfrsqrte" => {
            let (root, raised) = root::<F>(j, mode);
            if number(root).is_nan() {
                return (root, raised);
            }
            let (bits, more) = divide(number_one(), number(root), round);
            (bits, raised | more)
        }
        "vfmadd" | "vfmsub" | "vfnmadd" | "vfnmsub" => {
            let z = if stem.ends_with("sub") { -z } else { z };
            let (bits, raised) = outcome(x.mul_add_r(y, z, round), |n| {
                let (x, y) = scale_product(x, y, n);
                x.mul_add_r(y, z.scalbn(n), round).value
            });
            let negated = stem.starts_with("vfn") && !number(bits).is_nan();
            (bits ^ if negated { sign::<F>() } else { 0 }, raised)
        }
        "vfrint" => {
            let StatusAnd { status, value } = x.round_to_integral(round);
            (value.to_bits() as u64, flags(status))
        }
        "vflogb" => match x {
            _ if x.is_zero() => (F::INFINITY.to_bits() as u64 | sign::<F>(), DIVISION_BY_ZERO),
            _ if x.is_negative() => (default_nan::<F>(), INVALID),
            _ if x.is_infinite() => (j, 0),
            _ => (F::from_i128(x.ilogb().into()).value.to_bits() as u64, 0),
        },
        _ => panic!("no formula for {stem}"),
    }
}

fn number_one<F: Float>() -> F {
    F::from_u128(1).value
}

fn sign<F: Float>() -> u64 {
    1 << (F::BITS - 1)
}

fn divide<F: Float>(x: F, y: F, round: Round) -> Outcome {
    outcome(x.div_r(y, round), |n| {
        if (x.ilogb() < -y.ilogb()) == (n > 0) {
            x.scalbn(n).div_r(y, round).value
        } else {
            x.div_r(y.scalbn(-n), round).value
        }
    })
}

/// Single and double precision on the host.
trait Host {
    /// The square root rounded to nearest, and the sign of its error (positive if the root is too large).
    fn root(bits: u64) -> (u64, f64);
    /// The exact number.
    fn value(bits: u64) -> f64;
}

impl Host for Single {
    fn root(bits: u64) -> (u64, f64) {
        let x = Self::value(bits);
        let root = x.sqrt() as f32;
        (root.to_bits().into(), f64::from(root).mul_add(root.into(), -x))
    }

    fn value(bits: u64) -> f64 {
        f32::from_bits(bits as u32).into()
    }
}

impl Host for Double {
    fn root(bits: u64) -> (u64, f64) {
        // Scale up so that the error of the square does not underflow.
        let scale = 2f64.powi(if f64::from_bits(bits) < 1.0 { 400 } else { 0 });
        let x = f64::from_bits(bits) * scale;
        let root = x.sqrt();
        ((root / scale.sqrt()).to_bits(), root.mul_add(root, -x))
    }

    fn value(bits: u64) -> f64 {
        f64::from_bits(bits)
    }
}

fn root<F: Float + Host>(bits: u64, mode: u32) -> Outcome {
    let x = F::from_bits(bits.into());
    if x.is_zero() {
        return (bits, 0);
    }
    if x.is_negative() {
        return (default_nan::<F>(), INVALID);
    }
    if x.is_infinite() {
        return (bits, 0);
    }
    let (root, error) = F::root(bits);
    // Adjacent positive numbers have adjacent integer representations.
    let directed = match mode {
        1 | 3 if error > 0.0 => root - 1,
        2 if error < 0.0 => root + 1,
        _ => root,
    };
    (directed, if error == 0.0 { 0 } else { INEXACT })
}

fn classify<F: Float>(x: F) -> u64 {
    let order = [F::is_infinite, F::is_normal, F::is_denormal, F::is_zero];
    if x.is_nan() {
        return if x.is_signaling() { 1 } else { 2 };
    }
    let kind = order.iter().position(|is| is(x)).expect("a number is of some kind");
    1 << (2 + kind + if x.is_negative() { 0 } else { 4 })
}

/// maxNum, minNum and their variants by magnitude.
fn extreme<F: Float + Host>(stem: &str, j: u64, k: u64) -> Outcome {
    let is_nan = |bits: u64| F::from_bits(bits.into()).is_nan();
    let quiet = |bits: u64| bits & quiet_bit::<F>() != 0;
    match (is_nan(j), is_nan(k)) {
        (true, true) => return nan::<F>(&[j, k]).expect("both are NaNs"),
        (true, false) if quiet(j) => return (k, 0),
        (false, true) if quiet(k) => return (j, 0),
        (true, false) | (false, true) => return nan::<F>(&[j, k]).expect("one is a NaN"),
        (false, false) => {}
    }
    let (x, y) = (F::value(j), F::value(k));
    let by_value = x.total_cmp(&y);
    let order = if stem.ends_with('a') { x.abs().total_cmp(&y.abs()).then(by_value) } else { by_value };
    let takes_j = if stem.starts_with("vfmax") { order.is_ge() } else { order.is_le() };
    (if takes_j { j } else { k }, 0)
}

fn condition(name: &str, bits: usize, j: u64, k: u64) -> Outcome {
    let (x, y, invalid) = match bits {
        32 => (Single::value(j), Single::value(k), nan::<Single>(&[j, k])),
        _ => (Double::value(j), Double::value(k), nan::<Double>(&[j, k])),
    };
    let (less, equal, greater, unordered) = (x < y, x == y, x > y, x.is_nan() || y.is_nan());
    let (kind, relation) = name.split_at(1);
    let holds = match relation {
        "af" => false,
        "lt" => less,
        "eq" => equal,
        "le" => less || equal,
        "un" => unordered,
        "ult" => unordered || less,
        "ueq" => unordered || equal,
        "ule" => unordered || less || equal,
        "ne" => less || greater,
        "or" => less || greater || equal,
        "une" => unordered || less || greater,
        _ => panic!("no condition {name}"),
    };
    let raised = if kind == "s" && unordered { INVALID } else { invalid.map_or(0, |(_, flags)| flags) };
    (if holds { u64::MAX >> (64 - bits) } else { 0 }, raised)
}

fn to_integer(bits: u64, from: usize, to: usize, unsigned: bool, mode: u32) -> Outcome {
    fn exact<F: Float>(bits: u64, to: usize, unsigned: bool, mode: u32) -> Outcome {
        let x = F::from_bits(bits.into());
        let mut is_exact = false;
        let (status, value) = if unsigned {
            let StatusAnd { status, value } = x.to_u128_r(to, round(mode), &mut is_exact);
            (status, value as u64)
        } else {
            let StatusAnd { status, value } = x.to_i128_r(to, round(mode), &mut is_exact);
            (status, value as u64)
        };
        (if x.is_nan() { 0 } else { value }, flags(status))
    }
    match from {
        32 => exact::<Single>(bits, to, unsigned, mode),
        _ => exact::<Double>(bits, to, unsigned, mode),
    }
}

fn from_integer(bits: u64, from: usize, to: usize, unsigned: bool, mode: u32) -> Outcome {
    let signed = (bits << (64 - from)) as i64 >> (64 - from);
    let value = if unsigned { Number::from(bits) } else { Number::from(signed) };
    match to {
        32 => {
            let StatusAnd { status, value } = Single::from_i128_r(value, round(mode));
            (value.to_bits() as u64, flags(status))
        }
        _ => {
            let StatusAnd { status, value } = Double::from_i128_r(value, round(mode));
            (value.to_bits() as u64, flags(status))
        }
    }
}

fn convert<From: Float + FloatConvert<To>, To: Float>(bits: u64, mode: u32) -> Outcome {
    let x = From::from_bits(bits.into());
    if let Some((quieted, raised)) = nan::<From>(&[bits]) {
        // Align the fraction at its highest bit.
        let (from, to) = (From::PRECISION as u32 - 1, To::PRECISION as u32 - 1);
        let fraction = quieted & ((1 << from) - 1);
        let aligned = if to > from { fraction << (to - from) } else { fraction >> (from - to) };
        let sign = if x.is_negative() { sign::<To>() } else { 0 };
        return (sign | To::INFINITY.to_bits() as u64 | aligned, raised);
    }
    let mut loses = false;
    let computed: StatusAnd<To> = x.convert_r(round(mode), &mut loses);
    outcome(computed, |n| x.scalbn(n).convert_r(round(mode), &mut false).value)
}
