//! Measures the memory bandwidth of threads that read, copy and combine arrays.
//!
//! Source: STREAM (J. McCalpin): copy moves 16 bytes per element, triad 24.

use crate::memory::Area;
use crate::{Bandwidths, Effort, MeasureError, pin};
use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// One thread's part of the three arrays.
struct Part {
    a: Area,
    b: Area,
    c: Area,
    bytes: usize,
}

#[derive(Clone, Copy)]
enum Kernel {
    Read,
    Copy,
    Triad,
}

/// Measures the bandwidths of `threads` threads, which share arrays of `bytes` bytes. Thread i runs on `cpus[i]`,
/// modulo the number of CPUs.
pub fn measure(
    bytes: usize,
    cpus: &[u32],
    threads: usize,
    effort: &Effort,
) -> Result<Bandwidths, MeasureError> {
    let each = (bytes / threads).max(1 << 20) & !4095;
    let cpu_of = |index: usize| cpus.get(index % cpus.len().max(1)).copied();
    // Each thread touches its part first, so that the pages are allocated on the thread's node.
    let part = |index: usize| {
        pin::on(cpu_of(index), || {
            Ok(Part { a: Area::new(each)?, b: Area::new(each)?, c: Area::new(each)?, bytes: each })
        })
    };
    let mut parts = (0..threads).map(part).collect::<Result<Vec<_>, MeasureError>>()?;
    let mut best = |kernel: Kernel, arrays: u64| {
        let mut fastest = 0;
        for _ in 0..effort.repeats {
            let ns = run(&mut parts, kernel, &cpu_of).max(1);
            let moved = arrays * each as u64 * threads as u64;
            fastest = fastest.max((u128::from(moved) * 1_000_000_000 / u128::from(ns)) as u64);
        }
        fastest
    };
    let (read, copy, triad) = (best(Kernel::Read, 1), best(Kernel::Copy, 2), best(Kernel::Triad, 3));
    Ok(Bandwidths { threads: threads as u32, read, copy, triad })
}

/// Nanoseconds from the first thread's start to the last one's end; for a single thread, its CPU time.
fn run(parts: &mut [Part], kernel: Kernel, cpu_of: &(impl Fn(usize) -> Option<u32> + Sync)) -> u64 {
    let barrier = Barrier::new(parts.len());
    let times: Vec<(Instant, Instant, Duration)> = std::thread::scope(|scope| {
        let spawn = |(index, part)| {
            let barrier = &barrier;
            scope.spawn(move || {
                if let Some(cpu) = cpu_of(index) {
                    pin::this_thread(cpu);
                }
                barrier.wait();
                let (began, cpu) = (Instant::now(), pin::processor_time());
                once(part, kernel);
                (began, Instant::now(), pin::processor_time() - cpu)
            })
        };
        let threads: Vec<_> = parts.iter_mut().enumerate().map(spawn).collect();
        threads.into_iter().filter_map(|t| t.join().ok()).collect()
    });
    if let [(_, _, cpu_time)] = times[..] {
        return cpu_time.as_nanos() as u64;
    }
    let first = times.iter().map(|t| t.0).min();
    let last = times.iter().map(|t| t.1).max();
    first.zip(last).map_or(0, |(first, last)| (last - first).as_nanos() as u64)
}

fn once(part: &mut Part, kernel: Kernel) {
    let bytes = part.bytes;
    let (a, b, c) = (part.a.words(bytes), part.b.words(bytes), part.c.words(bytes));
    match kernel {
        Kernel::Read => {
            let sum = a.iter().fold(0usize, |sum, word| sum.wrapping_add(*word));
            black_box(sum);
        }
        Kernel::Copy => c.copy_from_slice(a),
        Kernel::Triad => {
            // Integers move the same bytes as floating-point numbers, without their latency.
            for ((a, b), c) in a.iter_mut().zip(b.iter()).zip(c.iter()) {
                *a = b.wrapping_add(c.wrapping_mul(3));
            }
        }
    }
    black_box((a, c));
}
