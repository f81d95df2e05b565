//! Waking whoever sleeps on a word of memory, in this process or in a peer's.
//! Not the sleep (see `engine::waiting`).
//! Source: futex(2).

use std::sync::atomic::AtomicU32;

/// Wakes everybody who sleeps on `word`.
pub(crate) fn wake_all(word: &AtomicU32, private: bool) {
    wake(word, private, i32::MAX);
}

/// Wakes a peer: as many of its threads as an honest one may have asleep on one VI. A hostile one may have any number asleep there, and
/// waking those takes the time of whoever does it. The first that wakes takes what there is, and wakes the others of its process.
pub(crate) fn wake_some(word: &AtomicU32) {
    const MOST_SLEEPERS: i32 = 128;
    wake(word, false, MOST_SLEEPERS);
}

fn wake(word: &AtomicU32, private: bool, most: i32) {
    let operation = libc::FUTEX_WAKE | if private { libc::FUTEX_PRIVATE_FLAG } else { 0 };
    // SAFETY: the kernel uses the address only as a name.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, most, 0, 0, 0) };
}
