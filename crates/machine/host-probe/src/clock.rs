//! Measures the clock at which a core runs under load, with a chain of one-cycle operations. The system reports only
//! the nominal clock, which may be higher or lower.
//!
//! Source: integer add and exclusive-or take one cycle on every current core (Agner Fog, Instruction tables;
//! uops.info).

use crate::Effort;
use std::hint::black_box;
use std::time::Instant;

/// Dependent operations between two clock readings: about 10 us, short enough that some batch runs undisturbed even on
/// a busy host.
const BATCH: u64 = 1 << 15;

/// Cycles per second, from the fastest of many short runs on this thread's CPU.
pub fn hz(effort: &Effort) -> u64 {
    // black_box keeps the compiler from knowing the operands and from folding two operations into one.
    let (add, flip) = (black_box(0x9e37_79b9u64), black_box(0x7f4a_7c15u64));
    let mut value = black_box(1u64);
    let mut minimum = u64::MAX;
    let began = Instant::now();
    let mut previous = began;
    while previous - began < effort.run {
        for _ in 0..BATCH / 64 {
            for _ in 0..32 {
                value = value.wrapping_add(add) ^ flip;
            }
        }
        value = black_box(value);
        let now = Instant::now();
        minimum = minimum.min((now - previous).as_nanos() as u64);
        previous = now;
    }
    BATCH.saturating_mul(1_000_000_000) / minimum.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Thoroughness;

    #[test]
    fn the_measured_clock_of_this_host_is_plausible() {
        let hz = hz(&Effort::of(Thoroughness::Quick));
        assert!((300_000_000..8_000_000_000).contains(&hz), "{hz} Hz");
    }
}
