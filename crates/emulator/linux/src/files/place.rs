//! Where a guest's path leads: a directory and a path that can be handed to the host.
//! Not the opening of files, which the host does in one step.
//! Source: path_resolution(7); openat(2) (the *at calls).

use std::ffi::CString;
use std::os::fd::RawFd;

use longma_guest::Errno;
use longma_guest::host::held::Held;

use super::ProcFile;
use super::reach::{self, not_there};
use crate::root::{Inside, c_path, name_at};
use crate::{DeviceFile, Process, Thread};

/// PATH_MAX, its final zero included.
const LONGEST_PATH: usize = 4096;

/// What a final symbolic link means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follow {
    /// The call is about what it points to.
    Yes,
    /// The call is about the link, or makes a new name.
    No,
}

impl Follow {
    /// As the AT_ flags of a call say.
    pub fn by_flags(flags: u64) -> Self {
        if flags & libc::AT_SYMLINK_NOFOLLOW as u64 != 0 { Self::No } else { Self::Yes }
    }
}

/// What a call does at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// It looks at the file.
    Look,
    /// It changes what is not the file's contents: mode, owner, times, attributes; or the length.
    Change,
    /// It makes, moves or removes the name.
    Name,
}

/// A directory and a path for the host. Keeps open what the pair needs.
#[derive(Debug)]
pub(crate) struct Place {
    directory: RawFd,
    path: CString,
    _held: Option<Held>,
}

/// Reads a path argument.
pub(crate) fn guest_path(process: &Process, address: u64) -> Result<Vec<u8>, Errno> {
    let path = process.memory().read_c_string(address, LONGEST_PATH)?.ok_or(Errno(libc::ENAMETOOLONG))?;
    Ok(match &process.surroundings {
        Some(names) => names.host(path),
        None => path,
    })
}

impl Place {
    /// Finds the place of the path at guest address `path`, relative to `directory`.
    pub fn find(thread: &Thread, directory: u64, path: u64, follow: Follow) -> Result<Self, Errno> {
        Self::of(&thread.process, directory as RawFd, &guest_path(&thread.process, path)?, follow)
    }

    /// The same for a call that changes the file there. A confined guest changes what is its own only.
    pub fn find_to_change(thread: &Thread, directory: u64, path: u64, follow: Follow) -> Result<Self, Errno> {
        let path = guest_path(&thread.process, path)?;
        Self::for_use(&thread.process, directory as RawFd, &path, follow, Use::Change)
    }

    /// The same for a call that makes, moves or removes the name there.
    pub fn find_name(thread: &Thread, directory: u64, path: u64) -> Result<Self, Errno> {
        let path = guest_path(&thread.process, path)?;
        Self::for_use(&thread.process, directory as RawFd, &path, Follow::No, Use::Name)
    }

    /// As [`Place::find`], for a call that takes an optional path.
    pub fn find_optional(thread: &Thread, directory: u64, path: u64, follow: Follow) -> Result<Self, Errno> {
        if path == 0 {
            return Ok(Self { directory: directory as RawFd, path: CString::default(), _held: None });
        }
        Self::find(thread, directory, path, follow)
    }

    /// Finds the place of `path`, relative to `directory`, for a call that looks at what is there.
    pub fn of(process: &Process, directory: RawFd, path: &[u8], follow: Follow) -> Result<Self, Errno> {
        Self::for_use(process, directory, path, follow, Use::Look)
    }

    /// Finds the place of `path`, relative to `directory`.
    pub fn for_use(
        process: &Process,
        directory: RawFd,
        path: &[u8],
        follow: Follow,
        used: Use,
    ) -> Result<Self, Errno> {
        if used != Use::Name
            && let Some(special) = Self::special(process, directory, path, follow)
        {
            return if used == Use::Look { special } else { Err(Errno(libc::EPERM)) };
        }
        if !process.root.is_confined() {
            let path = match follow {
                Follow::Yes => library_path(process, path)?,
                Follow::No => c_path(path)?,
            };
            return Ok(Self { directory, path, _held: None });
        }
        if path.is_empty() {
            let held = match directory {
                libc::AT_FDCWD => process.root.hold(&process.root.working_directory()?, 0)?,
                directory => Held::of(directory)?,
            };
            check(process, &held, used == Use::Change)?;
            return Ok(Self { directory: held.number(), path: CString::default(), _held: Some(held) });
        }
        match reach::descriptor_named(path).filter(|_| used != Use::Name) {
            Some(descriptor) => {
                let held = Held::of(descriptor).map_err(not_there)?;
                check(process, &held, used == Use::Change)?;
                Ok(Self::of_held(held))
            }
            None => Self::in_root(process, directory, path, follow, used),
        }
    }

    /// The place of a path that means the same wherever a guest's root is; `None` if it is none of these.
    fn special(
        process: &Process,
        directory: RawFd,
        path: &[u8],
        follow: Follow,
    ) -> Option<Result<Self, Errno>> {
        if let Some(file) = ProcFile::find(process, directory, path) {
            return Some(file.place(process, follow));
        }
        if let Some(file) = DeviceFile::find(&process.config.devices, path) {
            return Some(Self::on_host(format!("/proc/self/fd/{}", file.descriptor()).as_bytes()));
        }
        let is_hosts = reach::is_shared(path) || reach::is_descriptor_folder(path);
        (process.root.is_confined() && is_hosts).then(|| Self::on_host(path))
    }

    /// A place inside a confined guest's root.
    fn in_root(
        process: &Process,
        directory: RawFd,
        path: &[u8],
        follow: Follow,
        used: Use,
    ) -> Result<Self, Errno> {
        let absolute = absolute(process, directory, path)?;
        let end = absolute.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        let trimmed = &absolute[..end];
        let cut = trimmed.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let (parent, name) = trimmed.split_at(cut);
        let name_is_plain = !matches!(name, b"" | b"." | b"..");
        let hold = |path: &[u8], flags: i32| {
            let held = process.root.hold(path, flags)?;
            check(process, &held, used != Use::Look)?;
            Ok::<_, Errno>(held)
        };
        if follow == Follow::No && name_is_plain {
            let held = hold(parent, libc::O_DIRECTORY)?;
            if used == Use::Change {
                // Something else may be mounted there, and a mount cannot be exchanged for another file.
                let (directory, path) = (held.number(), &c_path(name)?);
                let named = Inside { directory, path, resolve: 0, begins_at_switch: false };
                check(process, &named.hold(libc::O_NOFOLLOW)?, true)?;
            }
            return Ok(Self { directory: held.number(), path: c_path(name)?, _held: Some(held) });
        }
        let held = hold(&absolute, 0)?;
        if follow == Follow::No {
            return Ok(Self { directory: held.number(), path: c".".into(), _held: Some(held) });
        }
        Ok(Self::of_held(held))
    }

    /// A path of the host's own.
    pub fn on_host(path: &[u8]) -> Result<Self, Errno> {
        Ok(Self { directory: libc::AT_FDCWD, path: c_path(path)?, _held: None })
    }

    /// The place of a file that is held.
    pub fn of_held(held: Held) -> Self {
        Self { directory: libc::AT_FDCWD, path: held.link(), _held: Some(held) }
    }

    /// The directory, as an argument of a host call.
    pub fn directory(&self) -> u64 {
        self.directory as u64
    }

    /// The path, as an argument of a host call.
    pub fn path(&self) -> u64 {
        self.path.as_ptr() as u64
    }

    /// The same place as one path, for the calls that take no directory.
    pub fn whole(self) -> Result<Self, Errno> {
        if self.directory == libc::AT_FDCWD || self.path.as_bytes().starts_with(b"/") {
            return Ok(self);
        }
        if self.path.is_empty() {
            return Err(Errno(libc::ENOENT));
        }
        let start = format!("/proc/self/fd/{}/", self.directory);
        let path = c_path(&[start.as_bytes(), self.path.as_bytes()].concat())?;
        Ok(Self { path, ..self })
    }

    /// The path itself.
    pub fn path_bytes(&self) -> &[u8] {
        self.path.as_bytes()
    }
}

/// Refuses what `held` is if the call `changes` it and the guest may not.
fn check(process: &Process, held: &Held, changes: bool) -> Result<(), Errno> {
    if changes { process.root.check_change(held) } else { Ok(()) }
}

/// A confined guest's path from its root.
pub(super) fn absolute(process: &Process, directory: RawFd, path: &[u8]) -> Result<Vec<u8>, Errno> {
    if path.starts_with(b"/") {
        return Ok(path.to_vec());
    }
    let start = if directory == libc::AT_FDCWD {
        process.root.working_directory()?
    } else {
        descriptor_path(process, directory)?
    };
    Ok([&start, &b"/"[..], path].concat())
}

/// What a confined guest calls the directory behind a descriptor.
fn descriptor_path(process: &Process, directory: RawFd) -> Result<Vec<u8>, Errno> {
    let name = name_at(directory)?;
    if !name.starts_with(b"/") {
        return Err(Errno(libc::ENOTDIR));
    }
    process.root.guest_name(&name).ok_or(Errno(libc::EACCES))
}

/// An absolute path for reading, led into the library root if that has it: the dynamic linker finds its libraries there.
pub(super) fn library_path(process: &Process, path: &[u8]) -> Result<CString, Errno> {
    use std::os::unix::ffi::OsStrExt;
    let host = c_path(path)?;
    let Some(library_root) = process.config.library_root.as_ref().filter(|_| path.starts_with(b"/")) else {
        return Ok(host);
    };
    let inside = c_path(&[library_root.as_os_str().as_bytes(), path].concat())?;
    // SAFETY: the path is live.
    let is_there = unsafe { libc::access(inside.as_ptr(), libc::F_OK) } == 0;
    Ok(if is_there { inside } else { host })
}
