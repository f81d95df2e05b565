//! Exports the table of an experiment as JSON lines and, with the feature `parquet`, as Parquet. The bytes depend only
//! on the results, and the files can be regenerated from the store at any time.
//!
//! Source: JSON Lines 1.0.

mod csv;
#[cfg(feature = "parquet")]
mod parquet;

pub use csv::csv;

use crate::store::Results;
use crate::table::{Table, object};
use serde_json::json;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A table that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {what}; the results are still safe in the store")]
pub struct ExportError {
    /// Path of the file.
    pub path: PathBuf,
    /// The error.
    pub what: String,
    /// The error of the operating system, if it is one.
    pub error: Option<io::Error>,
}

/// The files written.
#[derive(Clone, Debug)]
pub struct Exported {
    /// The table as Parquet; `None` without the feature `parquet`.
    pub parquet: Option<PathBuf>,
    /// The table as JSON lines.
    pub lines: PathBuf,
    /// Host-dependent metrics as JSON lines. They differ on every run and are not part of the result.
    pub host: PathBuf,
}

/// Writes the table, sorted by key, to `folder`/`name`.jsonl, .host.jsonl and, with the feature `parquet`, .parquet.
///
/// # Errors
/// If a file cannot be written. The old file is then unchanged.
pub fn export(folder: &Path, name: &str, table: &Table, results: &Results) -> Result<Exported, ExportError> {
    let mut rows: Vec<_> = table.rows.iter().collect();
    rows.sort_by(|a, b| a.key.cmp(&b.key));
    rows.dedup_by(|a, b| a.key == b.key);
    let path = |ending: &str| folder.join(format!("{name}.{ending}"));
    let mut all = Vec::new();
    #[cfg(feature = "parquet")]
    {
        let file = path("parquet");
        let bytes = parquet::encode(table, &rows).map_err(|error| {
            let what = error.to_string();
            ExportError { path: file.clone(), what, error: None }
        })?;
        all.push((file, bytes));
    }
    let parquet = all.first().map(|(file, _): &(PathBuf, Vec<u8>)| file.clone());
    let files = Exported { parquet, lines: path("jsonl"), host: path("host.jsonl") };
    let lines: String = rows.iter().map(|row| format!("{}\n", object(table, row))).collect();
    let costs = rows.iter().filter_map(|row| results.get(&row.key));
    let costs: String = costs.map(|r| format!("{}\n", json!({ "key": r.key, "host": r.host }))).collect();
    all.extend([(files.lines.clone(), lines.into_bytes()), (files.host.clone(), costs.into_bytes())]);
    // Do not rewrite identical files, so that a read-only directory works too.
    let is_changed = |(path, bytes): &(PathBuf, Vec<u8>)| !std::fs::read(path).is_ok_and(|old| old == *bytes);
    for (path, bytes) in all.into_iter().filter(is_changed) {
        write_atomically(&path, &bytes).map_err(|error| {
            let what = error.to_string();
            ExportError { path, what, error: Some(error) }
        })?;
    }
    Ok(files)
}

#[cfg(feature = "parquet")]
impl Table {
    /// The rows as a Parquet file, in the order of the table. A metric with intervals is followed by half of its interval
    /// (`NAME.half`) and the number of its runs (`NAME.runs`), as in CSV.
    ///
    /// # Errors
    /// The encoder's error.
    pub fn to_parquet(&self) -> Result<Vec<u8>, String> {
        let rows: Vec<_> = self.rows.iter().collect();
        parquet::encode(self, &rows).map_err(|error| error.to_string())
    }
}

/// Writes a file atomically. A link stays, and the file it leads to is replaced. Pipes, devices and files in /dev and /proc
/// are written in place.
///
/// # Errors
/// The error of the operating system.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let is_special = std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file());
    if is_special || path.starts_with("/dev") || path.starts_with("/proc") {
        return std::fs::write(path, bytes);
    }
    let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let temporary = path.with_file_name(temporary_name(
        &name.to_string_lossy(),
        &crate::store::host(),
        std::process::id(),
    ));
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.and_then(|()| std::fs::rename(&temporary, path)).inspect_err(|_| {
        // Ignored: the temporary file may not exist.
        let _ = std::fs::remove_file(&temporary);
    })
}

/// Name of the temporary file. It includes the host, because processes on hosts that share the directory may have the
/// same ID.
fn temporary_name(name: &str, host: &str, process: u32) -> String {
    format!(".{name}.{host}-{process}.part")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_with_the_same_id_on_two_hosts_write_to_different_files() {
        assert_ne!(temporary_name("t.jsonl", "a", 7), temporary_name("t.jsonl", "b", 7));
        // A directory at the path of the temporary file makes the write fail.
        let folder = tempfile::tempdir().unwrap();
        let temporary = temporary_name("t.jsonl", &crate::store::host(), std::process::id());
        std::fs::create_dir(folder.path().join(temporary)).unwrap();
        let error = write_atomically(&folder.path().join("t.jsonl"), b"{}").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
        write_atomically(&folder.path().join("u.jsonl"), b"{}").unwrap();
    }

    #[test]
    fn links_stay_and_pipes_are_written_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        std::fs::write(&file, "before").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        write_atomically(&link, b"after").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&file).unwrap(), b"after");
        write_atomically(Path::new("/dev/null"), b"nothing").unwrap();
        let error = write_atomically(folder.path(), b"").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
    }
}
