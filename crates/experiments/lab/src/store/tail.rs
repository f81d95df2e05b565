//! Reads a store incrementally: each call returns the records appended to any segment since the previous call. A line
//! that is still being written is returned by a later call.

use super::{InvalidLine, Record, Results, Store, StoreError, read_file, segment};
use crate::key::Key;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// How far each segment has been read: to the end of its last complete line.
pub(crate) struct Tail {
    store: Store,
    read: BTreeMap<PathBuf, u64>,
}

impl Tail {
    /// Reads all records, and returns the position after them.
    pub(crate) fn begin(store: &Store) -> Result<(Results, Self), StoreError> {
        let (mut results, mut read) = (Results::default(), BTreeMap::new());
        for path in store.segments()? {
            let bytes = match read_file(&path) {
                Ok(bytes) => bytes,
                Err(error) => return Err(StoreError::Read { path, error }),
            };
            let (records, damaged) = segment::read(&bytes);
            for record in records {
                results.add(record);
            }
            results.damage.extend(damaged.into_iter().map(|(line, what)| InvalidLine {
                path: path.clone(),
                line,
                what: what.into(),
            }));
            read.insert(path, whole_lines(&bytes));
        }
        Ok((results, Self { store: store.clone(), read }))
    }

    /// Reads the records of these points, and returns the position after all records. Of a small store, reads all: that
    /// is faster than an index.
    pub(crate) fn begin_of(store: &Store, keys: &BTreeSet<&Key>) -> Result<(Results, Self), StoreError> {
        /// Smaller stores are read as a whole in less than a tenth of a second.
        const SMALL: u64 = 4 << 20;
        let segments = store.segments()?;
        let length = |path: &PathBuf| std::fs::metadata(path).map_or(0, |about| about.len());
        if segments.iter().map(length).sum::<u64>() <= store.index_from.unwrap_or(SMALL) {
            return Self::begin(store);
        }
        let (results, read) = super::selected::select(store, &segments, keys)?;
        Ok((results, Self { store: store.clone(), read }))
    }

    /// Returns the records appended since the last call.
    pub(crate) fn new_records(&mut self) -> Result<Vec<Record>, StoreError> {
        let mut new_records = Vec::new();
        for path in self.store.segments()? {
            let from = self.read.get(&path).copied().unwrap_or(0);
            match bytes_from(&path, from) {
                Ok(bytes) => {
                    let whole = whole_lines(&bytes);
                    // Invalid lines are reported when the store is opened next.
                    new_records.extend(segment::read(&bytes[..whole as usize]).0);
                    self.read.insert(path, from + whole);
                }
                Err(error) => return Err(StoreError::Read { path, error }),
            }
        }
        Ok(new_records)
    }
}

fn whole_lines(bytes: &[u8]) -> u64 {
    bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end as u64 + 1)
}

/// The contents of a file after its first `from` bytes.
fn bytes_from(path: &Path, from: u64) -> io::Result<Vec<u8>> {
    let about = std::fs::metadata(path)?;
    if from > 0 && about.len() <= from {
        return Ok(Vec::new());
    }
    if !about.is_file() {
        return read_file(path);
    }
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::record;
    use std::io::Write;

    #[test]
    fn each_record_is_returned_once_when_its_line_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        let writer = store.writer().unwrap();
        writer.append(&record(1)).unwrap();
        let (results, mut tail) = Tail::begin(&store).unwrap();
        assert_eq!(results.len(), 1);
        assert_eq!(tail.new_records().unwrap(), []);
        writer.append(&record(2)).unwrap();
        let other = store.folder().join("segments/z.records");
        let line = record(3).to_line();
        std::fs::write(&other, &line[..20]).unwrap();
        assert_eq!(tail.new_records().unwrap(), [record(2)]);
        let mut file = File::options().append(true).open(&other).unwrap();
        file.write_all(&line.as_bytes()[20..]).unwrap();
        assert_eq!(tail.new_records().unwrap(), [record(3)]);
        assert_eq!(tail.new_records().unwrap(), []);
    }
}
