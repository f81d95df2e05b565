//! The experiments, their machine files and the guest programs that ship inside the `longma` command.
//!
//! The build packs them into one zstd frame. Experiment files and programs must be real files to be used, so [`extract`] writes them to the
//! user's cache folder, in the layout of the repository.

mod cache;
mod guests;

pub use cache::{ExtractError, Places, extract};
pub use guests::{GuestError, PREFIX, guest, guest_file, guest_or};

use std::sync::OnceLock;

include!(concat!(env!("OUT_DIR"), "/tables.rs"));

/// A file inside the command.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its path from the repository's root, such as `experiments/tcp-receive.toml`.
    pub path: &'static str,
    /// Where its content begins in the unpacked frame, in bytes.
    offset: usize,
    /// Bytes of its content.
    length: usize,
    /// The SHA-256 of its content.
    sha256: [u8; 32],
}

/// A guest program.
#[derive(Debug, PartialEq, Eq)]
pub struct Guest {
    /// Its name, such as `hello`.
    pub name: &'static str,
    /// One sentence that says what it does.
    pub description: &'static str,
    /// What it spends its time on: `integer`, `float`, `memory` or `system`.
    pub kind: &'static str,
    /// Arguments of a run that takes a few milliseconds.
    pub arguments: &'static [&'static str],
    /// Its builds, such as `loongarch64/hello`.
    pub builds: &'static [&'static str],
}

impl Entry {
    /// Whether it is a program.
    pub fn is_program(&self) -> bool {
        self.path.starts_with("guests/")
    }
}

/// The file at a path from the repository's root.
pub fn entry(path: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.path == path)
}

/// The experiment files, in the order of their names.
pub fn experiments() -> impl Iterator<Item = &'static Entry> {
    let is_one =
        |entry: &&Entry| entry.path.strip_prefix("experiments/").is_some_and(|name| !name.contains('/'));
    ENTRIES.iter().filter(is_one)
}

/// The content of a file.
pub fn contents(entry: &Entry) -> &'static [u8] {
    static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
    let whole = WHOLE.get_or_init(|| {
        let packed = include_bytes!(concat!(env!("OUT_DIR"), "/shipped.zst"));
        zstd::bulk::decompress(packed, BYTES).expect("the build has packed this frame")
    });
    &whole[entry.offset..][..entry.length]
}
