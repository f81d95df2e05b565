//! What becomes of what a call has taken from a file and cannot write to the guest's memory.
//! Not where the kernel writes instead: that is in `results`.
//! Source: Linux fs/pipe.c (pipe_read), net/ipv4/tcp.c (tcp_recvmsg_locked), net/unix/af_unix.c, net/core/datagram.c, fs/eventfd.c,
//! fs/timerfd.c, fs/signalfd.c, fs/notify/inotify/inotify_user.c, drivers/tty/tty_io.c.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use crate::Process;
use crate::open_files::{socket_option, status_of};

/// What becomes of what a call gives if it cannot be written to the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unwritten {
    /// It stays where it was, and the call can be made again.
    Stays,
    /// It is gone.
    Goes,
}

/// /dev/null, /dev/zero, /dev/random and their like.
const MEMORY_DEVICES: u32 = 1;

impl Unwritten {
    /// For a call that reads from `descriptor`.
    pub fn of_read(process: &Process, descriptor: u64) -> Self {
        if is_alone(process) {
            return Self::Stays;
        }
        let Some(status) = status_of(descriptor as RawFd) else { return Self::Stays };
        match status.st_mode & libc::S_IFMT {
            libc::S_IFREG | libc::S_IFIFO | libc::S_IFDIR | libc::S_IFBLK | libc::S_IFLNK => Self::Stays,
            libc::S_IFCHR if libc::major(status.st_rdev) == MEMORY_DEVICES => Self::Stays,
            libc::S_IFSOCK => of_socket(descriptor, 0),
            // A terminal's line, and what event counts, timers, signals and watched folders have to tell.
            _ => Self::Goes,
        }
    }

    /// For a call that receives from socket `descriptor` with these MSG_ flags.
    pub fn of_receipt(process: &Process, descriptor: u64, flags: u64) -> Self {
        if is_alone(process) { Self::Stays } else { of_socket(descriptor, flags as i32) }
    }

    /// For a call that takes a message.
    pub fn of_message(process: &Process) -> Self {
        if is_alone(process) { Self::Stays } else { Self::Goes }
    }
}

/// No other thread protects, unmaps or runs anything while the only one makes a call.
fn is_alone(process: &Process) -> bool {
    process.threads.load(Ordering::Acquire) == 1
}

fn of_socket(descriptor: u64, flags: i32) -> Unwritten {
    // It fails if it is no socket, as the call will.
    let kind = socket_option(descriptor as RawFd, libc::SO_TYPE).map_or(0, i32::from_ne_bytes);
    // What is urgent and what tells of errors are messages also there.
    let is_stream = kind == libc::SOCK_STREAM && flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) == 0;
    if is_stream { Unwritten::Stays } else { Unwritten::Goes }
}
