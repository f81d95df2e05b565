//! What was changed on a host, kept on disk before it is changed, so that it can be put back whatever happens.
//! Not which changes are made: those are the sweep's and the tuner's.
//! Source: the order of a write-ahead log: the intent is durable before the deed.
//!
//! One line of JSON each: a header, then for every change the setting, what it was, and what it becomes. A last line without its end was
//! being written when the writer died, so its change was not made.

use crate::ethtool::DriverFact;
use crate::host::Host;
use crate::identity::Identity;
use crate::setting::Setting;
use crate::threads;
use rustix::fs::{FlockOperation, OFlags};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A longer file is no journal of ours, bytes.
const MAX_BYTES: u64 = 64 << 20;

/// How a journal begins.
const BEGINNING: &str = "{\"affinity_journal\"";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    affinity_journal: u32,
    /// Where the changes are made: [`Host::identity`].
    host: Identity,
    writer: u32,
    /// Whether what it changed is gone with it.
    #[serde(default)]
    ends_with_writer: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    setting: Setting,
    before: String,
    becomes: String,
}

/// A setting that was changed.
#[derive(Clone, Debug)]
struct Change {
    setting: Setting,
    original: String,
    /// What it was made, the last one last: after a crash the last may not have been written.
    ours: Vec<String>,
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process changes settings now.
    #[error("another longma (process {writer}) is changing settings of this host; its journal is {}", path.display())]
    Held {
        /// Its journal.
        path: PathBuf,
        /// Its number; 0 if it has not said.
        writer: u32,
    },
    /// An earlier run did not put back what it had changed.
    #[error("an earlier run was killed and left {settings} settings changed: `longma affinity restore` puts them back (journal {})", path.display())]
    LeftOver {
        /// Its journal.
        path: PathBuf,
        /// How many settings.
        settings: usize,
    },
    /// The journal was made in another boot or network namespace.
    #[error("the journal {} is of another boot or network namespace ({was}, here {here}); a boot has put back all settings: remove it if it is of none that still runs", path.display())]
    Elsewhere {
        /// The journal.
        path: PathBuf,
        /// Where it was made.
        was: Identity,
        /// Where this is.
        here: Identity,
    },
    /// The journal cannot be read or written.
    #[error("the journal {}: {error}", path.display())]
    File {
        /// The journal.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file is none, or a line in its middle is damaged.
    #[error("{} is no journal, or line {line} of it is damaged: nothing was changed", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// Somebody else changed a setting since it was last looked at.
    #[error("{setting} was made `{found}` by somebody else (here it was made `{ours}`): it is left alone")]
    Foreign {
        /// The setting.
        setting: Setting,
        /// What it is.
        found: String,
        /// What it was made here.
        ours: String,
    },
    /// The kernel refuses the change, or took another value.
    #[error("{setting} cannot be made `{value}`: {error}")]
    Refused {
        /// The setting.
        setting: Setting,
        /// The value.
        value: String,
        /// What the system said.
        error: io::Error,
    },
}

/// What became of a setting when all was put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// It is as it was before the first change.
    Restored,
    /// Somebody else has changed it meanwhile: left alone.
    Foreign {
        /// What it is now.
        found: String,
    },
    /// Its file is gone, as with an interface that was removed.
    Gone,
    /// The kernel refused; the journal keeps it, for another try.
    Failed {
        /// What the system said.
        why: String,
    },
}

/// What came of putting back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// What became of every setting that was changed, the last changed first.
    pub settings: Vec<(Setting, Fate)>,
    /// Whether only an inode number says that this is the network namespace where they were changed: another may have it by now.
    pub may_be_another: bool,
}

impl Restored {
    /// Whether every setting is as it was, or gone.
    pub fn is_whole(&self) -> bool {
        self.settings.iter().all(|(_, fate)| matches!(fate, Fate::Restored | Fate::Gone))
    }
}

/// The only writer of settings of a host. Dropped, it puts all back.
pub struct Journal<'a> {
    host: &'a dyn Host,
    path: PathBuf,
    file: File,
    changes: Vec<Change>,
}

impl<'a> Journal<'a> {
    /// Begins an empty journal at `path`, which is made with mode 0600.
    ///
    /// # Errors
    /// If another process holds it, or an earlier one left changes in it, or it cannot be written.
    pub fn begin(path: &Path, host: &'a dyn Host) -> Result<Self, JournalError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| file_error(path, error))?;
        }
        let mut file = lock(path, true)?.ok_or_else(|| file_error(path, io::ErrorKind::NotFound.into()))?;
        let (header, changes) = read(path, &mut file)?;
        if let Some(header) = header.filter(|header| !changes.is_empty() && !header.ends_with_writer) {
            // A boot has put everything back, so what an earlier one left is nothing to keep.
            if header.host.is_same_boot(&host.identity()) {
                return Err(JournalError::LeftOver { path: path.into(), settings: changes.len() });
            }
        }
        let mut journal = Self { host, path: path.into(), file, changes: Vec::new() };
        journal.empty()?;
        let header = Header {
            affinity_journal: 1,
            host: host.identity(),
            writer: std::process::id(),
            ends_with_writer: host.ends_with_writer(),
        };
        journal.append(&header)?;
        // The file's name must outlast a crash too.
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            let synced = File::open(folder).and_then(|folder| folder.sync_all());
            synced.map_err(|error| file_error(path, error))?;
        }
        Ok(journal)
    }

    /// Puts back what a killed process left in the journal at `path`; none if there is nothing.
    ///
    /// # Errors
    /// If the process still runs, or the journal is damaged or of another boot or namespace.
    pub fn recover(path: &Path, host: &'a dyn Host) -> Result<Option<Restored>, JournalError> {
        let Some(mut file) = lock(path, false)? else { return Ok(None) };
        let (header, changes) = read(path, &mut file)?;
        let left = header.filter(|header| !changes.is_empty() && !header.ends_with_writer);
        let Some(header) = left else { return Ok(None) };
        let here = host.identity();
        if !header.host.is_same(&here) {
            return Err(JournalError::Elsewhere { path: path.into(), was: header.host, here });
        }
        let may_be_another = !(header.host.is_certain() && here.is_certain());
        let mut journal = Self { host, path: path.into(), file, changes };
        journal.inherit()?;
        Ok(Some(Restored { may_be_another, ..journal.put_back()? }))
    }

    /// Makes a setting `value`: first in the journal, then on the host, then looked at.
    ///
    /// # Errors
    /// If somebody else has changed it since, or the kernel refuses. The setting is then as it was found.
    pub fn set(&mut self, setting: &Setting, value: &str) -> Result<(), JournalError> {
        let refused = |error| JournalError::Refused { setting: setting.clone(), value: value.into(), error };
        let found = setting.read(self.host).map_err(refused)?;
        let known = self.changes.iter().position(|change| change.setting == *setting);
        if let Some(change) = known.map(|index| &self.changes[index]) {
            change.foreign(&found).map_or(Ok(()), Err)?;
        }
        if known.is_none() && setting.means_same(&found, value) {
            // Nothing to put back, but it matters if somebody changes it.
            let ours = vec![value.to_string()];
            self.changes.push(Change { setting: setting.clone(), original: found, ours });
            return Ok(());
        }
        let original = known.map_or(found.clone(), |index| self.changes[index].original.clone());
        self.append(&Line { setting: setting.clone(), before: original.clone(), becomes: value.into() })?;
        let index = known.unwrap_or_else(|| {
            self.changes.push(Change { setting: setting.clone(), original, ours: vec![found.clone()] });
            self.changes.len() - 1
        });
        setting.write(self.host, value).map_err(refused)?;
        let now = setting.read(self.host).map_err(refused)?;
        let change = &mut self.changes[index];
        change.ours = vec![value.into()];
        if setting.means_same(&now, value) {
            return Ok(());
        }
        if setting.means_same(&now, &found) {
            change.ours = vec![found];
            return Err(refused(io::Error::other("it is unchanged after it was written")));
        }
        Err(JournalError::Foreign { setting: setting.clone(), found: now, ours: value.into() })
    }

    /// Takes over the threads that were begun by threads which are bound here, and have inherited their CPUs: they are put back too.
    /// Threads of the same process and those of its children are found, as long as the process lives.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn inherit(&mut self) -> Result<(), JournalError> {
        let mut processes: BTreeMap<u32, (String, Vec<String>)> = BTreeMap::new();
        for change in &self.changes {
            if let Setting::Thread { process, .. } = change.setting {
                processes.entry(process).or_insert_with(|| (change.original.clone(), change.ours.clone()));
            }
        }
        let mut queue: Vec<(u32, String, Vec<String>)> =
            processes.into_iter().map(|(process, (original, ours))| (process, original, ours)).collect();
        while let Some((process, original, ours)) = queue.pop() {
            for thread in threads::of_process(self.host, process) {
                let Some(stat) = threads::stat(self.host, process, thread) else { continue };
                let setting = Setting::Thread { process, thread, started: stat.started };
                let Ok(found) = setting.read(self.host) else { continue };
                let is_known = self.changes.iter().any(|change| change.setting == setting);
                if is_known || !ours.iter().any(|ours| setting.means_same(ours, &found)) {
                    continue;
                }
                self.append(&Line {
                    setting: setting.clone(),
                    before: original.clone(),
                    becomes: found.clone(),
                })?;
                self.changes.push(Change { setting, original: original.clone(), ours: vec![found] });
            }
            let children = threads::children(self.host, process).into_iter();
            queue.extend(children.map(|child| (child, original.clone(), ours.clone())));
        }
        Ok(())
    }

    /// Every setting that somebody else has changed since it was changed here.
    pub fn foreign(&self) -> Vec<JournalError> {
        let look = |change: &Change| {
            // What cannot be read is gone; putting back will say so.
            change.setting.read(self.host).ok().and_then(|found| change.foreign(&found))
        };
        self.changes.iter().filter_map(look).collect()
    }

    /// Puts everything back, the last changed first.
    ///
    /// # Errors
    /// If the journal cannot be written; the settings are back even so.
    pub fn restore(mut self) -> Result<Restored, JournalError> {
        // What could not be written down is put back all the same.
        let _ = self.inherit();
        self.put_back()
    }

    fn put_back(&mut self) -> Result<Restored, JournalError> {
        let mut restored = Restored::default();
        let mut left = Vec::new();
        let mut changes = std::mem::take(&mut self.changes);
        changes.reverse();
        // While what they want is still there.
        changes.sort_by_key(|change| !matches!(change.setting, Setting::Threaded(_)));
        for at in 0..changes.len() {
            let mut fate = changes[at].put_back(self.host);
            let change = changes[at].clone();
            if matches!(fate, Fate::Failed { .. }) && self.gro_on(&mut changes, &change.setting) {
                fate = change.put_back(self.host);
            }
            restored.settings.push((change.setting.clone(), fate.clone()));
            if matches!(fate, Fate::Failed { .. }) {
                left.push(change);
            }
        }
        // What could not be put back stays in the journal with the lines that it has, and is tried once more at the end.
        if left.is_empty() {
            self.empty()?;
        }
        left.reverse();
        self.changes = left;
        Ok(restored)
    }

    /// Turns GRO on for a setting that wants it, if GRO is among the changes and so is put back later: an interface that has no queues of NAPI
    /// without it, as veth, refuses to give its threads up then. True if it is on now.
    fn gro_on(&self, changes: &mut [Change], wants: &Setting) -> bool {
        let Setting::Threaded(interface) = wants else { return false };
        let gro = Setting::Driver { interface: interface.clone(), fact: DriverFact::Gro };
        let Some(change) = changes.iter_mut().find(|change| change.setting == gro) else { return false };
        let is_on = change.setting.write(self.host, "1").is_ok();
        if is_on {
            change.ours.push("1".into());
        }
        is_on
    }

    fn append(&mut self, line: &impl Serialize) -> Result<(), JournalError> {
        // Plain data of ours can always be written as JSON.
        let mut text = serde_json::to_vec(line).expect("a line of the journal is plain data");
        text.push(b'\n');
        let written = self.file.write_all(&text).and_then(|()| self.file.sync_data());
        written.map_err(|error| file_error(&self.path, error))
    }

    fn empty(&mut self) -> Result<(), JournalError> {
        let emptied =
            self.file.set_len(0).and_then(|()| self.file.rewind()).and_then(|()| self.file.sync_all());
        emptied.map_err(|error| file_error(&self.path, error))
    }
}

impl Drop for Journal<'_> {
    fn drop(&mut self) {
        // Nobody is left to tell; what fails here stays in the journal.
        if !self.changes.is_empty() {
            let _ = self.put_back();
        }
        // Said aloud: a child of another thread between fork and exec holds the file too, and would hold the lock.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl Change {
    /// The error if `found` is neither of the values that it may have from here.
    fn foreign(&self, found: &str) -> Option<JournalError> {
        let is_ours = self.ours.iter().any(|ours| self.setting.means_same(ours, found));
        let ours = self.ours.last().cloned().unwrap_or_default();
        (!is_ours).then(|| JournalError::Foreign { setting: self.setting.clone(), found: found.into(), ours })
    }

    fn put_back(&self, host: &dyn Host) -> Fate {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Fate::Gone,
            _ if error.raw_os_error() == Some(libc::ENODEV) => Fate::Gone,
            _ => Fate::Failed { why: error.to_string() },
        };
        let found = match self.setting.read(host) {
            Ok(found) => found,
            Err(error) => return failed(error),
        };
        if self.setting.means_same(&found, &self.original) {
            return Fate::Restored;
        }
        if self.foreign(&found).is_some() {
            return Fate::Foreign { found };
        }
        if let Err(error) = self.setting.write(host, &self.original) {
            return failed(error);
        }
        match self.setting.read(host) {
            Ok(now) if self.setting.means_same(&now, &self.original) => Fate::Restored,
            Ok(now) => Fate::Failed { why: format!("it is `{now}` after `{}` was written", self.original) },
            Err(error) => failed(error),
        }
    }
}

fn file_error(path: &Path, error: io::Error) -> JournalError {
    JournalError::File { path: path.into(), error }
}

/// Opens and locks the journal; none if there is none and it is not to be made.
fn lock(path: &Path, make: bool) -> Result<Option<File>, JournalError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(make).mode(0o600);
    options.custom_flags((OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK).bits() as i32);
    let mut file = match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !make => return Ok(None),
        opened => opened.map_err(|error| file_error(path, error))?,
    };
    let facts = file.metadata().map_err(|error| file_error(path, error))?;
    let own = rustix::process::geteuid().as_raw();
    if !facts.is_file() || facts.uid() != own || facts.mode() & 0o022 != 0 {
        let words = "it must be a file of your own that nobody else may write";
        return Err(file_error(path, io::Error::new(io::ErrorKind::PermissionDenied, words)));
    }
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let header = read(path, &mut file).ok().and_then(|(header, _)| header);
            Err(JournalError::Held { path: path.into(), writer: header.map_or(0, |header| header.writer) })
        }
        Err(error) => Err(file_error(path, error.into())),
    }
}

/// The header and what was changed; the file is then at its end.
fn read(path: &Path, file: &mut File) -> Result<(Option<Header>, Vec<Change>), JournalError> {
    let mut text = String::new();
    let all = file.rewind().and_then(|()| file.take(MAX_BYTES).read_to_string(&mut text));
    all.map_err(|error| file_error(path, error))?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    // A line without its end is a header that was being written, or no journal: what is not ours is not emptied.
    let begins_as_ours = |text: &str| text.starts_with(BEGINNING) || BEGINNING.starts_with(text);
    if whole.is_empty() && !begins_as_ours(&text) {
        return Err(JournalError::Damaged { path: path.into(), line: 1 });
    }
    let damaged = |index: usize| JournalError::Damaged { path: path.into(), line: index + 1 };
    let (mut header, mut changes) = (None, Vec::<Change>::new());
    for (index, line) in whole.lines().enumerate() {
        if index == 0 {
            header = Some(serde_json::from_str(line).map_err(|_| damaged(index))?);
            continue;
        }
        let line: Line = serde_json::from_str(line).map_err(|_| damaged(index))?;
        match changes.iter_mut().find(|change| change.setting == line.setting) {
            Some(change) => {
                // The one before the last may still be there, if the writer died between its line and its deed.
                let before = change.ours.pop().unwrap_or_default();
                change.ours = vec![before, line.becomes];
            }
            None => changes.push(Change {
                setting: line.setting,
                ours: vec![line.before.clone(), line.becomes],
                original: line.before,
            }),
        }
    }
    Ok((header, changes))
}

#[cfg(test)]
mod tests;
