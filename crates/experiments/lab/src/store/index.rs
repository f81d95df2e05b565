//! An index of a large store, so that opening it does not read every record: a SQLite database with the segment and
//! offset of each record. The results themselves stay in the segments; the index is rebuilt if it is missing or does
//! not match them.
//!
//! Source: SQLite's file format and locking, <https://sqlite.org/lockingv3.html>.

use super::segment::{self, Line};
use crate::key::Key;
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, params};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file in the store.
pub(super) const INDEX: &str = "index.sqlite";
/// Version of the tables.
const VERSION: i64 = 1;
const TABLES: &str = "
    CREATE TABLE segments (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, read INTEGER NOT NULL,
        lines INTEGER NOT NULL, last INTEGER NOT NULL, checksum BLOB NOT NULL);
    CREATE TABLE records (key BLOB NOT NULL, segment INTEGER NOT NULL, start INTEGER NOT NULL, length INTEGER NOT NULL,
        PRIMARY KEY (key, segment, start)) WITHOUT ROWID;
    CREATE TABLE damage (segment INTEGER NOT NULL, line INTEGER NOT NULL, what TEXT NOT NULL);";
/// How long to wait for another process that writes the index.
const WAIT: Duration = Duration::from_secs(10);
/// Bytes of a key.
const KEY: usize = 16;
/// Maximum number of records that are sorted before they are inserted; they take 32 MB.
const SORTED: usize = 1 << 20;
const INSERT: &str = "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)";
/// Bytes of the checksum at the beginning of a line.
const CHECKSUM: usize = 8;

/// An open index.
pub(super) struct Index {
    connection: Connection,
}

/// The indexed state of a segment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Known {
    id: i64,
    /// Bytes of complete lines.
    pub(super) read: u64,
    lines: usize,
    /// The offset of the last of these lines, and its checksum: a mismatch means that the file is a different segment.
    last: u64,
    checksum: Vec<u8>,
}

/// Where a record is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Location {
    pub(super) segment: PathBuf,
    pub(super) start: u64,
    pub(super) length: usize,
}

impl Index {
    /// Opens the index of the store in `folder`, creates it if it is missing, and replaces it if it is unusable. In a
    /// read-only folder, an existing index is opened unchanged.
    pub(super) fn open(folder: &Path) -> rusqlite::Result<Self> {
        let path = folder.join(INDEX);
        match Self::open_at(&path) {
            Err(error) if is_unusable(&error) => {
                // The index can be rebuilt from the segments.
                let _ = std::fs::remove_file(&path);
                Self::open_at(&path)
            }
            opened => opened,
        }
    }

    fn open_at(path: &Path) -> rusqlite::Result<Self> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(WAIT)?;
        // A power cut may destroy the index, but not the results. Keys are random, so the cache should hold the pages
        // of a million records.
        connection.execute_batch("PRAGMA synchronous = OFF; PRAGMA cache_size = -65536;")?;
        let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        let mut index = Self { connection };
        if version == 0 {
            let change = index.change()?;
            // Another process may have been faster.
            let version: i64 = change.query_row("PRAGMA user_version", [], |row| row.get(0))?;
            if version == 0 {
                change.execute_batch(TABLES)?;
                change.pragma_update(None, "user_version", VERSION)?;
            }
            change.commit()?;
        } else if version != VERSION {
            return Err(rusqlite::Error::SqliteFailure(
                rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_NOTADB),
                None,
            ));
        }
        Ok(index)
    }

    fn change(&mut self) -> rusqlite::Result<Transaction<'_>> {
        self.connection.transaction_with_behavior(TransactionBehavior::Immediate)
    }

    /// Adds the records appended to the segments since the last call.
    pub(super) fn update(&mut self, segments: &[PathBuf]) -> rusqlite::Result<()> {
        let is_current = |known: &BTreeMap<String, Known>| {
            known.len() == segments.len()
                && segments.iter().all(|path| {
                    let known = known.get(&*name(path));
                    known.is_some_and(|known| length(path).ok() == Some(known.read) && known.fits(path))
                })
        };
        if is_current(&self.known()?) {
            return Ok(());
        }
        let change = self.change()?;
        let known = known(&change)?;
        let kept: Vec<_> = segments.iter().map(|path| name(path)).collect();
        for (_, gone) in known.iter().filter(|(name, _)| !kept.contains(name)) {
            forget(&change, gone.id)?;
        }
        for path in segments {
            let before = known.get(&*name(path)).filter(|known| known.fits(path));
            if let (None, Some(other)) = (before, known.get(&*name(path))) {
                forget(&change, other.id)?;
            }
            add(&change, path, before)?;
        }
        change.commit()
    }

    /// The indexed state of each segment, by file name.
    pub(super) fn known(&self) -> rusqlite::Result<BTreeMap<String, Known>> {
        known(&self.connection)
    }

    /// Where the records of a point are, in the order in which they are read.
    pub(super) fn locations(&self, folder: &Path, key: &Key) -> rusqlite::Result<Vec<Location>> {
        let mut query = self.connection.prepare_cached(
            "SELECT name, start, length FROM records JOIN segments ON segment = id WHERE key = ? ORDER BY name, start",
        )?;
        let found = query.query_map([key_bytes(key.as_str())], |row| {
            let (name, start, length): (String, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(Location { segment: folder.join(name), start: start as u64, length: length as usize })
        })?;
        found.collect()
    }

    /// The invalid lines of the segments: file name, line number, error.
    pub(super) fn damage(&self) -> rusqlite::Result<Vec<(String, usize, String)>> {
        let mut query = self.connection.prepare(
            "SELECT name, line, what FROM damage JOIN segments ON segment = id ORDER BY name, line",
        )?;
        let found = query.query_map([], |row| {
            let (name, line, what): (String, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok((name, line as usize, what))
        })?;
        found.collect()
    }
}

impl Known {
    /// Whether the segment still begins with the indexed bytes.
    pub(super) fn fits(&self, path: &Path) -> bool {
        let mut found = vec![0; self.checksum.len()];
        let mut read = || {
            let file = File::open(path)?;
            let is_long_enough = file.metadata()?.len() >= self.read;
            file.read_exact_at(&mut found, self.last)?;
            Ok::<_, io::Error>(is_long_enough && found == self.checksum)
        };
        self.read == 0 || read().unwrap_or(false)
    }
}

/// Whether a database must be recreated: it is damaged, or not a database of this version.
fn is_unusable(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt))
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn length(path: &Path) -> io::Result<u64> {
    std::fs::metadata(path).map(|about| about.len())
}

/// Keys are 32 hexadecimal digits, which take 16 bytes. Others stay text.
fn key_bytes(key: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(key.get(at..at + 2)?, 16).ok();
    let bytes = (0..key.len()).step_by(2).map(digit).collect::<Option<Vec<u8>>>();
    bytes
        .filter(|bytes| bytes.len() == KEY && !key.bytes().any(|b| b.is_ascii_uppercase() || b == b'+'))
        .unwrap_or_else(|| key.as_bytes().to_vec())
}

fn known(connection: &Connection) -> rusqlite::Result<BTreeMap<String, Known>> {
    let mut query = connection.prepare("SELECT name, id, read, lines, last, checksum FROM segments")?;
    let found = query.query_map([], |row| {
        let (read, lines, last): (i64, i64, i64) = (row.get(2)?, row.get(3)?, row.get(4)?);
        let (id, checksum) = (row.get(1)?, row.get(5)?);
        let known = Known { id, read: read as u64, lines: lines as usize, last: last as u64, checksum };
        Ok((row.get(0)?, known))
    })?;
    found.collect()
}

fn forget(change: &Transaction<'_>, segment: i64) -> rusqlite::Result<()> {
    for table in ["records WHERE segment", "damage WHERE segment", "segments WHERE id"] {
        change.execute(&format!("DELETE FROM {table} = ?"), [segment])?;
    }
    Ok(())
}

/// A record of a segment: its key, where it begins, and its length.
type Entry = ([u8; KEY], u64, u32);

/// Indexes the lines of a segment that are not indexed yet.
fn add(change: &Transaction<'_>, path: &Path, before: Option<&Known>) -> rusqlite::Result<()> {
    let id = match before {
        Some(known) => known.id,
        None => {
            let values = (name(path), 0, 0, 0, Vec::<u8>::new());
            let into = "INSERT INTO segments (name, read, lines, last, checksum) VALUES (?, ?, ?, ?, ?)";
            change.execute(into, values)?;
            change.last_insert_rowid()
        }
    };
    let start = Known { id, read: 0, lines: 0, last: 0, checksum: Vec::new() };
    let mut known = before.cloned().unwrap_or(start);
    let mut insert = change.prepare_cached(INSERT)?;
    let mut damage = change.prepare_cached("INSERT INTO damage VALUES (?, ?, ?)")?;
    let from = known.read;
    let mut entries: Vec<Entry> = Vec::new();
    let outcome = segment::each_line(path, from, &mut |Line { start, bytes }| {
        known.lines += 1;
        known.last = start;
        known.read = start + bytes.len() as u64 + 1;
        known.checksum.clear();
        known.checksum.extend(&bytes[..bytes.len().min(CHECKSUM)]);
        let json = match super::record::checked(bytes) {
            Ok(json) => json,
            Err(what) => return damage.execute(params![id, known.lines as i64, what]).map(drop),
        };
        if let (Some(key), Ok(length)) = (first_key(json), u32::try_from(bytes.len())) {
            entries.push((key, start, length));
            return if entries.len() < SORTED { Ok(()) } else { insert_all(change, id, &mut entries) };
        }
        match serde_json::from_slice::<Keyed>(json) {
            Ok(Keyed { key }) => insert
                .execute(params![key_bytes(key.as_str()), id, start as i64, bytes.len() as i64])
                .map(drop),
            Err(_) => {
                let what = "it was written by another version of longma";
                damage.execute(params![id, known.lines as i64, what]).map(drop)
            }
        }
    });
    outcome.map_err(|error| match error {
        segment::LineError::Read(error) => rusqlite::Error::ToSqlConversionFailure(error.into()),
        segment::LineError::Handler(error) => error,
    })?;
    insert_all(change, id, &mut entries)?;
    let values = params![known.read as i64, known.lines as i64, known.last as i64, known.checksum, id];
    change.execute("UPDATE segments SET read = ?, lines = ?, last = ?, checksum = ? WHERE id = ?", values)?;
    Ok(())
}

/// The part of a record that the index needs.
#[derive(serde::Deserialize)]
struct Keyed {
    key: Key,
}

/// The key of a record as this version writes it, at the beginning. The rest is parsed when the record is needed.
fn first_key(json: &[u8]) -> Option<[u8; KEY]> {
    let digits = json.strip_prefix(b"{\"key\":\"")?;
    let (digits, rest) = digits.split_at_checked(2 * KEY)?;
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut key = [0; KEY];
    for (byte, pair) in key.iter_mut().zip(digits.chunks(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    (rest.starts_with(b"\"") && json.ends_with(b"}")).then_some(key)
}

/// Inserts the records in the order of their keys, so that neighbouring ones go to the same pages.
fn insert_all(change: &Transaction<'_>, segment: i64, entries: &mut Vec<Entry>) -> rusqlite::Result<()> {
    let mut insert = change.prepare_cached(INSERT)?;
    entries.sort_unstable();
    entries.drain(..).try_for_each(|(key, start, length)| {
        insert.execute(params![key, segment, start as i64, length]).map(drop)
    })
}

/// Open segments by path.
#[derive(Default)]
pub(super) struct Segments(BTreeMap<PathBuf, File>);

impl Segments {
    /// Reads the line at `location`, without its newline.
    pub(super) fn line(&mut self, location: &Location) -> io::Result<Vec<u8>> {
        /// Maximum number of open files. Each writer has a segment of its own.
        const OPEN: usize = 64;
        let mut bytes = vec![0; location.length];
        if !self.0.contains_key(&location.segment) {
            if self.0.len() == OPEN {
                self.0.clear();
            }
            self.0.insert(location.segment.clone(), File::open(&location.segment)?);
        }
        self.0[&location.segment].read_exact_at(&mut bytes, location.start)?;
        Ok(bytes)
    }
}

/// The offset up to which the segment at `path` is indexed.
pub(super) fn indexed(known: &BTreeMap<String, Known>, path: &Path) -> u64 {
    known.get(&*name(path)).filter(|known| known.fits(path)).map_or(0, |known| known.read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_key_as_this_version_writes_it_is_taken_without_parsing() {
        let digits = "00112233445566778899aabbccddeeff";
        let key = first_key(format!("{{\"key\":\"{digits}\",\"workload\":1}}").as_bytes());
        assert_eq!(key.map(|key| key.to_vec()), Some(key_bytes(digits)));
        for json in [
            format!("{{\"key\":\"{}\"}}", digits.to_uppercase()),
            format!("{{\"key\":\"{digits}0\"}}"),
            format!("{{\"key\":\"{}\"}}", &digits[1..]),
            format!("{{ \"key\":\"{digits}\"}}"),
            format!("{{\"key\":\"{digits}\""),
            "{\"key\":\"\u{e4}".into(),
        ] {
            assert_eq!(first_key(json.as_bytes()), None, "{json}");
        }
    }
}
