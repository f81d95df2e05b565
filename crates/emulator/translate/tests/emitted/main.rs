//! What instructions of other architectures become, as text beside this file: a change is seen where it is reviewed.
//! Not whether it is right (see `arm/`, `x86/` and `programs.rs`), nor whether it is fast: a count of instructions is no time.
//! The texts are the same on every host: nothing is run.
//!
//! `LONGMA_UPDATE=1 cargo test -p longma-translate --test emitted` renews the files.

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
fn the_code_of_every_aarch64_instruction_is_what_its_file_says() {
    let (parts, idle) = arm_sequences::by_parts();
    assert!(idle.is_empty(), "{idle:?} change nothing");
    compare("arm", arm::texts(), &[("sequences", arm_sequences::text()), ("parts", parts)]);
}

#[test]
fn the_code_of_every_x86_instruction_is_what_its_file_says() {
    let (parts, idle) = x86_sequences::by_parts();
    assert!(idle.is_empty(), "{idle:?} change nothing");
    compare("x86", x86::texts(), &[("sequences", x86_sequences::text()), ("parts", parts)]);
}

#[test]
fn the_code_of_every_mips_instruction_is_what_its_file_says() {
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
