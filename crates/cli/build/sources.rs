//! What a result can depend on: the sources of every crate that workloads and `longma run` are built of, and the versions of those that
//! are not ours.
//! Not the machine, the parameters and the program of a point: its key has them by themselves.

use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The crates whose dependencies decide results: what experiments run, and what the command runs programs with.
const ROOTS: [&str; 2] = ["longma-workloads", "longma-node"];
/// Ours that decide none: the lab only asks.
const LEFT_OUT: [&str; 1] = ["longma-lab"];
/// The part of the command that runs programs.
const OF_COMMAND: &str = "crates/cli/src/run";
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
        let packages = packages(&fs::read_to_string(&lock).unwrap_or_default());
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
                    let built_of = built_of(
                        &fs::read_to_string(root.join(&folder).join("Cargo.toml")).unwrap_or_default(),
                    );
                    dependencies.retain(|dependency| built_of.contains(dependency));
                    ours.insert(folder);
                }
                next.extend(dependencies);
            }
        }
        ours.insert(OF_COMMAND.into());
        let mut files = Vec::new();
        for folder in &ours {
            collect(root, folder, &mut files);
        }
        files.sort();
        let watched = ours.iter().map(|folder| root.join(folder)).chain([lock]).collect();
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

/// The packages of a lock file by name.
fn packages(lock: &str) -> BTreeMap<String, Vec<Package>> {
    let mut packages: BTreeMap<String, Vec<Package>> = BTreeMap::new();
    for block in lock.split("[[package]]").skip(1) {
        let value = |key: &str| {
            let line = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            line.map(|text| text.trim_matches('"').to_string())
        };
        let Some(name) = value("name") else { continue };
        let origin = value("source")
            .map(|_| [value("version"), value("checksum")].map(Option::unwrap_or_default).join(" "));
        let listed = block.split_once("dependencies = [").and_then(|(_, rest)| rest.split_once(']'));
        let dependencies = listed.map_or("", |(listed, _)| listed).split('"').skip(1).step_by(2);
        // A dependency is a name, with a version where there are several.
        let dependencies =
            dependencies.filter_map(|words| words.split(' ').next()).map(String::from).collect();
        packages.entry(name).or_default().push(Package { origin, dependencies });
    }
    packages
}

/// The dependencies that a manifest names, but for those of tests.
fn built_of(manifest: &str) -> BTreeSet<String> {
    let mut counts = false;
    let mut names = BTreeSet::new();
    for line in manifest.lines() {
        if let Some(section) = line.strip_prefix('[') {
            counts = section.ends_with("dependencies]") && !section.ends_with("dev-dependencies]");
        } else if counts && let Some(name) = line.split(['.', ' ', '=']).next() {
            names.insert(name.into());
        }
    }
    names
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(root.join(folder)).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
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
