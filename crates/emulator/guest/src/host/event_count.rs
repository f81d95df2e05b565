//! Non-blocking updates of an eventfd that the guest shares. The guest may have filled its counter or cleared
//! O_NONBLOCK. Source: eventfd(2): a write that would raise the counter above 2^64 - 2 blocks; fcntl(2): O_NONBLOCK is
//! a property of the open file description, not of the descriptor.

use std::os::fd::{AsRawFd, OwnedFd};

/// Adds to the counter. A counter that the guest has filled is left unchanged, since it already signals an event.
pub fn add(file: &OwnedFd, events: u64) {
    nonblocking(file, || {
        // SAFETY: `events` is 8 bytes and live.
        unsafe { libc::write(file.as_raw_fd(), (&raw const events).cast(), 8) };
    });
}

/// Resets the counter to zero.
pub fn clear(file: &OwnedFd) {
    let mut events = 0u64;
    nonblocking(file, || {
        // SAFETY: `events` is 8 bytes and live.
        unsafe { libc::read(file.as_raw_fd(), (&raw mut events).cast(), 8) };
    });
}

fn nonblocking(file: &OwnedFd, act: impl FnOnce()) {
    // SAFETY: the call takes no pointers.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    let waits = flags & libc::O_NONBLOCK == 0;
    let set = |flags: i32| {
        // SAFETY: the call takes no pointers.
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
    fn writing_to_a_full_eventfd_changes_nothing_and_does_not_block() {
        // SAFETY: the call takes no pointers.
        let file = owned(unsafe { libc::eventfd(0, 0) }).unwrap();
        add(&file, u64::MAX - 1);
        add(&file, 1);
        let mut count = 0u64;
        // SAFETY: `count` is 8 bytes and live.
        unsafe { libc::read(file.as_raw_fd(), (&raw mut count).cast(), 8) };
        assert_eq!(count, u64::MAX - 1);
        clear(&file);
        // SAFETY: the call takes no pointers.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) } & libc::O_NONBLOCK, 0);
    }
}
