//! What a result can depend on: the sources of every crate that workloads and `longma run` are built of, and the versions of those that
//! are not ours.
//! Not the machine, the parameters and the program of a point: its key has them by themselves.

use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The crates whose dependencies decide results: what experiments run, and what the command runs programs with.
const ROOTS: [&str; 2] = ["longma-workloads", "longma-node"];
/// Ours that decide none: the lab only asks.
const LEFT_OUT: [&str; 1] = ["longma-lab"];
/// What decides beside them: how crates are built, how a setting becomes a word of a command, and the part of the command that runs
/// programs, with whom it asks how it was called.
const BESIDE: [&str; 8] = [
    ".cargo/config.toml",
    "Cargo.toml",
    "crates/cli/Cargo.toml",
    "crates/lab/src/setting.rs",
    "crates/lab/src/point.rs",
    "crates/lab/src/workload.rs",
    "crates/cli/src/run",
    "crates/cli/src/binfmt/invoked.rs",
];
/// What of a crate's folder its library is not built of.
const NOT_BUILT: [&str; 7] =
    ["tests", "benches", "examples", "proptest-regressions", "include", "README.md", "clippy.toml"];

/// The files and versions that decide results.
pub struct Sources {
    root: PathBuf,
    /// From the root, in order.
    pub files: Vec<PathBuf>,
    /// Crates of others: name, version and checksum.
    pub others: BTreeSet<String>,
    /// Where a change is to be looked for.
    pub watched: Vec<PathBuf>,
}

impl Sources {
    /// Those of the repository at `root`.
    pub fn of(root: &Path) -> Self {
        let lock = root.join("Cargo.lock");
        let packages = packages(&read(&lock));
        let shared = read(&root.join("Cargo.toml"));
        let (mut ours, mut others) = (BTreeSet::new(), BTreeSet::new());
        let mut next: Vec<String> = ROOTS.map(String::from).to_vec();
        let mut seen = BTreeSet::from(LEFT_OUT.map(String::from));
        while let Some(name) = next.pop() {
            if !seen.insert(name.clone()) {
                continue;
            }
            // Several versions of a crate have one name here: more is covered than need be.
            for package in packages.get(&name).into_iter().flatten() {
                let mut dependencies = package.dependencies.clone();
                if let Some(origin) = &package.origin {
                    others.insert(format!("{name} {origin}"));
                } else {
                    let folder = Path::new("crates").join(name.trim_start_matches("longma-"));
                    let built_of = built_of(&read(&root.join(&folder).join("Cargo.toml")), &shared);
                    dependencies.retain(|dependency| built_of.contains(dependency));
                    ours.insert(folder);
                }
                next.extend(dependencies);
            }
        }
        ours.extend(BESIDE.map(PathBuf::from));
        let mut files = Vec::new();
        for path in &ours {
            if root.join(path).is_dir() {
                collect(root, path, &mut files)
            } else if root.join(path).exists() {
                files.push(path.clone())
            }
        }
        files.sort();
        let watched = ours.iter().map(|path| root.join(path)).chain([lock]).collect();
        Self { root: root.into(), files, others, watched }
    }

    /// Twelve hexadecimal digits.
    pub fn digest(&self) -> String {
        let mut digest = Sha256::new();
        for name in &self.files {
            // Paths from the root, so that the same sources have one version wherever they lie.
            digest.update(name.to_string_lossy().as_bytes());
            digest.update(fs::read(self.root.join(name)).unwrap_or_default());
        }
        self.others.iter().for_each(|other| digest.update(other));
        digest.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// A package of the lock file.
#[derive(Default)]
struct Package {
    /// Version and checksum, if it is not ours.
    origin: Option<String>,
    dependencies: Vec<String>,
}

/// A file of Cargo's; empty if there is none, or none that can be read.
fn read(path: &Path) -> Table {
    fs::read_to_string(path).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// The packages of a lock file by name.
fn packages(lock: &Table) -> BTreeMap<String, Vec<Package>> {
    let mut packages: BTreeMap<String, Vec<Package>> = BTreeMap::new();
    for package in lock.get("package").and_then(Value::as_array).into_iter().flatten() {
        let word = |key: &str| package.get(key).and_then(Value::as_str).unwrap_or_default();
        let origin = package.get("source").map(|_| format!("{} {}", word("version"), word("checksum")));
        let dependencies = package.get("dependencies").and_then(Value::as_array).into_iter().flatten();
        // A dependency is a name, with a version where there are several.
        let names = dependencies.filter_map(|words| words.as_str()?.split(' ').next());
        let dependencies = names.map(String::from).collect();
        packages.entry(word("name").into()).or_default().push(Package { origin, dependencies });
    }
    packages
}

/// The packages that a manifest needs, but for those of tests. What it takes from the workspace may be called otherwise there.
fn built_of(manifest: &Table, shared: &Table) -> BTreeSet<String> {
    let shared = shared.get("workspace").and_then(|workspace| workspace.get("dependencies"));
    let targets = manifest.get("target").and_then(Value::as_table).into_iter().flatten();
    let tables = targets.filter_map(|(_, target)| target.as_table()).chain([manifest]);
    let kinds = tables.flat_map(|table| ["dependencies", "build-dependencies"].map(|kind| table.get(kind)));
    let named = |given: &Value| given.get("package").and_then(Value::as_str).map(String::from);
    kinds
        .flatten()
        .filter_map(Value::as_table)
        .flatten()
        .map(|(name, given)| {
            let there = given.get("workspace").and_then(|_| shared?.get(name));
            named(given).or_else(|| named(there?)).unwrap_or_else(|| name.clone())
        })
        .collect()
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(root.join(folder)).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // What editors and builds leave.
        if name.starts_with('.') || name == "target" {
            continue;
        }
        let is_at_top = folder.parent() == Some(Path::new("crates"));
        if is_at_top && (NOT_BUILT.contains(&&*name) || name.starts_with("LICENSE")) {
            continue;
        }
        let path = folder.join(&name);
        if root.join(&path).is_dir() {
            collect(root, &path, files);
        } else {
            files.push(path);
        }
    }
}
