//! The program that the tests run guests with, the guests, and what they print elsewhere.
//! Not how they are run: that differs from test to test.
//! Source: `examples/simulate.rs`; `guests/expected`.
#![allow(dead_code, reason = "every test program uses a part")]

pub mod flow;

use std::path::{Path, PathBuf};

/// The simulating example, which cargo builds beside the tests.
pub fn simulator() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().and_then(Path::parent).unwrap().join("examples/simulate")
}

/// A prebuilt guest.
pub fn guest(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/prebuilt/loongarch64").join(name)
}

/// What a guest prints with its small size.
pub fn expected(name: &str) -> String {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/expected").join(name).with_extension("txt");
    std::fs::read_to_string(path).unwrap()
}
