//! What the translator emits, as text beside this file: a change of generated code is seen where the change is reviewed.
//! Not whether the code is right (see `differential.rs`), nor whether it is fast: a count of instructions is no time.
//! The texts are the same on every host: nothing is run, and nothing that is emitted depends on what the host's processor can do.
//!
//! `LONGMA_UPDATE=1 cargo test -p longma-core --test emitted` renews the files.

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
fn no_text_is_nobodys() {
    nothing_else_is_kept(&["instructions", "sequences"]);
}
