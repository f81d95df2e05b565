//! Detects that a database's files were moved, deleted or replaced while open. The process could still write to the
//! open file, but no other process would find that data.
//!
//! Source: SQLite's "How To Corrupt An SQLite Database File", 2.4 (unlinking or renaming a database file while in use).

use std::fs::metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Device and inode number of a file.
type Inode = (u64, u64);

fn inode_of(path: &Path) -> Option<Inode> {
    metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// The files of an open database.
#[derive(Debug)]
pub(super) struct FileIdentity {
    /// Each path with the identity of the file when it was first seen.
    files: [(PathBuf, OnceLock<Inode>); 2],
}

impl FileIdentity {
    /// The files of the open database at `path`: the database itself, and its log, which SQLite creates on demand.
    pub fn of(path: &Path) -> Self {
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        let files = [(path.to_owned(), OnceLock::new()), (log.into(), OnceLock::new())];
        let all = Self { files };
        // A file that does not exist yet is recorded later.
        let _ = all.check();
        all
    }

    /// Checks that the files are in place.
    ///
    /// # Errors
    /// Which file is not, and what to do.
    pub fn check(&self) -> Result<(), String> {
        for (path, known) in &self.files {
            let now = inode_of(path);
            let Some(then) = known.get() else {
                if let Some(now) = now {
                    // Fails only if another thread has already stored the same value.
                    let _ = known.set(now);
                }
                continue;
            };
            if now != Some(*then) {
                return Err(format!(
                    "{} was moved, deleted or replaced while in use: the service writes nothing more. Put \
                        the same file back, or stop the service and start it with the right file",
                    path.display()
                ));
            }
        }
        Ok(())
    }
}
