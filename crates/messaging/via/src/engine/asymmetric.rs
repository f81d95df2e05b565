//! Asymmetric barriers between a frequent and a rare side of one process: the rare side bears the cost for both.
//!
//! Source: membarrier(2), MEMBARRIER_CMD_PRIVATE_EXPEDITED; Dice, Huang and Yang, "Asymmetric Dekker synchronization"
//! (2001).

pub(super) use std::cell::UnsafeCell;
pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use std::sync::OnceLock;
use std::sync::atomic::compiler_fence;

/// Whether `heavy_barrier` works in this process.
pub fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) && heavy_barrier())
}

/// The barrier of the frequent side. It prevents only the compiler from moving a load before a store; the heavy barrier
/// prevents the processor from doing so.
#[inline]
pub fn light_barrier() {
    compiler_fence(Ordering::SeqCst);
}

/// The barrier of the rare side: a full barrier on every core that runs a thread of this process. Returns `false` if it
/// failed.
pub fn heavy_barrier() -> bool {
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
}

fn membarrier(command: i32) -> bool {
    // SAFETY: the call takes only integers and accesses no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// A nonzero identifier of the current thread, unique among living threads.
#[inline]
pub(super) fn this_thread() -> usize {
    thread_local! { static PLACE: u8 = const { 0 } }
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

/// Backs off briefly while waiting for another thread.
pub(super) fn pause(spins: u32) {
    /// The number of spins before the thread yields.
    const SPINS_BEFORE_YIELD: u32 = 200;
    if spins > SPINS_BEFORE_YIELD { std::thread::yield_now() } else { std::hint::spin_loop() }
}
