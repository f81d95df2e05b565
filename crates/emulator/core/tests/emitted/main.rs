//! Snapshots of the emitted host code, which make changes to generated code visible in review. They are equal on all
//! hosts, because nothing is executed and emitted code does not depend on the host's processor. For correctness see
//! `differential.rs`.
//!
//! `LONGMA_UPDATE=1 cargo test -p longma-core --test emitted` updates the files.

mod instructions;
mod sequences;
#[path = "../../../translate-conformance/src/snapshots.rs"]
mod snapshots;
mod text;

use snapshots::{Snapshots, check_no_other_files};

#[test]
fn the_host_code_of_every_instruction_matches_its_snapshot() {
    let snapshots = Snapshots::new(env!("CARGO_MANIFEST_DIR"), "instructions");
    for (name, text) in instructions::texts() {
        snapshots.is(&name, &text);
    }
    snapshots.is("forms", &instructions::forms());
    snapshots.finish();
}

#[test]
fn the_host_code_of_common_sequences_matches_its_snapshot() {
    let snapshots = Snapshots::new(env!("CARGO_MANIFEST_DIR"), "sequences");
    for (name, text) in sequences::texts() {
        snapshots.is(name, &text);
    }
    snapshots.finish();
}

#[test]
fn every_snapshot_belongs_to_a_test() {
    check_no_other_files(env!("CARGO_MANIFEST_DIR"), &["instructions", "sequences"]);
}
