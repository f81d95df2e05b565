//! Properties of all sequences.

use longma_loongarch::Op;

use super::*;

fn all() -> impl Iterator<Item = (Op, i32, Steps)> {
    Op::all().flat_map(|op| {
        (0..=255).filter_map(move |imm| {
            let (steps, _) = sequence(&Instruction { imm, ..Instruction::new(op) })?;
            Some((op, imm, steps))
        })
    })
}

#[test]
fn the_destination_is_written_by_the_last_step_and_only_by_it() {
    for (op, imm, steps) in all() {
        let written: Vec<_> = steps.iter().map(|step| step.to() == Location::D).collect();
        let (last, memory_operands) = written.split_last().unwrap();
        assert!(*last && !memory_operands.contains(&true), "{op:?} {imm}: {steps:?}");
    }
}

#[test]
fn every_source_gets_a_register_if_no_guest_register_is_in_one() {
    for (op, imm, steps) in all() {
        for (index, step) in steps.iter().enumerate() {
            let has_room = scratch_for_left(step, &steps[index + 1..]).is_some();
            let needs = step.left().is_some_and(|left| !left.is_scratch());
            assert!(has_room || !needs, "{op:?} {imm}: step {index} of {steps:?}");
        }
    }
}

#[test]
fn every_temporary_is_written_before_it_is_read() {
    for (op, imm, steps) in all() {
        for location in Location::SCRATCH {
            assert!(!steps::is_live(&steps, location), "{op:?} {imm}: {location:?} of {steps:?}");
        }
    }
}

#[test]
fn the_sequences_cover_more_than_300_opcodes() {
    let ops: std::collections::BTreeSet<_> = all().map(|(op, ..)| op.mnemonic()).collect();
    assert!(ops.len() > 300, "{}", ops.len());
}
