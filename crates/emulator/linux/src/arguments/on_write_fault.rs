//! Determines whether data remains in a file if a call cannot write it to guest memory. `results` chooses the buffer
//! accordingly. Source: Linux fs/pipe.c (pipe_read), net/ipv4/tcp.c (tcp_recvmsg_locked), net/unix/af_unix.c,
//! net/core/datagram.c, fs/eventfd.c, fs/timerfd.c, fs/signalfd.c, fs/notify/inotify/inotify_user.c,
//! drivers/tty/tty_io.c.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use crate::Process;
use crate::open_files::{socket_option, status_of};

/// The fate of data that a call cannot write to guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnWriteFault {
    /// The data remains in the file, and the call can be repeated.
    Remains,
    /// The data is lost.
    Lost,
}

/// The major number of /dev/null, /dev/zero, /dev/random and similar devices.
const MEMORY_DEVICES: u32 = 1;

impl OnWriteFault {
    /// The fate of data for a call that reads from `descriptor`.
    pub fn of_read(process: &Process, descriptor: u64) -> Self {
        if is_single_threaded(process) {
            return Self::Remains;
        }
        let Some(status) = status_of(descriptor as RawFd) else { return Self::Remains };
        match status.st_mode & libc::S_IFMT {
            libc::S_IFREG | libc::S_IFIFO | libc::S_IFDIR | libc::S_IFBLK | libc::S_IFLNK => Self::Remains,
            libc::S_IFCHR if libc::major(status.st_rdev) == MEMORY_DEVICES => Self::Remains,
            libc::S_IFSOCK => of_socket(descriptor, 0),
            // A terminal line, and reads from eventfd, timerfd, signalfd and inotify.
            _ => Self::Lost,
        }
    }

    /// The fate of data for a call that receives from the socket `descriptor` with these MSG_ flags.
    pub fn of_receipt(process: &Process, descriptor: u64, flags: u64) -> Self {
        if is_single_threaded(process) { Self::Remains } else { of_socket(descriptor, flags as i32) }
    }

    /// The fate of data for a call that receives a message.
    pub fn of_message(process: &Process) -> Self {
        if is_single_threaded(process) { Self::Remains } else { Self::Lost }
    }
}

/// Whether the process has only one thread, so that no other thread can protect, unmap or execute memory during the
/// call.
fn is_single_threaded(process: &Process) -> bool {
    process.threads.load(Ordering::Acquire) == 1
}

fn of_socket(descriptor: u64, flags: i32) -> OnWriteFault {
    // This fails if the descriptor is not a socket, as the call will.
    let kind = socket_option(descriptor as RawFd, libc::SO_TYPE).map_or(0, i32::from_ne_bytes);
    // Urgent data and queued errors are messages even in a stream.
    let is_stream = kind == libc::SOCK_STREAM && flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) == 0;
    if is_stream { OnWriteFault::Remains } else { OnWriteFault::Lost }
}
