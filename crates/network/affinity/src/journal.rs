//! A write-ahead journal of changed settings. Each change is durable in the journal before it is made, so it can be
//! undone after a crash.
//!
//! Format: one JSON object per line, first a header, then for each change the setting, its old value and its new value.
//! An incomplete last line means that the writer died while writing it, so its change was not made. Interfaces are
//! identified by their index, which survives renames.

mod error;
mod file;
mod inherited;
mod registry;

use crate::host::Host;
use crate::identity::Identity;
use crate::setting::{Interface, Setting};
pub use error::JournalError;
use file::Log;
use longma_linux_network::ethtool::DriverProperty;
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
    /// Whether the changes disappear with the writer.
    #[serde(default)]
    ends_with_writer: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    setting: Setting,
    /// Index of the setting's interface, if it has one and the kernel reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    index: Option<u32>,
    /// Device and line of an interrupt, if the kernel reports them. The interrupt's number may be reused by another
    /// device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    before: String,
    becomes: String,
    /// Whether the value was inherited: a thread got its affinity from another thread.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_inherited: bool,
}

/// A changed setting.
#[derive(Clone, Debug)]
struct Change {
    setting: Setting,
    index: Option<u32>,
    source: Option<String>,
    original: String,
    /// Values written, the newest last. After a crash, the newest one may not have been written.
    ours: Vec<String>,
    is_inherited: bool,
}

/// The outcome of restoring a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestoreOutcome {
    /// Its original value was written back.
    Restored,
    /// It already had its original value.
    AsBefore,
    /// Another program has changed it, so it was left alone.
    Foreign {
        /// Current value.
        found: String,
    },
    /// It no longer exists, like an ended thread, and needs no restoration.
    Ended,
    /// The process has the affinity of a bound process that has ended, and started later. It may have inherited the
    /// affinity, but this is not certain, so the affinity was not changed.
    LeftBehind {
        /// Its CPUs.
        found: String,
        /// The ended process.
        of: u32,
        /// Original CPUs of that process.
        was: String,
    },
    /// Its file or interface was not found. An interface may be in another network namespace, so the journal keeps the
    /// entry.
    Gone {
        /// Original value.
        was: String,
    },
    /// The kernel refused; the journal keeps the entry for another attempt.
    Failed {
        /// Error of the operating system.
        why: String,
    },
}

impl RestoreOutcome {
    /// Returns whether the setting has its original value, no longer exists, or may never have been changed.
    fn is_good(&self) -> bool {
        matches!(self, Self::Restored | Self::AsBefore | Self::Ended | Self::LeftBehind { .. })
    }

    /// Returns whether the setting still has to be restored.
    fn is_pending(&self) -> bool {
        matches!(self, Self::Gone { .. } | Self::Failed { .. })
    }
}

/// Result of a restoration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Result for each changed setting, the last changed first.
    pub settings: Vec<(Setting, RestoreOutcome)>,
    /// Whether the network namespace was identified by its inode number only. The number may have been reused.
    pub may_be_another: bool,
}

impl Restored {
    /// Returns whether every setting has its original value or no longer exists.
    pub fn is_whole(&self) -> bool {
        self.settings.iter().all(|(_, fate)| fate.is_good())
    }
}

/// The journal of the process that changes a host's settings. Restores them when dropped.
pub struct Journal<'a> {
    host: &'a dyn Host,
    log: Log,
    changes: Vec<Change>,
    /// Index of each interface used; `None` if the kernel does not report it.
    indexes: BTreeMap<Interface, Option<u32>>,
    /// Locks on the devices whose settings were changed.
    keepers: BTreeMap<String, Option<File>>,
    /// Processes that may have inherited the affinity of one that has ended.
    left_behind: BTreeMap<Setting, InheritedFrom>,
}

/// An ended process from which another may have inherited its affinity.
#[derive(Clone, Debug)]
struct InheritedFrom {
    of: u32,
    found: String,
    was: String,
}

impl<'a> Journal<'a> {
    /// Creates an empty journal at `path` with mode 0600. Its directory must exist.
    ///
    /// # Errors
    /// If another process holds the journal, an earlier one left changes in it, it cannot be written, or /sys belongs
    /// to another network namespace.
    pub fn begin(path: &Path, host: &'a dyn Host) -> Result<Self, JournalError> {
        let opened = Log::open(path, true)?;
        let (mut log, kept) = opened.ok_or_else(|| file::failure(path, io::ErrorKind::NotFound.into()))?;
        if let Some(header) =
            kept.header.filter(|header| !kept.changes.is_empty() && !header.ends_with_writer)
        {
            // A reboot resets all settings, so changes from an earlier boot need no restoration.
            if header.host.is_same_boot(&host.identity()) {
                return Err(JournalError::NotRestored { path: path.into(), settings: kept.changes.len() });
            }
        }
        own_sys(host)?;
        log.begin(&Header {
            affinity_journal: file::FORMAT_VERSION,
            host: host.identity(),
            writer: std::process::id(),
            ends_with_writer: host.ends_with_writer(),
        })?;
        if let Some(folder) = host.journals().filter(|_| !host.ends_with_writer()) {
            registry::add(&folder, path);
        }
        Ok(Self::over(host, log, Vec::new()))
    }

    fn over(host: &'a dyn Host, log: Log, changes: Vec<Change>) -> Self {
        Self {
            host,
            log,
            changes,
            indexes: BTreeMap::new(),
            keepers: BTreeMap::new(),
            left_behind: BTreeMap::new(),
        }
    }

    /// Restores the settings that a killed process left in the journal at `path`; `None` if there is nothing to
    /// restore. With `forgets`, entries whose file or interface is gone are dropped.
    ///
    /// # Errors
    /// If the process still runs, the journal is damaged or belongs to another boot or namespace, or /sys belongs to
    /// another namespace.
    pub fn recover(path: &Path, host: &'a dyn Host, forgets: bool) -> Result<Option<Restored>, JournalError> {
        let Some((log, kept)) = Log::open(path, false)? else { return Ok(None) };
        let left = kept.header.filter(|header| !kept.changes.is_empty() && !header.ends_with_writer);
        let Some(header) = left else { return Ok(None) };
        let current = host.identity();
        if !header.host.is_same(&current) {
            return Err(JournalError::OtherNamespace { path: path.into(), was: header.host, here: current });
        }
        own_sys(host)?;
        let may_be_another = !(header.host.is_certain() && current.is_certain());
        let mut journal = Self::over(host, log, kept.changes);
        journal.inherit()?;
        Ok(Some(Restored { may_be_another, ..journal.put_back(forgets)? }))
    }

    /// Changes a setting: records it in the journal, writes it, and reads it back.
    ///
    /// # Errors
    /// If another program has changed it meanwhile, or the kernel refuses. The setting then keeps its current value.
    pub fn set(&mut self, setting: &Setting, value: &str) -> Result<(), JournalError> {
        let refused = |error| JournalError::Refused { setting: setting.clone(), value: value.into(), error };
        let index = self.index(setting).map_err(refused)?;
        if let Some(renamed) = self.renamed(setting, index) {
            return Err(renamed);
        }
        self.keep(setting.keeper())?;
        let found = setting.read(self.host).map_err(refused)?;
        let source = setting.source(self.host);
        let known = self.changes.iter().position(|change| change.setting == *setting);
        if let Some(change) = known.map(|index| &self.changes[index]) {
            if change.is_of_another(self.host) {
                let words = "another device has its number now";
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
            // There is nothing to restore, but a later change by another program must be detected.
            self.changes.push(new(value));
            return Ok(());
        }
        let line = |becomes: &str| Line {
            setting: setting.clone(),
            index,
            source: source.clone(),
            before: original.clone(),
            becomes: becomes.into(),
            is_inherited: false,
        };
        self.log.add(&[line(value)])?;
        let at = known.unwrap_or_else(|| {
            self.changes.push(new(&found));
            self.changes.len() - 1
        });
        setting.write(self.host, value).map_err(refused)?;
        let now = setting.read(self.host).map_err(refused)?;
        self.changes[at].ours = vec![value.into()];
        if setting.means_same(&now, value) {
            return Ok(());
        }
        if setting.means_same(&now, &found) {
            self.changes[at].ours = vec![found];
            return Err(refused(io::Error::other("it did not change when written")));
        }
        if !setting.may_be_rounded() {
            return Err(JournalError::Foreign { setting: setting.clone(), found: now, ours: value.into() });
        }
        // The stored value is treated as written by this process, so that it is restored even if the process dies now.
        self.changes[at].ours = vec![now.clone(), found.clone()];
        self.log.add(&[line(&now), line(&found)])?;
        setting.write(self.host, &found).map_err(refused)?;
        Err(refused(io::Error::other(format!("`{now}` was stored instead"))))
    }

    /// Records the value of a setting that changes when other settings change. Call it before those are changed; the
    /// setting is restored after them. A setting that cannot be read has nothing to restore.
    ///
    /// # Errors
    /// If the journal cannot be written, or another process has locked the interface.
    pub fn preserve(&mut self, setting: &Setting) -> Result<(), JournalError> {
        let is_known = self.changes.iter().any(|change| change.setting == *setting);
        let (Ok(found), Ok(index)) = (setting.read(self.host), self.index(setting)) else { return Ok(()) };
        if is_known {
            return Ok(());
        }
        self.keep(setting.keeper())?;
        let line = Line {
            setting: setting.clone(),
            index,
            source: None,
            before: found.clone(),
            becomes: found,
            is_inherited: false,
        };
        self.log.add(std::slice::from_ref(&line))?;
        self.changes.push(Change::of(line));
        Ok(())
    }

    /// Restores the settings that depend on others to their original values, as far as possible now. They stay
    /// recorded.
    pub fn reinstate(&self) {
        for change in self.changes.iter().filter(|change| change.setting.follows_others()) {
            let _ = change.put_back(self.host);
        }
    }

    /// Index of the setting's interface, looked up by name at the first use.
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

    /// Returns an error if the interface of a setting was renamed or is gone.
    fn renamed(&self, setting: &Setting, index: Option<u32>) -> Option<JournalError> {
        let (interface, index) = setting.interface().zip(index)?;
        let now = match self.host.name_of(index) {
            Ok(name) if name == interface.name() => return None,
            Ok(name) => Some(name),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // Continue if the kernel does not answer.
            Err(_) => return None,
        };
        Some(JournalError::Renamed { interface: interface.clone(), index, now, setting: setting.clone() })
    }

    /// Locks an interface against other processes, even those with another journal, until this journal is dropped.
    ///
    /// # Errors
    /// If another process has locked it.
    pub fn claim(&mut self, interface: &Interface) -> Result<(), JournalError> {
        self.keep(Setting::Mtu(interface.clone()).keeper())
    }

    /// Locks a setting's device against other processes.
    fn keep(&mut self, keeper: Option<String>) -> Result<(), JournalError> {
        let Some(keeper) = keeper.filter(|keeper| !self.keepers.contains_key(keeper)) else {
            return Ok(());
        };
        if let Some(path) = self.left_changed(&keeper) {
            return Err(JournalError::LeftChanged { keeper, path });
        }
        match self.host.hold(&keeper) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(JournalError::DeviceInUse { keeper })
            }
            // Continue without a lock if locking is impossible. Reading the setting reports the actual problem.
            held => {
                self.keepers.insert(keeper, held.ok().flatten());
                Ok(())
            }
        }
    }

    /// The journal of a killed run that left settings of a device changed.
    fn left_changed(&self, keeper: &str) -> Option<PathBuf> {
        let folder = self.host.journals().filter(|_| !self.host.ends_with_writer())?;
        registry::left_changed(&folder, &self.log.path, self.host).remove(keeper)
    }

    /// Settings that another program has changed since they were written here, or whose interface was renamed.
    pub fn foreign(&self) -> Vec<JournalError> {
        let look = |change: &Change| {
            self.renamed(&change.setting, change.index).or_else(|| {
                // An unreadable setting is gone, and restoration reports that.
                change.setting.read(self.host).ok().and_then(|found| change.foreign(&found))
            })
        };
        self.changes.iter().filter(|change| !change.is_inherited).filter_map(look).collect()
    }

    /// Restores all settings, the last changed first.
    ///
    /// # Errors
    /// If the journal cannot be written. The settings are restored even then.
    pub fn restore(mut self) -> Result<Restored, JournalError> {
        // Restore even if the inherited values could not be recorded.
        let _ = self.inherit();
        self.put_back(false)
    }

    fn put_back(&mut self, forgets: bool) -> Result<Restored, JournalError> {
        let mut restored = Restored::default();
        let mut left = Vec::new();
        let mut changes = std::mem::take(&mut self.changes);
        changes.reverse();
        // Restore `Threaded` first, while the settings that it depends on are still in effect, and settings that follow
        // others last.
        changes.sort_by_key(|change| {
            (change.setting.follows_others(), !matches!(change.setting, Setting::Threaded(_)))
        });
        for at in 0..changes.len() {
            let mut fate = changes[at].put_back(self.host);
            let change = changes[at].clone();
            if matches!(fate, RestoreOutcome::Failed { .. }) && self.gro_on(&mut changes, &change) {
                fate = change.put_back(self.host);
            }
            if forgets && matches!(fate, RestoreOutcome::Gone { .. }) {
                fate = RestoreOutcome::Ended;
            }
            restored.settings.push((change.setting.clone(), fate.clone()));
            if fate.is_pending() {
                left.push(change);
            }
        }
        for (setting, InheritedFrom { of, found, was }) in std::mem::take(&mut self.left_behind) {
            if setting.read(self.host).is_ok_and(|now| setting.means_same(&now, &found)) {
                restored.settings.push((setting, RestoreOutcome::LeftBehind { found, of, was }));
            }
        }
        // Settings that could not be restored stay in the journal, and the drop handler tries them once more.
        if left.is_empty() {
            self.log.empty()?;
        }
        left.reverse();
        self.changes = left;
        Ok(restored)
    }

    /// Turns GRO on if `wants` needs it and the journal has a change of GRO, so that GRO is restored later. Without
    /// GRO, an interface such as veth has no NAPI queues and refuses to turn threaded NAPI off. Returns whether GRO is
    /// on now.
    fn gro_on(&self, changes: &mut [Change], wants: &Change) -> bool {
        let Setting::Threaded(interface) = &wants.setting else { return false };
        let gro = Setting::Driver { interface: interface.clone(), fact: DriverProperty::Gro };
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
        // Errors cannot be reported here. Settings that fail stay in the journal.
        if !self.changes.is_empty() {
            let _ = self.put_back(false);
        }
        if let Some(folder) = self.host.journals().filter(|_| self.changes.is_empty()) {
            registry::remove(&folder, &self.log.path);
        }
        // Unlock explicitly, as for the journal's file.
        for keeper in self.keepers.values().flatten() {
            let _ = rustix::fs::flock(keeper, rustix::fs::FlockOperation::Unlock);
        }
    }
}

/// Rejects a /sys that belongs to another network namespace than the drivers.
fn own_sys(host: &dyn Host) -> Result<(), JournalError> {
    host.foreign_sysfs().map_or(Ok(()), |what| Err(JournalError::ForeignSysfs { what }))
}

impl Change {
    fn of(line: Line) -> Self {
        let Line { setting, index, source, before, becomes, is_inherited } = line;
        Self { setting, index, source, ours: vec![before.clone(), becomes], original: before, is_inherited }
    }

    /// Applies a later line for the same setting.
    fn becomes(&mut self, value: String) {
        // The previous value may still be in effect, if the writer died between journaling and writing.
        let before = self.ours.pop().unwrap_or_default();
        self.ours = vec![before, value];
    }

    /// The journal lines of the change; empty if there is nothing to restore.
    fn lines(&self) -> Vec<Line> {
        let follows = self.setting.follows_others();
        let differs = |ours: &&String| follows || !self.setting.means_same(ours, &self.original);
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

    /// Returns an error if `found` is not one of the values that this process may have written.
    fn foreign(&self, found: &str) -> Option<JournalError> {
        let follows = self.setting.follows_others();
        let is_ours = follows || self.ours.iter().any(|ours| self.setting.means_same(ours, found));
        let ours = self.ours.last().cloned().unwrap_or_default();
        (!is_ours).then(|| JournalError::Foreign { setting: self.setting.clone(), found: found.into(), ours })
    }

    /// Returns whether the interrupt is gone and its number unused or reused by another device. Its old affinity is
    /// then irrelevant.
    fn is_of_another(&self, host: &dyn Host) -> bool {
        let is_told = || !host.names("sys/kernel/irq").is_empty();
        self.source.is_some() && self.source != self.setting.source(host) && is_told()
    }

    /// The setting with its interface's current name.
    fn now(&self, host: &dyn Host) -> io::Result<Setting> {
        match self.index {
            Some(index) => {
                let name = host.name_of(index)?.try_into().map_err(io::Error::other)?;
                Ok(self.setting.renamed(&name))
            }
            None => Ok(self.setting.clone()),
        }
    }

    fn put_back(&self, host: &dyn Host) -> RestoreOutcome {
        self.try_put_back(host).unwrap_or_else(|error| {
            let is_gone =
                error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV);
            match &self.setting {
                // Threads end, and settings of a testbed disappear with this process.
                Setting::Thread { .. } if is_gone => RestoreOutcome::Ended,
                _ if is_gone && host.ends_with_writer() => RestoreOutcome::Ended,
                _ if is_gone => RestoreOutcome::Gone { was: self.original.clone() },
                _ => RestoreOutcome::Failed { why: error.to_string() },
            }
        })
    }

    fn try_put_back(&self, host: &dyn Host) -> io::Result<RestoreOutcome> {
        if self.is_of_another(host) {
            return Ok(RestoreOutcome::Ended);
        }
        let setting = self.now(host)?;
        let found = setting.read(host)?;
        if setting.means_same(&found, &self.original) {
            return Ok(RestoreOutcome::AsBefore);
        }
        if self.foreign(&found).is_some() {
            return Ok(RestoreOutcome::Foreign { found });
        }
        setting.write(host, &self.original)?;
        let now = setting.read(host)?;
        Ok(match setting.means_same(&now, &self.original) {
            true => RestoreOutcome::Restored,
            false => RestoreOutcome::Failed {
                why: format!("it reads `{now}` after `{}` was written", self.original),
            },
        })
    }
}

#[cfg(test)]
mod tests;
