//! Measures the transfer of a cache line between two cores that write one word in turn, as the tool
//! core-to-core-latency does.

use crate::{Effort, pin};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Transfers per round.
const TURNS: u64 = 4000;
/// Minimum number of rounds per pair, however long they take.
const MIN_ROUNDS: u32 = 4;
/// A partner that does not answer within this time has been descheduled; the round is discarded.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);
const ABANDONED: u64 = u64::MAX;

/// A word alone in two adjacent cache lines, because a prefetcher may fetch a line together with its neighbour.
#[repr(align(128))]
struct Line(AtomicU64);

/// One-way picoseconds between each two of `cpus`; `None` if some pair cannot be measured. Each pair has the same share
/// of the time. On a busy host, a pair may use up its share before it has run all rounds.
pub fn matrix_ps(cpus: &[u32], effort: &Effort) -> Option<Vec<Vec<u64>>> {
    let pairs = (cpus.len() * cpus.len().saturating_sub(1) / 2).max(1) as u32;
    let each = effort.core_to_core / pairs;
    let mut matrix = vec![vec![0; cpus.len()]; cpus.len()];
    for first in 0..cpus.len() {
        for other in first + 1..cpus.len() {
            let began = Instant::now();
            let mut minimum = None;
            for round in 0..effort.rounds {
                if round >= MIN_ROUNDS && began.elapsed() > each {
                    break;
                }
                let ps = round_ps(cpus[first], cpus[other]);
                minimum = minimum.into_iter().chain(ps).min();
            }
            let ps = minimum?;
            matrix[first][other] = ps;
            matrix[other][first] = ps;
        }
    }
    Some(matrix)
}

fn round_ps(one: u32, second: u32) -> Option<u64> {
    let line = Line(AtomicU64::new(0));
    let barrier = Barrier::new(2);
    // The word counts turns; one side waits for even counts, and the other for odd ones.
    let play = |cpu: u32, first: u64| {
        let pinned = pin::this_thread(cpu);
        barrier.wait();
        if !pinned {
            line.0.store(ABANDONED, Ordering::Release);
            return None;
        }
        let began = Instant::now();
        let mut turn = first;
        while turn < 2 * TURNS {
            let mut spins = 0u32;
            loop {
                let value = line.0.load(Ordering::Acquire);
                if value == turn {
                    break;
                }
                spins = spins.wrapping_add(1);
                let late = spins.is_multiple_of(1 << 14) && began.elapsed() > ANSWER_TIMEOUT;
                if value == ABANDONED || late {
                    line.0.store(ABANDONED, Ordering::Release);
                    return None;
                }
                std::hint::spin_loop();
            }
            line.0.store(turn + 1, Ordering::Release);
            turn += 2;
        }
        Some(began.elapsed())
    };
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| play(second, 1));
        let call = scope.spawn(|| play(one, 0));
        let (answer, call) = (answer.join().ok()?, call.join().ok()?);
        answer?;
        Some(call?.as_nanos() as u64 * 1000 / (2 * TURNS))
    })
}
