//! Compares arithmetic with carry and rotates with operations on bit strings. Source:
//! jiegec/unofficial-loongarch-intrinsics-guide, docs/lbt/integer.md.

use longma_loongarch::{Instruction, Op, State};
use longma_random::SplitMix64;

use super::{after, any_flags, op, operands};

/// Stem, width, whether the second operand is an immediate, and instruction.
fn instructions() -> Vec<(&'static str, u32, bool, Op)> {
    let mut all = Vec::new();
    for (width, bits) in [("b", 8), ("h", 16), ("w", 32), ("d", 64)] {
        for (stem, immediate) in [("adc", false), ("sbc", false), ("rcr", false), ("rcri", true)] {
            all.push((&stem[..3], bits, immediate, op(&format!("{stem}.{width}"))));
        }
        if bits < 32 {
            all.push(("rotr", bits, false, op(&format!("rotr.{width}"))));
            all.push(("rotr", bits, true, op(&format!("rotri.{width}"))));
        }
    }
    all
}

pub fn tested() -> Vec<Op> {
    instructions().into_iter().map(|row| row.3).chain([Op::Addu12iW, Op::Addu12iD]).collect()
}

/// The low bits of `value` as a string, highest first.
fn text(value: u128, bits: u32) -> String {
    (0..bits).rev().map(|bit| if value >> bit & 1 == 1 { '1' } else { '0' }).collect()
}

/// Parses a string of bits as a two's complement number.
fn signed(text: &str) -> u64 {
    let sign = &text[..1];
    let full = sign.repeat(64 - text.len()) + text;
    u64::from_str_radix(&full, 2).expect("64 characters")
}

fn reference(stem: &str, bits: u32, carry: bool, a: u64, b: u64) -> u64 {
    let modulus = 1u128 << bits;
    let (wide_a, wide_b) = (u128::from(a) % modulus, u128::from(b) % modulus);
    let rotate = |mut ring: String, turns: u64| {
        for _ in 0..turns {
            let last = ring.pop().expect("not empty");
            ring.insert(0, last);
        }
        ring
    };
    match stem {
        "adc" => signed(&text((wide_a + wide_b + u128::from(carry)) % modulus, bits)),
        "sbc" => signed(&text((2 * modulus + wide_a - wide_b - u128::from(carry)) % modulus, bits)),
        "rotr" => signed(&rotate(text(wide_a, bits), b % u64::from(bits))),
        _ => {
            let ring = String::from(if carry { "1" } else { "0" }) + &text(wide_a, bits);
            signed(&rotate(ring, b % if bits == 64 { 64 } else { 32 })[1..])
        }
    }
}

#[test]
fn results_match_bit_string_arithmetic_and_flags_are_unchanged() {
    let mut random = SplitMix64::new(0x7777_1111_2222_3333);
    for (stem, bits, immediate, op) in instructions() {
        for (a, b) in operands(&mut random, 400) {
            let b = if immediate { b % u64::from(bits) } else { b };
            let mut state = State::default();
            (state.x[4], state.x[5], state.lbt.eflags) = (a, b, any_flags(&mut random));
            let operand = if immediate { (0, b as i32) } else { (5, 0) };
            let instruction =
                Instruction { d: 6, j: 4, k: operand.0, imm: operand.1, ..Instruction::new(op) };
            let mut expected = state.clone();
            expected.x[6] = reference(stem, bits, state.lbt.eflags & 1 == 1, a, b);
            expected.pc = 4;
            let actual = after(&state, &instruction).expect("no trap");
            assert_eq!(
                actual, expected,
                "{instruction} on {a:#x}, {b:#x} with flags {:#x}",
                state.lbt.eflags
            );
        }
    }
}

#[test]
fn upper_immediates_are_added_at_bit_12_with_their_sign() {
    for (op, a, imm, expected) in [
        (Op::Addu12iD, 0x10, 1, 0x1010),
        (Op::Addu12iD, 0, -1, -4096i64 as u64),
        (Op::Addu12iD, u64::MAX, 15, 15 * 4096 - 1),
        (Op::Addu12iW, 0x7fff_f000, 1, 0xffff_ffff_8000_0000),
        (Op::Addu12iW, 0x1_0000_0000, -16, -65536i64 as u64),
    ] {
        let mut state = State::default();
        state.x[4] = a;
        let instruction = Instruction { d: 5, j: 4, imm, ..Instruction::new(op) };
        assert_eq!(after(&state, &instruction).unwrap().x[5], expected, "{instruction} on {a:#x}");
    }
}
