//! Barriers for two sides of which one passes often and the other seldom: the seldom one pays for both.
//! Not between processes; that barrier is the shared-memory provider's.
//! Source: membarrier(2), MEMBARRIER_CMD_PRIVATE_EXPEDITED; Dice, Huang and Yang, "Asymmetric Dekker synchronization" (2001).

pub(super) use std::cell::UnsafeCell;
pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use std::sync::OnceLock;
use std::sync::atomic::compiler_fence;

/// Whether `heavy_barrier` works in this process.
pub fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) && heavy_barrier())
}

/// The often side's: keeps the compiler from moving a load before a store. The processor is kept by the other side.
#[inline]
pub fn light_barrier() {
    compiler_fence(Ordering::SeqCst);
}

/// The seldom side's: a full barrier on every core that runs a thread of this process. `false`: it did not happen.
pub fn heavy_barrier() -> bool {
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
}

fn membarrier(command: i32) -> bool {
    // SAFETY: takes numbers only and touches no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// A number that no other living thread has; never 0.
#[inline]
pub(super) fn this_thread() -> usize {
    thread_local! { static PLACE: u8 = const { 0 } }
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

/// A moment's wait for another thread.
pub(super) fn pause(spins: u32) {
    /// How often a thread looks again before it lets others run.
    const SPINS_BEFORE_YIELD: u32 = 200;
    if spins > SPINS_BEFORE_YIELD { std::thread::yield_now() } else { std::hint::spin_loop() }
}
