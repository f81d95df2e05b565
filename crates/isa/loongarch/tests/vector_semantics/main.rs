//! Compares all LSX and LASX instructions with their oracles.
//!
//! `LONGMA_QEMU_VECTOR` names a qemu-loongarch64 of version 8.2 or newer if the one in the path is older.
//! `LONGMA_VECTOR_ROUNDS=100` multiplies the number of operands by 100.

mod case;
#[path = "../checked/mod.rs"]
mod checked;
mod effects;
mod formula;
mod formula_float;
mod qemu;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use case::{Inputs, Outputs, Random, instructions, ours, vector_ops};
use longma_loongarch::{Extension, Instruction, Op, semantics::is_user_instruction};

#[test]
fn every_vector_instruction_of_the_table_has_semantics() {
    let missing: Vec<_> =
        vector_ops().filter(|&op| !is_user_instruction(op)).map(|op| op.mnemonic()).collect();
    assert!(missing.is_empty(), "{} without semantics: {missing:?}", missing.len());
}

#[test]
fn every_vector_instruction_matches_qemu() {
    match qemu::find() {
        Some(qemu) => for_each_seed(|seed| agree_with_qemu(&qemu, seed)),
        None => eprintln!("no qemu-loongarch64 of 8.2 or newer: the vector formulas are checked alone"),
    }
}

#[test]
fn every_vector_instruction_matches_its_formula() {
    for_each_seed(agree_with_formulas);
}

/// Calls `test` with `LONGMA_VECTOR_ROUNDS` different seeds; the default is one.
fn for_each_seed(test: impl Fn(u64)) {
    let rounds = std::env::var("LONGMA_VECTOR_ROUNDS").ok();
    let rounds = rounds.map_or(1, |text| text.parse().expect("LONGMA_VECTOR_ROUNDS is a number"));
    (1..=rounds).for_each(test);
}

/// All instructions with several immediates and operands.
fn cases(seed: u64) -> Vec<(Instruction, Vec<Inputs>)> {
    let mut random = Random::new(seed);
    let mut cases = Vec::new();
    for op in vector_ops() {
        let instructions = instructions(op, &mut random);
        let each = (64 / instructions.len()).max(3);
        for instruction in instructions {
            cases.push((instruction, (0..each).map(|_| random.given(op)).collect()));
        }
    }
    cases
}

/// The compared instructions, and the first case of each instruction with a difference.
#[derive(Default)]
struct Differences {
    compared: BTreeSet<Op>,
    first: BTreeMap<&'static str, String>,
}

impl Differences {
    fn compare(&mut self, instruction: &Instruction, inputs: &Inputs, theirs: &Outputs) {
        let ours = ours(instruction, inputs);
        self.compared.insert(instruction.op);
        if ours.as_ref() != Ok(theirs) {
            self.first.entry(instruction.op.mnemonic()).or_insert_with(|| {
                format!("{instruction:x?}\n given  {inputs:x?}\n theirs {theirs:x?}\n ours   {ours:x?}\n")
            });
        }
    }

    /// Asserts that there are no differences. `oracle` names the list of instructions that must have been compared.
    fn assert_none(&self, oracle: &str) {
        let names: Vec<_> = self.first.keys().collect();
        let first: String = self.first.values().take(3).cloned().collect();
        assert!(names.is_empty(), "{} instructions differ: {names:?}\n{first}", names.len());
        checked::assert_listed(oracle, self.compared.iter().copied());
    }
}

/// Approximations of version 1.1 and an instruction that is not in the manual; QEMU 10 lacks them.
const NOT_IN_QEMU: [&str; 5] = ["vfrecipe.s", "vfrecipe.d", "vfrsqrte.s", "vfrsqrte.d", "vhseli.d"];

/// FNMADD and FNMSUB negate the rounded sum (volume 1, section 3.2.1.6: -fusedMultiplyAdd). QEMU negates before
/// rounding, which differs in the directed rounding modes. Replaces these modes for the affected instructions.
fn avoid_directed_rounding((instruction, inputs): &mut (Instruction, Vec<Inputs>)) {
    const DIRECTED: u32 = 2 << 8;
    if instruction.op.mnemonic().contains("vfnm") {
        inputs.iter_mut().for_each(|inputs| inputs.fcsr &= !DIRECTED);
    }
}

fn agree_with_qemu(qemu: &Path, seed: u64) {
    let mut cases = cases(seed);
    cases
        .retain(|(instruction, _)| !NOT_IN_QEMU.contains(&instruction.op.mnemonic().trim_start_matches('x')));
    cases.iter_mut().for_each(avoid_directed_rounding);
    let mut differences = Differences::default();
    for ((instruction, inputs), left) in cases.iter().zip(qemu::run(qemu, &cases)) {
        for (inputs, mut left) in inputs.iter().zip(left) {
            if instruction.op.row().extension == Extension::Lsx {
                // The upper 128 bits are undefined after LSX. QEMU clears, preserves or computes them; here they are
                // preserved.
                left.vector[2..].copy_from_slice(&inputs.vectors[0][2..]);
            }
            differences.compare(instruction, inputs, &left);
        }
    }
    differences.assert_none("qemu-vector");
}

fn agree_with_formulas(seed: u64) {
    let mut differences = Differences::default();
    let mut without = BTreeSet::new();
    for (instruction, inputs) in cases(seed) {
        for inputs in inputs {
            match formula::expected(&instruction, &inputs) {
                Some(left) => differences.compare(&instruction, &inputs, &left),
                None => _ = without.insert(instruction.op.mnemonic()),
            }
        }
    }
    assert!(without.is_empty(), "{} without a formula: {without:?}", without.len());
    differences.assert_none("formula-vector");
}
