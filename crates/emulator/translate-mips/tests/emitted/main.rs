//! Snapshots of the code that the front end emits, so that changes appear in reviews. Nothing is executed, so the
//! snapshots are the same on every host; `tests/execution` tests correctness.
//!
//! `LONGMA_UPDATE=1 cargo test -p longma-translate-mips --test emitted` updates the snapshots.

mod instructions;

use longma_translate_conformance::emitted::compare;

#[test]
fn generated_code_matches_the_snapshots() {
    let snapshots = [("sequences", instructions::sequences())];
    compare(env!("CARGO_MANIFEST_DIR"), instructions::texts(), &snapshots);
}
