//! Random sequences with conditional instructions, branches and exclusive pairs, some interrupted where a signal can
//! arrive.

use longma_translate_arm::instruction::{Op, decode, patterns};
use longma_translate_conformance::memory::choices;

use super::cases::{Random, instruction, is_memory, number, state};
use super::machine::{Case, MIDDLE, can_compare, differences, differences_with};

/// tst xzr, xzr, which makes previous flags dead.
const FORGET: u32 = 0xea1f_03ff;

/// A sequence of up to eight instructions, with branches over some of them.
fn sequence(patterns: &[(u32, u32)], random: &mut Random) -> Vec<u32> {
    let mut words = Vec::new();
    let length = 2 + random.below(7) as usize;
    // A branch could skip the instruction that sets the base of an access, so only half of the sequences have branches.
    let has_branches = random.below(2) == 0;
    while words.len() < length {
        let left = length.saturating_sub(words.len()) as u64;
        let (matched, mask) = patterns[random.below(patterns.len() as u64) as usize];
        match random.below(8) {
            0 if left > 1 && has_branches => {
                // b.cond
                let distance = 1 + random.below(left - 1) as u32;
                words.push(0x5400_0000 | (distance + 1) << 5 | random.below(14) as u32);
            }
            1 if left > 1 && has_branches => {
                // cbz, cbnz, tbz, tbnz
                let distance = 2 + random.below(left - 1) as u32;
                let register = random.below(28) as u32;
                words.push(match random.below(3) {
                    0 => 0x3400_0000 | (random.below(2) as u32) << 31 | distance << 5 | register,
                    1 => 0x3500_0000 | (random.below(2) as u32) << 31 | distance << 5 | register,
                    _ => {
                        0x3600_0000
                            | (random.below(2) as u32) << 24
                            | (random.below(32) as u32) << 19
                            | distance << 5
                            | register
                    }
                });
            }
            2 | 3 => words.push(compare(random)),
            4 => words.push(select(random)),
            _ => {
                let Some((i, index)) = instruction(matched, mask, random) else { continue };
                if is_memory(i)
                    && !has_branches
                    && index.is_none()
                    && i.word >> 5 & 31 == 29
                    && i.word >> 27 & 7 != 3
                {
                    // Reset the base, which an earlier access may have changed: movz, movk.
                    words.extend([
                        0xd280_0000 | (MIDDLE as u32 & 0xffff) << 5 | 29,
                        0xf2a0_0000 | (MIDDLE as u32 >> 16) << 5 | 29,
                    ]);
                    words.push(i.word);
                } else if !is_memory(i) && !matches!(i.op, Op::Adr | Op::Adrp) && i.word >> 27 & 7 != 3 {
                    words.push(i.word);
                }
            }
        }
    }
    if random.below(3) > 0 {
        words.push(FORGET);
    }
    words
}

/// CMP, CMN, TST or CCMP of few registers, so that operands are sometimes equal; ADDS or SUBS.
fn compare(random: &mut Random) -> u32 {
    let mut register = |count| random.below(count) as u32;
    let (d, n, m) = (register(30), register(4), register(4));
    let d = if register(3) == 0 { d.min(28) } else { 31 };
    let wide = register(2) << 31;
    let imm = [0, 1, 5, 0xfff][register(4) as usize];
    match register(7) {
        0 => wide | 0x6b00_0000 | m << 16 | n << 5 | d,
        1 => wide | 0x2b00_0000 | m << 16 | n << 5 | d,
        2 => wide | 0x6a00_0000 | m << 16 | n << 5 | d,
        3 => wide | 0x7100_0000 | imm << 10 | n << 5 | d,
        4 => wide | 0x3100_0000 | imm << 10 | n << 5 | d,
        5 => wide | 0x7a40_0000 | m << 16 | register(14) << 12 | n << 5 | register(16),
        _ => wide | 0x3a40_0800 | (imm & 31) << 16 | register(14) << 12 | n << 5 | register(16),
    }
}

/// CSEL, CSINC, CSINV, CSNEG, ADC, SBC, FCSEL
fn select(random: &mut Random) -> u32 {
    let mut register = |count| random.below(count) as u32;
    let (d, n, m, wide) = (register(29), register(29), register(29), register(2) << 31);
    let [n, m] = [n, m].map(|number| if number == 28 { 31 } else { number });
    let condition = register(14) << 12;
    match register(6) {
        0 => wide | 0x1a80_0000 | m << 16 | condition | n << 5 | d,
        1 => wide | 0x1a80_0400 | m << 16 | condition | n << 5 | d,
        2 => wide | 0x5a80_0000 | m << 16 | condition | n << 5 | d,
        3 => wide | 0x5a80_0400 | n << 16 | condition | n << 5 | d,
        4 => wide | 0x1a00_0000 | m << 16 | n << 5 | d | register(2) << 30,
        _ => 0x1e20_0c00 | (register(2)) << 22 | m << 16 | condition | n << 5 | d,
    }
}

/// Whether any register field of a word names this register.
fn names(word: u32, register: u32) -> bool {
    [0, 5, 10, 16].iter().any(|at| word >> at & 31 == register)
}

/// An instruction that moves a pointer, or accesses memory near it.
fn stepping(random: &mut Random) -> u32 {
    let register = random.below(27) as u32;
    let offset = (random.below(5) as i32 - 2) as u32 & 0x1ff;
    match random.below(7) {
        // ldr x, [x29], #near; str x, [x29, #near]!; ldr x, [x29, #16]; str x29, [x29, #8]; stp x29, x, [x29]
        0 => 0xf840_0400 | offset << 12 | 29 << 5 | register,
        1 => 0xf800_0c00 | offset << 12 | 29 << 5 | register,
        2 => 0xf940_0000 | 2 << 10 | 29 << 5 | register,
        3 => 0xf900_0000 | 1 << 10 | 29 << 5 | 29,
        4 => 0xa900_0000 | register << 10 | 29 << 5 | 29,
        // add x, x29, #5; add x, x, #near
        5 => 0x9100_0000 | 5 << 10 | 29 << 5 | register,
        _ => 0x9100_0000 | (random.below(2) as u32) << 30 | (offset & 31) << 10 | register << 5 | register,
    }
}

/// A loop with a few iterations, with accesses and forward branches, possibly with a nested loop.
fn random_loop(patterns: &[(u32, u32)], random: &mut Random, depth: u64) -> Vec<u32> {
    let counter = if depth == 0 { 27 } else { random.below(27) as u32 };
    let mut body: Vec<u32> = Vec::new();
    let length = 1 + random.below(12) as usize;
    while body.len() < length {
        let word = match random.below(12) {
            0 => compare(random),
            1 => select(random),
            4 | 5 => stepping(random),
            2 if depth > 0 => {
                let inner = random_loop(patterns, random, depth - 1);
                if !inner.iter().any(|word| names(*word, counter)) {
                    body.extend(inner);
                }
                continue;
            }
            3 => {
                let over = compare(random);
                if !names(over, counter) && !names(over, 27) {
                    // b.cond
                    body.extend([0x5400_0000 | 2 << 5 | random.below(14) as u32, over]);
                }
                continue;
            }
            _ => {
                let (matched, mask) = patterns[random.below(patterns.len() as u64) as usize];
                let Some((i, index)) = instruction(matched, mask, random) else { continue };
                // CASP writes registers that no field names.
                let is_plain =
                    !matches!(i.op, Op::Adr | Op::Adrp | Op::CaspW | Op::CaspX) && i.word >> 27 & 7 != 3;
                let is_near = is_memory(i) && index.is_none() && i.word >> 5 & 31 == 29;
                if !is_plain || is_memory(i) && !is_near || !is_near && names(i.word, 29) || i.word & 31 == 29
                {
                    continue;
                }
                if is_near {
                    // Set the base before and after: movz, movk.
                    let [low, high] =
                        [MIDDLE as u32 & 0xffff, MIDDLE as u32 >> 16].map(|half| half << 5 | 29);
                    let base = [0xd280_0000 | low, 0xf2a0_0000 | high];
                    if !names(i.word, counter) && !names(i.word, 27) {
                        body.extend([base, [i.word, base[0]], [base[1], base[1]]].concat());
                    }
                    continue;
                }
                i.word
            }
        };
        if !names(word, counter) && !names(word, 27) {
            body.push(word);
        }
    }
    let mut words = vec![0xd280_0000 | (1 + random.below(6) as u32) << 5 | counter];
    words.extend(&body);
    let backward = |words: usize| (body.len() as i32 + words as i32).wrapping_neg() as u32 & 0x7ffff;
    if random.below(2) == 0 {
        // subs xN, xN, #1; b.ne
        words.extend([0xf100_0400 | counter << 5 | counter, 0x5400_0001 | backward(1) << 5]);
    } else {
        // sub xN, xN, #1; cbnz xN
        words.extend([0xd100_0400 | counter << 5 | counter, 0xb500_0000 | backward(1) << 5 | counter]);
    }
    words
}

fn loops(count: usize, seed: u64) -> Vec<Case> {
    let mut random = Random(seed);
    let patterns: Vec<(u32, u32)> = patterns().collect();
    let mut case = || {
        let state = state(&mut random);
        // Set the base of accesses: movz, movk.
        let mut words = vec![
            0xd280_0000 | (MIDDLE as u32 & 0xffff) << 5 | 29,
            0xf2a0_0000 | (MIDDLE as u32 >> 16) << 5 | 29,
        ];
        words.extend(random_loop(&patterns, &mut random, 1));
        words.push(FORGET);
        Case { words, state }
    };
    (0..count).map(|_| case()).collect()
}

#[test]
fn loops_match_qemu() {
    if can_compare() {
        let wrong = differences(&loops(count() / 2, seed() + 2), None, &text);
        assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong[..wrong.len().min(30)].join("\n"));
    }
}

#[test]
fn interrupted_loops_match_qemu() {
    if can_compare() {
        let wrong = differences(&loops(count() / 4, seed() + 3), Some(7), &text);
        assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong[..wrong.len().min(30)].join("\n"));
    }
}

#[test]
fn comparisons_with_one_test_the_operand() {
    if !can_compare() {
        return;
    }
    let mut random = Random(3);
    let mut cases = Vec::new();
    for value in [0, 1, 2, u64::MAX, 1 << 63] {
        for condition in 0..14u32 {
            // subs x21, x2, #1; csinc x26, x9, x14, condition
            let words = vec![0xf100_0455, 0x9a80_0400 | 14 << 16 | condition << 12 | 9 << 5 | 26, FORGET];
            let mut state = state(&mut random);
            state[2] = value;
            cases.push(Case { words, state });
        }
    }
    let wrong = differences(&cases, None, &text);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn text(case: &Case) -> String {
    let lines = case.words.iter().map(|word| decode(*word).map_or("none".into(), |i| i.text(0).to_string()));
    format!(
        "{} (x0-3 {:x?}, nzcv {:x})",
        lines.collect::<Vec<_>>().join("; "),
        &case.state[..4],
        case.state[31] >> 28
    )
}

fn cases(count: usize, seed: u64) -> Vec<Case> {
    let mut random = Random(seed);
    let patterns: Vec<(u32, u32)> = patterns().collect();
    let mut case = || {
        let mut state = state(&mut random);
        let few = [number(&mut random), number(&mut random)];
        for value in &mut state[..4] {
            *value = few[random.below(2) as usize].wrapping_add(random.below(2));
        }
        Case { words: sequence(&patterns, &mut random), state }
    };
    (0..count).map(|_| case()).collect()
}

fn count() -> usize {
    std::env::var("LONGMA_ARM_SEQUENCES").ok().and_then(|text| text.parse().ok()).unwrap_or(2000)
}

fn seed() -> u64 {
    std::env::var("LONGMA_ARM_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(77)
}

#[test]
fn random_sequences_match_qemu() {
    if can_compare() {
        let wrong = differences(&cases(count(), seed()), None, &text);
        assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong[..wrong.len().min(30)].join("\n"));
    }
}

#[test]
fn interrupted_sequences_match_qemu() {
    if can_compare() {
        let wrong = differences(&cases(count() / 4, seed() + 1), Some(3), &text);
        assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong[..wrong.len().min(30)].join("\n"));
    }
}

/// Sequences and loops, with and without interruptions, for each set of optimizations.
#[test]
fn sequences_and_loops_match_qemu_with_any_optimizations() {
    if !can_compare() {
        return;
    }
    for (number, optimizations) in choices().into_iter().enumerate() {
        let seed = seed() + 10 + 4 * number as u64;
        let cases = [cases(count() / 20, seed), loops(count() / 40, seed + 1)].concat();
        for interval in [None, Some(3)] {
            let wrong = differences_with(optimizations, &cases, interval, &text);
            let excerpt = wrong[..wrong.len().min(10)].join("\n");
            assert!(wrong.is_empty(), "{} wrong with '{optimizations}':\n{excerpt}", wrong.len());
        }
    }
}

#[test]
fn exclusive_pairs_store_to_the_reserved_address() {
    if !can_compare() {
        return;
    }
    let mut random = Random(99);
    let mut cases = Vec::new();
    for size in 0..4u32 {
        for order in 0..2u32 {
            let base = 29 << 5;
            let load = size << 30 | 0x085f_7c00 | order << 15 | base;
            let store = size << 30 | 0x0800_7c00 | order << 15 | base;
            // ldxr w1; stxr w2, w3; ldxr w25; stxr w26, w4; the last store has no reservation.
            let words =
                vec![load | 1, store | 2 << 16 | 3, load | 25, store | 26 << 16 | 4, store | 5 << 16 | 6];
            cases.push(Case { words, state: state(&mut random) });
        }
    }
    for size in 2..4u32 {
        let base = 29 << 5;
        let load = size << 30 | 0x087f_0000 | base;
        let store = size << 30 | 0x0820_0000 | base;
        let words = vec![load | 2 << 10 | 1, store | 7 << 16 | 4 << 10 | 3, load | 9 << 10 | 8];
        cases.push(Case { words, state: state(&mut random) });
    }
    let wrong = differences(&cases, None, &text);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
