//! Tests that the experiments of the repository fit the workloads.

use longma_lab::Experiment;
use std::path::Path;

/// Checks the files only; `longma experiment check` also sets up the points.
#[test]
fn every_experiment_of_the_repository_has_no_errors_and_no_warnings() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../experiments");
    let registry = longma_workloads::registry("longma");
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let text = std::fs::read_to_string(&path).unwrap();
            let checked = Experiment::check(&path, &folder, &text, &registry);
            let problems: Vec<_> =
                checked.report.located().iter().map(|p| format!("{}: {}", p.line, p.message)).collect();
            assert!(problems.is_empty(), "{}: {problems:#?}", path.display());
            count += 1;
        }
    }
    assert!(count > 40, "{count} experiments");
}
