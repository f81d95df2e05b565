//! Snapshots of the code that the front end emits, so that changes appear in reviews. Nothing is executed, so the
//! snapshots are the same on every host; `tests/execution` tests correctness.
//!
//! `LONGMA_UPDATE=1 cargo test -p longma-translate-x86 --test emitted` updates the snapshots.

mod instructions;
mod operands;
mod sequences;

use longma_translate_conformance::emitted::{Source, compare, single};
use longma_translate_x86::X86_64;

#[test]
fn generated_code_matches_the_snapshots() {
    let (optimizations, idle) = sequences::by_optimizations();
    assert!(idle.is_empty(), "{idle:?} change nothing");
    let snapshots = [("sequences", sequences::text()), ("optimizations", optimizations)];
    compare(env!("CARGO_MANIFEST_DIR"), instructions::texts(), &snapshots);
}

/// Programs that use these instructions execute them in their innermost loops, where an exit takes longer than a
/// hundred of them.
#[test]
fn cryptographic_instructions_do_not_exit_to_the_engine() {
    let instructions: [&[u8]; 6] = [
        // aesenc xmm1, xmm2; aeskeygenassist xmm1, xmm2, 1; pclmulqdq xmm1, xmm2, 0x11
        &[0x66, 0x0f, 0x38, 0xdc, 0xca],
        &[0x66, 0x0f, 0x3a, 0xdf, 0xca, 0x01],
        &[0x66, 0x0f, 0x3a, 0x44, 0xca, 0x11],
        // sha1rnds4 xmm1, xmm2, 1; sha256rnds2 xmm1, xmm2; vaesdeclast xmm1, xmm2, [rdi]
        &[0x0f, 0x3a, 0xcc, 0xca, 0x01],
        &[0x0f, 0x38, 0xcb, 0xca],
        &[0xc4, 0xe2, 0x69, 0xdf, 0x0f],
    ];
    for code in instructions {
        let shown = single::<X86_64>(&Source { code, outside: &[] }).shown();
        assert!(!shown.contains("engine"), "{shown}");
    }
}
