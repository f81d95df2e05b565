//! How this process ends as its guest does.
//! Source: wait(2) (what a parent sees), signal(7).

use super::masks::{self, HostDisposition, set_of};

/// Ends this process by `signal`, so that its parent sees what it would see of a native one.
pub fn die_by(signal: i32) -> ! {
    masks::dispose(signal, HostDisposition::Default, 0);
    masks::replace(masks::HELD & !set_of(signal));
    // SAFETY: it has no pointers.
    unsafe { libc::kill(libc::getpid(), signal) };
    // A signal to oneself is delivered before `kill` returns, but another thread may be the one that gets it.
    std::thread::sleep(std::time::Duration::from_millis(100));
    std::process::exit(128 + signal)
}
