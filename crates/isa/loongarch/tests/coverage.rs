//! Checks that the book's page of instructions is up to date. `examples/coverage.rs` generates it.

#[path = "../examples/coverage.rs"]
mod coverage;

#[test]
fn the_committed_page_is_the_generated_one() {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/src/reference/instructions.md");
    if std::env::var_os("LONGMA_UPDATE").is_some_and(|value| value == "1") {
        std::fs::write(&path, coverage::page()).expect("the source tree is writable");
    }
    let committed = std::fs::read_to_string(&path).expect("docs/src/reference/instructions.md");
    assert!(
        committed == coverage::page(),
        "docs/src/reference/instructions.md differs from the table and the lists; LONGMA_UPDATE=1 cargo test -p longma-loongarch --test coverage rewrites it",
    );
}
