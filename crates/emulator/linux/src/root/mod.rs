//! The directory that a guest sees as `/`. Paths are resolved by openat2 within it. Source: openat2(2)
//! (RESOLVE_IN_ROOT), path_resolution(7).

mod path_in_root;

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longma_guest::Errno;
use longma_guest::host::descriptors;
use longma_guest::host::host_call;
use longma_guest::host::pinned_file::PinnedFile;

use crate::simulated::waits::{BlockingCondition, interruptible};

pub(crate) use path_in_root::{
    PROC_MEMORY_FILES, PathInRoot, access_of, is_in_control_fs, is_in_proc, kernel_name, last_part, name_at,
};

const RESOLVE_BENEATH: u64 = 0x08;
const RESOLVE_IN_ROOT: u64 = 0x10;
const RESOLVE_NO_MAGICLINKS: u64 = 0x2;

/// The root of a guest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Root {
    /// `None` for the host's own root.
    confined: Option<Arc<ConfinedRoot>>,
}

/// The directory to which a guest is confined.
#[derive(Debug)]
struct ConfinedRoot {
    /// Absolute, with links resolved.
    host: PathBuf,
    /// An emulator descriptor of the directory, which stays valid if the directory is renamed.
    directory: OwnedFd,
}

/// openat2's `struct open_how`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenHow {
    pub flags: u64,
    pub mode: u64,
    pub resolve: u64,
}

/// Converts a path for the host.
pub(crate) fn c_path(path: &[u8]) -> Result<CString, Errno> {
    CString::new(path).map_err(|_| Errno(libc::EINVAL))
}

impl Root {
    /// Makes the directory `host` the guest's root. `None` means no confinement.
    pub fn new(host: Option<&Path>) -> io::Result<Self> {
        let host = host.map(Path::canonicalize).transpose()?;
        if let Some(directory) = host.as_ref().filter(|directory| !directory.is_dir()) {
            let problem = format!("{} is not a directory", directory.display());
            return Err(io::Error::new(io::ErrorKind::NotADirectory, problem));
        }
        // The host's own root confines nothing.
        let Some(host) = host.filter(|directory| directory != Path::new("/")) else {
            return Ok(Self::default());
        };
        let directory = descriptors::move_to_reserved(open_path(&host)?)?;
        if is_in_control_fs(&directory) {
            let problem = format!(
                "{} is in a control file system of the kernel, with which programs could change the host",
                host.display()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
        }
        Ok(Self { confined: Some(Arc::new(ConfinedRoot { host, directory })) })
    }

    /// Whether the guest is confined.
    pub fn is_confined(&self) -> bool {
        self.confined.is_some()
    }

    /// The guest's name of a host path; `None` if it is outside the root.
    pub fn guest_name(&self, host: &[u8]) -> Option<Vec<u8>> {
        let Some(confined) = &self.confined else { return Some(host.to_vec()) };
        let inside = Path::new(OsStr::from_bytes(host)).strip_prefix(&confined.host).ok()?;
        Some([b"/", inside.as_os_str().as_bytes()].concat())
    }

    /// Opens a path, which must be absolute for a confined guest. Links and `..` stay inside the root.
    ///
    /// # Errors
    /// As openat2(2); RESTART if a signal came first.
    pub fn open(&self, path: &[u8], how: OpenHow) -> Result<OwnedFd, Errno> {
        let path = c_path(path)?;
        let inside = self.inside(&path);
        if self.is_confined() { inside.open(how) } else { inside.resolve(how) }
    }

    /// Makes /dev/shm inside the root if `path` is in that folder. Linux systems have it for shared memory and
    /// semaphores of shm_open(3) and sem_open(3), unpacked packages do not. Returns whether the folder was created.
    pub fn create_shm_folder_for(&self, path: &[u8]) -> bool {
        let Some(confined) = self.confined.as_ref().filter(|_| path.starts_with(b"/dev/shm/")) else {
            return false;
        };
        // SAFETY: the name is live.
        let make =
            |folder: RawFd, name: &CStr, mode| unsafe { libc::mkdirat(folder, name.as_ptr(), mode) == 0 };
        make(confined.directory.as_raw_fd(), c"dev", 0o755);
        self.open_pinned(b"/dev", libc::O_DIRECTORY).is_ok_and(|dev| make(dev.number(), c"shm", 0o1777))
    }

    /// Opens a path like [`Root::open`], but with O_PATH and these flags.
    ///
    /// # Errors
    /// As openat2(2).
    pub fn open_pinned(&self, path: &[u8], flags: i32) -> Result<PinnedFile, Errno> {
        self.inside(&c_path(path)?).open_pinned(flags)
    }

    fn inside<'a>(&self, path: &'a CString) -> PathInRoot<'a> {
        let (directory, resolve) = match &self.confined {
            Some(confined) => (confined.directory.as_raw_fd(), RESOLVE_IN_ROOT),
            None => (libc::AT_FDCWD, 0),
        };
        PathInRoot { directory, path, resolve, base_is_in_control_fs: false }
    }

    /// Opens a path for reading, for the loader.
    pub fn open_to_read(&self, path: &Path) -> io::Result<File> {
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
        let how = OpenHow { flags, mode: 0, resolve: 0 };
        let path = self.absolute(path);
        let opened = match self.open(path.as_os_str().as_bytes(), how) {
            // A pending guest signal must not prevent the emulator from opening the file.
            Err(Errno::RESTART) => self.open_uninterrupted(&path, how),
            opened => opened,
        };
        Ok(File::from(opened.map_err(|error| io::Error::from_raw_os_error(error.0))?))
    }

    /// Like [`Root::open`], but never blocks and is not interrupted by guest signals.
    fn open_uninterrupted(&self, path: &Path, how: OpenHow) -> Result<OwnedFd, Errno> {
        let path = c_path(path.as_os_str().as_bytes())?;
        let (directory, inside) = match &self.confined {
            Some(confined) => (confined.directory.as_raw_fd(), RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS),
            None => (libc::AT_FDCWD, 0),
        };
        let flags = how.flags | libc::O_NONBLOCK as u64;
        open_how_uninterrupted(directory, &path, &OpenHow { flags, resolve: how.resolve | inside, ..how })
    }

    /// The guest's name of the working directory.
    pub fn working_directory(&self) -> Result<Vec<u8>, Errno> {
        let host = std::env::current_dir()?.into_os_string().into_vec();
        // The working directory of the emulator may be outside the root.
        Ok(self.guest_name(&host).unwrap_or_else(|| b"/".to_vec()))
    }

    /// Makes a guest path absolute.
    pub fn absolute(&self, path: &Path) -> PathBuf {
        if path.is_absolute() {
            return path.to_owned();
        }
        let directory = self.working_directory().unwrap_or_else(|_| b"/".to_vec());
        PathBuf::from(std::ffi::OsString::from_vec(directory)).join(path)
    }

    /// Whether an open file belongs to the guest: it has no name (pipes, sockets, memory), or is inside the root and
    /// not in a kernel control file system.
    pub fn owns(&self, file: &PinnedFile) -> Result<bool, Errno> {
        if is_in_control_fs(file) {
            return Ok(false);
        }
        let name = kernel_name(file)?;
        Ok(!name.starts_with(b"/") || is_memory(file, &name) || self.guest_name(&name).is_some())
    }

    /// Refuses to change a file that is not the guest's own.
    pub fn check_change(&self, file: &PinnedFile) -> Result<(), Errno> {
        if !self.is_confined() || self.owns(file)? { Ok(()) } else { Err(Errno(libc::EPERM)) }
    }
}

/// Whether an open file is a memfd, whose kernel name looks like a path.
fn is_memory(file: &PinnedFile, name: &[u8]) -> bool {
    // Only memory files have seals. SAFETY: the call takes no pointers.
    name.starts_with(b"/memfd:") && unsafe { libc::fcntl(file.number(), libc::F_GET_SEALS) } >= 0
}

/// Opens a host directory with O_PATH.
fn open_path(path: &Path) -> Result<OwnedFd, Errno> {
    let how = OpenHow { flags: (libc::O_PATH | libc::O_CLOEXEC) as u64, mode: 0, resolve: 0 };
    open_how(libc::AT_FDCWD, &c_path(path.as_os_str().as_bytes())?, &how)
}

/// Calls openat2 on the host.
///
/// # Errors
/// As openat2(2); RESTART if a signal came first.
pub(crate) fn open_how(directory: RawFd, path: &CString, how: &OpenHow) -> Result<OwnedFd, Errno> {
    retry_after_renames(how, || {
        let arguments = arguments(directory, path, how);
        // SAFETY: the pointers are live, and a new descriptor affects no other code.
        let descriptor = unsafe { interruptible(libc::SYS_openat2, BlockingCondition::FifoPeer, arguments) }?;
        // SAFETY: the host has just created the descriptor for this call.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) })
    })
}

/// Like [`open_how`], for files that never block. Signals do not interrupt it.
pub(crate) fn open_how_uninterrupted(
    directory: RawFd,
    path: &CString,
    how: &OpenHow,
) -> Result<OwnedFd, Errno> {
    retry_after_renames(how, || {
        // SAFETY: the pointers are live, and a new descriptor affects no other code.
        let descriptor = unsafe { host_call(libc::SYS_openat2, arguments(directory, path, how)) }?;
        // SAFETY: the host has just created the descriptor for this call.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) })
    })
}

/// Repeats a confined lookup that failed with EAGAIN. The host gives up (openat2(2)) if any rename or mount in the
/// system during the lookup makes it uncertain whether `..` leaves the directory.
fn retry_after_renames<T>(how: &OpenHow, mut open: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    const MAX_ATTEMPTS: usize = 128;
    let is_confined = how.resolve & (RESOLVE_BENEATH | RESOLVE_IN_ROOT) != 0;
    for _ in 1..MAX_ATTEMPTS {
        match open() {
            Err(Errno(libc::EAGAIN)) if is_confined => {}
            result => return result,
        }
    }
    open()
}

fn arguments(directory: RawFd, path: &CString, how: &OpenHow) -> [u64; 6] {
    let (path, how) = (path.as_ptr() as u64, std::ptr::from_ref(how) as u64);
    [directory as u64, path, how, size_of::<OpenHow>() as u64, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    const CONFINED: OpenHow = OpenHow { flags: libc::O_PATH as u64, mode: 0, resolve: RESOLVE_IN_ROOT };

    #[test]
    fn a_lookup_is_repeated_only_if_it_is_confined() {
        let attempts = |how: &OpenHow, failures: usize, error: i32| {
            let mut count = 0;
            let result = retry_after_renames(how, || {
                count += 1;
                if count > failures { Ok(()) } else { Err(Errno(error)) }
            });
            (result, count)
        };
        assert_eq!(attempts(&CONFINED, 3, libc::EAGAIN), (Ok(()), 4));
        assert_eq!(attempts(&CONFINED, 3, libc::ENOENT), (Err(Errno(libc::ENOENT)), 1));
        assert_eq!(attempts(&CONFINED, usize::MAX, libc::EAGAIN), (Err(Errno(libc::EAGAIN)), 128));
        let free = OpenHow { resolve: 0, ..CONFINED };
        assert_eq!(attempts(&free, 3, libc::EAGAIN), (Err(Errno(libc::EAGAIN)), 1));
    }

    #[test]
    fn files_open_while_others_are_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["a", "b", "renamed"] {
            std::fs::create_dir(path(name)).unwrap();
        }
        let root = open_path(folder.path()).unwrap();
        let (is_done, inner) =
            (AtomicBool::new(false), c_path(("a/../".repeat(50) + "b").as_bytes()).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    std::fs::rename(path("renamed"), path("other")).unwrap();
                    std::fs::rename(path("other"), path("renamed")).unwrap();
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
            });
            let errors: Vec<Errno> =
                (0..20_000).filter_map(|_| open_how(root.as_raw_fd(), &inner, &CONFINED).err()).collect();
            is_done.store(true, Ordering::Relaxed);
            assert_eq!(errors, []);
        });
    }
}
