//! The book's chapter on experiments says of each key what the code says.

mod synthetic;

use std::fmt::Write as _;

const CHAPTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/experiments.md");
const START: &str = "<!-- keys: generated -->\n";
const END: &str = "<!-- /keys -->\n";

fn tables() -> String {
    let mut text = String::from("\n");
    for part in longma_lab::keys() {
        let mut heading = part.name.to_string();
        heading[..1].make_ascii_uppercase();
        let _ = write!(
            text,
            "### {heading}\n\n{}\n\n| key | holds | needed | meaning |\n| --- | --- | --- | --- |\n",
            part.doc
        );
        for key in part.keys {
            let needed = if key.required { "yes" } else { "" };
            let _ = writeln!(text, "| `{}` | {} | {needed} | {} |", key.name, key.kind, key.doc);
        }
        text.push('\n');
    }
    text
}

/// Set `LONGMA_UPDATE_BOOK` to write the tables into the chapter.
#[test]
fn the_chapter_lists_every_key_as_the_code_defines_it() {
    let chapter = std::fs::read_to_string(CHAPTER).unwrap();
    let (before, rest) = chapter.split_once(START).expect("the chapter marks where the tables start");
    let (written, after) = rest.split_once(END).expect("the chapter marks where the tables end");
    if std::env::var_os("LONGMA_UPDATE_BOOK").is_some() {
        std::fs::write(CHAPTER, format!("{before}{START}{}{END}{after}", tables())).unwrap();
        return;
    }
    assert!(written == tables(), "run the test with LONGMA_UPDATE_BOOK=1 and read the difference");
}

#[test]
fn the_chapters_example_is_an_experiment_without_problems() {
    let chapter = std::fs::read_to_string(CHAPTER).unwrap();
    let example = chapter.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let mut registry = longma_lab::Registry::default();
    registry.add(longma_lab::Program::new("longma"));
    let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments"));
    let report =
        longma_lab::Experiment::check(std::path::Path::new("queens.toml"), folder, example, &registry).report;
    assert!(report.problems().is_empty(), "{}", report.render(100, false));
}
