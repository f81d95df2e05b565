//! Integer operations on elements: saturating and rounding arithmetic, shifts, polynomial products, estimates. Source:
//! Arm Architecture Reference Manual (Arm DDI 0487), section C7.2.

use super::super::environment::Environment;
use super::{Form, Kernel, Lane};

fn signed(value: u64, bits: u32) -> i128 {
    i128::from((value << (64 - bits)) as i64 >> (64 - bits))
}

fn unsigned(value: u64, bits: u32) -> i128 {
    i128::from(value & u64::MAX >> (64 - bits))
}

fn number(value: u64, bits: u32, is_signed: bool) -> i128 {
    if is_signed { signed(value, bits) } else { unsigned(value, bits) }
}

/// Returns how to compute the elements of an integer instruction.
pub(super) fn find(mnemonic: &str) -> Option<(Form, Kernel)> {
    same(mnemonic)
        .map(|kernel| (Form::Same, kernel))
        .or_else(|| shift(mnemonic).map(|kernel| (Form::Same, kernel)))
        .or_else(|| long(mnemonic).map(|kernel| (Form::Long, kernel)))
        .or_else(|| narrow(mnemonic).map(|kernel| (Form::Narrow, kernel)))
}

fn same(mnemonic: &str) -> Option<Kernel> {
    Some(match mnemonic {
        "sqadd" => |e, l| e.saturated(signed(l.n, l.bits) + signed(l.m, l.bits), l.bits, true),
        "uqadd" => |e, l| e.saturated(unsigned(l.n, l.bits) + unsigned(l.m, l.bits), l.bits, false),
        "sqsub" => |e, l| e.saturated(signed(l.n, l.bits) - signed(l.m, l.bits), l.bits, true),
        "uqsub" => |e, l| e.saturated(unsigned(l.n, l.bits) - unsigned(l.m, l.bits), l.bits, false),
        "suqadd" => |e, l| e.saturated(signed(l.d, l.bits) + unsigned(l.n, l.bits), l.bits, true),
        "usqadd" => |e, l| e.saturated(unsigned(l.d, l.bits) + signed(l.n, l.bits), l.bits, false),
        "shsub" => |_, l| ((signed(l.n, l.bits) - signed(l.m, l.bits)) >> 1) as u64,
        "uhsub" => |_, l| ((unsigned(l.n, l.bits) - unsigned(l.m, l.bits)) >> 1) as u64,
        "abs" => |_, l| signed(l.n, l.bits).unsigned_abs() as u64,
        "sqabs" => |e, l| e.saturated(signed(l.n, l.bits).abs(), l.bits, true),
        "sqneg" => |e, l| e.saturated(-signed(l.n, l.bits), l.bits, true),
        "sqdmulh" => |e, l| product_high(e, l, None, 0),
        "sqrdmulh" => |e, l| product_high(e, l, None, 1),
        "sqrdmlah" => |e, l| product_high(e, l, Some(false), 1),
        "sqrdmlsh" => |e, l| product_high(e, l, Some(true), 1),
        "pmul" => |_, l| polynomial(l.n, l.m),
        "urecpe" => |_, l| match l.n >> 31 {
            0 => u64::MAX,
            _ => u64::from(super::estimate::reciprocal(l.n as u32 >> 23)) << 23,
        },
        "ursqrte" => |_, l| match l.n >> 30 {
            0 => u64::MAX,
            _ => u64::from(super::estimate::reciprocal_root(l.n as u32 >> 23)) << 23,
        },
        _ => return None,
    })
}

/// The high half of the doubled product, added to or subtracted from the destination.
fn product_high(e: &mut Environment, l: Lane, accumulates: Option<bool>, rounds: u32) -> u64 {
    let product = 2 * signed(l.n, l.bits) * signed(l.m, l.bits);
    let sum = match accumulates {
        None => product,
        Some(false) => (signed(l.d, l.bits) << l.bits) + product,
        Some(true) => (signed(l.d, l.bits) << l.bits) - product,
    };
    e.saturated((sum + (i128::from(rounds) << (l.bits - 1))) >> l.bits, l.bits, true)
}

/// The product of two polynomials over {0, 1} of degree below 8.
fn polynomial(n: u64, m: u64) -> u64 {
    (0..8).filter(|bit| m >> bit & 1 != 0).fold(0, |product, bit| product ^ n << bit)
}

/// How a shift treats its operand and result.
#[derive(Clone, Copy)]
struct Shift {
    is_signed: bool,
    rounds: bool,
    /// Whether the result saturates, and whether the result's type is signed.
    saturates: Option<bool>,
}

fn kind(is_signed: bool, rounds: bool, saturates: bool) -> Shift {
    Shift { is_signed, rounds, saturates: saturates.then_some(is_signed) }
}

/// Shifts an element left, or right if `by` is negative.
fn shifted(e: &mut Environment, value: u64, by: i32, bits: u32, shift: Shift) -> u64 {
    let value = number(value, bits, shift.is_signed);
    let result = if by < 0 {
        right(value, by.unsigned_abs(), shift.rounds)
    } else if by.unsigned_abs() < bits {
        value << by
    } else if shift.saturates.is_some() {
        // Any number except 0 is out of range.
        value.signum() << 100
    } else {
        0
    };
    match shift.saturates {
        Some(is_signed) => e.saturated(result, bits, is_signed),
        None => result as u64,
    }
}

fn right(value: i128, by: u32, rounds: bool) -> i128 {
    // Elements have at most 65 significant bits.
    let by = by.min(100);
    let half = if rounds && by > 0 { 1 << (by - 1) } else { 0 };
    (value + half) >> by
}

fn shift(mnemonic: &str) -> Option<Kernel> {
    Some(match mnemonic {
        "sshl" => |e, l| shifted(e, l.n, l.by(), l.bits, kind(true, false, false)),
        "ushl" => |e, l| shifted(e, l.n, l.by(), l.bits, kind(false, false, false)),
        "srshl" => |e, l| shifted(e, l.n, l.by(), l.bits, kind(true, true, false)),
        "urshl" => |e, l| shifted(e, l.n, l.by(), l.bits, kind(false, true, false)),
        "sqshl" => |e, l| shifted(e, l.n, l.by(), l.bits, kind(true, false, true)),
        "uqshl" => |e, l| shifted(e, l.n, l.by(), l.bits, kind(false, false, true)),
        "sqrshl" => |e, l| shifted(e, l.n, l.by(), l.bits, kind(true, true, true)),
        "uqrshl" => |e, l| shifted(e, l.n, l.by(), l.bits, kind(false, true, true)),
        "sqshlu" => |e, l| {
            let shift = Shift { is_signed: true, rounds: false, saturates: Some(false) };
            shifted(e, l.n, l.by(), l.bits, shift)
        },
        "srshr" => |_, l| right(signed(l.n, l.bits), l.right(), true) as u64,
        "urshr" => |_, l| right(unsigned(l.n, l.bits), l.right(), true) as u64,
        "ssra" => |_, l| l.d.wrapping_add(right(signed(l.n, l.bits), l.right(), false) as u64),
        "usra" => |_, l| l.d.wrapping_add(right(unsigned(l.n, l.bits), l.right(), false) as u64),
        "srsra" => |_, l| l.d.wrapping_add(right(signed(l.n, l.bits), l.right(), true) as u64),
        "ursra" => |_, l| l.d.wrapping_add(right(unsigned(l.n, l.bits), l.right(), true) as u64),
        "sri" => |_, l| {
            let mask = right(unsigned(u64::MAX, l.bits), l.right(), false) as u64;
            l.d & !mask | right(unsigned(l.n, l.bits), l.right(), false) as u64
        },
        "sli" => |_, l| l.d & !(u64::MAX << l.by()) | l.n << l.by(),
        _ => return None,
    })
}

fn long(mnemonic: &str) -> Option<Kernel> {
    Some(match mnemonic {
        "sqdmull" => doubled,
        "sqdmlal" => |e, l| {
            let product = doubled(e, l);
            e.saturated(signed(l.d, 2 * l.bits) + signed(product, 2 * l.bits), 2 * l.bits, true)
        },
        "sqdmlsl" => |e, l| {
            let product = doubled(e, l);
            e.saturated(signed(l.d, 2 * l.bits) - signed(product, 2 * l.bits), 2 * l.bits, true)
        },
        "pmull" => |_, l| polynomial(l.n, l.m),
        _ => return None,
    })
}

/// The doubled product with twice the width.
fn doubled(e: &mut Environment, l: Lane) -> u64 {
    e.saturated(2 * signed(l.n, l.bits) * signed(l.m, l.bits), 2 * l.bits, true)
}

/// Operations whose result has half the width of their operands, which is `bits`.
fn narrow(mnemonic: &str) -> Option<Kernel> {
    Some(match mnemonic {
        "raddhn" => |_, l| half(l.n.wrapping_add(l.m), l.bits),
        "rsubhn" => |_, l| half(l.n.wrapping_sub(l.m), l.bits),
        "rshrn" => |_, l| right(unsigned(l.n, 2 * l.bits), l.right(), true) as u64,
        "sqshrn" => |e, l| narrowed(e, l, kind(true, false, true)),
        "sqrshrn" => |e, l| narrowed(e, l, kind(true, true, true)),
        "uqshrn" => |e, l| narrowed(e, l, kind(false, false, true)),
        "uqrshrn" => |e, l| narrowed(e, l, kind(false, true, true)),
        "sqshrun" => |e, l| narrowed(e, l, Shift { is_signed: true, rounds: false, saturates: Some(false) }),
        "sqrshrun" => |e, l| narrowed(e, l, Shift { is_signed: true, rounds: true, saturates: Some(false) }),
        "sqxtn" => |e, l| e.saturated(signed(l.n, 2 * l.bits), l.bits, true),
        "uqxtn" => |e, l| e.saturated(unsigned(l.n, 2 * l.bits), l.bits, false),
        "sqxtun" => |e, l| e.saturated(signed(l.n, 2 * l.bits), l.bits, false),
        _ => return None,
    })
}

fn half(value: u64, bits: u32) -> u64 {
    value.wrapping_add(1 << (bits - 1)) >> bits
}

fn narrowed(e: &mut Environment, l: Lane, shift: Shift) -> u64 {
    let value = right(number(l.n, 2 * l.bits, shift.is_signed), l.right(), shift.rounds);
    e.saturated(value, l.bits, shift.saturates.unwrap_or(shift.is_signed))
}

/// SDOT and UDOT: adds four products of bytes to a word.
pub(super) fn dot(d: u32, n: u32, m: u32, is_signed: bool) -> u32 {
    (0..4).fold(d, |sum, byte| {
        let part = |value: u32| number(u64::from(value >> (8 * byte)), 8, is_signed) as u32;
        sum.wrapping_add(part(n).wrapping_mul(part(m)))
    })
}
