//! Measures two limits of the machine: the latency of a cache-line transfer between cores, and the bandwidth of memcpy.
//! The spin loops omit `pause`: on Intel processors since Skylake-SP (2017), it takes about a third as long as a
//! cache-line transfer.

use crate::processes::{Cores, measure, pin, rounds_ns, shared_memory};
use std::sync::atomic::{AtomicU64, Ordering};

/// One-way latency in ns: a counter goes back and forth in two cache lines, each written by one side.
pub fn cache_line_latency_ns(cores: Cores, rounds: u64) -> Option<f64> {
    let base = shared_memory(8192);
    // SAFETY: aligned, mapped for the whole run, and used only as atomics.
    let (request, response) =
        unsafe { (AtomicU64::from_ptr(base.cast()), AtomicU64::from_ptr(base.add(4096).cast())) };
    let (request, response): (&AtomicU64, &AtomicU64) = (request, response);
    let server = || {
        for round in 1..=rounds {
            while request.load(Ordering::Acquire) != round {}
            response.store(round, Ordering::Release);
        }
    };
    let client = || {
        rounds_ns(rounds, |round| {
            request.store(round + 1, Ordering::Release);
            while response.load(Ordering::Acquire) != round + 1 {}
        }) / rounds as f64
            / 2.0
    };
    measure(cores, server, client)
}

/// Bandwidth of repeated memcpy of `bytes` in GB/s, with the other core idle.
pub fn memcpy_gb_per_s(cores: Cores, bytes: usize) -> Option<f64> {
    let (from, to) = (shared_memory(bytes), shared_memory(bytes));
    let rounds = (2 << 30) / bytes;
    let client = || {
        pin(cores.0);
        // SAFETY: two mappings of that size; this first access maps their pages.
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
    let bandwidth = measure(cores, || {}, client);
    // SAFETY: our own mappings.
    unsafe {
        libc::munmap(from.cast(), bytes);
        libc::munmap(to.cast(), bytes);
    }
    bandwidth
}
