//! Paths of the simulator (`examples/simulate.rs`) and of guests, and the guests' expected output.
#![allow(dead_code, reason = "every test program uses a part")]

pub mod flow;

use std::path::{Path, PathBuf};

/// The example `simulate`, which cargo builds along with the tests.
pub fn simulator() -> PathBuf {
    let test_program = std::env::current_exe().unwrap();
    test_program.parent().and_then(Path::parent).unwrap().join("examples/simulate")
}

/// The path of a prebuilt guest.
pub fn guest(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/prebuilt/loongarch64").join(name)
}

/// The expected output of a guest with its small size.
pub fn expected(name: &str) -> String {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/expected").join(name).with_extension("txt");
    std::fs::read_to_string(path).unwrap()
}
