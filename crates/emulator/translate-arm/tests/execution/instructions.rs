//! Compares each row of the instruction table with `qemu-aarch64` on random states.

use longma_translate_arm::instruction::{decode, patterns};

use super::cases::{Random, instruction, limit_index, state};
use super::machine::{Case, can_compare, differences};

/// Returns `of_each` cases for each row that can be compared, and the number of such rows.
fn cases(of_each: usize, seed: u64) -> (Vec<Case>, usize) {
    let mut random = Random(seed);
    let (mut cases, mut rows) = (Vec::new(), 0);
    for (matched, mask) in patterns() {
        let mut has_some = false;
        for _ in 0..of_each {
            let found = (0..60).find_map(|_| instruction(matched, mask, &mut random));
            let Some((i, index)) = found else { continue };
            let mut state = state(&mut random);
            if let Some(register) = index {
                limit_index(&mut state, register, i.word, &mut random);
            }
            cases.push(Case { words: vec![i.word], state });
            has_some = true;
        }
        rows += usize::from(has_some);
    }
    (cases, rows)
}

fn text(case: &Case) -> String {
    let i = decode(case.words[0]).expect("it was one");
    let registers = [i.word >> 5 & 31, i.word >> 16 & 31, i.word & 31];
    let values = registers.map(|register| {
        let vector = 32 + 2 * register as usize;
        format!("{register}: {:#x}, {:#x}", case.state[register as usize], case.state[vector])
    });
    format!("{} ({}, nzcv {:x})", i.text(0), values.join("; "), case.state[31] >> 28)
}

#[test]
fn every_instruction_matches_qemu_on_random_states() {
    if !can_compare() {
        return;
    }
    let often: usize = std::env::var("LONGMA_ARM_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let seed = std::env::var("LONGMA_ARM_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0x1234_5678_9abc_def1);
    let (cases, rows) = cases(often, seed);
    println!("{rows} rows, {} cases", cases.len());
    assert!(rows > 330, "{rows}");
    let wrong = differences(&cases, None, &text);
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong[..wrong.len().min(40)].join("\n"));
}
