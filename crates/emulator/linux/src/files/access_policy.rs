//! The access policy for host files that a confined guest can name or has inherited: files outside its root are
//! read-only. Source: path_resolution(7); proc_pid_fd(5) (opening a descriptor's link opens its file again).

use std::os::fd::{IntoRawFd, OwnedFd, RawFd};

use longma_guest::Errno;
use longma_guest::host::pinned_file::PinnedFile;

use crate::Process;
use crate::root::{OpenHow, access_of, c_path, kernel_name, open_how};

/// A host file that a guest may open by its own name although it is outside the root. Such files contain no user data.
#[derive(Debug)]
struct Shared {
    name: &'static str,
    /// Whether it may be opened for writing. Writing affects nothing but the terminal.
    writable: bool,
}

const fn read_write(name: &'static str) -> Shared {
    Shared { name, writable: true }
}

const fn read_only(name: &'static str) -> Shared {
    Shared { name, writable: false }
}

const SHARED: [Shared; 18] = [
    read_write("/dev/null"),
    read_write("/dev/zero"),
    read_write("/dev/full"),
    read_write("/dev/random"),
    read_write("/dev/urandom"),
    read_write("/dev/tty"),
    read_only("/proc/filesystems"),
    read_only("/proc/loadavg"),
    read_only("/proc/meminfo"),
    read_only("/proc/stat"),
    read_only("/proc/uptime"),
    read_only("/proc/sys/kernel/random/uuid"),
    read_only("/proc/sys/net/core/somaxconn"),
    read_only("/proc/sys/vm/overcommit_memory"),
    read_only("/sys/devices/system/cpu/online"),
    read_only("/sys/devices/system/cpu/possible"),
    read_only("/sys/kernel/mm/transparent_hugepage/enabled"),
    read_only("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"),
];

fn shared(path: &[u8]) -> Option<&'static Shared> {
    SHARED.iter().find(|shared| shared.name.as_bytes() == path)
}

/// Whether a confined guest may open the host file with this name.
pub(super) fn is_shared(path: &[u8]) -> bool {
    shared(path).is_some()
}

/// The descriptor that a path such as /proc/self/fd/N or /dev/stdin refers to.
pub(super) fn descriptor_named(path: &[u8]) -> Option<RawFd> {
    let of_standard = match path {
        b"/dev/stdin" => Some(0),
        b"/dev/stdout" => Some(1),
        b"/dev/stderr" => Some(2),
        _ => None,
    };
    let number = [&b"/proc/self/fd/"[..], b"/dev/fd/", b"/proc/thread-self/fd/"]
        .iter()
        .find_map(|prefix| path.strip_prefix(*prefix))
        .filter(|rest| rest.iter().all(u8::is_ascii_digit) && (rest.len() == 1 || !rest.starts_with(b"0")));
    of_standard.or_else(|| std::str::from_utf8(number?).ok()?.parse().ok())
}

/// Whether a path names the directory of the guest's descriptors.
pub(super) fn is_descriptor_folder(path: &[u8]) -> bool {
    matches!(path, b"/proc/self/fd" | b"/dev/fd")
}

/// An open file whose mode, owner, times and attributes the guest may change.
#[derive(Debug)]
pub(crate) struct Changeable {
    number: RawFd,
    _pinned: Option<PinnedFile>,
}

impl Changeable {
    /// The file of the guest's descriptor, if the guest may change it. Guests without a root are not checked.
    pub fn of(process: &Process, descriptor: u64) -> Result<Self, Errno> {
        let descriptor = descriptor as RawFd;
        if !process.root.is_confined() {
            return Ok(Self { number: descriptor, _pinned: None });
        }
        let pinned = PinnedFile::of(descriptor)?;
        process.root.check_change(&pinned)?;
        Ok(Self { number: pinned.number(), _pinned: Some(pinned) })
    }

    /// The descriptor as an argument of a host call.
    pub fn descriptor(&self) -> u64 {
        self.number as u64
    }
}

/// Opens a host file that is shared with confined guests.
pub(super) fn open_shared(path: &[u8], how: OpenHow) -> Option<Result<OwnedFd, Errno>> {
    let shared = shared(path)?;
    let (_, writes) = access_of(how.flags as i32);
    if writes && !shared.writable {
        return Some(Err(Errno(libc::EACCES)));
    }
    if how.flags as i32 & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL {
        return Some(Err(Errno(libc::EEXIST)));
    }
    // O_CREAT is removed, so that a missing file is not created on the host.
    let how = OpenHow { flags: how.flags & !(libc::O_CREAT as u64), mode: 0, ..how };
    Some(c_path(path).and_then(|path| open_how(libc::AT_FDCWD, &path, &how)))
}

/// Opens the file of a confined guest's descriptor again. A file that is not the guest's own gets no additional access.
pub(super) fn reopen(process: &Process, descriptor: RawFd, how: OpenHow) -> Result<OwnedFd, Errno> {
    let pinned = PinnedFile::of(descriptor).map_err(bad_descriptor_to_not_found)?;
    // SAFETY: the call takes no pointers.
    let flags = unsafe { libc::fcntl(pinned.number(), libc::F_GETFL) };
    let (current, requested) = (access_of(flags & !libc::O_TRUNC), access_of(how.flags as i32));
    let gains = (requested.0 && !current.0, requested.1 && !current.1);
    if gains != (false, false) && !process.root.owns(&pinned)? {
        let name = kernel_name(&pinned)?;
        if !shared(&name).is_some_and(|shared| shared.writable || !requested.1) {
            return Err(Errno(libc::EACCES));
        }
    }
    let how = OpenHow { flags: how.flags & !(libc::O_CREAT as u64), mode: 0, ..how };
    open_how(libc::AT_FDCWD, &pinned.link(), &how)
}

/// The error for a path whose descriptor is not open.
pub(super) fn bad_descriptor_to_not_found(error: Errno) -> Errno {
    if error == Errno(libc::EBADF) { Errno(libc::ENOENT) } else { error }
}

/// Returns a descriptor from a system call.
pub(super) fn into_guest_descriptor(opened: Result<OwnedFd, Errno>) -> Result<u64, Errno> {
    opened.map(|opened| opened.into_raw_fd() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_descriptor_links_name_descriptors() {
        for (path, descriptor) in [("/proc/self/fd/3", 3), ("/dev/fd/0", 0), ("/dev/stdout", 1)] {
            assert_eq!(descriptor_named(path.as_bytes()), Some(descriptor), "{path}");
        }
        for path in [
            "/proc/self/fd/",
            "/proc/self/fd/3/..",
            "/proc/self/fd/03",
            "/proc/self/fd/99999999999",
            "/dev/fd",
        ] {
            assert_eq!(descriptor_named(path.as_bytes()), None, "{path}");
        }
    }
}
