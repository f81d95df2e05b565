//! Why a journal or a change failed.

use super::file;
use crate::identity::Identity;
use crate::setting::{Interface, Setting};
use longma_text::display_path;
use std::io;
use std::path::PathBuf;

/// Why a change failed.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process is changing settings.
    #[error(
        "another longma (process {writer}) is changing settings of this host; its journal is {}",
        display_path(path)
    )]
    InUse {
        /// Path of its journal.
        path: PathBuf,
        /// Its process ID; 0 if unknown.
        writer: u32,
    },
    /// Another process, with another journal, is changing settings of the same device.
    #[error(
        "another longma, with another journal, is changing settings of /{keeper}: wait for it or stop it; \
            if it was killed, run `longma affinity restore --journal FILE` with its journal"
    )]
    DeviceInUse {
        /// The locked file or directory, such as an interface's directory.
        keeper: String,
    },
    /// An earlier run did not restore all its changes.
    #[error(
        "an earlier run was killed or could not restore {settings} setting{}: `longma affinity restore` \
            restores {} (journal {})",
        if *settings == 1 { "" } else { "s" },
        if *settings == 1 { "it" } else { "them" },
        display_path(path)
    )]
    NotRestored {
        /// Path of its journal.
        path: PathBuf,
        /// Number of settings left.
        settings: usize,
    },
    /// A killed run with another journal left settings of the same device changed.
    #[error(
        "a killed run left settings of /{keeper} changed: `longma affinity restore --journal {}` restores them",
        display_path(path)
    )]
    LeftChanged {
        /// The device.
        keeper: String,
        /// Path of the other journal.
        path: PathBuf,
    },
    /// The journal belongs to another boot or network namespace.
    #[error(
        "the journal {} belongs to another boot or network namespace ({was}, here {here}). A reboot has \
            restored all settings. Remove the journal if that namespace no longer exists",
        display_path(path)
    )]
    OtherNamespace {
        /// Path of the journal.
        path: PathBuf,
        /// Where it was written.
        was: Identity,
        /// Where this process runs.
        here: Identity,
    },
    /// The mounted /sys belongs to another network namespace. Writing there would change that namespace's interfaces.
    #[error(
        "the mounted /sys belongs to another network namespace: {what}; nothing was changed. Enter the \
            namespace with `ip netns exec NAME longma ...`, which mounts the right one, or mount it \
            first: `unshare --mount sh -c 'mount -t sysfs sysfs /sys && longma ...'`"
    )]
    ForeignSysfs {
        /// How it differs.
        what: String,
    },
    /// The journal's directory does not exist. It is not created, because a mistyped name would hide the journal from
    /// later runs.
    #[error(
        "the journal {}: there is no directory {}: create it, or name another file with --journal",
        display_path(path),
        display_path(folder)
    )]
    NoDirectory {
        /// Path of the journal.
        path: PathBuf,
        /// The directory.
        folder: PathBuf,
    },
    /// The journal cannot be read or written.
    #[error("the journal {}: {error}", display_path(path))]
    File {
        /// Path of the journal.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The file is not a journal, or is damaged.
    #[error(
        "{} is not a journal or is damaged: line {line}: {why}; nothing was changed, and the file is \
            kept. Its lines hold the original value of every setting: restore manually those that differ, \
            or reboot; then remove the file",
        display_path(path)
    )]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The error.
        why: &'static str,
    },
    /// Another version wrote the journal.
    #[error(
        "the journal {} has format {form}, but this longma uses format {}; nothing was changed. Restore \
            the settings with `longma affinity restore` of the version that wrote the journal",
        display_path(path),
        file::FORMAT_VERSION
    )]
    FormatVersion {
        /// Path of the journal.
        path: PathBuf,
        /// Its format version.
        form: u32,
    },
    /// An interface was renamed, or left the network namespace, during the run.
    #[error("{interface} (interface {index}) {}", now.as_ref().map_or("has left this network namespace".into(), |now| format!("was renamed to {now} by another program")))]
    Renamed {
        /// Its name at the start.
        interface: Interface,
        /// Its index.
        index: u32,
        /// Its current name; `None` if it is gone.
        now: Option<String>,
        /// The setting to change.
        setting: Setting,
    },
    /// Another program changed the setting.
    #[error(
        "another program set {setting} to `{found}` (this run had set it to `{ours}`): it is not changed any further"
    )]
    Foreign {
        /// The setting.
        setting: Setting,
        /// Its current value.
        found: String,
        /// The value written by this process.
        ours: String,
    },
    /// The kernel rejected the value, or stored a different one.
    #[error("cannot set {setting} to `{value}`: {error}")]
    Refused {
        /// The setting.
        setting: Setting,
        /// The value.
        value: String,
        /// Error of the operating system.
        error: io::Error,
    },
}
