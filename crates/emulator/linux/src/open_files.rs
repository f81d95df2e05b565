//! Queries the host about this process's open files. Source: fstat(2), kcmp(2), proc_pid_fd(5), proc_pid_fdinfo(5),
//! socket(7).

use std::os::fd::RawFd;
use std::{fs, io};

use longma_guest::host::descriptors;

/// The status of an open file; `None` if the descriptor is not open.
pub(crate) fn status_of(descriptor: RawFd) -> Option<libc::stat> {
    // SAFETY: `libc::stat` is plain data.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `status` is valid for writes.
    (unsafe { libc::fstat(descriptor, &raw mut status) } == 0).then_some(status)
}

/// Whether both descriptors refer to one open file description.
pub(crate) fn is_same_open_file(left: RawFd, right: RawFd) -> bool {
    const KCMP_FILE: i32 = 0;
    // SAFETY: the call takes no pointers; it compares two descriptors of this process.
    unsafe {
        let own_id = libc::getpid();
        libc::syscall(libc::SYS_kcmp, own_id, own_id, KCMP_FILE, left as u64, right as u64) == 0
    }
}

/// The kernel's description of an open file, one line for each property.
///
/// # Errors
/// The descriptor is not open.
pub(crate) fn facts(descriptor: RawFd) -> io::Result<String> {
    fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}"))
}

/// The value after `name` and a colon in the description of an open file or a task.
pub(crate) fn fact<'a>(facts: &'a str, name: &str) -> Option<&'a str> {
    let field = facts.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    field.map(str::trim)
}

/// Reads a SOL_SOCKET option.
///
/// # Errors
/// The descriptor is not a socket.
pub(crate) fn socket_option<const N: usize>(descriptor: RawFd, option: i32) -> io::Result<[u8; N]> {
    let (mut value, mut bytes) = ([0u8; N], N as libc::socklen_t);
    let pointer = value.as_mut_ptr().cast();
    // SAFETY: the value has this many bytes.
    descriptors::done(unsafe {
        libc::getsockopt(descriptor, libc::SOL_SOCKET, option, pointer, &raw mut bytes)
    })?;
    Ok(value)
}

/// Whether one of `events`, such as POLLIN, has occurred.
pub(crate) fn is_ready(descriptor: RawFd, events: i16) -> bool {
    let mut file = libc::pollfd { fd: descriptor, events, revents: 0 };
    // SAFETY: the structure is live.
    unsafe { libc::poll(&raw mut file, 1, 0) > 0 }
}

/// The open descriptors in order.
///
/// # Errors
/// The host does not list them.
pub(crate) fn all() -> io::Result<Vec<RawFd>> {
    let entries = fs::read_dir("/proc/self/fd")?;
    let mut open_descriptors: Vec<RawFd> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    open_descriptors.sort_unstable();
    // The listing's own descriptor has been closed by now.
    open_descriptors.retain(|descriptor| status_of(*descriptor).is_some());
    Ok(open_descriptors)
}

/// The descriptors that the emulator has open before the guest opens any.
pub(crate) fn initial_emulator_descriptors() -> Vec<RawFd> {
    let is_reserved = |descriptor: &RawFd| {
        // SAFETY: the call takes no pointers.
        let flags = unsafe { libc::fcntl(*descriptor, libc::F_GETFD) };
        (3..descriptors::first()).contains(descriptor) && flags >= 0 && flags & libc::FD_CLOEXEC != 0
    };
    all().unwrap_or_default().into_iter().filter(is_reserved).collect()
}

/// The file mode creation mask (umask(2)).
pub(crate) fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    fact(&status, "Umask").and_then(|mask| u32::from_str_radix(mask, 8).ok()).unwrap_or(0)
}

/// Device and inode of the standard descriptors.
pub(crate) fn standard() -> [Option<(u64, u64)>; 3] {
    std::array::from_fn(|descriptor| {
        status_of(descriptor as RawFd).map(|status| (status.st_dev, status.st_ino))
    })
}
