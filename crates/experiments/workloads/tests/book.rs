//! Checks that the example in the book's chapter on experiments is valid.

const CHAPTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/src/reference/experiments.md");

#[test]
fn the_chapters_example_is_an_experiment_without_problems() {
    let chapter = std::fs::read_to_string(CHAPTER).unwrap();
    let example = chapter.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let registry = longma_workloads::registry("longma");
    let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../experiments"));
    let report =
        longma_lab::Experiment::check(std::path::Path::new("queens.toml"), folder, example, &registry).report;
    assert!(report.problems().is_empty(), "{}", report.render(100, false));
}
