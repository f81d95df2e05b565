//! Compares Arm's flags with a reference that follows the pseudocode of the Arm manual. Source: Arm ARM, AddWithCarry,
//! Shift_C and ConditionHolds; jiegec/unofficial-loongarch-intrinsics-guide for C as a borrow.

use longma_loongarch::{Instruction, Op, State};
use longma_random::SplitMix64;

use super::{EDGES, after, any_flags, flags_after, op, operands};

const C: u32 = 1;
const Z: u32 = 1 << 6;
const N: u32 = 1 << 7;
const V: u32 = 1 << 11;

const REGISTERS: [&str; 11] = ["add", "sub", "adc", "sbc", "and", "or", "xor", "sll", "srl", "sra", "rotr"];
const IMMEDIATES: [&str; 4] = ["slli", "srli", "srai", "rotri"];
const ALONE: [&str; 3] = ["not", "mov", "rrx"];
const MOVES: [&str; 5] = ["armmov.d", "armmove", "setarmj", "armmfflag", "armmtflag"];

fn named(stem: &str) -> Op {
    op(&format!("arm{stem}.w"))
}

pub fn tested() -> Vec<Op> {
    let words = REGISTERS.iter().chain(&IMMEDIATES).chain(&ALONE).map(|stem| named(stem));
    words.chain(MOVES.map(op)).collect()
}

/// ConditionHolds.
fn holds(flags: u32, condition: u32) -> bool {
    let [n, z, c, v] = [N, Z, C, V].map(|flag| flags & flag != 0);
    [z, !z, c, !c, n, !n, v, !v, c && !z, !c || z, n == v, n != v, !z && n == v, z || n != v, true, true]
        [condition as usize]
}

/// AddWithCarry: returns result, carry and overflow.
fn add_with_carry(x: u32, y: u32, carry: u32) -> (u32, bool, bool) {
    let unsigned = u128::from(x) + u128::from(y) + u128::from(carry);
    let signed = i128::from(x as i32) + i128::from(y as i32) + i128::from(carry);
    let result = unsigned as u32;
    (result, u128::from(result) != unsigned, i128::from(result as i32) != signed)
}

/// Shift_C, one bit at a time: returns result and carry.
fn shift(kind: &str, value: u32, amount: u32, carry: bool) -> (u32, bool) {
    (0..amount).fold((value, carry), |(value, _), _| match kind {
        "sll" => (value << 1, value >> 31 == 1),
        "srl" => (value >> 1, value & 1 == 1),
        "sra" => (value >> 1 | value & 1 << 31, value & 1 == 1),
        _ => (value.rotate_right(1), value & 1 == 1),
    })
}

fn reference(stem: &str, old: u32, x: u32, y: u32) -> u32 {
    let (mut c, mut v) = (old & C != 0, old & V != 0);
    let result = match stem {
        "add" | "adc" | "sub" | "sbc" => {
            let carry = u32::from(c);
            let (result, carry, overflow) = match stem {
                "add" => add_with_carry(x, y, 0),
                "adc" => add_with_carry(x, y, carry),
                "sub" => add_with_carry(x, !y, 1),
                _ => add_with_carry(x, !y, carry),
            };
            // LBT's subtractions write the carry as a borrow.
            (c, v) = (carry != stem.starts_with('s'), overflow);
            result
        }
        "and" => x & y,
        "or" => x | y,
        "xor" => x ^ y,
        "not" => !x,
        "mov" => x,
        "rrx" => {
            let into = u32::from(c) << 31;
            c = x & 1 == 1;
            x >> 1 | into
        }
        _ => {
            let result;
            (result, c) = shift(stem.trim_end_matches('i'), x, y & 0xff, c);
            result
        }
    };
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    old & !(N | Z | C | V) | flag(result >> 31 == 1, N) | flag(result == 0, Z) | flag(c, C) | flag(v, V)
}

#[test]
fn flags_are_those_of_the_arm_manual_under_every_condition() {
    let mut random = SplitMix64::new(0x0f0f_1e1e_2d2d_3c3c);
    for stem in REGISTERS.iter().chain(&IMMEDIATES).chain(&ALONE) {
        for (index, (a, b)) in operands(&mut random, 800).into_iter().enumerate() {
            let condition = index as u32 % 16;
            let mut instruction =
                Instruction { j: 4, imm: condition as i32, ..Instruction::new(named(stem)) };
            let mut b = b;
            if REGISTERS.contains(stem) {
                instruction.k = 5;
            } else if IMMEDIATES.contains(stem) {
                b &= 31;
                (instruction.imm, instruction.imm2) = (b as i32, condition as i32);
            }
            let old = any_flags(&mut random);
            let expected = if holds(old, condition) { reference(stem, old, a as u32, b as u32) } else { old };
            let new = flags_after(&instruction, old, a, b);
            assert_eq!(
                new, expected,
                "{instruction} on {a:#x}, {b:#x} with flags {old:#x}: {new:#x}, not {expected:#x}"
            );
        }
    }
}

#[test]
fn the_flags_of_a_64_bit_move_are_those_of_all_its_bits() {
    for value in EDGES {
        let instruction = Instruction { j: 4, imm: 14, ..Instruction::new(Op::ArmmovD) };
        let expected = C | V | if value == 0 { Z } else { 0 } | if (value as i64) < 0 { N } else { 0 };
        assert_eq!(flags_after(&instruction, C | V | Z | N, value, 0), expected, "{value:#x}");
        let never = Instruction { imm: 1, ..instruction };
        assert_eq!(flags_after(&never, Z, value, 0), Z, "the condition does not hold");
    }
}

#[test]
fn conditional_tests_and_moves_work_for_all_flags() {
    for pattern in 0..16u32 {
        let flags = [(1, N), (2, Z), (4, C), (8, V)]
            .iter()
            .filter(|(bit, _)| pattern & bit != 0)
            .map(|(_, flag)| flag)
            .sum();
        for condition in 0..16 {
            let mut state = State {
                lbt: longma_loongarch::ExtendedFlags { eflags: flags, ..Default::default() },
                ..State::default()
            };
            (state.x[4], state.x[5]) = (u64::MAX, 77);
            let set = Instruction { d: 4, imm: condition as i32, ..Instruction::new(Op::Setarmj) };
            assert_eq!(
                after(&state, &set).unwrap().x[4],
                u64::from(holds(flags, condition)),
                "{set} {flags:#x}"
            );
            let copy = Instruction { d: 4, j: 5, imm: condition as i32, ..Instruction::new(Op::Armmove) };
            let expected = if holds(flags, condition) { 77 } else { u64::MAX };
            assert_eq!(after(&state, &copy).unwrap().x[4], expected, "{copy} {flags:#x}");
        }
    }
}

#[test]
fn the_mask_selects_the_flags_moved_to_and_from_arms_layout() {
    // Mask bits: C 0, Z 3, N 4, V 5. The bits for other x86 flags have no effect.
    let layout = [(0, C, 29), (3, Z, 30), (4, N, 31), (5, V, 28)];
    for mask in 0..=255i32 {
        for flags in [0, 0x8d5, C | N, Z | V] {
            let mut state = State::default();
            (state.lbt.eflags, state.x[4]) = (flags, 0xdead);
            let get = Instruction { d: 4, imm: mask, ..Instruction::new(Op::Armmfflag) };
            let word: u32 = layout
                .iter()
                .filter(|(m, flag, _)| mask >> m & 1 == 1 && flags & flag != 0)
                .map(|(_, _, bit)| 1 << bit)
                .sum();
            assert_eq!(after(&state, &get).unwrap().x[4], word as i32 as u64, "{get} {flags:#x}");

            for value in [0u64, 0xf000_0000, 0x5000_0000, u64::MAX] {
                state.x[4] = value;
                let move_to_flags = Instruction { d: 4, imm: mask, ..Instruction::new(Op::Armmtflag) };
                let mut expected = flags;
                for (m, flag, bit) in layout {
                    if mask >> m & 1 == 1 {
                        expected = expected & !flag | if value >> bit & 1 == 1 { flag } else { 0 };
                    }
                }
                assert_eq!(
                    after(&state, &move_to_flags).unwrap().lbt.eflags,
                    expected,
                    "{move_to_flags} {flags:#x} {value:#x}"
                );
            }
        }
    }
}
