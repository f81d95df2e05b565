//! Consistent copies of a SQLite database file, also while a service uses it.
//!
//! Source: SQLite's documentation of VACUUM INTO, whose target may be an empty file.

use super::sql_store::SqlStore;
use super::sqlite::BUSY_TIMEOUT;
use super::tables::Result;
use super::{StoreError, schema};
use rusqlite::{Connection, OpenFlags};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

impl SqlStore {
    /// Copies the database file `from` to the new file `to`, which only its owner can read: it contains digests of
    /// tokens. The copy is checked and durable when this returns.
    ///
    /// # Errors
    /// If `from` is not a database of this program or is damaged, or if `to` exists or cannot be written.
    pub fn backup(from: &Path, to: &Path) -> Result<()> {
        let failed = |path: &Path, error: &dyn std::fmt::Display| {
            StoreError::Database(format!("{}: {error}", path.display()))
        };
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let source = Connection::open_with_flags(from, flags).map_err(|e| failed(from, &e))?;
        source.busy_timeout(BUSY_TIMEOUT)?;
        schema::check_sqlite(&source).map_err(|e| failed(from, &e))?;
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to);
        drop(made.map_err(|e| failed(to, &e))?);
        let copied = copy(&source, to);
        if copied.is_err() {
            // An incomplete copy must not be mistaken for a backup.
            let _ = fs::remove_file(to);
        }
        copied.map_err(|e| failed(to, &e))
    }
}

fn copy(source: &Connection, to: &Path) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let name = to.to_str().ok_or("the path is not valid UTF-8")?;
    source.execute("VACUUM INTO ?1", [name])?;
    let copy = Connection::open_with_flags(to, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let found: String = copy.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    if found != "ok" {
        return Err(format!("the copy is damaged: {found}").into());
    }
    drop(copy);
    File::open(to)?.sync_all()?;
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(File::open(folder)?.sync_all()?)
}
