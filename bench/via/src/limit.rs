//! What the machine allows: a cache line handed to and fro, and one memcpy.
//! Not communication software: there is nothing in between.
//! Nothing here pauses while it waits: on processors since 2017 one `pause` takes as long as a third of a hand-over.

use crate::processes::{Cores, measure, pin, rounds_ns, shared_memory};
use std::sync::atomic::{AtomicU64, Ordering};

/// One way, ns: a counter goes to and fro in two cache lines, each written by one side.
pub fn line_ns(cores: Cores, rounds: u64) -> Option<f64> {
    let base = shared_memory(8192);
    // SAFETY: aligned, mapped for good, and only used as atomics.
    let (there, back) =
        unsafe { (AtomicU64::from_ptr(base.cast()), AtomicU64::from_ptr(base.add(4096).cast())) };
    let (there, back): (&AtomicU64, &AtomicU64) = (there, back);
    let server = || {
        for round in 1..=rounds {
            while there.load(Ordering::Acquire) != round {}
            back.store(round, Ordering::Release);
        }
    };
    let client = || {
        rounds_ns(rounds, |round| {
            there.store(round + 1, Ordering::Release);
            while back.load(Ordering::Acquire) != round + 1 {}
        }) / rounds as f64
            / 2.0
    };
    measure(cores, server, client)
}

/// GB/s of one memcpy of `bytes`, over and over, while the other core does nothing.
pub fn memcpy_gbps(cores: Cores, bytes: usize) -> Option<f64> {
    let (from, to) = (shared_memory(bytes), shared_memory(bytes));
    let rounds = (2 << 30) / bytes;
    let client = || {
        pin(cores.0);
        // SAFETY: two mappings of that size; the first round brings the pages in.
        unsafe {
            std::ptr::write_bytes(from, 1, bytes);
            std::ptr::copy_nonoverlapping(from, to, bytes);
        }
        let ns = rounds_ns(rounds as u64, |_| {
            // SAFETY: as above.
            unsafe {
                std::ptr::copy_nonoverlapping(std::hint::black_box(from), std::hint::black_box(to), bytes)
            };
        });
        (rounds * bytes) as f64 / ns
    };
    let figure = measure(cores, || {}, client);
    // SAFETY: our own mappings.
    unsafe {
        libc::munmap(from.cast(), bytes);
        libc::munmap(to.cast(), bytes);
    }
    figure
}
