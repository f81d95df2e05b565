//! How a side that falls asleep and a peer that publishes cannot miss each other without a fence on the fast path.
//! Not needed for the order of a message's own words, which acquire and release give.
//! Source: membarrier(2), MEMBARRIER_CMD_GLOBAL_EXPEDITED; Dice, Shavit and others' asymmetric Dekker synchronisation.
//!
//! The publisher stores a message and then loads `asleep`; the sleeper stores `asleep` and then loads the slot. Each needs its
//! store to be seen before its load. The sleeper's membarrier runs a full barrier on the publisher's core, in its stead.

use std::sync::OnceLock;

const REGISTER: i32 = libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
const BARRIER: i32 = libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED;

/// Registers this process, once; says whether both it and the barrier work here.
pub(super) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| membarrier(REGISTER) && membarrier(BARRIER))
}

/// A full barrier on every core that runs a registered process.
pub(super) fn everywhere() -> bool {
    membarrier(BARRIER)
}

fn membarrier(command: i32) -> bool {
    // SAFETY: takes numbers only and touches no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
