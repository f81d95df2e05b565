//! Detects that a database's files were moved, deleted, replaced or emptied while open. The process could still write to the
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
    /// Each path with the identity that its file had when it was first recorded.
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
    /// The file that is not in place, and the remedy.
    pub fn check(&self) -> Result<(), String> {
        let [(database, known), _] = &self.files;
        // The log may be empty, the database never is.
        if known.get().is_some() && metadata(database).is_ok_and(|found| found.len() == 0) {
            return Err(format!(
                "{} was emptied while in use: the service writes nothing more. Stop the service and restore the file \
                 from a backup: virtual machines keep running meanwhile",
                database.display()
            ));
        }
        for (path, known) in &self.files {
            let current = inode_of(path);
            let Some(recorded) = known.get() else {
                if let Some(current) = current {
                    // Fails only if another thread has already stored the same value.
                    let _ = known.set(current);
                }
                continue;
            };
            if current != Some(*recorded) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emptied_database_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("placement.db");
        std::fs::write(&path, "pages").unwrap();
        let files = FileIdentity::of(&path);
        assert_eq!(files.check(), Ok(()));
        std::fs::write(folder.path().join("placement.db-wal"), "").unwrap();
        assert_eq!(files.check(), Ok(()), "a log may be empty");
        std::fs::File::create(&path).unwrap();
        let why = files.check().unwrap_err();
        assert!(why.contains("placement.db was emptied"), "{why}");
    }
}
