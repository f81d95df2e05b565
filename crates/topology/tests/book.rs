//! The book's chapter on machines says of each key what the code says.

const START: &str = "<!-- keys: generated -->\n";
const END: &str = "<!-- /keys -->\n";

/// Set `LONGMA_UPDATE_BOOK` to write the tables into the chapter.
#[test]
fn the_chapter_lists_every_key_as_the_code_defines_it() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/machines.md");
    let chapter = std::fs::read_to_string(path).unwrap();
    let (before, rest) = chapter.split_once(START).expect("the chapter marks where the tables start");
    let (tables, after) = rest.split_once(END).expect("the chapter marks where the tables end");
    let current = format!("\n{}", longma_topology::book::markdown());
    if std::env::var_os("LONGMA_UPDATE_BOOK").is_some() {
        std::fs::write(path, format!("{before}{START}{current}{END}{after}")).unwrap();
        return;
    }
    assert!(tables == current, "run the test with LONGMA_UPDATE_BOOK=1 and read the difference");
}
