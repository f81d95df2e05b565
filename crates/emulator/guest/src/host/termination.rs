//! Terminates this process in the same way as its guest. Source: wait(2) (what a parent sees), signal(7).

use super::masks::{self, HostDisposition, set_of};

/// Terminates this process with `signal`, so that its parent sees the same wait status as for a native process.
pub fn terminate_by_signal(signal: i32) -> ! {
    masks::set_disposition(signal, HostDisposition::Default, 0);
    masks::replace(masks::BLOCKABLE & !set_of(signal));
    // SAFETY: the call takes no pointers.
    unsafe { libc::kill(libc::getpid(), signal) };
    // A signal to the calling process is delivered before `kill` returns, but possibly to another thread.
    std::thread::sleep(std::time::Duration::from_millis(100));
    std::process::exit(128 + signal)
}
