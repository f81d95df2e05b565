//! What is open when a process begins: descriptors that are this program's own, and the standard files.
//! Not what the guest opens later.
//! Source: proc_pid_fd(5).

use std::os::fd::RawFd;
use std::{fs, io};

use longma_guest::host::descriptors;

/// What the host tells of an open file; `None` if none is open there.
pub(crate) fn status_of(descriptor: RawFd) -> Option<libc::stat> {
    // SAFETY: plain data.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is there to be filled.
    (unsafe { libc::fstat(descriptor, &raw mut status) } == 0).then_some(status)
}

/// The descriptors that are open.
///
/// # Errors
/// The host does not list them.
pub(crate) fn open_descriptors() -> io::Result<Vec<RawFd>> {
    let entries = fs::read_dir("/proc/self/fd")?;
    let mut found: Vec<RawFd> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    found.sort_unstable();
    // The listing's own descriptor is closed by now.
    found.retain(|descriptor| status_of(*descriptor).is_some());
    Ok(found)
}

/// The descriptors that this program has open for itself, before the guest has opened any.
pub(crate) fn own_descriptors() -> Vec<RawFd> {
    let is_own = |descriptor: &RawFd| {
        // SAFETY: no pointers.
        let flags = unsafe { libc::fcntl(*descriptor, libc::F_GETFD) };
        (3..descriptors::first()).contains(descriptor) && flags >= 0 && flags & libc::FD_CLOEXEC != 0
    };
    open_descriptors().unwrap_or_default().into_iter().filter(is_own).collect()
}

/// (device, inode) of the standard descriptors as the process found them.
pub(crate) fn standard_files() -> [Option<(u64, u64)>; 3] {
    std::array::from_fn(|descriptor| {
        status_of(descriptor as RawFd).map(|status| (status.st_dev, status.st_ino))
    })
}
