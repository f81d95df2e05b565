//! The directory a guest sees as `/`, and how its paths are kept inside it.
//! Not a chroot: the host's directory stays what it is, and every path is resolved by openat2 within it.
//! Source: openat2(2) (RESOLVE_IN_ROOT), path_resolution(7).

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::Errno;
use crate::host::calls::interruptible;

const RESOLVE_IN_ROOT: u64 = 0x10;

/// Host files that a guest may open under their own names though its root lacks them: they hold nothing of the host's users.
const SHARED: [&str; 18] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/uptime",
    "/proc/sys/kernel/random/uuid",
    "/proc/sys/net/core/somaxconn",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system/cpu/online",
    "/sys/devices/system/cpu/possible",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
];

/// What a guest sees as `/`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Root {
    /// The host directory, absolute and without links; none: the host's own root.
    host: Option<PathBuf>,
}

/// openat2's `struct open_how`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenHow {
    pub flags: u64,
    pub mode: u64,
    pub resolve: u64,
}

/// A path as the host takes it.
pub(crate) fn c_path(path: &[u8]) -> Result<CString, Errno> {
    CString::new(path).map_err(|_| Errno(libc::EINVAL))
}

impl Root {
    /// The directory `host` as the guest's root; none: no confinement.
    pub fn new(host: Option<&Path>) -> io::Result<Self> {
        let host = host.map(Path::canonicalize).transpose()?;
        if let Some(directory) = host.as_ref().filter(|directory| !directory.is_dir()) {
            let told = format!("{} is not a directory", directory.display());
            return Err(io::Error::new(io::ErrorKind::NotADirectory, told));
        }
        // The host's own root confines nothing.
        Ok(Self { host: host.filter(|directory| directory != Path::new("/")) })
    }

    /// Whether the guest is confined.
    pub fn is_confined(&self) -> bool {
        self.host.is_some()
    }

    /// Whether the guest may open the host file of this name though it is confined.
    pub fn is_shared(path: &[u8]) -> bool {
        SHARED.iter().any(|shared| shared.as_bytes() == path)
    }

    /// What the guest calls a host path; `None` if it is outside the root.
    pub fn guest_name(&self, host: &[u8]) -> Option<Vec<u8>> {
        let Some(root) = &self.host else { return Some(host.to_vec()) };
        let inside = Path::new(OsStr::from_bytes(host)).strip_prefix(root).ok()?;
        Some([b"/", inside.as_os_str().as_bytes()].concat())
    }

    /// Opens a path that is absolute for a confined guest. Links, `..` and absolute links stay inside.
    ///
    /// # Errors
    /// As openat2(2); RESTART if a signal came first.
    pub fn open(&self, path: &[u8], how: OpenHow) -> Result<OwnedFd, Errno> {
        let path = c_path(path)?;
        let (directory, resolve) = match &self.host {
            Some(host) => (Some(File::from(open_path(host)?)), RESOLVE_IN_ROOT),
            None => (None, 0),
        };
        let how = OpenHow { resolve: how.resolve | resolve, ..how };
        let at = directory.as_ref().map_or(libc::AT_FDCWD, AsRawFd::as_raw_fd);
        open_how(at, &path, &how)
    }

    /// Opens a path for reading, for the loader.
    pub fn open_to_read(&self, path: &Path) -> io::Result<File> {
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
        let how = OpenHow { flags, mode: 0, resolve: 0 };
        let path = self.absolute(path);
        Ok(File::from(
            self.open(path.as_os_str().as_bytes(), how)
                .map_err(|error| io::Error::from_raw_os_error(error.0))?,
        ))
    }

    /// The guest's name of the working directory.
    pub fn working_directory(&self) -> Result<Vec<u8>, Errno> {
        let host = std::env::current_dir()?.into_os_string().into_vec();
        // Somebody may start a confined guest from anywhere.
        Ok(self.guest_name(&host).unwrap_or_else(|| b"/".to_vec()))
    }

    /// A guest path made absolute by the working directory.
    pub fn absolute(&self, path: &Path) -> PathBuf {
        if path.is_absolute() {
            return path.to_owned();
        }
        let directory = self.working_directory().unwrap_or_else(|_| b"/".to_vec());
        PathBuf::from(std::ffi::OsString::from_vec(directory)).join(path)
    }
}

/// An O_PATH descriptor of a host directory.
fn open_path(path: &Path) -> Result<OwnedFd, Errno> {
    let how = OpenHow { flags: (libc::O_PATH | libc::O_CLOEXEC) as u64, mode: 0, resolve: 0 };
    open_how(libc::AT_FDCWD, &c_path(path.as_os_str().as_bytes())?, &how)
}

/// openat2 on the host.
pub(crate) fn open_how(directory: RawFd, path: &CString, how: &OpenHow) -> Result<OwnedFd, Errno> {
    let arguments = [
        directory as u64,
        path.as_ptr() as u64,
        std::ptr::from_ref(how) as u64,
        size_of::<OpenHow>() as u64,
        0,
        0,
    ];
    // Opening a FIFO waits for the other side.
    // SAFETY: both pointers are live, and a new descriptor disturbs nobody.
    let descriptor = unsafe { interruptible(libc::SYS_openat2, arguments) }?;
    // SAFETY: the host has just made it, for us.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) })
}
