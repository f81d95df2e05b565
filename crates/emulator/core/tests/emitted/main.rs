//! Snapshots of the emitted host code, which make changes to generated code visible in review. They are equal on all
//! hosts, because nothing is executed and emitted code does not depend on the host's processor. For correctness see
//! `differential.rs`.
//!
//! `LONGMA_UPDATE=1 cargo test -p longma-core --test emitted` updates the files.

mod instructions;
mod kept;
mod sequences;
mod text;

use kept::{Kept, nothing_else_is_kept};

#[test]
fn the_host_code_of_every_instruction_is_what_its_file_says() {
    let kept = Kept::new("instructions");
    for (name, text) in instructions::texts() {
        kept.is(&name, &text);
    }
    kept.is("forms", &instructions::forms());
    kept.finish();
}

#[test]
fn the_host_code_of_common_sequences_is_what_their_files_say() {
    let kept = Kept::new("sequences");
    for (name, text) in sequences::texts() {
        kept.is(name, &text);
    }
    kept.finish();
}

#[test]
fn every_snapshot_belongs_to_a_test() {
    nothing_else_is_kept(&["instructions", "sequences"]);
}
