//! Resolves paths inside a guest's root, and restricts the kernel's control file systems that are mounted there: their
//! files change the host's kernel or expose its processes. Source: openat2(2), path_resolution(7); proc(5); statfs(2)
//! (f_type).

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;

use longma_guest::Errno;
use longma_guest::host::pinned_file::PinnedFile;

use super::{OpenHow, open_how, open_how_uninterrupted};
use crate::open_files::status_of;

const RESOLVE_NO_XDEV: u64 = 0x01;

/// The files in /proc/PID that expose the memory or the execution of the process.
pub(crate) const PROC_MEMORY_FILES: [&[u8]; 8] =
    [b"mem", b"smaps", b"smaps_rollup", b"numa_maps", b"pagemap", b"syscall", b"stack", b"personality"];

/// The f_type of the kernel's control file systems: proc, sysfs, cgroup, cgroup2, debugfs, tracefs, securityfs, bpf,
/// configfs, efivarfs, selinuxfs, smackfs, binfmt_misc, pstore.
const CONTROL_FILE_SYSTEMS: [i64; 14] = [
    PROC,
    0x6265_6572,
    0x27_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0xcafe_4a11,
    0x6265_6570,
    0xde5e_81e4,
    0xf97c_ff8c,
    0x4341_5d53,
    0x4249_4e4d,
    0x6165_676c,
];
const PROC: i64 = 0x9fa0;

/// The type of the file system of an open file.
fn file_system(file: &impl AsFd) -> Option<i64> {
    // SAFETY: `libc::statfs` is plain data.
    let mut status: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `status` is valid for writes.
    (unsafe { libc::fstatfs(file.as_fd().as_raw_fd(), &raw mut status) } == 0).then_some(status.f_type as _)
}

/// Whether an open file is in a proc file system, regardless of the mount point.
pub(crate) fn is_in_proc(file: &impl AsFd) -> bool {
    file_system(file) == Some(PROC)
}

/// Whether an open file is in a kernel control file system.
pub(crate) fn is_in_control_fs(file: &impl AsFd) -> bool {
    file_system(file).is_some_and(|kind| CONTROL_FILE_SYSTEMS.contains(&kind))
}

/// The kernel's name of an open file: its path, or for example `socket:[7]`.
pub(crate) fn kernel_name(file: &impl AsFd) -> Result<Vec<u8>, Errno> {
    name_at(file.as_fd().as_raw_fd())
}

/// The kernel's name of the file of a guest descriptor. Another thread may reassign the descriptor, so use the name
/// only for display or for a new lookup.
pub(crate) fn name_at(descriptor: RawFd) -> Result<Vec<u8>, Errno> {
    match std::fs::read_link(format!("/proc/self/fd/{descriptor}")) {
        Ok(link) => Ok(link.into_os_string().into_vec()),
        // The kernel returns no name longer than PATH_MAX. Names are longer on the host than in the guest because of
        // the root.
        Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => Err(Errno(libc::ENAMETOOLONG)),
        Err(_) => Err(Errno(libc::EBADF)),
    }
}

/// Whether opening with these flags permits reading, and whether it permits changes.
pub(crate) fn access_of(flags: i32) -> (bool, bool) {
    let mode = flags & libc::O_ACCMODE;
    if flags & libc::O_PATH != 0 {
        return (false, false);
    }
    (mode != libc::O_WRONLY, mode != libc::O_RDONLY || flags & libc::O_TRUNC != 0)
}

/// Whether the open file exposes or changes the memory of a process.
fn exposes_memory(file: &impl AsFd) -> bool {
    let name = kernel_name(file).unwrap_or_default();
    is_in_proc(file) && (PROC_MEMORY_FILES.contains(&last_part(&name)) || name.ends_with(b"/map_files"))
}

/// A path to resolve, for a confined guest inside its root.
#[derive(Debug)]
pub(crate) struct PathInRoot<'a> {
    /// The directory to which a relative path refers, as a descriptor of the emulator.
    pub directory: RawFd,
    pub path: &'a CString,
    /// The openat2 flags that keep the path in the root.
    pub resolve: u64,
    /// Whether the directory is itself in a kernel control file system.
    pub base_is_in_control_fs: bool,
}

impl PathInRoot<'_> {
    /// Resolves and opens the path, without further checks.
    pub fn resolve(&self, how: OpenHow) -> Result<OwnedFd, Errno> {
        open_how(self.directory, self.path, &OpenHow { resolve: how.resolve | self.resolve, ..how })
    }

    /// Opens the path with O_PATH and these flags.
    pub fn open_pinned(&self, flags: i32) -> Result<PinnedFile, Errno> {
        let flags = (libc::O_PATH | libc::O_CLOEXEC | flags) as u64;
        PinnedFile::new(|| {
            open_how_uninterrupted(
                self.directory,
                self.path,
                &OpenHow { flags, mode: 0, resolve: self.resolve },
            )
        })
    }

    /// Opens the path. Files in kernel control file systems (for example a /proc mounted in the root) are read-only,
    /// and those that expose memory are refused.
    pub fn open(&self, how: OpenHow) -> Result<OwnedFd, Errno> {
        if self.base_is_in_control_fs {
            return self.open_across(how);
        }
        // The directory is not in a control file system, so only a mount point can lead into one. Most paths cross
        // none.
        match self.resolve(OpenHow { resolve: how.resolve | RESOLVE_NO_XDEV, ..how }) {
            Err(Errno(libc::EXDEV)) => self.open_across(how),
            opened => opened,
        }
    }

    /// Opens a path that crosses a mount point: the file is checked before it is opened.
    fn open_across(&self, how: OpenHow) -> Result<OwnedFd, Errno> {
        let flags = how.flags as i32;
        let pinned = match self.open_pinned(flags & (libc::O_NOFOLLOW | libc::O_DIRECTORY)) {
            Err(Errno(libc::ENOENT)) if flags & libc::O_CREAT != 0 => {
                // O_EXCL: another process may have created the file since the check, and an unchecked file must not be
                // opened.
                return self.resolve(OpenHow { flags: how.flags | libc::O_EXCL as u64, ..how });
            }
            pinned => pinned?,
        };
        let (reads, writes) = access_of(flags);
        if is_in_control_fs(&pinned) && (writes || reads && exposes_memory(&pinned)) {
            return Err(Errno(libc::EACCES));
        }
        if flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL {
            return Err(Errno(libc::EEXIST));
        }
        let mode = if flags & libc::O_TMPFILE == libc::O_TMPFILE { how.mode } else { 0 };
        // The open below would fail for a link that must not be followed, too, but with another error.
        if flags & (libc::O_NOFOLLOW | libc::O_PATH) == libc::O_NOFOLLOW && is_link(&pinned) {
            return Err(Errno(libc::ELOOP));
        }
        let reopen_flags = how.flags & !((libc::O_CREAT | libc::O_NOFOLLOW) as u64);
        open_how(libc::AT_FDCWD, &pinned.link(), &OpenHow { flags: reopen_flags, mode, resolve: 0 })
    }
}

fn is_link(file: &PinnedFile) -> bool {
    status_of(file.number()).is_some_and(|status| status.st_mode & libc::S_IFMT == libc::S_IFLNK)
}

/// The last component of a path.
pub(crate) fn last_part(path: &[u8]) -> &[u8] {
    path.split(|&byte| byte == b'/').rfind(|part| !part.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_part_ignores_repeated_and_trailing_slashes() {
        assert_eq!(last_part(b"/a//exe//"), b"exe");
        assert_eq!(last_part(b"exe"), b"exe");
        assert_eq!(last_part(b"//"), b"");
    }

    #[test]
    fn kernel_control_files_are_detected_by_their_file_system() {
        let open = |path: &str| std::fs::File::open(path).unwrap();
        assert!(is_in_proc(&open("/proc/uptime")) && is_in_control_fs(&open("/sys/devices")));
        assert!(!is_in_control_fs(&open("/dev/null")) && !is_in_control_fs(&open("/")));
    }
}
