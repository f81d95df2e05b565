//! Reads only the records of some points: through the store's index or, without an index, by a scan of the whole store.

use super::segment::{self, Line, LineError};
use super::{InvalidLine, Record, Results, Store, StoreError};
use crate::key::Key;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

/// The records of `keys`, and the position after the last complete line of each segment.
pub(super) fn select(
    store: &Store,
    segments: &[PathBuf],
    keys: &BTreeSet<&Key>,
) -> Result<(Results, BTreeMap<PathBuf, u64>), StoreError> {
    let mut results = Results::default();
    let mut read = indexed(store, segments, keys, &mut results);
    for path in segments {
        let from = read.get(path).copied().unwrap_or(0);
        let to = scan(path, from, keys, &mut results);
        let to = to.map_err(|error| StoreError::Read { path: path.clone(), error })?;
        read.insert(path.clone(), to);
    }
    Ok((results, read))
}

/// Adds the records that the index knows. Returns for each segment the end of its indexed part; without a usable index,
/// an empty map.
#[cfg(feature = "index")]
fn indexed(
    store: &Store,
    segments: &[PathBuf],
    keys: &BTreeSet<&Key>,
    results: &mut Results,
) -> BTreeMap<PathBuf, u64> {
    use super::index::{self, Index};
    let folder = store.folder().join(super::SEGMENTS);
    let look_up = || -> rusqlite::Result<_> {
        let mut index = Index::open(store.folder())?;
        // The store is read-only, or another process is indexing it: the part that is not indexed is scanned.
        let _ = index.update(segments);
        let known = index.known()?;
        let (mut found, mut lines) = (Results::default(), index::Segments::default());
        for key in keys {
            for location in index.locations(&folder, key)? {
                let line = lines.line(&location).unwrap_or_default();
                match Record::from_line(&line) {
                    Ok(record) if record.key == **key => drop(found.add(record)),
                    Ok(_) => {}
                    Err(what) => found.damage.push(InvalidLine {
                        line: lines_before(&location.segment, location.start).unwrap_or(0) + 1,
                        path: location.segment,
                        what: what.into(),
                    }),
                }
            }
        }
        let damage = index.damage()?.into_iter();
        found.damage.extend(damage.map(|(name, line, what)| InvalidLine {
            path: folder.join(name),
            line,
            what,
        }));
        let read = segments.iter().map(|path| (path.clone(), index::indexed(&known, path))).collect();
        Ok((found, read))
    };
    match look_up() {
        Ok((found, read)) => {
            *results = found;
            read
        }
        Err(_) => BTreeMap::new(),
    }
}

#[cfg(not(feature = "index"))]
fn indexed(_: &Store, _: &[PathBuf], _: &BTreeSet<&Key>, _: &mut Results) -> BTreeMap<PathBuf, u64> {
    BTreeMap::new()
}

/// Adds the records of `keys` from the lines at `from` and later. Returns the end of the last complete line.
fn scan(path: &Path, from: u64, keys: &BTreeSet<&Key>, results: &mut Results) -> io::Result<u64> {
    if from > 0 && std::fs::metadata(path)?.len() == from {
        return Ok(from);
    }
    let (mut to, mut lines) = (from, 0);
    let mut damaged: Vec<(usize, &'static str)> = Vec::new();
    let mut handler = |Line { start, bytes }: Line<'_>| {
        lines += 1;
        to = start + bytes.len() as u64 + 1;
        match Record::from_line(bytes) {
            Ok(record) if keys.contains(&record.key) => drop(results.add(record)),
            Ok(_) => {}
            Err(what) => damaged.push((lines, what)),
        }
        Ok::<(), io::Error>(())
    };
    let is_cut_off = segment::each_line(path, from, &mut handler).map_err(|error| match error {
        LineError::Read(error) | LineError::Handler(error) => error,
    })?;
    if is_cut_off {
        damaged.push((lines + 1, "its writer was interrupted"));
    }
    let before = if damaged.is_empty() { 0 } else { lines_before(path, from)? };
    let damage = damaged.into_iter();
    results.damage.extend(damage.map(|(line, what)| InvalidLine {
        path: path.into(),
        line: before + line,
        what: what.into(),
    }));
    Ok(to)
}

/// Number of lines that begin before `end`.
fn lines_before(path: &Path, end: u64) -> io::Result<usize> {
    let mut lines = 0;
    let mut count = |line: Line<'_>| {
        let is_before = line.start < end;
        lines += usize::from(is_before);
        if is_before { Ok(()) } else { Err(()) }
    };
    match segment::each_line(path, 0, &mut count) {
        Err(LineError::Read(error)) => Err(error),
        _ => Ok(lines),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::record;
    use proptest::prelude::*;
    use std::fs;
    use std::io::Write;

    /// A store that is treated as a large one.
    fn store(folder: &Path) -> Store {
        Store { index_from: Some(0), ..Store::new(folder) }
    }

    fn fill(store: &Store, numbers: std::ops::Range<i64>) {
        let writer = store.writer().unwrap();
        numbers.for_each(|n| writer.append(&record(n)).unwrap());
        writer.finish().unwrap();
    }

    fn numbers(store: &Store, wanted: &[i64]) -> (Vec<i64>, Vec<usize>) {
        let keys: Vec<Key> = wanted.iter().map(|n| record(*n).key).collect();
        let results = store.results_of(&keys).unwrap();
        let found: Vec<i64> =
            wanted.iter().copied().filter(|n| results.get(&record(*n).key) == Some(&record(*n))).collect();
        assert_eq!(found.len(), results.len(), "other records are not read");
        (found, results.damage.iter().map(|damage| damage.line).collect())
    }

    fn segment(store: &Store) -> PathBuf {
        store.segments().unwrap().remove(0)
    }

    #[test]
    fn only_the_records_of_the_points_are_read_with_those_appended_since() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        fill(&store, 0..100);
        assert_eq!(numbers(&store, &[3, 99, 100]), (vec![3, 99], vec![]));
        fill(&store, 100..120);
        assert_eq!(numbers(&store, &[3, 100, 119]), (vec![3, 100, 119], vec![]));
        fs::remove_file(segment(&store)).unwrap();
        assert_eq!(numbers(&store, &[3, 100]), (vec![100], vec![]));
        assert!(cfg!(not(feature = "index")) || folder.path().join("index.sqlite").exists());
    }

    #[test]
    fn contradictions_are_found_across_segments() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        fill(&store, 0..3);
        let other = Record { metrics: BTreeMap::from([("value".into(), 7.0)]), ..record(1) };
        store.writer().unwrap().append(&other).unwrap();
        for _ in 0..2 {
            let results = store.results_of([&record(1).key]).unwrap();
            assert_eq!(results.contradictions.len(), 1);
        }
    }

    #[test]
    fn damaged_cut_and_replaced_segments_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        fill(&store, 0..4);
        let path = segment(&store);
        let whole = fs::read(&path).unwrap();
        assert_eq!(numbers(&store, &[0, 1, 2, 3]).0, [0, 1, 2, 3]);
        // A byte of the second line changes after it was indexed.
        let mut bytes = whole.clone();
        let second = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 40;
        bytes[second] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(numbers(&store, &[0, 1, 2]), (vec![0, 2], vec![2]));
        // An incomplete line, and then the rest of it.
        let line = record(9).to_line();
        fs::write(&path, [&whole, &line.as_bytes()[..30]].concat()).unwrap();
        assert_eq!(numbers(&store, &[3, 9]), (vec![3], vec![5]));
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(&line.as_bytes()[30..]).unwrap();
        assert_eq!(numbers(&store, &[3, 9]), (vec![3, 9], vec![]));
        // Another file under the same name, longer and shorter.
        let others: String = (10..90).map(|n| record(n).to_line()).collect();
        fs::write(&path, &others).unwrap();
        assert_eq!(numbers(&store, &[1, 20]), (vec![20], vec![]));
        fs::write(&path, record(20).to_line()).unwrap();
        assert_eq!(numbers(&store, &[20, 21]), (vec![20], vec![]));
    }

    #[test]
    fn a_record_of_another_version_is_named_when_it_is_needed() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        fill(&store, 0..3);
        let json = format!("{{\"key\":\"{}\",\"old\":1}}", record(7).key);
        let line = format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()));
        fs::OpenOptions::new()
            .append(true)
            .open(segment(&store))
            .unwrap()
            .write_all(line.as_bytes())
            .unwrap();
        for _ in 0..2 {
            assert_eq!(numbers(&store, &[1, 7]), (vec![1], vec![4]));
        }
    }

    #[test]
    fn an_unusable_index_is_made_again_and_a_store_without_one_is_scanned() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        fill(&store, 0..10);
        let index = folder.path().join("index.sqlite");
        fs::write(&index, "not a database, and long enough to be taken for the header of one".repeat(20))
            .unwrap();
        assert_eq!(numbers(&store, &[5]).0, [5]);
        fs::remove_file(&index).unwrap();
        fs::create_dir(&index).unwrap();
        assert_eq!(numbers(&store, &[5]).0, [5]);
    }

    #[test]
    fn concurrent_readers_and_writers_find_every_record() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        fill(&store, 0..1);
        std::thread::scope(|scope| {
            for part in 1..4 {
                let store = &store;
                scope.spawn(move || {
                    fill(store, part * 100..part * 100 + 50);
                    let wanted: Vec<i64> = (part * 100..part * 100 + 50).collect();
                    // Another writer's last line may be incomplete at this moment.
                    assert_eq!(numbers(store, &wanted).0, wanted);
                });
            }
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn it_finds_what_reading_everything_finds(
            parts in prop::collection::vec(prop::collection::vec(0..12i64, 0..8), 1..6), wanted in prop::collection::vec(0..12i64, 0..6),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let store = store(folder.path());
            for part in &parts {
                let writer = store.writer().unwrap();
                part.iter().for_each(|n| writer.append(&record(*n)).unwrap());
                writer.finish().unwrap();
                let keys: Vec<Key> = wanted.iter().map(|n| record(*n).key).collect();
                let (selected, all) = (store.results_of(&keys).unwrap(), store.results().unwrap());
                for key in &keys {
                    prop_assert_eq!(selected.get(key), all.get(key));
                }
            }
        }
    }
}
