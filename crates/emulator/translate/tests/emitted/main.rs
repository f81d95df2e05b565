//! Snapshots of the code that each front end emits, so that changes appear in reviews. Nothing is executed, so the
//! snapshots are the same on every host; `arm/`, `x86/` and `programs.rs` test correctness.
//!
//! `LONGMA_UPDATE=1 cargo test -p longma-translate --test emitted` updates the snapshots.

mod arm;
mod arm_sequences;
mod mips;
mod operands;
#[path = "../../../core/tests/emitted/snapshots.rs"]
mod snapshots;
mod text;
mod x86;
mod x86_sequences;

use std::collections::BTreeMap;

use snapshots::{Snapshots, check_no_other_files};

#[test]
fn generated_code_of_aarch64_instructions_matches_the_snapshots() {
    let (optimizations, idle) = arm_sequences::by_optimizations();
    assert!(idle.is_empty(), "{idle:?} change nothing");
    compare("arm", arm::texts(), &[("sequences", arm_sequences::text()), ("optimizations", optimizations)]);
}

#[test]
fn generated_code_of_x86_instructions_matches_the_snapshots() {
    let (optimizations, idle) = x86_sequences::by_optimizations();
    assert!(idle.is_empty(), "{idle:?} change nothing");
    compare("x86", x86::texts(), &[("sequences", x86_sequences::text()), ("optimizations", optimizations)]);
}

#[test]
fn generated_code_of_mips_instructions_matches_the_snapshots() {
    compare("mips", mips::texts(), &[("sequences", mips::sequences())]);
}

#[test]
fn every_snapshot_belongs_to_a_test() {
    check_no_other_files(&["arm", "mips", "x86"]);
}

fn compare(folder: &str, groups: BTreeMap<&str, String>, others: &[(&str, String)]) {
    let snapshots = Snapshots::new(folder);
    for (name, text) in groups {
        snapshots.is(name, &text);
    }
    for (name, text) in others {
        snapshots.is(name, text);
    }
    snapshots.finish();
}
