//! Makes code written by one thread safe to execute on others. Source: Intel SDM volume 3, 9.1.3 (handling self- and
//! cross-modifying code); AMD64 APM volume 2, 7.6.1 (cross-modifying code); membarrier(2).
//!
//! Intel requires that a processor executes a serialising instruction before it runs code that another processor wrote.
//! The code cache follows this rule:
//!
//! - **New code** is written where no thread executes: after the used part, or in place of code that all cores have
//!   left (see `readers.rs`). Then [`serialise_all`] makes each running thread of the process execute a serialising
//!   instruction; other threads execute one when they return from the kernel. Only then do jumps, tables or lists refer
//!   to the code.
//! - **Jumps between regions** are patched while threads may execute them. The new target is code for which all threads
//!   have serialised, or the jump's own stub. This is the only change of bytes that another thread may be fetching. It
//!   follows AMD's rule for asynchronous modification: the instruction is inside one naturally aligned quadword, one
//!   aligned store changes its displacement, and both the old and the new target are valid at that time. Intel's
//!   processors satisfy the rule in practice, and many virtual machines depend on it. A thread that still takes the old
//!   jump reaches code that stays in place until the thread passes its next safe point.
//! - **Old code** stays in place until all cores have passed a safe point. All threads have also serialised after the
//!   jumps to it were patched.

use std::sync::atomic::{AtomicBool, Ordering};

const REGISTER: i32 = libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE;
const SYNC_CORE: i32 = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE;

/// Makes each thread of the process execute a serialising instruction before it continues in user space.
pub(super) fn serialise_all() {
    static UNAVAILABLE: AtomicBool = AtomicBool::new(false);
    if !UNAVAILABLE.load(Ordering::Relaxed) {
        // The first call of a process fails because the process is not registered yet.
        if membarrier(SYNC_CORE) || membarrier(REGISTER) && membarrier(SYNC_CORE) {
            return;
        }
        UNAVAILABLE.store(true, Ordering::Relaxed);
    }
    interrupt_processors();
}

fn membarrier(command: i32) -> bool {
    // SAFETY: the call takes no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// A substitute for hosts without membarrier: revoking write access to a page in use interrupts all processors that run
/// a thread of the process, and the return from an interrupt serialises.
fn interrupt_processors() {
    const PAGE_BYTES: usize = 4096;
    // SAFETY: a private mapping at a kernel-chosen address, which is removed below.
    unsafe {
        let page = libc::mmap(
            std::ptr::null_mut(),
            PAGE_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if page != libc::MAP_FAILED {
            page.cast::<u8>().write_volatile(1);
            libc::munmap(page, PAGE_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_supports_serialising_all_threads() {
        serialise_all();
        interrupt_processors();
        assert!(membarrier(SYNC_CORE) || !membarrier(REGISTER));
    }
}
