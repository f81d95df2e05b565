//! Resolves a path of the guest to a directory and a path for the host. Source: path_resolution(7); openat(2) (the *at
//! calls).

use std::ffi::CString;
use std::os::fd::RawFd;

use longma_guest::Errno;
use longma_guest::host::pinned_file::PinnedFile;

use super::ProcFile;
use super::access_policy::{self, bad_descriptor_to_not_found};
use crate::root::{PathInRoot, c_path, name_at};
use crate::{DeviceFile, Process, Thread};

/// PATH_MAX, including the final zero.
const PATH_MAX: usize = 4096;

/// Whether to follow a symbolic link in the last component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follow {
    /// The call refers to the target.
    Yes,
    /// The call refers to the link, or creates a new name.
    No,
}

impl Follow {
    /// According to the AT_ flags of a call.
    pub fn by_flags(flags: u64) -> Self {
        if flags & libc::AT_SYMLINK_NOFOLLOW as u64 != 0 { Self::No } else { Self::Yes }
    }
}

/// How a call uses the file at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathUse {
    /// It reads the file or its metadata.
    Read,
    /// It changes metadata (mode, owner, times, attributes) or the length.
    Change,
    /// It creates, moves or removes the name.
    Name,
}

/// A directory and a path for the host. Keeps open the files that they refer to.
#[derive(Debug)]
pub(crate) struct ResolvedPath {
    directory: RawFd,
    path: CString,
    _pinned: Option<PinnedFile>,
}

/// Reads a path argument.
pub(crate) fn guest_path(process: &Process, address: u64) -> Result<Vec<u8>, Errno> {
    let path = process.memory().read_c_string(address, PATH_MAX)?.ok_or(Errno(libc::ENAMETOOLONG))?;
    Ok(match &process.fixed_identity {
        Some(names) => names.host(path),
        None => path,
    })
}

impl ResolvedPath {
    /// Resolves the path at guest address `path`, relative to `directory`.
    pub fn find(thread: &Thread, directory: u64, path: u64, follow: Follow) -> Result<Self, Errno> {
        Self::of(&thread.process, directory as RawFd, &guest_path(&thread.process, path)?, follow)
    }

    /// Like [`ResolvedPath::find`], for a call that changes the file. A confined guest may change only its own files.
    pub fn find_to_change(thread: &Thread, directory: u64, path: u64, follow: Follow) -> Result<Self, Errno> {
        let path = guest_path(&thread.process, path)?;
        Self::for_use(&thread.process, directory as RawFd, &path, follow, PathUse::Change)
    }

    /// Like [`ResolvedPath::find`], for a call that creates, moves or removes the name.
    pub fn find_name(thread: &Thread, directory: u64, path: u64) -> Result<Self, Errno> {
        let path = guest_path(&thread.process, path)?;
        Self::for_use(&thread.process, directory as RawFd, &path, Follow::No, PathUse::Name)
    }

    /// Like [`ResolvedPath::find`], for a call whose path may be null.
    pub fn find_optional(thread: &Thread, directory: u64, path: u64, follow: Follow) -> Result<Self, Errno> {
        if path == 0 {
            return Ok(Self { directory: directory as RawFd, path: CString::default(), _pinned: None });
        }
        Self::find(thread, directory, path, follow)
    }

    /// Resolves `path` relative to `directory`, for a call that only reads.
    pub fn of(process: &Process, directory: RawFd, path: &[u8], follow: Follow) -> Result<Self, Errno> {
        Self::for_use(process, directory, path, follow, PathUse::Read)
    }

    /// Resolves `path` relative to `directory`.
    pub fn for_use(
        process: &Process,
        directory: RawFd,
        path: &[u8],
        follow: Follow,
        used: PathUse,
    ) -> Result<Self, Errno> {
        if used != PathUse::Name
            && let Some(special) = Self::special(process, directory, path, follow)
        {
            return if used == PathUse::Read { special } else { Err(Errno(libc::EPERM)) };
        }
        if !process.root.is_confined() {
            let path = match follow {
                Follow::Yes => library_path(process, path)?,
                Follow::No => c_path(path)?,
            };
            return Ok(Self { directory, path, _pinned: None });
        }
        if path.is_empty() {
            let pinned = match directory {
                libc::AT_FDCWD => process.root.open_pinned(&process.root.working_directory()?, 0)?,
                directory => PinnedFile::of(directory)?,
            };
            check(process, &pinned, used == PathUse::Change)?;
            return Ok(Self { directory: pinned.number(), path: CString::default(), _pinned: Some(pinned) });
        }
        match access_policy::descriptor_named(path).filter(|_| used != PathUse::Name) {
            Some(descriptor) => {
                let pinned = PinnedFile::of(descriptor).map_err(bad_descriptor_to_not_found)?;
                check(process, &pinned, used == PathUse::Change)?;
                Ok(Self::of_open_file(pinned))
            }
            None => Self::in_root(process, directory, path, follow, used),
        }
    }

    /// Resolves a path that does not depend on the guest's root; `None` if it is not such a path.
    fn special(
        process: &Process,
        directory: RawFd,
        path: &[u8],
        follow: Follow,
    ) -> Option<Result<Self, Errno>> {
        if let Some(file) = ProcFile::find(process, directory, path) {
            return Some(file.resolved_path(process, follow));
        }
        if let Some(file) = DeviceFile::find(&process.config.devices, path) {
            return Some(Self::on_host(format!("/proc/self/fd/{}", file.descriptor()).as_bytes()));
        }
        let is_hosts = access_policy::is_shared(path) || access_policy::is_descriptor_folder(path);
        (process.root.is_confined() && is_hosts).then(|| Self::on_host(path))
    }

    /// Resolves a path inside a confined guest's root.
    fn in_root(
        process: &Process,
        directory: RawFd,
        path: &[u8],
        follow: Follow,
        used: PathUse,
    ) -> Result<Self, Errno> {
        let absolute = absolute(process, directory, path)?;
        let end = absolute.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        let trimmed = &absolute[..end];
        let cut = trimmed.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let (parent, name) = trimmed.split_at(cut);
        let name_is_plain = !matches!(name, b"" | b"." | b"..");
        let open_pinned = |path: &[u8], flags: i32| {
            let pinned = process.root.open_pinned(path, flags)?;
            check(process, &pinned, used != PathUse::Read)?;
            Ok::<_, Errno>(pinned)
        };
        if follow == Follow::No && name_is_plain {
            let pinned = open_pinned(parent, libc::O_DIRECTORY)?;
            if used == PathUse::Change {
                // Another file system may be mounted at the path. A mount point cannot be replaced with another file.
                let (directory, path) = (pinned.number(), &c_path(name)?);
                let named = PathInRoot { directory, path, resolve: 0, base_is_in_control_fs: false };
                check(process, &named.open_pinned(libc::O_NOFOLLOW)?, true)?;
            }
            return Ok(Self { directory: pinned.number(), path: c_path(name)?, _pinned: Some(pinned) });
        }
        let pinned = open_pinned(&absolute, 0)?;
        if follow == Follow::No {
            return Ok(Self { directory: pinned.number(), path: c".".into(), _pinned: Some(pinned) });
        }
        Ok(Self::of_open_file(pinned))
    }

    /// A path on the host.
    pub fn on_host(path: &[u8]) -> Result<Self, Errno> {
        Ok(Self { directory: libc::AT_FDCWD, path: c_path(path)?, _pinned: None })
    }

    /// A path that refers to an open file.
    pub fn of_open_file(pinned: PinnedFile) -> Self {
        Self { directory: libc::AT_FDCWD, path: pinned.link(), _pinned: Some(pinned) }
    }

    /// The directory as an argument of a host call.
    pub fn directory(&self) -> u64 {
        self.directory as u64
    }

    /// The path as an argument of a host call.
    pub fn path(&self) -> u64 {
        self.path.as_ptr() as u64
    }

    /// Joins the directory and the path, for calls that take no directory.
    pub fn joined(self) -> Result<Self, Errno> {
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

    /// The path as bytes.
    pub fn path_bytes(&self) -> &[u8] {
        self.path.as_bytes()
    }
}

/// Refuses `pinned` if the call `changes` it and the guest may not.
fn check(process: &Process, pinned: &PinnedFile, changes: bool) -> Result<(), Errno> {
    if changes { process.root.check_change(pinned) } else { Ok(()) }
}

/// Converts a confined guest's path to an absolute one.
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

/// A confined guest's name of the directory to which a descriptor refers.
fn descriptor_path(process: &Process, directory: RawFd) -> Result<Vec<u8>, Errno> {
    let name = name_at(directory)?;
    if !name.starts_with(b"/") {
        return Err(Errno(libc::ENOTDIR));
    }
    process.root.guest_name(&name).ok_or(Errno(libc::EACCES))
}

/// Maps an absolute path to the library root if the file exists there, so that the dynamic linker finds its libraries.
pub(super) fn library_path(process: &Process, path: &[u8]) -> Result<CString, Errno> {
    use std::os::unix::ffi::OsStrExt;
    let host = c_path(path)?;
    let Some(library_root) = process.config.library_root.as_ref().filter(|_| path.starts_with(b"/")) else {
        return Ok(host);
    };
    let inside = c_path(&[library_root.as_os_str().as_bytes(), path].concat())?;
    // SAFETY: the path is live.
    let exists = unsafe { libc::access(inside.as_ptr(), libc::F_OK) } == 0;
    Ok(if exists { inside } else { host })
}
