//! Snapshots of the code that each front end emits, so that changes appear in reviews. Nothing is executed, so the
//! snapshots are the same on every host; `arm/`, `x86/` and `programs.rs` test correctness.
//!
//! `LONGMA_UPDATE=1 cargo test -p longma-translate --test emitted` updates the snapshots.

mod arm;
mod arm_sequences;
#[path = "../../../core/tests/emitted/kept.rs"]
mod kept;
mod mips;
mod operands;
mod text;
mod x86;
mod x86_sequences;

use std::collections::BTreeMap;

use kept::{Kept, nothing_else_is_kept};

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
fn no_text_is_nobodys() {
    nothing_else_is_kept(&["arm", "mips", "x86"]);
}

fn compare(folder: &str, groups: BTreeMap<&str, String>, others: &[(&str, String)]) {
    let kept = Kept::new(folder);
    for (name, text) in groups {
        kept.is(name, &text);
    }
    for (name, text) in others {
        kept.is(name, text);
    }
    kept.finish();
}
