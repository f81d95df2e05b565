//! A segment: a file to which one writer appends records, one per line. Each line has a checksum, so an incomplete
//! write loses only the affected line.

use super::record::Record;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Maximum delay until records survive a power failure. They survive the end of the process immediately.
const SYNC_EVERY: Duration = Duration::from_millis(200);

/// File operations of a segment. Tests replace the file by a failing one.
pub(super) trait Backing: Send {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    fn sync(&mut self) -> io::Result<()>;
    /// Truncates to `length` after a failed append.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
}

impl Backing for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }
    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)?;
        self.seek(SeekFrom::Start(length)).map(|_| ())
    }
}

/// A file that records are appended to.
pub(super) struct Segment<B> {
    backing: B,
    length: u64,
    unsynced: Option<Instant>,
}

impl<B: Backing> Segment<B> {
    /// Creates an empty segment.
    pub(super) fn new(backing: B) -> Self {
        Self { backing, length: 0, unsynced: None }
    }

    /// Appends a complete record, or leaves the segment unchanged.
    pub(super) fn append(&mut self, record: &Record) -> io::Result<()> {
        let line = record.to_line();
        if let Err(error) = self.backing.append(line.as_bytes()) {
            // Readers skip an incomplete line, so nothing is lost if the truncation fails.
            let _ = self.backing.truncate(self.length);
            return Err(error);
        }
        self.length += line.len() as u64;
        let since = *self.unsynced.get_or_insert_with(Instant::now);
        if since.elapsed() >= SYNC_EVERY { self.sync() } else { Ok(()) }
    }

    /// Makes all appended records durable.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if self.unsynced.is_some() {
            self.backing.sync()?;
            self.unsynced = None;
        }
        Ok(())
    }
}

/// A complete line of a segment.
pub(super) struct Line<'a> {
    /// Position of its first byte in the segment.
    pub(super) start: u64,
    /// Its bytes without the newline.
    pub(super) bytes: &'a [u8],
}

/// Why not all lines of a segment were handled.
pub(super) enum LineError<E> {
    /// The segment cannot be read.
    Read(io::Error),
    /// The handler returned an error.
    Handler(E),
}

/// Calls `handler` with every complete line of the segment at `path` that begins at `from` or later, without reading
/// the whole segment into memory. Returns whether an incomplete line follows.
pub(super) fn each_line<E>(
    path: &Path,
    from: u64,
    handler: &mut dyn FnMut(Line<'_>) -> Result<(), E>,
) -> Result<bool, LineError<E>> {
    const BUFFER: usize = 256 << 10;
    let open = || {
        let mut file = super::open_file(path)?;
        file.seek(SeekFrom::Start(from)).map(|_| BufReader::with_capacity(BUFFER, file))
    };
    let mut reader = open().map_err(LineError::Read)?;
    let (mut start, mut line) = (from, Vec::new());
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line).map_err(LineError::Read)?;
        let Some(bytes) = line.strip_suffix(b"\n") else { return Ok(read > 0) };
        handler(Line { start, bytes }).map_err(LineError::Handler)?;
        start += read as u64;
    }
}

/// Parses a segment. Returns its records, and the numbers (from 1) of invalid lines with the reason.
pub(super) fn read(bytes: &[u8]) -> (Vec<Record>, Vec<(usize, &'static str)>) {
    let (mut records, mut damaged) = (Vec::new(), Vec::new());
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        let is_last = lines.peek().is_none();
        match line.strip_suffix(b"\n") {
            None => damaged.push((index + 1, "its writer was interrupted")),
            Some(line) => match Record::from_line(line) {
                Ok(record) => records.push(record),
                Err(_) if is_last && line.is_empty() => {}
                Err(what) => damaged.push((index + 1, what)),
            },
        }
    }
    (records, damaged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::record;
    use proptest::prelude::*;

    /// A file on a disk with limited free space.
    struct SmallDisk {
        bytes: Vec<u8>,
        free_bytes: usize,
    }

    impl Backing for &mut SmallDisk {
        fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
            let fits = bytes.len().min(self.free_bytes - self.bytes.len());
            self.bytes.extend(&bytes[..fits]);
            if fits == bytes.len() { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
        }
        fn sync(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn truncate(&mut self, length: u64) -> io::Result<()> {
            self.bytes.truncate(length as usize);
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_loses_only_the_record_that_does_not_fit() {
        let mut disk = SmallDisk { bytes: Vec::new(), free_bytes: 1000 };
        let mut segment = Segment::new(&mut disk);
        let mut stored = 0;
        let error = loop {
            match segment.append(&record(stored)) {
                Ok(()) => stored += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(stored > 2);
        // After space has been freed, the same writer continues.
        segment.backing.free_bytes = 2000;
        segment.append(&record(stored)).unwrap();
        let (records, damaged) = read(&disk.bytes);
        assert_eq!(records, (0..=stored).map(record).collect::<Vec<_>>());
        assert!(damaged.is_empty());
    }

    proptest! {
        #[test]
        fn a_segment_cut_anywhere_keeps_every_record_before_the_cut(share in 0.0..1.0f64) {
            let lines: Vec<_> = (0..8).map(|n| record(n).to_line()).collect();
            let whole = lines.concat();
            let truncate = (whole.len() as f64 * share) as usize;
            let (records, damaged) = read(&whole.as_bytes()[..truncate]);
            let mut end = 0;
            let complete = lines.iter().take_while(|line| { end += line.len(); end <= truncate }).count();
            prop_assert_eq!(records, (0..complete as i64).map(record).collect::<Vec<_>>());
            prop_assert!(damaged.len() <= 1);
        }

        #[test]
        fn a_changed_byte_loses_at_most_the_lines_it_touches(at in 0.0..1.0f64, new in any::<u8>()) {
            let mut bytes = (0..8).map(|n| record(n).to_line()).collect::<String>().into_bytes();
            let at = (bytes.len() as f64 * at) as usize;
            let old = std::mem::replace(&mut bytes[at], new);
            let (records, damaged) = read(&bytes);
            prop_assert!(records.iter().all(|r| (0..8).any(|n| record(n) == *r)));
            let least = if old == new { 8 } else { 6 };
            prop_assert!(records.len() >= least);
            prop_assert!((old == new) == damaged.is_empty());
        }
    }
}
