//! The experiments, their machine files and the guest programs that ship inside the `longma` command.
//!
//! The build packs them into one zstd frame. Experiments and programs are used through their paths, so [`extract`]
//! writes them to the user's cache folder in the layout of the repository.

mod cache;
mod guests;

pub use cache::{CacheFolders, ExtractError, extract};
pub use guests::{GuestError, PREFIX, guest, guest_file, guest_or};

use std::sync::OnceLock;

include!(concat!(env!("OUT_DIR"), "/tables.rs"));

/// A file inside the command.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    /// Path from the repository's root, such as `experiments/tcp-receive.toml`.
    pub path: &'static str,
    /// Offset of the contents in the decompressed frame, bytes.
    offset: usize,
    /// Length of the contents, bytes.
    length: usize,
    /// SHA-256 of the contents.
    sha256: [u8; 32],
}

/// A guest program.
#[derive(Debug, PartialEq, Eq)]
pub struct Guest {
    /// Name, such as `hello`.
    pub name: &'static str,
    /// Description in one sentence.
    pub description: &'static str,
    /// Dominant kind of work: `integer`, `float`, `memory` or `system`.
    pub kind: &'static str,
    /// Arguments for a run of a few milliseconds.
    pub arguments: &'static [&'static str],
    /// Builds as `ARCHITECTURE/FILE`, such as `loongarch64/hello`.
    pub builds: &'static [&'static str],
}

impl Entry {
    /// Returns whether the file is a guest program.
    pub fn is_program(&self) -> bool {
        self.path.starts_with("guests/")
    }
}

/// The file at `path`, relative to the repository's root; `None` if there is none.
pub fn entry(path: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.path == path)
}

/// The experiment files, ordered by name.
pub fn experiments() -> impl Iterator<Item = &'static Entry> {
    let is_one =
        |entry: &&Entry| entry.path.strip_prefix("experiments/").is_some_and(|name| !name.contains('/'));
    ENTRIES.iter().filter(is_one)
}

/// The contents of a file. The first call decompresses all files.
pub fn contents(entry: &Entry) -> &'static [u8] {
    static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
    let whole = WHOLE.get_or_init(|| {
        let packed = include_bytes!(concat!(env!("OUT_DIR"), "/shipped.zst"));
        zstd::bulk::decompress(packed, BYTES).expect("the build has packed this frame")
    });
    &whole[entry.offset..][..entry.length]
}
