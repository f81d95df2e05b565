//! Tests the version of the models, which is part of every result's key: it changes with every source that can change a
//! result, and not with sources that only query, print or test.

#[path = "../build/sources.rs"]
mod sources;

use sources::Sources;
use std::fs;
use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A copy of all sources that decide results, for modification.
fn copy() -> tempfile::TempDir {
    let (from, to) = (repository(), tempfile::tempdir().unwrap());
    let sources = Sources::of(&from);
    for file in sources.files.iter().map(PathBuf::as_path).chain([Path::new("Cargo.lock")]) {
        let place = to.path().join(file);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(from.join(file), place).unwrap();
    }
    assert_eq!(Sources::of(to.path()).digest(), sources.digest(), "the same sources elsewhere");
    to
}

fn append(path: &Path, text: &str) {
    fs::write(path, fs::read_to_string(path).unwrap_or_default() + text).unwrap();
}

#[test]
fn an_edit_of_anything_that_a_workload_depends_on_changes_the_version() {
    let copy = copy();
    let mut version = Sources::of(copy.path()).digest();
    for file in [
        "crates/experiments/workloads/src/zoned/paper_trees.rs",
        "crates/experiments/workloads/src/via/exchange.rs",
        "crates/experiments/workloads/src/program/mod.rs",
        "crates/isa/loongarch/instructions.tsv",
        "crates/isa/loongarch/build.rs",
        "crates/storage/zoned-lab/src/ycsb/zipfian.rs",
        "crates/storage/zoned-device/src/zones.rs",
        "crates/messaging/via-myrinet/src/steps.rs",
        "crates/messaging/via/src/engine/queues.rs",
        "crates/messaging/reliable/src/sender.rs",
        "crates/placement/placement/src/allocator.rs",
        "crates/runner/Cargo.toml",
        "crates/cli/src/run/simulated.rs",
        "crates/cli/src/binfmt/invoked.rs",
        "crates/experiments/lab/src/setting.rs",
        "crates/experiments/lab/src/point.rs",
        "crates/cli/Cargo.toml",
        "Cargo.toml",
    ] {
        let path = copy.path().join(file);
        assert!(path.exists(), "{file} is not covered");
        append(&path, "\n");
        let next = Sources::of(copy.path()).digest();
        assert_ne!(version, next, "{file}");
        version = next;
    }
}

#[test]
fn another_version_of_a_crate_changes_the_version_under_any_local_name() {
    let copy = copy();
    let lock = copy.path().join("Cargo.lock");
    for name in ["rustc-hash", "perf-event2"] {
        let version = Sources::of(copy.path()).digest();
        let text = fs::read_to_string(&lock).unwrap();
        let at = text.find(&format!("name = \"{name}\"")).expect("a crate that models are built of");
        let other = text[at..].replacen("version = \"", "version = \"9", 1);
        fs::write(&lock, format!("{}{other}", &text[..at])).unwrap();
        assert_ne!(version, Sources::of(copy.path()).digest(), "{name}");
    }
}

#[test]
fn every_relevant_file_triggers_a_rebuild() {
    let root = repository();
    let sources = Sources::of(&root);
    for file in &sources.files {
        let path = root.join(file);
        assert!(sources.watched_paths.iter().any(|watched| path.starts_with(watched)), "{}", file.display());
    }
}

#[test]
fn edits_of_tests_and_pages_trigger_no_rebuild() {
    let root = repository();
    let sources = Sources::of(&root);
    for file in ["crates/emulator/core/tests", "crates/storage/zoned/README.md", "crates/runner/examples"] {
        let path = root.join(file);
        assert!(path.exists(), "{file}");
        assert!(!sources.watched_paths.iter().any(|watched| path.starts_with(watched)), "{file}");
    }
}

#[test]
fn edits_of_queries_output_and_tests_keep_the_version() {
    let copy = copy();
    let version = Sources::of(copy.path()).digest();
    for file in [
        "crates/experiments/lab/src/report/mod.rs",
        "crates/cli/src/main.rs",
        "crates/cli/src/experiment/print.rs",
        "crates/storage/zoned/tests/durable_map/model.rs",
        "crates/runner/README.md",
        "crates/placement/placement-service/src/lib.rs",
        "crates/model/memory/src/.lib.rs.swp",
        "crates/runner/target/something",
    ] {
        let path = copy.path().join(file);
        assert!(!path.exists(), "{file}");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        append(&path, "\n");
        assert_eq!(version, Sources::of(copy.path()).digest(), "{file}");
    }
}

#[test]
fn dependencies_of_the_run_module_are_covered() {
    let root = repository();
    let sources = Sources::of(&root);
    let of_run = |path: &&PathBuf| path.starts_with("crates/cli/src/run");
    let mut named = 0;
    for file in sources.files.iter().filter(of_run) {
        let text = fs::read_to_string(root.join(file)).unwrap();
        for rest in text.split("crate::").skip(1) {
            let module: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let place = Path::new("crates/cli/src").join(&module);
            let is_covered = sources.files.iter().any(|covered| covered.starts_with(&place));
            assert!(is_covered, "{} names crate::{module}, which decides nothing", file.display());
            named += 1;
        }
    }
    assert!(named > 0, "it asks at least how it was called");
}
