//! Accesses the host's files below the shared folder, always through descriptors. Each path component is looked up
//! separately, symbolic links are not followed, and only regular files and folders are opened. Source: openat2(2),
//! open(2) on O_PATH, proc_pid_fd(5).

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, StatVfs, Timestamps, chmodat, fstat, fstatvfs,
    ftruncate, linkat, mkdirat, openat, openat2, readlinkat, renameat, unlinkat, utimensat,
};
use rustix::io::Errno;

/// The permissions that a guest can set: no set-user-ID, set-group-ID or sticky bit.
pub const PERMISSIONS: u32 = 0o777;

/// Look-ups stay below the folder and on its file system, and do not follow symbolic links.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// The host's `/proc/self/fd`, through which a file with an O_PATH descriptor is opened for reading or writing.
#[derive(Debug)]
pub struct Descriptors(OwnedFd);

impl Descriptors {
    /// Opens the folder.
    pub fn new() -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(openat(rustix::fs::CWD, "/proc/self/fd", flags, Mode::empty())?))
    }
}

/// A file of any kind in the shared folder, open or not. It remains the same file if it is renamed.
#[derive(Clone, Debug)]
pub struct Handle(Rc<OwnedFd>);

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Handle {
    /// The shared folder itself. Symbolic links in its path are followed, because the user gives the path.
    pub fn root(path: &Path) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = Self::owning(openat(rustix::fs::CWD, path, flags, Mode::empty())?);
        // Check that the host has openat2.
        openat2(&root, ".", flags, Mode::empty(), RESOLVE)?;
        Ok(root)
    }

    fn owning(file: OwnedFd) -> Self {
        Self(Rc::new(file))
    }

    /// The entry `name` of this folder.
    pub fn walk(&self, name: &[u8]) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self::owning(openat2(self, name, flags, Mode::empty(), RESOLVE)?))
    }

    /// The status.
    pub fn status(&self) -> Result<Stat, Errno> {
        fstat(self)
    }

    /// The type of the file.
    pub fn kind(&self) -> Result<FileType, Errno> {
        Ok(FileType::from_raw_mode(self.status()?.st_mode))
    }

    /// The status of the file system.
    pub fn file_system(&self) -> Result<StatVfs, Errno> {
        fstatvfs(self)
    }

    /// Opens the file if it is a regular file or a folder. Opening other types of file could block or affect a device.
    pub fn open(&self, flags: OFlags, descriptors: &Descriptors) -> Result<File, Errno> {
        let more = match self.kind()? {
            FileType::RegularFile => OFlags::empty(),
            FileType::Directory if flags.intersects(OFlags::WRONLY | OFlags::RDWR) => {
                return Err(Errno::ISDIR);
            }
            FileType::Directory => OFlags::DIRECTORY,
            FileType::Symlink => return Err(Errno::LOOP),
            _ => return Err(Errno::PERM),
        };
        let flags = flags | more | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        Ok(openat(&descriptors.0, self.number(), flags, Mode::empty())?.into())
    }

    /// The name of the descriptor in `/proc/self/fd`.
    fn number(&self) -> String {
        self.0.as_raw_fd().to_string()
    }

    /// Creates a regular file, which must not exist.
    pub fn create(&self, name: &[u8], flags: OFlags, permissions: u32) -> Result<(Self, File), Errno> {
        let flags =
            flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
        let mode = Mode::from_raw_mode(permissions & PERMISSIONS);
        let place = Self::owning(openat2(self, name, flags, mode, RESOLVE)?);
        let file =
            place.0.try_clone().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
        Ok((place, file.into()))
    }

    /// Creates a folder.
    pub fn create_folder(&self, name: &[u8], permissions: u32) -> Result<Self, Errno> {
        mkdirat(self, name, Mode::from_raw_mode(permissions & PERMISSIONS))?;
        self.walk(name)
    }

    /// Removes an entry: a folder, or any other type of file.
    pub fn remove(&self, name: &[u8], is_folder: bool) -> Result<(), Errno> {
        unlinkat(self, name, if is_folder { AtFlags::REMOVEDIR } else { AtFlags::empty() })
    }

    /// Renames an entry of this folder to an entry of `target`, which is replaced. Relative symbolic links cannot be
    /// moved to another folder, because they would then have another target, also for programs of the host.
    pub fn rename(&self, name: &[u8], target: &Self, new_name: &[u8]) -> Result<(), Errno> {
        if self.walk(name)?.kind()? == FileType::Symlink {
            return Err(Errno::PERM);
        }
        renameat(self, name, target, new_name)
    }

    /// Creates a hard link to a regular file in this folder.
    pub fn link(&self, name: &[u8], file: &Self, descriptors: &Descriptors) -> Result<(), Errno> {
        if file.kind()? != FileType::RegularFile {
            return Err(Errno::PERM);
        }
        linkat(&descriptors.0, file.number(), self, name, AtFlags::SYMLINK_FOLLOW)
    }

    /// The target of a symbolic link.
    pub fn target(&self) -> Result<CString, Errno> {
        readlinkat(self, "", Vec::new())
    }

    /// Sets the permissions of a regular file or folder.
    pub fn set_permissions(&self, permissions: u32, descriptors: &Descriptors) -> Result<(), Errno> {
        if !matches!(self.kind()?, FileType::RegularFile | FileType::Directory) {
            return Err(Errno::OPNOTSUPP);
        }
        let mode = Mode::from_raw_mode(permissions & PERMISSIONS);
        chmodat(&descriptors.0, self.number(), mode, AtFlags::empty())
    }

    /// Sets the length of a regular file.
    pub fn set_length(&self, bytes: u64, descriptors: &Descriptors) -> Result<(), Errno> {
        i64::try_from(bytes).map_err(|_| Errno::FBIG)?;
        if self.kind()? != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        ftruncate(self.open(OFlags::WRONLY, descriptors)?, bytes)
    }

    /// Sets the times of access and modification.
    pub fn set_times(&self, times: &Timestamps) -> Result<(), Errno> {
        utimensat(self, "", times, AtFlags::EMPTY_PATH)
    }
}
