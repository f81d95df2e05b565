//! Measures load latency with a chain of dependent loads through every line of an area in random order.
//!
//! Source: lmbench's lat_mem_rd; the cycle through all lines by Sattolo's algorithm.

use crate::Effort;
use crate::pin::processor_time;
use std::hint::black_box;

/// Words of a line, for the line size of nearly every host.
const LINE: usize = 64 / size_of::<usize>();
/// Loads between two clock readings.
const BATCH: usize = 16384;

/// Time of one load in picoseconds, the minimum of many short runs.
pub fn latency_ps(words: &mut [usize], effort: &Effort) -> u64 {
    let lines = words.len() / LINE;
    if lines < 2 {
        return 0;
    }
    link(words, lines);
    let start: *const usize = words.as_ptr();
    // Warm up: follow the chain once, or for the length of a few runs if that is less, to bring the lines into their
    // cache.
    let (mut at, _) = run(start, lines.min(4 << 20), effort);
    let mut minimum = u64::MAX;
    for _ in 0..effort.repeats {
        let (next, ps) = run(at, 0, effort);
        at = next;
        minimum = minimum.min(ps);
    }
    minimum
}

/// Links the first words of all lines into one cycle.
fn link(words: &mut [usize], lines: usize) {
    let mut order: Vec<u32> = (0..lines as u32).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for last in (1..lines).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        order.swap(last, (random % last as u64) as usize);
    }
    let base = words.as_ptr() as usize;
    let address = |line: u32| base + line as usize * LINE * size_of::<usize>();
    for (from, to) in order.iter().enumerate() {
        words[from * LINE] = address(*to);
    }
}

/// Follows the chain for the time of a run and at least `enough` loads. Returns the position reached and the
/// picoseconds per load of the fastest batch. Counts CPU time, to exclude other work on a busy host.
fn run(start: *const usize, enough: usize, effort: &Effort) -> (*const usize, u64) {
    let mut at = start;
    let (mut loads, mut minimum) = (0usize, u64::MAX);
    let began = processor_time();
    let mut previous = began;
    loop {
        for _ in 0..BATCH {
            // SAFETY: `link` set every word that the chain visits to the address of another word of the same live
            // area.
            at = unsafe { at.read() } as *const usize;
        }
        at = black_box(at);
        loads += BATCH;
        let now = processor_time();
        minimum = minimum.min(((now - previous).as_nanos() as u64).saturating_mul(1000) / BATCH as u64);
        previous = now;
        let spent = now - began;
        if spent >= effort.run && loads >= enough || spent >= effort.run * 20 {
            return (at, minimum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_visits_every_line_once_before_it_returns() {
        let mut words = vec![0usize; 1000 * LINE];
        link(&mut words, 1000);
        let base = words.as_ptr() as usize;
        let (mut at, mut visited) = (base, std::collections::BTreeSet::new());
        while visited.insert(at) {
            at = words[(at - base) / size_of::<usize>()];
        }
        assert_eq!((visited.len(), at), (1000, base));
    }
}
