//! Computes the version of the models, which is part of every stored result's key, so that results of other sources are
//! not reused.

mod sources;

use std::env;
use std::path::PathBuf;

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"))
        .join("../..");
    println!("cargo::rerun-if-changed=build");
    let sources = sources::Sources::of(&root);
    sources.watched_paths.iter().for_each(|path| println!("cargo::rerun-if-changed={}", path.display()));
    println!("cargo::rustc-env=LONGMA_MODEL_VERSION={}+{}", env!("CARGO_PKG_VERSION"), sources.digest());
}
