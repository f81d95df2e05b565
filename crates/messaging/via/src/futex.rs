//! Futex wakeups, within this process or in a peer process.
//!
//! Source: futex(2).

use std::sync::atomic::AtomicU32;

/// Wakes all threads that sleep on `word`.
pub(crate) fn wake_all(word: &AtomicU32, private: bool) {
    wake(word, private, i32::MAX);
}

/// Wakes sleepers in a peer process, up to the number that a well-behaved peer has on one VI. The limit bounds the time
/// that a hostile peer with many sleeping threads can cost the caller. The first thread that wakes handles the event
/// and wakes the other threads of its process.
pub(crate) fn wake_some(word: &AtomicU32) {
    const MAX_SLEEPERS: i32 = 128;
    wake(word, false, MAX_SLEEPERS);
}

fn wake(word: &AtomicU32, private: bool, count: i32) {
    let operation = libc::FUTEX_WAKE | if private { libc::FUTEX_PRIVATE_FLAG } else { 0 };
    // SAFETY: FUTEX_WAKE uses the address only as a key and does not access memory.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, count, 0, 0, 0) };
}
