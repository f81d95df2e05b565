//! Random delays at synchronization points, which expose rare thread interleavings in tests. Enabled by `LONGMA_SHAKE`;
//! otherwise each point only reads one variable. Source: noise making; Edelstein et al., "Multithreaded Java program
//! test generation" (2002).

use longma_random::mix;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// The state of the random number generator; 0 disables the delays.
static STATE: AtomicU64 = AtomicU64::new(0);

/// Reads the seed from the environment variable `LONGMA_SHAKE`.
pub fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let seed = std::env::var("LONGMA_SHAKE").ok().and_then(|text| text.parse().ok());
        STATE.store(seed.unwrap_or(0), Ordering::Relaxed);
    });
}

/// Delays the thread at random. Call it where locks are taken and where code changes.
pub fn perturb() {
    if STATE.load(Ordering::Relaxed) != 0 {
        delay();
    }
}

#[cold]
fn delay() {
    // Any odd step visits all states.
    let random = mix(STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)) >> 32;
    match random % 16 {
        0..8 => {}
        8..12 => std::thread::yield_now(),
        12..15 => (0..random >> 8 & 0x3ff).for_each(|_| std::hint::spin_loop()),
        _ => std::thread::sleep(std::time::Duration::from_micros(random >> 8 & 0x3f)),
    }
}
