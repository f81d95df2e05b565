//! What was changed on a host, kept on disk before it is changed, so that it can be put back whatever happens.
//! Not which changes are made: those are the sweep's and the tuner's.
//! Source: the order of a write-ahead log: the intent is durable before the deed.
//!
//! One line each: a header, then for every change the setting, what it was, and what it becomes. A last line without its end was being
//! written when the writer died, so its change was not made. An interface is known by its number, which stays when it is renamed.

mod file;
mod heirs;

use crate::ethtool::DriverFact;
use crate::host::Host;
use crate::identity::Identity;
use crate::setting::{Interface, Setting};
use file::Log;
use longma_topology::display_path;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

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
    /// The number of its interface, if it is of one and the kernel says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    index: Option<u32>,
    /// The device and its line that an interrupt is of, if the kernel says it: its number may be another's later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    before: String,
    becomes: String,
    /// Whether nobody set it here: a thread that has its CPUs from another one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_inherited: bool,
}

/// A setting that was changed.
#[derive(Clone, Debug)]
struct Change {
    setting: Setting,
    index: Option<u32>,
    source: Option<String>,
    original: String,
    /// What it was made, the last one last: after a crash the last may not have been written.
    ours: Vec<String>,
    is_inherited: bool,
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process changes settings now.
    #[error(
        "another longma (process {writer}) is changing settings of this host; its journal is {}",
        display_path(path)
    )]
    Held {
        /// Its journal.
        path: PathBuf,
        /// Its number; 0 if it has not said.
        writer: u32,
    },
    /// Another process changes this setting now, with a journal of its own.
    #[error(
        "another longma, with another journal, is changing settings of /{keeper}: wait for its end, or end it; then `longma affinity restore --journal FILE` with its journal if it was killed"
    )]
    Kept {
        /// What stands for the setting: an interface's folder, an interrupt's.
        keeper: String,
    },
    /// An earlier run did not put back what it had changed.
    #[error(
        "an earlier run was killed or could not put back all that it had changed, and left {settings} settings: `longma affinity restore` puts them back (journal {})",
        display_path(path)
    )]
    LeftOver {
        /// Its journal.
        path: PathBuf,
        /// How many settings.
        settings: usize,
    },
    /// The journal was made in another boot or network namespace.
    #[error(
        "the journal {} is of another boot or network namespace ({was}, here {here}); a boot has put back all settings: remove it if it is of none that still runs",
        display_path(path)
    )]
    Elsewhere {
        /// The journal.
        path: PathBuf,
        /// Where it was made.
        was: Identity,
        /// Where this is.
        here: Identity,
    },
    /// What is mounted at /sys belongs to another network namespace: writing there would change another's interfaces.
    #[error(
        "the /sys that is mounted here is of another network namespace: {what}; nothing was changed. Enter the namespace with `ip netns exec NAME longma ...`, which mounts its own, or mount it before: `unshare --mount sh -c 'mount -t sysfs sysfs /sys && longma ...'`"
    )]
    StrangeSys {
        /// What differs.
        what: String,
    },
    /// The folder that it would be in is not there: a name that was mistyped, perhaps, under which nobody would look for it.
    #[error(
        "the journal {}: there is no folder {}: make it, or name another file with --journal",
        display_path(path),
        display_path(folder)
    )]
    NoFolder {
        /// The journal.
        path: PathBuf,
        /// The folder.
        folder: PathBuf,
    },
    /// The journal cannot be read or written.
    #[error("the journal {}: {error}", display_path(path))]
    File {
        /// The journal.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file is none, or is damaged.
    #[error(
        "{} is no journal, or is damaged: line {line}: {why}; nothing was changed, and the file is kept. Its lines say what every setting was: put back by hand what still differs, or boot anew, and remove it then",
        display_path(path)
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Another version has written it.
    #[error(
        "the journal {} is of form {form}, and this longma has form {}: `longma affinity restore` of the version that wrote it puts back what it holds; nothing was changed",
        display_path(path),
        file::FORM
    )]
    Form {
        /// The journal.
        path: PathBuf,
        /// Its form.
        form: u32,
    },
    /// An interface has another name than when it was begun with, or is gone from the network namespace.
    #[error("{interface} (interface {index}) {}", now.as_ref().map_or("is gone from this network namespace".into(), |now| format!("was renamed to {now} by somebody")))]
    Renamed {
        /// The name that it had.
        interface: Interface,
        /// Its number.
        index: u32,
        /// The name that it has now; none if it is gone.
        now: Option<String>,
        /// The setting that was meant.
        setting: Setting,
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
    /// It is made again what it was before the first change.
    Restored,
    /// It was so already.
    AsBefore,
    /// Somebody else has changed it meanwhile: left alone.
    Foreign {
        /// What it is now.
        found: String,
    },
    /// It has ended, as a thread does, and nothing of it is left to put back.
    Ended,
    /// Its file or interface is not to be found here, and may be elsewhere, as an interface that was moved to another network namespace; the
    /// journal keeps it.
    Gone {
        /// What it was.
        was: String,
    },
    /// The kernel refused; the journal keeps it, for another try.
    Failed {
        /// What the system said.
        why: String,
    },
}

impl Fate {
    /// Whether it is as before, or nothing of it is left.
    fn is_good(&self) -> bool {
        matches!(self, Self::Restored | Self::AsBefore | Self::Ended)
    }

    /// Whether it is to be put back still.
    fn is_owed(&self) -> bool {
        matches!(self, Self::Gone { .. } | Self::Failed { .. })
    }
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
    /// Whether every setting is as it was, or has ended.
    pub fn is_whole(&self) -> bool {
        self.settings.iter().all(|(_, fate)| fate.is_good())
    }
}

/// The only writer of settings of a host. Dropped, it puts all back.
pub struct Journal<'a> {
    host: &'a dyn Host,
    log: Log,
    changes: Vec<Change>,
    /// The number of every interface that was begun with; none where the kernel does not say.
    indexes: BTreeMap<Interface, Option<u32>>,
    /// What stands for the settings that were changed, kept from other processes.
    keepers: BTreeMap<String, Option<File>>,
}

impl<'a> Journal<'a> {
    /// Begins an empty journal at `path`, which is made with mode 0600; its folder must be there.
    ///
    /// # Errors
    /// If another process holds it, an earlier one left changes in it, it cannot be written, or /sys is of another network namespace.
    pub fn begin(path: &Path, host: &'a dyn Host) -> Result<Self, JournalError> {
        let opened = Log::open(path, true)?;
        let (mut log, kept) = opened.ok_or_else(|| file::failure(path, io::ErrorKind::NotFound.into()))?;
        if let Some(header) =
            kept.header.filter(|header| !kept.changes.is_empty() && !header.ends_with_writer)
        {
            // A boot has put everything back, so what an earlier one left is nothing to keep.
            if header.host.is_same_boot(&host.identity()) {
                return Err(JournalError::LeftOver { path: path.into(), settings: kept.changes.len() });
            }
        }
        own_sys(host)?;
        log.begin(&Header {
            affinity_journal: file::FORM,
            host: host.identity(),
            writer: std::process::id(),
            ends_with_writer: host.ends_with_writer(),
        })?;
        Ok(Self::over(host, log, Vec::new()))
    }

    fn over(host: &'a dyn Host, log: Log, changes: Vec<Change>) -> Self {
        Self { host, log, changes, indexes: BTreeMap::new(), keepers: BTreeMap::new() }
    }

    /// Puts back what a killed process left in the journal at `path`; none if there is nothing. With `forgets` what is gone is forgotten.
    ///
    /// # Errors
    /// If the process still runs, the journal is damaged or of another boot or namespace, or /sys is of another namespace.
    pub fn recover(path: &Path, host: &'a dyn Host, forgets: bool) -> Result<Option<Restored>, JournalError> {
        let Some((log, kept)) = Log::open(path, false)? else { return Ok(None) };
        let left = kept.header.filter(|header| !kept.changes.is_empty() && !header.ends_with_writer);
        let Some(header) = left else { return Ok(None) };
        let here = host.identity();
        if !header.host.is_same(&here) {
            return Err(JournalError::Elsewhere { path: path.into(), was: header.host, here });
        }
        own_sys(host)?;
        let may_be_another = !(header.host.is_certain() && here.is_certain());
        let mut journal = Self::over(host, log, kept.changes);
        journal.inherit()?;
        Ok(Some(Restored { may_be_another, ..journal.put_back(forgets)? }))
    }

    /// Makes a setting `value`: first in the journal, then on the host, then looked at.
    ///
    /// # Errors
    /// If somebody else has changed it since, or the kernel refuses. The setting is then as it was found.
    pub fn set(&mut self, setting: &Setting, value: &str) -> Result<(), JournalError> {
        let refused = |error| JournalError::Refused { setting: setting.clone(), value: value.into(), error };
        let index = self.index(setting).map_err(refused)?;
        if let Some(renamed) = self.renamed(setting, index) {
            return Err(renamed);
        }
        self.keep(setting)?;
        let found = setting.read(self.host).map_err(refused)?;
        let source = setting.source(self.host);
        let known = self.changes.iter().position(|change| change.setting == *setting);
        if let Some(change) = known.map(|index| &self.changes[index]) {
            if change.is_of_another(self.host) {
                let words = "another device has its number by now";
                return Err(refused(io::Error::new(io::ErrorKind::NotFound, words)));
            }
            change.foreign(&found).map_or(Ok(()), Err)?;
        }
        let original = known.map_or(found.clone(), |index| self.changes[index].original.clone());
        let new = |ours: &str| Change {
            setting: setting.clone(),
            index,
            source: source.clone(),
            original: original.clone(),
            ours: vec![ours.into()],
            is_inherited: false,
        };
        if known.is_none() && setting.means_same(&found, value) {
            // Nothing to put back, but it matters if somebody changes it.
            self.changes.push(new(value));
            return Ok(());
        }
        let line = Line {
            setting: setting.clone(),
            index,
            source: source.clone(),
            before: original.clone(),
            becomes: value.into(),
            is_inherited: false,
        };
        self.log.add(&[line])?;
        let at = known.unwrap_or_else(|| {
            self.changes.push(new(&found));
            self.changes.len() - 1
        });
        setting.write(self.host, value).map_err(refused)?;
        let now = setting.read(self.host).map_err(refused)?;
        let change = &mut self.changes[at];
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

    /// The number of the interface that a setting is of: that which had its name when it was first asked for.
    fn index(&mut self, setting: &Setting) -> io::Result<Option<u32>> {
        let Some(interface) = setting.interface() else { return Ok(None) };
        if let Some(known) = self.indexes.get(interface) {
            return Ok(*known);
        }
        let index = match self.host.index_of(interface.name()) {
            Ok(index) => Some(index),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => None,
            Err(error) => return Err(error),
        };
        self.indexes.insert(interface.clone(), index);
        Ok(index)
    }

    /// The error if the interface of a setting has another name by now, or is gone.
    fn renamed(&self, setting: &Setting, index: Option<u32>) -> Option<JournalError> {
        let (interface, index) = setting.interface().zip(index)?;
        let now = match self.host.name_of(index) {
            Ok(name) if name == interface.name() => return None,
            Ok(name) => Some(name),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // What the kernel does not say is no reason to end.
            Err(_) => return None,
        };
        Some(JournalError::Renamed { interface: interface.clone(), index, now, setting: setting.clone() })
    }

    /// Keeps what a setting is of from other processes, whichever journal they have.
    fn keep(&mut self, setting: &Setting) -> Result<(), JournalError> {
        let Some(keeper) = setting.keeper().filter(|keeper| !self.keepers.contains_key(keeper)) else {
            return Ok(());
        };
        match self.host.hold(&keeper) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(JournalError::Kept { keeper }),
            // What cannot be kept can be changed all the same; reading it says what is wrong with it.
            held => {
                self.keepers.insert(keeper, held.ok().flatten());
                Ok(())
            }
        }
    }

    /// Every setting that somebody else has changed since it was changed here, or whose interface has another name.
    pub fn foreign(&self) -> Vec<JournalError> {
        let look = |change: &Change| {
            self.renamed(&change.setting, change.index).or_else(|| {
                // What cannot be read is gone; putting back will say so.
                change.setting.read(self.host).ok().and_then(|found| change.foreign(&found))
            })
        };
        self.changes.iter().filter(|change| !change.is_inherited).filter_map(look).collect()
    }

    /// Puts everything back, the last changed first.
    ///
    /// # Errors
    /// If the journal cannot be written; the settings are back even so.
    pub fn restore(mut self) -> Result<Restored, JournalError> {
        // What could not be written down is put back all the same.
        let _ = self.inherit();
        self.put_back(false)
    }

    fn put_back(&mut self, forgets: bool) -> Result<Restored, JournalError> {
        let mut restored = Restored::default();
        let mut left = Vec::new();
        let mut changes = std::mem::take(&mut self.changes);
        changes.reverse();
        // While what they want is still there.
        changes.sort_by_key(|change| !matches!(change.setting, Setting::Threaded(_)));
        for at in 0..changes.len() {
            let mut fate = changes[at].put_back(self.host);
            let change = changes[at].clone();
            if matches!(fate, Fate::Failed { .. }) && self.gro_on(&mut changes, &change) {
                fate = change.put_back(self.host);
            }
            if forgets && matches!(fate, Fate::Gone { .. }) {
                fate = Fate::Ended;
            }
            restored.settings.push((change.setting.clone(), fate.clone()));
            if fate.is_owed() {
                left.push(change);
            }
        }
        // What could not be put back stays in the journal with the lines that it has, and is tried once more at the end.
        if left.is_empty() {
            self.log.empty()?;
        }
        left.reverse();
        self.changes = left;
        Ok(restored)
    }

    /// Turns GRO on for a setting that wants it, if GRO is among the changes and so is put back later: an interface that has no queues of NAPI
    /// without it, as veth, refuses to give its threads up then. True if it is on now.
    fn gro_on(&self, changes: &mut [Change], wants: &Change) -> bool {
        let Setting::Threaded(interface) = &wants.setting else { return false };
        let gro = Setting::Driver { interface: interface.clone(), fact: DriverFact::Gro };
        let Some(change) = changes.iter_mut().find(|change| change.setting == gro) else { return false };
        let is_on = change.now(self.host).and_then(|setting| setting.write(self.host, "1")).is_ok();
        if is_on {
            change.ours.push("1".into());
        }
        is_on
    }
}

impl Drop for Journal<'_> {
    fn drop(&mut self) {
        // Nobody is left to tell; what fails here stays in the journal.
        if !self.changes.is_empty() {
            let _ = self.put_back(false);
        }
        // Said aloud, as for the journal's own file.
        for keeper in self.keepers.values().flatten() {
            let _ = rustix::fs::flock(keeper, rustix::fs::FlockOperation::Unlock);
        }
    }
}

/// Refuses a /sys that is not of the network namespace in which drivers are told.
fn own_sys(host: &dyn Host) -> Result<(), JournalError> {
    host.strange_sys().map_or(Ok(()), |what| Err(JournalError::StrangeSys { what }))
}

impl Change {
    fn of(line: Line) -> Self {
        let Line { setting, index, source, before, becomes, is_inherited } = line;
        Self { setting, index, source, ours: vec![before.clone(), becomes], original: before, is_inherited }
    }

    /// As a later line has it.
    fn becomes(&mut self, value: String) {
        // The one before the last may still be there, if the writer died between its line and its deed.
        let before = self.ours.pop().unwrap_or_default();
        self.ours = vec![before, value];
    }

    /// The lines that say it; none if there is nothing to put back.
    fn lines(&self) -> Vec<Line> {
        let differs = |ours: &&String| !self.setting.means_same(ours, &self.original);
        let line = |ours: &String| Line {
            setting: self.setting.clone(),
            index: self.index,
            source: self.source.clone(),
            before: self.original.clone(),
            becomes: ours.clone(),
            is_inherited: self.is_inherited,
        };
        self.ours.iter().filter(differs).map(line).collect()
    }

    /// The error if `found` is neither of the values that it may have from here.
    fn foreign(&self, found: &str) -> Option<JournalError> {
        let is_ours = self.ours.iter().any(|ours| self.setting.means_same(ours, found));
        let ours = self.ours.last().cloned().unwrap_or_default();
        (!is_ours).then(|| JournalError::Foreign { setting: self.setting.clone(), found: found.into(), ours })
    }

    /// Whether the interrupt that was changed is gone, and its number nobody's or another device's: what it was went with it.
    fn is_of_another(&self, host: &dyn Host) -> bool {
        let is_told = || !host.names("sys/kernel/irq").is_empty();
        self.source.is_some() && self.source != self.setting.source(host) && is_told()
    }

    /// The setting under the name that its interface has now.
    fn now(&self, host: &dyn Host) -> io::Result<Setting> {
        match self.index {
            Some(index) => {
                let name = host.name_of(index)?.try_into().map_err(io::Error::other)?;
                Ok(self.setting.renamed(&name))
            }
            None => Ok(self.setting.clone()),
        }
    }

    fn put_back(&self, host: &dyn Host) -> Fate {
        self.try_put_back(host).unwrap_or_else(|error| {
            let is_gone =
                error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV);
            match &self.setting {
                // Threads end, and what ends with this process is nobody's afterwards.
                Setting::Thread { .. } if is_gone => Fate::Ended,
                _ if is_gone && host.ends_with_writer() => Fate::Ended,
                _ if is_gone => Fate::Gone { was: self.original.clone() },
                _ => Fate::Failed { why: error.to_string() },
            }
        })
    }

    fn try_put_back(&self, host: &dyn Host) -> io::Result<Fate> {
        if self.is_of_another(host) {
            return Ok(Fate::Ended);
        }
        let setting = self.now(host)?;
        let found = setting.read(host)?;
        if setting.means_same(&found, &self.original) {
            return Ok(Fate::AsBefore);
        }
        if self.foreign(&found).is_some() {
            return Ok(Fate::Foreign { found });
        }
        setting.write(host, &self.original)?;
        let now = setting.read(host)?;
        Ok(match setting.means_same(&now, &self.original) {
            true => Fate::Restored,
            false => Fate::Failed { why: format!("it is `{now}` after `{}` was written", self.original) },
        })
    }
}

#[cfg(test)]
mod tests;
