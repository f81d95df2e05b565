//! Extracts files into the user's cache folder.
//!
//! A folder below `longma` is used only if it is a real folder of this user that no other user can write to. Source: the XDG Base Directory
//! Specification for the place.

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

/// Files of another version of the command go after this time without use.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// The folder of all versions, below `longma`.
const SHIPPED: &str = "shipped";

/// Why no file could be extracted.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the files that ship inside longma ({}); set XDG_CACHE_HOME to a folder of yours that can be written", tried.join("; "))]
pub struct ExtractError {
    /// The folders that were tried, each with the reason.
    tried: Vec<String>,
}

/// The folders in which files may be extracted, in the order of preference.
#[derive(Clone, Debug)]
pub struct Places(Vec<Place>);

#[derive(Clone, Debug)]
struct Place {
    /// The folder that other programs use too. It may be a symbolic link.
    base: PathBuf,
    /// Our folder in it.
    name: String,
    /// Whether other users can write to `base`.
    is_shared: bool,
}

impl Places {
    /// Those that this process's environment gives.
    pub fn of_process() -> Self {
        let variable = |name| std::env::var_os(name);
        Self::new(variable("XDG_CACHE_HOME"), variable("HOME"), vec![std::env::temp_dir(), "/dev/shm".into()])
    }

    /// `$XDG_CACHE_HOME`, then `.cache` in the home folder, then the folders for temporary files. Relative paths and empty ones do not count.
    pub fn new(cache: Option<OsString>, home: Option<OsString>, temporary: Vec<PathBuf>) -> Self {
        let own = |base| Place { base, name: "longma".into(), is_shared: false };
        let user = rustix::process::geteuid().as_raw();
        let shared = |base| Place { base, name: format!("longma-{user}"), is_shared: true };
        let home = home.map(|home| Path::new(&home).join(".cache"));
        let private = cache.map(PathBuf::from).into_iter().chain(home).map(own);
        let all = private.chain(temporary.into_iter().map(shared));
        Self(all.filter(|place| place.base.is_absolute()).collect())
    }
}

/// Writes the files that are not there yet, checks the others, and returns the folder that corresponds to the repository's root.
///
/// # Errors
/// If every place refuses.
pub fn extract<'a>(
    entries: impl IntoIterator<Item = &'a Entry> + Clone,
    places: &Places,
) -> Result<PathBuf, ExtractError> {
    let mut tried = Vec::new();
    for place in &places.0 {
        match place.extract(entries.clone()) {
            Ok(folder) => return Ok(folder),
            Err(error) => tried.push(format!("{}: {error}", place.base.display())),
        }
    }
    Err(ExtractError { tried })
}

impl Place {
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
        // The time of the last use, by which other versions of the command remove this folder. A file system that is read-only keeps it.
        let _ = File::from(root).set_modified(SystemTime::now());
        Ok(path.join(DIGEST))
    }

    /// Opens the folder that other programs use too. It is made if the folder above it exists.
    fn open_base(&self) -> io::Result<OwnedFd> {
        // A file system that is read-only may have the folder all the same.
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

/// Opens a folder of this user's, made if it does not exist.
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
    /// Makes sure that the file below `root` has the right content; says whether it had to be written.
    fn ensure(&self, root: &OwnedFd) -> io::Result<bool> {
        let (folders, name) = self.path.rsplit_once('/').unwrap_or(("", self.path));
        let mut folder = root.as_fd().try_clone_to_owned()?;
        for below in folders.split('/') {
            folder = open_folder(&folder, below)?;
        }
        if self.is_in(folder.as_fd(), name) {
            return Ok(false);
        }
        self.write(folder.as_fd(), name).map(|()| true)
    }

    fn mode(&self) -> Mode {
        if self.is_program() { Mode::RWXU } else { Mode::RUSR | Mode::WUSR }
    }

    /// Whether the file is this user's own and has the right content.
    fn is_in(&self, folder: BorrowedFd<'_>, name: &str) -> bool {
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

    /// Writes the file under another name and renames it, so that another process sees the old file or the new one.
    fn write(&self, folder: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (part, file) = loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let part = format!(".{name}.{}-{count}.part", std::process::id());
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match openat(folder, &part, flags, self.mode()) {
                Ok(file) => break (part, file),
                // A process of the same number was interrupted here.
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let written = File::from(file).write_all(contents(self));
        let renamed = written.and_then(|()| Ok(renameat(folder, &part, folder, name)?));
        renamed.inspect_err(|_| {
            // The error is worth more than the part that may stay.
            let _ = unlinkat(folder, &part, AtFlags::empty());
        })
    }
}

/// Removes the files of other versions of the command that were not used for a month.
fn remove_unused(all: &Path) {
    let is_version = |name: &str| name.len() == DIGEST.len() && name.bytes().all(|b| b.is_ascii_hexdigit());
    for entry in std::fs::read_dir(all).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_str().is_none_or(|name| name == DIGEST || !is_version(name)) {
            continue;
        }
        let used = std::fs::symlink_metadata(entry.path()).and_then(|found| found.modified());
        if used.is_ok_and(|used| used.elapsed().is_ok_and(|elapsed| elapsed > KEPT)) {
            // What cannot be removed is tried again by the next version.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
