//! The store: a directory with all results, which several campaigns and hosts may share.
//!
//! docs/src/reference/experiments.md describes the files.

mod claims;
#[cfg(feature = "index")]
mod index;
mod record;
mod segment;
mod selected;
mod tail;

use longma_locks::IgnorePoison;
pub use record::Record;

use crate::key::Key;
pub(crate) use claims::{ClaimResult, Claims};
use segment::Segment;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;
pub(crate) use tail::Tail;

/// Directory of the segments within a store.
const SEGMENTS: &str = "segments";
/// Extension of a segment file.
const ENDING: &str = ".records";

/// A directory of results. It is created with the first record.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    /// The size in bytes from which the store has an index; the default if `None`.
    index_from: Option<u64>,
}

/// Why a store cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file cannot be read.
    #[error("cannot read the results in {path}: {error}")]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The directory cannot be written.
    #[error("cannot write results to {path}: {error}; give another folder with --store")]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// A record could not be appended.
    #[error(
        "cannot add a result to {path}: {error}; all {stored} earlier results are safe: fix the cause and \
            run the same command again"
    )]
    Append {
        /// The segment.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
        /// Number of results stored by this run.
        stored: usize,
    },
}

/// An invalid line of a segment. Its point counts as not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidLine {
    /// The segment.
    pub path: PathBuf,
    /// Line number, from 1.
    pub line: usize,
    /// The error.
    pub what: String,
}

impl std::fmt::Display for InvalidLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let InvalidLine { path, line, what } = self;
        write!(f, "{}: line {line} is ignored: {what}; its point runs again", path.display())
    }
}

/// The records of a store by key, one per point.
#[derive(Clone, Debug, Default)]
pub struct Results {
    records: BTreeMap<Key, Record>,
    /// Invalid lines.
    pub damage: Vec<InvalidLine>,
    /// Points whose runs gave different results.
    pub contradictions: Vec<Contradiction>,
}

/// A point with different results in two runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Contradiction {
    /// The record that is used.
    pub kept: Record,
    /// The other record.
    pub other: Record,
}

impl std::fmt::Display for Contradiction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        /// Maximum number of metrics to list.
        const SHOWN: usize = 4;
        let (kept, other) = (&self.kept.metrics, &self.other.metrics);
        let names: BTreeSet<_> =
            kept.keys().chain(other.keys()).filter(|name| kept.get(*name) != other.get(*name)).collect();
        let value = |value: Option<&f64>| value.map_or("nothing".into(), f64::to_string);
        // List the experiment's own metrics first. Counters of components have several dots in their names, and there
        // are many.
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_by_key(|name| (!name.starts_with("run."), name.matches('.').count()));
        let pair =
            |name: &&String| format!("{name} {} and {}", value(kept.get(*name)), value(other.get(*name)));
        let shown: Vec<_> = names.iter().take(SHOWN).map(pair).collect();
        write!(f, "two runs of the point {} gave different results: {}", self.kept.key, shown.join(", "))?;
        match names.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, ", and {more} more metrics"),
        }
    }
}

/// Result of [`Store::merge`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Merged {
    /// New records.
    pub added: usize,
    /// Records that already existed.
    pub known: usize,
    /// Merged points whose results differ from each other or from existing ones.
    pub contradictions: Vec<Contradiction>,
    /// Invalid lines of the merged store.
    pub damage: Vec<InvalidLine>,
}

impl Store {
    /// The store in `folder`.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), index_from: None }
    }

    /// Its directory.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Reads all records. A missing store is empty.
    ///
    /// # Errors
    /// If a file cannot be read. Invalid lines are not errors, see [`Results::damage`].
    pub fn results(&self) -> Result<Results, StoreError> {
        Tail::begin(self).map(|(results, _)| results)
    }

    /// Reads the records of these points, and perhaps others. Memory is needed only for these points, whatever the size
    /// of the store: a large store is indexed.
    ///
    /// # Errors
    /// Like [`Store::results`].
    pub fn results_of<'a>(&self, keys: impl IntoIterator<Item = &'a Key>) -> Result<Results, StoreError> {
        Tail::begin_of(self, &keys.into_iter().collect()).map(|(results, _)| results)
    }

    /// Runs `work` while holding an exclusive lock on the store, also against other hosts that share the directory. If
    /// locking is unavailable, runs it without.
    pub fn exclusively<T>(&self, work: impl FnOnce() -> T) -> T {
        let claims = Claims::open(self);
        let _held = claims.claim_store();
        work()
    }

    fn segments(&self) -> Result<Vec<PathBuf>, StoreError> {
        let folder = self.folder.join(SEGMENTS);
        let listed = fs::read_dir(&folder).and_then(|entries| {
            entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()
        });
        let mut paths = match listed {
            Ok(paths) => paths,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(StoreError::Read { path: folder, error }),
        };
        paths.retain(|path| path.to_string_lossy().ends_with(ENDING));
        paths.sort();
        Ok(paths)
    }

    /// Creates a new segment to write to. Any number of writers may exist.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn writer(&self) -> Result<Writer, StoreError> {
        let folder = self.folder.join(SEGMENTS);
        let write_error = |path: &Path| {
            let path = path.to_path_buf();
            move |error| StoreError::Write { path, error }
        };
        fs::create_dir_all(&folder).map_err(write_error(&folder))?;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let host = host();
        for attempt in 0.. {
            let name = format!("{:020}-{host}-{}-{attempt}{ENDING}", since.as_nanos(), std::process::id());
            let path = folder.join(name);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => {
                    // Make the directory entry durable too.
                    File::open(&folder).and_then(|f| f.sync_all()).map_err(write_error(&folder))?;
                    let inner = Inner { segment: Segment::new(file), stored: 0 };
                    return Ok(Writer { path, inner: Mutex::new(inner) });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(StoreError::Write { path, error }),
            }
        }
        unreachable!("some name is free");
    }

    /// Adds the records of another store that this one does not have.
    ///
    /// # Errors
    /// One store cannot be read, or the other cannot be written.
    pub fn merge(&self, other: &Store) -> Result<Merged, StoreError> {
        let source = other.results()?;
        let damage = source.damage;
        let disputed = source.contradictions.into_iter().map(|c| c.other);
        self.add(source.records.into_values().chain(disputed).collect(), damage)
    }

    /// Adds the records of `lines`, in the format of [`Results::lines`].
    ///
    /// # Errors
    /// If the store cannot be read or written. Invalid lines are skipped and reported.
    pub fn merge_lines(&self, lines: &[u8]) -> Result<Merged, StoreError> {
        let (records, damaged) = segment::read(lines);
        let damage = damaged.into_iter().map(|(line, what)| InvalidLine {
            path: "standard input".into(),
            line,
            what: what.into(),
        });
        self.add(records, damage.collect())
    }

    fn add(&self, records: Vec<Record>, damage: Vec<InvalidLine>) -> Result<Merged, StoreError> {
        let mut existing = self.results()?;
        let all = records.len();
        let keys: BTreeSet<_> = records.iter().map(|record| record.key.clone()).collect();
        let new_records: Vec<_> = records.into_iter().filter(|record| existing.add(record.clone())).collect();
        if !new_records.is_empty() {
            let writer = self.writer()?;
            new_records.iter().try_for_each(|record| writer.append(record))?;
            writer.finish()?;
        }
        let mut contradictions = existing.contradictions;
        contradictions.retain(|contradiction| keys.contains(&contradiction.kept.key));
        Ok(Merged { added: new_records.len(), known: all - new_records.len(), contradictions, damage })
    }
}

impl Results {
    /// The record with this key.
    pub fn get(&self, key: &Key) -> Option<&Record> {
        self.records.get(key)
    }

    /// Number of points with a record.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Adds a record. Returns whether it is new. A result replaces a failure. If two results differ, the choice between
    /// them does not depend on the order of the calls. A failure caused by the host is ignored.
    pub fn add(&mut self, record: Record) -> bool {
        if record.failure.as_ref().is_some_and(|failure| !failure.kind.is_of_point()) {
            return false;
        }
        let mut entry = match self.records.entry(record.key.clone()) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(record);
                return true;
            }
            std::collections::btree_map::Entry::Occupied(entry) => entry,
        };
        let rank = |r: &Record| (r.failure.is_some(), r.result_text());
        let (old, new) = (rank(entry.get()), rank(&record));
        let other = if new < old { entry.insert(record) } else { record };
        let differ = !old.0 && !new.0 && old.1 != new.1;
        let is_disputed = differ && record_contradiction(&mut self.contradictions, entry.get(), other);
        is_disputed || new < old
    }

    /// The records of `keys` as the lines of a segment.
    pub fn lines<'a>(&self, keys: impl IntoIterator<Item = &'a Key>) -> String {
        keys.into_iter().filter_map(|key| self.get(key)).map(Record::to_line).collect()
    }
}

/// Records that `other` contradicts `kept`. Returns false if that was known.
fn record_contradiction(contradictions: &mut Vec<Contradiction>, kept: &Record, other: Record) -> bool {
    for known in contradictions.iter_mut().filter(|known| known.kept.key == kept.key) {
        known.kept = kept.clone();
        if known.other.result_text() == other.result_text() {
            return false;
        }
    }
    contradictions.push(Contradiction { kept: kept.clone(), other });
    true
}

/// Appends records to its own segment.
pub struct Writer {
    path: PathBuf,
    inner: Mutex<Inner>,
}

struct Inner {
    segment: Segment<File>,
    stored: usize,
}

impl Writer {
    /// Appends a complete record. It survives the end of the process immediately, and a power failure after a moment.
    ///
    /// # Errors
    /// If it could not be written. All earlier records are safe.
    pub fn append(&self, record: &Record) -> Result<(), StoreError> {
        let mut inner = self.inner.lock().ignore_poison();
        let appended = inner.segment.append(record);
        let stored = inner.stored;
        inner.stored += usize::from(appended.is_ok());
        appended.map_err(|error| StoreError::Append { path: self.path.clone(), error, stored })
    }

    /// Makes all records durable.
    ///
    /// # Errors
    /// If the operating system reports an error.
    pub fn finish(self) -> Result<(), StoreError> {
        let mut inner = self.inner.into_inner().ignore_poison();
        let stored = inner.stored;
        inner.segment.sync().map_err(|error| StoreError::Append { path: self.path, error, stored })
    }
}

/// Name of this host, for use in file names.
pub(crate) fn host() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    host.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// Opens a regular file. Opening anything else, such as a pipe, might block.
fn open_file(path: &Path) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        let what = "it is not a regular file; move it out of the store";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    File::open(path)
}

/// Reads a regular file.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_file(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::failure::Failure;
    use crate::setting::Setting;

    /// The record of point `n`.
    pub(crate) fn record(n: i64) -> Record {
        Record {
            key: format!("{n:032x}").as_str().into(),
            workload: "test".into(),
            machine: None,
            parameters: BTreeMap::from([("n".to_string(), Setting::Integer(n))]),
            metrics: BTreeMap::from([("value".to_string(), n as f64 / 3.0)]),
            intervals: BTreeMap::new(),
            failure: None,
            host: BTreeMap::from([("seconds".to_string(), 0.25)]),
        }
    }

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("results"));
        (folder, store)
    }

    #[test]
    fn a_non_file_in_a_store_is_rejected_without_blocking() {
        let (_folder, store) = store();
        fill(&store, 0..1);
        let path = store.folder().join(SEGMENTS).join(format!("z{ENDING}"));
        let status = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(status.success());
        let error = store.results().map(drop).expect_err("it is not a segment").to_string();
        assert!(error.contains("not a regular file") && error.contains(&*path.to_string_lossy()), "{error}");
    }

    fn fill(store: &Store, numbers: std::ops::Range<i64>) {
        let writer = store.writer().unwrap();
        numbers.for_each(|n| writer.append(&record(n)).unwrap());
        writer.finish().unwrap();
    }

    #[test]
    fn concurrent_writers_lose_no_results() {
        let (_folder, store) = store();
        std::thread::scope(|scope| {
            scope.spawn(|| fill(&store, 0..500));
            scope.spawn(|| fill(&store, 400..900));
        });
        let results = store.results().unwrap();
        assert_eq!(results.len(), 900);
        assert!((0..900).all(|n| results.get(&record(n).key) == Some(&record(n))));
        assert!(results.contradictions.is_empty() && results.damage.is_empty());
    }

    #[test]
    fn a_result_takes_precedence_over_a_failure_in_any_order() {
        let failed =
            Record { metrics: BTreeMap::new(), failure: Some(Failure::failed("broken")), ..record(1) };
        for order in [[record(1), failed.clone()], [failed, record(1)]] {
            let mut results = Results::default();
            for record in order {
                results.add(record);
            }
            assert_eq!(results.get(&record(1).key), Some(&record(1)));
        }
    }

    #[test]
    fn a_host_failure_is_not_a_result_of_the_point() {
        // In the older format, which does not mark failures caused by the host.
        let late = serde_json::json!({ "kind": "late", "message": "took longer than 1 s" });
        let failure = Some(serde_json::from_value(late).unwrap());
        let mut results = Results::default();
        assert!(!results.add(Record { metrics: BTreeMap::new(), failure, ..record(1) }));
        assert!(results.is_empty());
    }

    #[test]
    fn a_merge_reports_every_contradiction_with_both_values_and_keeps_both() {
        let ((_a, existing), (_b, source)) = (store(), store());
        let with =
            |value: f64| Record { metrics: BTreeMap::from([("value".to_string(), value)]), ..record(1) };
        let put = |store: &Store, records: &[Record]| {
            let writer = store.writer().unwrap();
            records.iter().for_each(|record| writer.append(record).unwrap());
        };
        put(&existing, &[with(1.0)]);
        put(&source, &[with(2.0), with(3.0), record(4)]);
        let merged = existing.merge(&source).unwrap();
        assert_eq!((merged.added, merged.known), (3, 0));
        let pairs = |contradictions: &[Contradiction]| -> Vec<_> {
            contradictions.iter().map(|c| (c.kept.metrics["value"], c.other.metrics["value"])).collect()
        };
        assert_eq!(pairs(&merged.contradictions), [(1.0, 2.0), (1.0, 3.0)]);
        assert_eq!(pairs(&existing.results().unwrap().contradictions), [(1.0, 2.0), (1.0, 3.0)]);
        // A repeated merge adds nothing, but still reports the contradictions.
        let again = existing.merge(&source).unwrap();
        assert_eq!((again.added, again.known), (0, 3));
        assert_eq!(pairs(&again.contradictions), [(1.0, 2.0), (1.0, 3.0)]);
    }

    #[test]
    fn a_merge_reports_the_lines_that_it_omits() {
        let (_folder, store) = store();
        let lines = record(1).to_line() + "0000000 {}\n";
        let merged = store.merge_lines(lines.as_bytes()).unwrap();
        assert_eq!((merged.added, merged.damage.len(), merged.damage[0].line), (1, 1, 2));
    }

    #[test]
    fn contradictory_results_of_a_point_are_reported_and_the_choice_is_stable() {
        let other = Record { metrics: BTreeMap::from([("value".to_string(), 7.0)]), ..record(1) };
        let kept = [[record(1), other.clone()], [other, record(1)]].map(|order| {
            let mut results = Results::default();
            for record in order {
                results.add(record);
            }
            let messages: Vec<_> = results.contradictions.iter().map(ToString::to_string).collect();
            let key = record(1).key;
            let wanted =
                format!("two runs of the point {key} gave different results: value 0.3333333333333333 and 7");
            assert_eq!(messages, [wanted]);
            results.get(&record(1).key).cloned()
        });
        assert_eq!(kept[0], kept[1]);
    }

    #[test]
    fn merging_adds_missing_records_once() {
        let ((_a, existing), (_b, source)) = (store(), store());
        fill(&existing, 0..10);
        fill(&source, 5..20);
        let merged = |added, known| Merged { added, known, ..Merged::default() };
        assert_eq!(existing.merge(&source).unwrap(), merged(10, 5));
        assert_eq!(existing.merge(&source).unwrap(), merged(0, 15));
        assert_eq!(existing.results().unwrap().len(), 20);
        let lines = source.results().unwrap().lines(&[record(7).key]);
        assert_eq!(
            Store::new(existing.folder().join("third")).merge_lines(lines.as_bytes()).unwrap().added,
            1
        );
    }

    #[test]
    fn an_unwritable_store_is_reported_with_its_path_and_a_remedy() {
        let error = Store::new("/proc/longma").writer().err().unwrap().to_string();
        assert!(error.contains("/proc/longma") && error.contains("--store"), "{error}");
        assert!(Store::new("/proc/longma").results().unwrap().is_empty());
    }
}
