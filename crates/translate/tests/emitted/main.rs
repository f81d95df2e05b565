//! What instructions of other architectures become, as text beside this file: a change is seen where it is reviewed.
//! Not whether it is right (see `x86/` and `programs.rs`), nor whether it is fast: a count of instructions is no time.
//! The texts are the same on every host: nothing is run.
//!
//! `LONGMA_UPDATE=1 cargo test -p longma-translate --test emitted` renews the files.

#[path = "../../../core/tests/emitted/kept.rs"]
mod kept;
mod mips;
mod operands;
mod text;
mod x86;
mod x86_sequences;

use kept::Kept;

#[test]
fn the_code_of_every_x86_instruction_is_what_its_file_says() {
    let kept = Kept::new("x86");
    for (name, text) in x86::texts() {
        kept.is(name, &text);
    }
    kept.is("sequences", &x86_sequences::text());
    kept.finish();
}

#[test]
fn the_code_of_every_mips_instruction_is_what_its_file_says() {
    let kept = Kept::new("mips");
    for (name, text) in mips::texts() {
        kept.is(name, &text);
    }
    kept.is("sequences", &mips::sequences());
    kept.finish();
}
