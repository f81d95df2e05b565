//! The tables of keys in the book's chapter on machines match the code.

const START: &str = "<!-- keys: generated -->\n";
const END: &str = "<!-- /keys -->\n";

fn chapter() -> String {
    std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../docs/src/reference/machine-files.md"
    ))
    .unwrap()
}

#[test]
fn the_chapters_example_is_a_machine_without_errors_and_warnings() {
    let chapter = chapter();
    let example = chapter.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let report = longma_topology::check("example", example).report;
    assert!(report.problems().is_empty(), "{}", report.render(100, false));
}

/// Set `LONGMA_UPDATE_BOOK` to write the tables into the chapter.
#[test]
fn the_chapter_lists_every_key_as_the_code_defines_it() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/src/reference/machine-files.md");
    let chapter = chapter();
    let (before, rest) = chapter.split_once(START).expect("the chapter marks where the tables start");
    let (tables, after) = rest.split_once(END).expect("the chapter marks where the tables end");
    let current = format!("\n{}", longma_topology::book::markdown());
    if std::env::var_os("LONGMA_UPDATE_BOOK").is_some_and(|value| value == "1") {
        std::fs::write(path, format!("{before}{START}{current}{END}{after}")).unwrap();
        return;
    }
    assert!(tables == current, "run the test with LONGMA_UPDATE_BOOK=1 and read the difference");
}
