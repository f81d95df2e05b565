//! How code that one thread writes comes to be run by others.
//! Not the guest's rules for its own code: those are `dbar` and `ibar`.
//! Source: Intel SDM volume 3, 9.1.3 (handling self- and cross-modifying code); AMD64 APM volume 2, 7.6.1 (cross-modifying code);
//! membarrier(2).
//!
//! Intel's rule: code that one processor writes may be run by another only after that one has executed a serialising instruction.
//! The cache of translated code keeps it so:
//!
//! - **New code** is written where no thread runs anything: behind all that is used, or in place of code that every core has left
//!   (see `readers.rs`). Then [`serialise_all`] makes every running thread of the process execute a serialising instruction, and the
//!   others do when they come back from the kernel. Only then does any jump, table or list lead to the code.
//! - **Jumps between regions** are redirected while threads may be running them: to code that all have serialised on, as above, or back
//!   to the jump's own stub. This is the one place where bytes change that another thread may be fetching, and there the rule is
//!   AMD's for asynchronous modification, which Intel's processors keep in practice and which virtual machines of all kinds
//!   have relied on for their calls since the Pentium: the whole instruction lies in one naturally aligned quadword, one aligned store
//!   of that quadword changes its displacement, and both the old and the new target are right at that time. A thread that still takes the old way
//!   comes to code that is there until it has passed its next safe point.
//! - **Old code** is left alone until every core has passed a safe point; before that, redirected jumps have been serialised on too.

use std::sync::atomic::{AtomicBool, Ordering};

const REGISTER: i32 = libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE;
const SYNC_CORE: i32 = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE;

/// Makes every thread of the process execute a serialising instruction before it executes anything else of the process.
pub(super) fn serialise_all() {
    static UNAVAILABLE: AtomicBool = AtomicBool::new(false);
    if !UNAVAILABLE.load(Ordering::Relaxed) {
        // The first call of a process finds that it has not been registered.
        if membarrier(SYNC_CORE) || membarrier(REGISTER) && membarrier(SYNC_CORE) {
            return;
        }
        UNAVAILABLE.store(true, Ordering::Relaxed);
    }
    interrupt_all();
}

fn membarrier(command: i32) -> bool {
    // SAFETY: the call has no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// What a host without the call does as well: taking a page away that is in use interrupts every processor that runs a thread of the
/// process, and the return from an interrupt serialises.
fn interrupt_all() {
    const PAGE_BYTES: usize = 4096;
    // SAFETY: a mapping of its own, at an address of the kernel's choice, that is gone afterwards.
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
    fn this_host_can_serialise_every_thread() {
        serialise_all();
        interrupt_all();
        assert!(membarrier(SYNC_CORE) || !membarrier(REGISTER));
    }
}
