//! Sequences that widen elements, including widening sums and products.

use super::super::host_vectors::*;
use super::arithmetic::{ADD, SUBTRACT};
use super::shift::{LEFT, RIGHT, RIGHT_SIGNED};
use super::steps::{HostStep::*, Location, Location::*};
use super::{Element, Mnemonic, Steps};

const LOWER: [Pair; 3] = [PUNPCKLBW, PUNPCKLWD, PUNPCKLDQ];
const UPPER: [Pair; 3] = [PUNPCKHBW, PUNPCKHWD, PUNPCKHDQ];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Parity {
    Even,
    Odd,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Add,
    Subtract,
    Multiply,
    MultiplyAdd,
}

pub(super) fn steps(mnemonic: &Mnemonic<'_>) -> Option<Steps> {
    let (to, j, k) = match mnemonic.elements {
        [Some(to), Some(from), None] => (to, from, from),
        [Some(to), Some(j), Some(k)] => (to, j, k),
        _ => return None,
    };
    if to.bits != 2 * j.bits {
        return None;
    }
    match mnemonic.stem {
        "exth" => return Some(widened_half(to, j, UPPER, None)),
        "sllwil" => return Some(widened_half(to, j, LOWER, Some(mnemonic.imm & (j.bits as i32 - 1)))),
        "haddw" => return Some(combined(Operation::Add, to, (j, Parity::Odd), (k, Parity::Even))),
        "hsubw" => return Some(combined(Operation::Subtract, to, (j, Parity::Odd), (k, Parity::Even))),
        _ => {}
    }
    let (stem, parity) = match mnemonic.stem.strip_suffix("wev") {
        Some(stem) => (stem, Parity::Even),
        None => (mnemonic.stem.strip_suffix("wod")?, Parity::Odd),
    };
    let operation = match stem {
        "add" => Operation::Add,
        "sub" => Operation::Subtract,
        "mul" => Operation::Multiply,
        "madd" => Operation::MultiplyAdd,
        _ => return None,
    };
    Some(combined(operation, to, (j, parity), (k, parity)))
}

/// Widens the lower or upper half of j's elements, as `interleave` selects, and shifts them left by `count`, if any.
fn widened_half(to: Element, from: Element, interleave: [Pair; 3], count: Option<i32>) -> Steps {
    let index = from.index();
    let wide = if count.is_some() { A } else { D };
    let mut steps = match (from.is_unsigned, RIGHT_SIGNED.get(to.index())) {
        (true, _) => vec![Splat(A, 0), Move(B, J), Two(interleave[index], wide, B, A)],
        // Interleave each element with itself, so that it is in both halves of the wide element. The signed right shift
        // removes the lower half and extends the upper one.
        (false, Some(&right)) => {
            vec![Move(A, J), Two(interleave[index], A, A, A), Shift(right, wide, A, from.bits as i32)]
        }
        (false, None) => vec![Shift(PSRAD, A, J, 31), Move(B, J), Two(interleave[index], wide, B, A)],
    };
    if let Some(count) = count {
        steps.push(Shift(LEFT[to.index()], D, A, count));
    }
    steps
}

fn combined(operation: Operation, to: Element, j: (Element, Parity), k: (Element, Parity)) -> Steps {
    let index = to.index();
    if to.bits == 64
        && matches!(operation, Operation::Multiply | Operation::MultiplyAdd)
        && let Some(steps) = word_products(operation, j, k)
    {
        return steps;
    }
    let mut steps = widened(to, J, j, A, C);
    steps.extend(widened(to, K, k, B, C));
    match operation {
        Operation::Add => steps.push(Two(ADD[index], D, A, B)),
        Operation::Subtract => steps.push(Two(SUBTRACT[index], D, A, B)),
        Operation::Multiply | Operation::MultiplyAdd => {
            let multiply = match to.bits {
                16 => vec![Two(PMULLW, A, A, B)],
                32 => vec![Two(PMULLD, A, A, B)],
                // Reached only if exactly one factor is signed; `word_products` handles equal signedness.
                _ => mixed_product(),
            };
            steps.extend(multiply);
            finish_product(&mut steps, operation, index);
        }
    }
    steps
}

/// Directs the product of the last step to the destination, or adds it to the old value.
fn finish_product(steps: &mut Steps, operation: Operation, index: usize) {
    if operation == Operation::MultiplyAdd {
        steps.push(Two(ADD[index], D, A, Old));
    } else if let Some(Two(_, to, ..)) = steps.last_mut() {
        *to = D;
    }
}

/// Multiplies words of equal signedness with the host's widening multiplication, which reads the even words.
fn word_products(operation: Operation, j: (Element, Parity), k: (Element, Parity)) -> Option<Steps> {
    if j.0.is_unsigned != k.0.is_unsigned {
        return None;
    }
    let multiply = if j.0.is_unsigned { PMULUDQ } else { PMULDQ };
    let mut steps = match j.1 {
        Parity::Even => vec![Two(multiply, A, J, K)],
        Parity::Odd => vec![Shift(PSRLQ, A, J, 32), Shift(PSRLQ, B, K, 32), Two(multiply, A, A, B)],
    };
    finish_product(&mut steps, operation, 3);
    Some(steps)
}

/// Multiplies A (zero-extended unsigned words) by B (sign-extended words) to 64 bits: the product with B's lower half
/// plus the product with its sign word, shifted left by 32.
fn mixed_product() -> Steps {
    vec![
        Shift(PSRLQ, C, B, 32),
        Two(PMULUDQ, C, C, A),
        Shift(PSLLQ, C, C, 32),
        Two(PMULUDQ, A, A, B),
        Two(PADDQ, A, A, C),
    ]
}

/// Widens the even or odd elements of `source` into `into`; may overwrite `free`.
fn widened(
    to: Element,
    source: Location,
    (from, parity): (Element, Parity),
    into: Location,
    free: Location,
) -> Steps {
    let bits = from.bits as i32;
    let index = to.index();
    let signed = RIGHT_SIGNED.get(index).filter(|_| !from.is_unsigned);
    let is_signed_word = !from.is_unsigned && signed.is_none();
    match parity {
        // Interleave the word with its sign.
        _ if is_signed_word => {
            let order = if parity == Parity::Even { 0b10_10_00_00 } else { 0b11_11_01_01 };
            vec![
                One(PSHUFD, into, source, order),
                Shift(PSRAD, free, into, 31),
                Choose(PBLENDD, into, into, free, 0b1010_1010),
            ]
        }
        Parity::Odd => vec![Shift(*signed.unwrap_or(&RIGHT[index]), into, source, bits)],
        Parity::Even => vec![
            Shift(LEFT[index], into, source, bits),
            Shift(*signed.unwrap_or(&RIGHT[index]), into, into, bits),
        ],
    }
}
