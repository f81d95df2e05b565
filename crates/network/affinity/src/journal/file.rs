//! The journal's file: checksummed lines, its lock, and compaction when most lines are obsolete.
//!
//! Every line is `JSON NUMBER CHECKSUM`, where NUMBER and CHECKSUM are eight hexadecimal digits. The checksum is a
//! CRC-32 of everything before it. The header's number is the count of lines after it, and the other lines are numbered
//! consecutively, so that a damaged or missing line is detected. A line is written before it is counted, and counted
//! before its change is made. So an uncounted or incomplete last line has had no effect.

use super::{Change, Header, JournalError, Line};
use rustix::fs::{FlockOperation, OFlags};
use rustix::process::{Pid, test_kill_process};
use serde::Serialize;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Format version.
pub const FORMAT_VERSION: u32 = 2;
/// Maximum size of a journal in bytes.
const MAX_BYTES: u64 = 64 << 20;
/// How long a lock may outlive its killed owner: a child of the owner inherits the lock until it executes its program.
const INHERITED_LOCK_LIMIT: Duration = Duration::from_secs(5);
const HEIR_DELAY: Duration = Duration::from_millis(10);
/// Start of every journal.
const HEADER_START: &str = "{\"affinity_journal\"";
/// Length of the suffix after the JSON: two spaces and two numbers.
const SEAL_BYTES: usize = 18;
/// How often to reopen a journal that is replaced by compaction between opening and locking.
const MAX_OPENS: usize = 10;

/// The open and locked file.
pub struct Log {
    pub path: PathBuf,
    file: File,
    /// The header's JSON; empty before it is written.
    head: Vec<u8>,
    /// Number of lines after the header.
    pub lines: u32,
    /// Number of bytes in complete lines.
    length: u64,
}

/// Contents of a journal.
pub struct Contents {
    pub header: Option<Header>,
    pub changes: Vec<Change>,
    head: Vec<u8>,
    lines: u32,
    length: u64,
}

impl Log {
    /// Opens and locks the journal. Returns `None` if it does not exist and `make` is false.
    pub fn open(path: &Path, make: bool) -> Result<Option<(Self, Contents)>, JournalError> {
        let failed = |error| failure(path, error);
        for _ in 0..MAX_OPENS {
            let Some(file) = lock(path, make)? else { return Ok(None) };
            let mut log = Self { path: path.into(), file, head: Vec::new(), lines: 0, length: 0 };
            // Another process may have replaced the file between opening and locking.
            let (own, named) = (log.file.metadata().map_err(failed)?, std::fs::symlink_metadata(path));
            if named.is_ok_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino())) {
                let kept = read(path, &mut log.file)?;
                (log.head, log.lines, log.length) = (kept.head.clone(), kept.lines, kept.length);
                return Ok(Some((log, kept)));
            }
        }
        Err(failed(io::Error::other("another program recreates it again and again")))
    }

    /// Starts an empty journal with a header.
    pub fn begin(&mut self, header: &Header) -> Result<(), JournalError> {
        self.empty()?;
        let head = json(header);
        self.write(&sealed(&head, 0))?;
        self.file.sync_data().map_err(|error| failure(&self.path, error))?;
        self.head = head;
        // Make the directory entry durable too.
        if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            let synced = File::open(folder).and_then(|folder| folder.sync_all());
            synced.map_err(|error| failure(&self.path, error))?;
        }
        Ok(())
    }

    /// Appends lines. They are durable and counted when this returns.
    pub fn add(&mut self, lines: &[Line]) -> Result<(), JournalError> {
        let facts = self.file.metadata().map_err(|error| failure(&self.path, error))?;
        if facts.nlink() == 0 {
            let words = "another program removed it while it was in use, so nothing more is changed";
            return Err(failure(&self.path, io::Error::other(words)));
        }
        if facts.len() != self.length {
            let words = "another program changed its length while it was in use, so nothing more is changed";
            return Err(failure(&self.path, io::Error::other(words)));
        }
        let mut text = Vec::new();
        let mut last = self.lines;
        for line in lines {
            last += 1;
            text.extend(sealed(&json(line), last));
        }
        self.write(&text)?;
        self.lines = last;
        let counted = self.file.write_all_at(&sealed(&self.head, self.lines), 0);
        counted.and_then(|()| self.file.sync_data()).map_err(|error| failure(&self.path, error))
    }

    /// Appends bytes. A partial write is truncated, so that the next line does not follow half a line.
    fn write(&mut self, bytes: &[u8]) -> Result<(), JournalError> {
        if let Err(error) = self.file.write_all_at(bytes, self.length) {
            let _ = self.file.set_len(self.length);
            return Err(failure(&self.path, error));
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    pub fn empty(&mut self) -> Result<(), JournalError> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.sync_all());
        (self.lines, self.length) = (0, 0);
        emptied.map_err(|error| failure(&self.path, error))
    }

    /// Compacts the file to these changes. A complete journal exists at the path at all times.
    pub fn renew(&mut self, changes: &[Change]) -> Result<(), JournalError> {
        let mut name = self.path.as_os_str().to_owned();
        name.push(".new");
        let path = PathBuf::from(name);
        let failed = |error| failure(&path, error);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create_new(true).mode(0o600);
        let file = crate::files::regular(options, OFlags::NOFOLLOW, &path).map_err(failed)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| failed(error.into()))?;
        let lines: Vec<Line> = changes.iter().flat_map(Change::lines).collect();
        let mut text = sealed(&self.head, lines.len() as u32);
        for (index, line) in lines.iter().enumerate() {
            text.extend(sealed(&json(line), index as u32 + 1));
        }
        let written = file.write_all_at(&text, 0).and_then(|()| file.sync_all());
        written.and_then(|()| std::fs::rename(&path, &self.path)).map_err(failed)?;
        self.unlock();
        (self.file, self.lines, self.length) = (file, lines.len() as u32, text.len() as u64);
        Ok(())
    }

    /// Unlocks explicitly: a child forked by another thread may inherit the descriptor before exec and keep the lock.
    fn unlock(&self) {
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.unlock();
    }
}

pub fn failure(path: &Path, error: io::Error) -> JournalError {
    JournalError::File { path: path.into(), error }
}

fn json(line: &impl Serialize) -> Vec<u8> {
    // Our own plain data always serializes.
    serde_json::to_vec(line).expect("a line of the journal is plain data")
}

fn sealed(json: &[u8], number: u32) -> Vec<u8> {
    let mut line = json.to_vec();
    line.extend(format!(" {number:08x}").bytes());
    let sum = crc32fast::hash(&line);
    line.extend(format!(" {sum:08x}\n").bytes());
    line
}

/// JSON and number of a line without its newline; `None` if the line is damaged.
fn opened(line: &[u8]) -> Option<(&[u8], u32)> {
    let (json, seal) = line.split_at_checked(line.len().checked_sub(SEAL_BYTES)?)?;
    let number = u32::from_str_radix(std::str::from_utf8(seal.get(1..9)?).ok()?, 16).ok()?;
    let expected = sealed(json, number);
    (expected[..expected.len() - 1] == *line).then_some((json, number))
}

fn lock(path: &Path, make: bool) -> Result<Option<File>, JournalError> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(make).mode(0o600);
    let mut file = match crate::files::regular(options, OFlags::NOFOLLOW, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists());
            return match folder.filter(|_| make) {
                Some(folder) => Err(JournalError::NoDirectory { path: path.into(), folder: folder.into() }),
                None if make => Err(failure(path, error)),
                None => Ok(None),
            };
        }
        opened => opened.map_err(|error| failure(path, error))?,
    };
    let facts = file.metadata().map_err(|error| failure(path, error))?;
    let own = rustix::process::geteuid().as_raw();
    if facts.uid() != own || facts.mode() & 0o022 != 0 {
        let words = "it must be your own file and writable only by you";
        return Err(failure(path, io::Error::new(io::ErrorKind::PermissionDenied, words)));
    }
    let begin = Instant::now();
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let header = read(path, &mut file).ok().and_then(|kept| kept.header);
                let writer = header.map_or(0, |header| header.writer);
                if is_running(writer) || begin.elapsed() >= INHERITED_LOCK_LIMIT {
                    return Err(JournalError::InUse { path: path.into(), writer });
                }
                std::thread::sleep(HEIR_DELAY);
            }
            Err(error) => return Err(failure(path, error.into())),
        }
    }
}

/// Returns whether a process exists. An unknown one counts as running.
fn is_running(process: u32) -> bool {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    process.is_none_or(|process| test_kill_process(process) != Err(rustix::io::Errno::SRCH))
}

/// Reads the header and the changes.
pub fn read(path: &Path, file: &mut File) -> Result<Contents, JournalError> {
    let mut text = Vec::new();
    let all = file.rewind().and_then(|()| file.take(MAX_BYTES + 1).read_to_end(&mut text));
    all.map_err(|error| failure(path, error))?;
    let damaged = |line: usize, why: &'static str| JournalError::Damaged { path: path.into(), line, why };
    if text.is_empty() {
        return Ok(Contents { header: None, changes: Vec::new(), head: Vec::new(), lines: 0, length: 0 });
    }
    if text.len() as u64 > MAX_BYTES {
        return Err(damaged(1, "the file is too long to be a journal"));
    }
    let complete = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let mut lines =
        text[..complete].split_inclusive(|byte| *byte == b'\n').map(|line| &line[..line.len() - 1]);
    let first = lines.next();
    let (head, count) = first.and_then(opened).ok_or_else(|| match form(&text) {
        Some(form) if form != FORMAT_VERSION => JournalError::FormatVersion { path: path.into(), form },
        _ if text.starts_with(HEADER_START.as_bytes()) => damaged(1, "it does not match its checksum"),
        _ => damaged(1, "it does not begin like a journal"),
    })?;
    let header: Header = match form(head) {
        Some(FORMAT_VERSION) => serde_json::from_slice(head).map_err(|_| damaged(1, "it is not a header"))?,
        Some(form) => return Err(JournalError::FormatVersion { path: path.into(), form }),
        None => return Err(damaged(1, "it is not a header")),
    };
    let (mut changes, mut places) = (Vec::<Change>::new(), HashMap::new());
    let mut number = 0;
    for line in lines {
        number += 1;
        let at = number as usize + 1;
        let (json, own) = opened(line).ok_or_else(|| damaged(at, "it does not match its checksum"))?;
        if own != number {
            return Err(damaged(at, "lines before it are missing or out of order"));
        }
        let line: Line =
            serde_json::from_slice(json).map_err(|_| damaged(at, "it does not name a setting"))?;
        let place = *places.entry(line.setting.clone()).or_insert(changes.len());
        match changes.get_mut(place) {
            Some(change) => change.becomes(line.becomes),
            None => changes.push(Change::of(line)),
        }
    }
    // An uncounted last line has had no effect. Fewer lines than counted mean that the file was truncated.
    if number < count {
        return Err(damaged(number as usize + 2, "it is missing, but its change was made"));
    }
    Ok(Contents {
        header: Some(header),
        changes,
        head: head.to_vec(),
        lines: number,
        length: complete as u64,
    })
}

/// The format version stated by a journal.
fn form(text: &[u8]) -> Option<u32> {
    let first = text.split(|byte| *byte == b'\n').next()?;
    let json = &first[..first.iter().rposition(|byte| *byte == b'}')? + 1];
    serde_json::from_slice::<serde_json::Value>(json).ok()?["affinity_journal"].as_u64()?.try_into().ok()
}

#[cfg(test)]
mod tests;
