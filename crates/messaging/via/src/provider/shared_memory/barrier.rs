//! An asymmetric barrier between processes. It ensures that a side going to sleep and a peer publishing a message
//! notice each other, without a fence on the fast path. The order of words within a message does not depend on it.
//!
//! Source: membarrier(2), MEMBARRIER_CMD_GLOBAL_EXPEDITED; asymmetric Dekker synchronization by Dice, Shavit and
//! others.
//!
//! The publisher stores a message and then loads `sleep_state`; the sleeper stores `sleep_state` and then loads the slot. Each
//! store must be visible before the following load. The membarrier call of the sleeper runs a full barrier on the
//! publisher's core, so that the publisher needs none.

use std::sync::OnceLock;

const REGISTER: i32 = libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
const BARRIER: i32 = libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED;

/// Registers this process once. Returns whether registration and barrier are supported.
pub(super) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| membarrier(REGISTER) && membarrier(BARRIER))
}

/// Runs a full barrier on every core that executes a registered process. Returns whether it succeeded.
pub(super) fn everywhere() -> bool {
    membarrier(BARRIER)
}

fn membarrier(command: i32) -> bool {
    // SAFETY: the call takes only integers and accesses no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
