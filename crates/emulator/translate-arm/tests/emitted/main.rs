//! Snapshots of the code that the front end emits, so that changes appear in reviews. Nothing is executed, so the
//! snapshots are the same on every host; `tests/execution` tests correctness.
//!
//! `LONGMA_UPDATE=1 cargo test -p longma-translate-arm --test emitted` updates the snapshots.

mod instructions;
mod sequences;

use longma_translate_arm::Aarch64;
use longma_translate_conformance::bytes;
use longma_translate_conformance::emitted::{Source, compare, single};

#[test]
fn generated_code_matches_the_snapshots() {
    let (optimizations, idle) = sequences::by_optimizations();
    assert!(idle.is_empty(), "{idle:?} change nothing");
    let snapshots = [("sequences", sequences::text()), ("optimizations", optimizations)];
    compare(env!("CARGO_MANIFEST_DIR"), instructions::snapshots(), &snapshots);
}

/// Programs use these instructions in their innermost loops. One exit to the engine would take longer than a hundred of
/// them.
#[test]
fn cryptographic_instructions_do_not_exit_to_the_engine() {
    // aese, aesmc, pmull, pmull2, sha1c, sha1h, sha1su0, sha1su1, sha256h, sha256h2, sha256su0, sha256su1
    let words = [
        0x4e28_4841,
        0x4e28_6841,
        0x0ee3_e041,
        0x4ee3_e041,
        0x5e03_0041,
        0x5e28_0841,
        0x5e03_3041,
        0x5e28_1841,
        0x5e03_4041,
        0x5e03_5041,
        0x5e28_2841,
        0x5e03_6041,
    ];
    for word in words {
        let code = bytes(&[word]);
        let shown = single::<Aarch64>(&Source { code: &code, outside: &[] }).shown();
        assert!(!shown.contains("engine"), "{shown}");
    }
}
