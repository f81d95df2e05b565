//! Counting on an eventfd that a guest shares, and so may have filled or made to wait.
//! Not eventfds of the emulator's alone.
//! Source: eventfd(2): a write that would bring the count beyond 2^64 - 2 waits; fcntl(2): O_NONBLOCK is the open file's, not the
//! descriptor's.

use std::os::fd::{AsRawFd, OwnedFd};

/// Adds to the count. One that the guest has filled stays as it is: it says already that something has happened.
pub fn add(file: &OwnedFd, events: u64) {
    without_waiting(file, || {
        // SAFETY: eight live bytes.
        unsafe { libc::write(file.as_raw_fd(), (&raw const events).cast(), 8) };
    });
}

/// Makes the count zero.
pub fn clear(file: &OwnedFd) {
    let mut events = 0u64;
    without_waiting(file, || {
        // SAFETY: eight live bytes.
        unsafe { libc::read(file.as_raw_fd(), (&raw mut events).cast(), 8) };
    });
}

fn without_waiting(file: &OwnedFd, act: impl FnOnce()) {
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    let waits = flags & libc::O_NONBLOCK == 0;
    let set = |flags: i32| {
        // SAFETY: no pointers.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) };
    };
    if waits {
        set(flags | libc::O_NONBLOCK);
    }
    act();
    if waits {
        set(flags);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::descriptors::owned;

    #[test]
    fn a_full_count_is_left_as_it_is_and_nobody_waits() {
        // SAFETY: no pointers.
        let file = owned(unsafe { libc::eventfd(0, 0) }).unwrap();
        add(&file, u64::MAX - 1);
        add(&file, 1);
        let mut count = 0u64;
        // SAFETY: eight live bytes.
        unsafe { libc::read(file.as_raw_fd(), (&raw mut count).cast(), 8) };
        assert_eq!(count, u64::MAX - 1);
        clear(&file);
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) } & libc::O_NONBLOCK, 0);
    }
}
