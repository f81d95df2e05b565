//! Extracts files into the user's cache folder.
//!
//! Folders below the base folder are used only if they are real folders of this user to which no other user can write.
//!
//! Source: XDG Base Directory Specification.

use crate::{DIGEST, Entry, contents};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

/// Time without use after which the files of another version of the command are removed.
const MAX_UNUSED: Duration = Duration::from_secs(30 * 24 * 3600);
/// Name of the folder that contains the files of all versions.
const SHIPPED: &str = "shipped";

/// No folder could be used to extract files.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the files that ship inside longma ({}); set XDG_CACHE_HOME to a folder that you own and can write to", tried.join("; "))]
pub struct ExtractError {
    /// The base folders that were tried, each with the reason of the failure.
    tried: Vec<String>,
}

/// The folders in which files may be extracted, in order of preference.
#[derive(Clone, Debug)]
pub struct CacheFolders(Vec<CacheFolder>);

#[derive(Clone, Debug)]
struct CacheFolder {
    /// The base folder, which other programs also use. It may be a symbolic link.
    base: PathBuf,
    /// Name of this program's folder in `base`.
    name: String,
    /// Whether `base` is a folder for temporary files, to which other users can write.
    is_shared: bool,
}

impl CacheFolders {
    /// The folders for the environment of this process.
    pub fn of_process() -> Self {
        let variable = |name| std::env::var_os(name);
        Self::new(variable("XDG_CACHE_HOME"), variable("HOME"), vec![std::env::temp_dir(), "/dev/shm".into()])
    }

    /// The folders `$XDG_CACHE_HOME`, then `.cache` in the home folder, then the folders for temporary files. Empty and
    /// relative paths are ignored.
    pub fn new(cache: Option<OsString>, home: Option<OsString>, temporary: Vec<PathBuf>) -> Self {
        let own = |base| CacheFolder { base, name: "longma".into(), is_shared: false };
        let user = rustix::process::geteuid().as_raw();
        let shared = |base| CacheFolder { base, name: format!("longma-{user}"), is_shared: true };
        let home = home.map(|home| Path::new(&home).join(".cache"));
        let private = cache.map(PathBuf::from).into_iter().chain(home).map(own);
        let all = private.chain(temporary.into_iter().map(shared));
        Self(all.filter(|folder| folder.base.is_absolute()).collect())
    }
}

/// Writes the missing and the modified files of `entries`. Returns the folder that corresponds to the repository's
/// root.
///
/// # Errors
/// If none of `folders` can be used.
pub fn extract<'a>(
    entries: impl IntoIterator<Item = &'a Entry> + Clone,
    folders: &CacheFolders,
) -> Result<PathBuf, ExtractError> {
    let mut tried = Vec::new();
    for folder in &folders.0 {
        match folder.extract(entries.clone()) {
            Ok(root) => return Ok(root),
            Err(error) => tried.push(format!("{}: {error}", folder.base.display())),
        }
    }
    Err(ExtractError { tried })
}

impl CacheFolder {
    fn extract<'a>(&self, entries: impl IntoIterator<Item = &'a Entry>) -> io::Result<PathBuf> {
        let base = self.open_base()?;
        let top = open_folder(&base, &self.name)?;
        if self.is_shared && fstat(&top)?.st_mode & 0o077 != 0 {
            return Err(io::Error::other(format!("other users can read {}", self.name)));
        }
        let all = open_folder(&top, SHIPPED)?;
        let root = open_folder(&all, DIGEST)?;
        let mut wrote = false;
        for entry in entries {
            wrote |= entry.ensure(&root)?;
        }
        let path = self.base.join(&self.name).join(SHIPPED);
        if wrote {
            remove_unused(&path);
        }
        // Other versions of the command read the time of the last use from this folder. A failure does not matter, for
        // example on a read-only file system.
        let _ = File::from(root).set_modified(SystemTime::now());
        Ok(path.join(DIGEST))
    }

    /// Opens the base folder. Creates a private one if its parent folder exists.
    fn open_base(&self) -> io::Result<OwnedFd> {
        // If creation fails, the folder may still exist, for example on a read-only file system.
        let made = if self.is_shared { Ok(()) } else { mkdirat(CWD, &self.base, Mode::RWXU) };
        let opened = openat(CWD, &self.base, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let base =
            opened.map_err(|error| made.err().filter(|made| *made != Errno::EXIST).unwrap_or(error))?;
        let found = fstat(&base)?;
        if !self.is_shared && found.st_uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("it belongs to another user"));
        }
        let is_sticky = found.st_mode & 0o1000 != 0;
        if is_sticky || !others_can_write(&found) {
            Ok(base)
        } else {
            Err(io::Error::other("other users can replace what is in it"))
        }
    }
}

/// Opens a folder of this user, and creates it if it does not exist.
fn open_folder(above: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    let no_link = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || openat(&above, name, no_link, Mode::empty());
    let folder = match open() {
        Err(Errno::NOENT) => match mkdirat(&above, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => open(),
            Err(error) => Err(error),
        },
        opened => opened,
    };
    let folder = folder.map_err(|error| match error {
        Errno::LOOP | Errno::NOTDIR => io::Error::other(format!("{name} in it is not a folder")),
        other => other.into(),
    })?;
    let found = fstat(&folder)?;
    if is_own(&found) {
        Ok(folder)
    } else {
        Err(io::Error::other(format!("{name} in it belongs to another user, or other users can write to it")))
    }
}

fn is_own(found: &Stat) -> bool {
    found.st_uid == rustix::process::geteuid().as_raw() && !others_can_write(found)
}

fn others_can_write(found: &Stat) -> bool {
    found.st_mode & 0o022 != 0
}

impl Entry {
    /// Writes the file below `root` unless it already has the right contents. Returns whether it was written.
    fn ensure(&self, root: &OwnedFd) -> io::Result<bool> {
        let (folders, name) = self.path.rsplit_once('/').unwrap_or(("", self.path));
        let mut folder = root.as_fd().try_clone_to_owned()?;
        for below in folders.split('/') {
            folder = open_folder(&folder, below)?;
        }
        if self.is_current(folder.as_fd(), name) {
            return Ok(false);
        }
        self.write(folder.as_fd(), name).map(|()| true)
    }

    fn mode(&self) -> Mode {
        if self.is_program() { Mode::RWXU } else { Mode::RUSR | Mode::WUSR }
    }

    /// Whether the file belongs to this user and has the right mode and contents.
    fn is_current(&self, folder: BorrowedFd<'_>, name: &str) -> bool {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = openat(folder, name, flags, Mode::empty()) else { return false };
        let is_right = |found: Stat| {
            FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
                && is_own(&found)
                && found.st_mode & 0o700 == self.mode().as_raw_mode()
                && usize::try_from(found.st_size) == Ok(self.length)
        };
        if !fstat(&file).is_ok_and(is_right) {
            return false;
        }
        let mut content = Vec::with_capacity(self.length + 1);
        let read = File::from(file).take(self.length as u64 + 1).read_to_end(&mut content);
        read.is_ok() && Sha256::digest(&content).as_slice() == self.sha256
    }

    /// Writes the file under a temporary name and renames it, so that other processes see either the old or the new
    /// file.
    fn write(&self, folder: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (part, file) = loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let part = format!(".{name}.{}-{count}.part", std::process::id());
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match openat(folder, &part, flags, self.mode()) {
                Ok(file) => break (part, file),
                // An earlier process with the same id was interrupted while it wrote this file.
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let written = File::from(file).write_all(contents(self));
        let renamed = written.and_then(|()| Ok(renameat(folder, &part, folder, name)?));
        renamed.inspect_err(|_| {
            // The error of the write is more important than a leftover temporary file.
            let _ = unlinkat(folder, &part, AtFlags::empty());
        })
    }
}

/// Removes the files of other versions of the command that have not been used for [`MAX_UNUSED`].
fn remove_unused(all: &Path) {
    let is_version = |name: &str| name.len() == DIGEST.len() && name.bytes().all(|b| b.is_ascii_hexdigit());
    for entry in std::fs::read_dir(all).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_str().is_none_or(|name| name == DIGEST || !is_version(name)) {
            continue;
        }
        let used = std::fs::symlink_metadata(entry.path()).and_then(|found| found.modified());
        if used.is_ok_and(|used| used.elapsed().is_ok_and(|elapsed| elapsed > MAX_UNUSED)) {
            // The next version retries the removal of the rest.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
