//! Random delays at the places where threads meet, so that tests see orders that are rare otherwise.
//! Not for users: without `LONGMA_SHAKE` in the emulator's environment it costs a look at one number.
//! Source: noise making; Edelstein et al., "Multithreaded Java program test generation" (2002).

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// The state of the random numbers; 0: none are wanted.
static STATE: AtomicU64 = AtomicU64::new(0);

/// Reads from the environment whether to shake, and with which seed.
pub fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let seed = std::env::var("LONGMA_SHAKE").ok().and_then(|text| text.parse().ok());
        STATE.store(seed.unwrap_or(0), Ordering::Relaxed);
    });
}

/// Lets other threads go first, sometimes. To be called where locks are taken and where code changes.
pub fn shake() {
    if STATE.load(Ordering::Relaxed) != 0 {
        delay();
    }
}

#[cold]
fn delay() {
    // splitmix64; threads that draw at once may draw the same.
    let state = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed).max(1);
    let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let drawn = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 32;
    match drawn % 16 {
        0..8 => {}
        8..12 => std::thread::yield_now(),
        12..15 => (0..drawn >> 8 & 0x3ff).for_each(|_| std::hint::spin_loop()),
        _ => std::thread::sleep(std::time::Duration::from_micros(drawn >> 8 & 0x3f)),
    }
}
