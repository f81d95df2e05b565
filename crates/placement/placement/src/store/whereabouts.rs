//! Whether a database's files are still where whoever starts next will look for them. A process writes on to a file that was moved or
//! deleted, and what it answers then is lost.
//! Not locks: those keep others out.
//! Source: SQLite's "How To Corrupt An SQLite Database File", 2.4 (unlinking or renaming a database file while in use).

use std::fs::metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A file system and a file in it.
type Number = (u64, u64);

fn number(path: &Path) -> Option<Number> {
    metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Files that were opened.
#[derive(Debug)]
pub(super) struct Whereabouts {
    /// Each with what it was when it was first seen.
    files: [(PathBuf, OnceLock<Number>); 2],
}

impl Whereabouts {
    /// Those of the database at `path`, which is open: itself, and its log, which SQLite makes when it needs it.
    pub fn of(path: &Path) -> Self {
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        let files = [(path.to_owned(), OnceLock::new()), (log.into(), OnceLock::new())];
        let all = Self { files };
        // What is not there yet is noted later.
        let _ = all.check();
        all
    }

    /// Whether they are there.
    ///
    /// # Errors
    /// Which is not, and what to do.
    pub fn check(&self) -> Result<(), String> {
        for (path, known) in &self.files {
            let now = number(path);
            let Some(then) = known.get() else {
                if let Some(now) = now {
                    // Another thread saw the same.
                    let _ = known.set(now);
                }
                continue;
            };
            if now != Some(*then) {
                return Err(format!(
                    "{} was moved, deleted or replaced while it is in use: nothing is written any more. Put the same file back, \
                     or end the service and start it with the file that is to count",
                    path.display()
                ));
            }
        }
        Ok(())
    }
}
