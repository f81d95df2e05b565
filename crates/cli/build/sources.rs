//! Lists the inputs of the build that can change a result: the sources of every workspace crate that `longma run` and
//! the workloads depend on, and the versions of the external crates.
//!
//! A point's key includes its machine, parameters and program separately.

use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The crates that compute results. Their dependencies are included.
const ROOTS: [&str; 2] = ["longma-workloads", "longma-runner"];
/// Workspace crates that cannot change a result. A point's key includes the programs in `longma-shipped` separately.
const EXCLUDED: [&str; 2] = ["longma-lab", "longma-shipped"];
/// Further files and directories that can change a result: build settings, the translation of settings into command
/// lines, and the part of the command that runs programs.
///
/// Each must exist: cargo treats a watched path that does not exist as changed, and reruns the build script every time.
const OTHER_INPUTS: [&str; 7] = [
    "Cargo.toml",
    "crates/cli/Cargo.toml",
    "crates/experiments/lab/src/setting.rs",
    "crates/experiments/lab/src/point.rs",
    "crates/experiments/lab/src/workload.rs",
    "crates/cli/src/run",
    "crates/cli/src/binfmt/invoked.rs",
];
/// Entries of a crate's directory that are not part of its library.
const NOT_BUILT: [&str; 7] =
    ["tests", "benches", "examples", "proptest-regressions", "include", "README.md", "clippy.toml"];

/// The files and versions that can change a result.
pub struct Sources {
    root: PathBuf,
    /// Paths relative to the root, sorted.
    pub files: Vec<PathBuf>,
    /// External crates: name, version and checksum.
    pub external_crates: BTreeSet<String>,
    /// Absolute paths for cargo to watch; all exist.
    pub watched_paths: Vec<PathBuf>,
}

impl Sources {
    /// Collects the inputs in the repository at `root`.
    pub fn of(root: &Path) -> Self {
        let lock = root.join("Cargo.lock");
        let packages = packages(&read(&lock));
        let shared = read(&root.join("Cargo.toml"));
        let (mut ours, mut external_crates) = (BTreeSet::new(), BTreeSet::new());
        let mut next: Vec<String> = ROOTS.map(String::from).to_vec();
        let mut seen = BTreeSet::from(EXCLUDED.map(String::from));
        while let Some(name) = next.pop() {
            if !seen.insert(name.clone()) {
                continue;
            }
            // Versions of a crate are not distinguished, so all of them are included.
            for package in packages.get(&name).into_iter().flatten() {
                let mut dependencies = package.dependencies.clone();
                if let Some(origin) = &package.origin {
                    external_crates.insert(format!("{name} {origin}"));
                } else {
                    let folder = folder(&name, &shared);
                    let build_dependencies =
                        build_dependencies(&read(&root.join(&folder).join("Cargo.toml")), &shared);
                    dependencies.retain(|dependency| build_dependencies.contains(dependency));
                    ours.insert(folder);
                }
                next.extend(dependencies);
            }
        }
        ours.extend(OTHER_INPUTS.map(PathBuf::from));
        let mut files = Vec::new();
        for path in &ours {
            if root.join(path).is_dir() {
                collect(root, path, &mut files)
            } else if root.join(path).exists() {
                files.push(path.clone())
            }
        }
        files.sort();
        // Watch only the files of a crate that are built, so that an edit of its tests does not build the command
        // again.
        let watched_paths =
            ours.iter().flat_map(|path| built_entries(&root.join(path))).chain([lock]).collect();
        Self { root: root.into(), files, external_crates, watched_paths }
    }

    /// The version of the models: twelve hexadecimal digits.
    pub fn digest(&self) -> String {
        let mut digest = Sha256::new();
        for name in &self.files {
            // Use relative paths, so that the version does not depend on the location of the sources.
            digest.update(name.to_string_lossy().as_bytes());
            digest.update(fs::read(self.root.join(name)).unwrap_or_default());
        }
        self.external_crates.iter().for_each(|other| digest.update(other));
        digest.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// A package of the lock file.
#[derive(Default)]
struct Package {
    /// Version and checksum of an external crate.
    origin: Option<String>,
    dependencies: Vec<String>,
}

/// Parses a manifest or lock file; empty if it cannot be read.
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
        // A dependency is a name, followed by a version if there are several.
        let names = dependencies.filter_map(|words| words.as_str()?.split(' ').next());
        let dependencies = names.map(String::from).collect();
        packages.entry(word("name").into()).or_default().push(Package { origin, dependencies });
    }
    packages
}

/// The packages that a manifest depends on, except dev-dependencies, by their real names if the workspace renames them.
fn build_dependencies(manifest: &Table, shared: &Table) -> BTreeSet<String> {
    let shared = shared.get("workspace").and_then(|workspace| workspace.get("dependencies"));
    let targets = manifest.get("target").and_then(Value::as_table).into_iter().flatten();
    let tables = targets.filter_map(|(_, target)| target.as_table()).chain([manifest]);
    let kinds = tables.flat_map(|table| ["dependencies", "build-dependencies"].map(|kind| table.get(kind)));
    let real_name = |given: &Value| given.get("package").and_then(Value::as_str).map(String::from);
    kinds
        .flatten()
        .filter_map(Value::as_table)
        .flatten()
        .map(|(name, given)| {
            let inherited = given.get("workspace").and_then(|_| shared?.get(name));
            real_name(given).or_else(|| real_name(inherited?)).unwrap_or_else(|| name.clone())
        })
        .collect()
}

/// The directory of a workspace crate relative to the root, from the workspace's manifest.
fn folder(name: &str, shared: &Table) -> PathBuf {
    let path = shared
        .get("workspace")
        .and_then(|workspace| workspace.get("dependencies")?.get(name)?.get("path")?.as_str());
    path.map_or_else(|| panic!("Cargo.toml: [workspace.dependencies] has no path for {name}"), PathBuf::from)
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) {
    for name in entries(&root.join(folder)) {
        let path = folder.join(&name);
        if root.join(&path).is_dir() {
            collect(root, &path, files);
        } else {
            files.push(path);
        }
    }
}

/// The entries of a crate's directory that are part of its library. Another path itself.
fn built_entries(path: &Path) -> Vec<PathBuf> {
    if path.join("Cargo.toml").exists() {
        entries(path).into_iter().map(|name| path.join(name)).collect()
    } else {
        vec![path.into()]
    }
}

/// The names in a directory, without files that editors and builds leave and files that are not part of a crate's
/// library.
fn entries(folder: &Path) -> Vec<String> {
    let is_crate = folder.join("Cargo.toml").exists();
    let names = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_left = |name: &str| name.starts_with('.') || name == "target";
    let is_other = |name: &str| is_crate && (NOT_BUILT.contains(&name) || name.starts_with("LICENSE"));
    names.filter(|name| !is_left(name) && !is_other(name)).collect()
}
