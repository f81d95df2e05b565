//! Works out the version of the models: a digest over the sources that decide a result, so that stored results are never taken for
//! those of another model.
//! Not a version for people: that is the package's.
//! Source: none.

use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};

/// What cannot change a result: the lab, which only asks, and the command but for the parts that run programs and measure VIA.
const LEFT_OUT: [&str; 2] = ["lab", "cli"];

fn main() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    let folders = fs::read_dir(&crates).into_iter().flatten().flatten().map(|entry| entry.path());
    let models = folders.filter(|folder| !LEFT_OUT.iter().any(|name| folder.ends_with(name)));
    let parts = ["cli/src/run", "cli/src/via"].map(|part| crates.join(part));
    for folder in models.map(|folder| folder.join("src")).chain(parts) {
        println!("cargo::rerun-if-changed={}", folder.display());
        collect(&folder, &mut files);
    }
    // Paths below the crates, so that the same sources have one version wherever they lie.
    let mut named: Vec<_> =
        files.iter().map(|path| (path.strip_prefix(&crates).unwrap_or(path), path)).collect();
    named.sort();
    let mut digest = Sha256::new();
    for (name, path) in named {
        digest.update(name.to_string_lossy().as_bytes());
        digest.update(fs::read(path).unwrap_or_default());
    }
    let digest: String = digest.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    println!("cargo::rustc-env=LONGMA_MODEL_VERSION={}+{digest}", env!("CARGO_PKG_VERSION"));
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}
