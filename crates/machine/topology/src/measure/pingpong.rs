//! A cache line handed back and forth between two cores.
//! Not a message layer: one word, written by turns.
//! The same test as core-to-core-latency and others.

use super::{Effort, pin};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Hand-overs of one round.
const TURNS: u64 = 4000;
/// Rounds a pair has however long they take.
const FEWEST_ROUNDS: u32 = 4;
/// A partner that does not answer for so long has lost its processor, and the round with it.
const PATIENCE: Duration = Duration::from_millis(250);
const GIVEN_UP: u64 = u64::MAX;

/// A word alone on its line, and on the line a prefetcher fetches beside it.
#[repr(align(128))]
struct Line(AtomicU64);

/// One-way picoseconds between each two of `cpus`; `None` if some pair cannot be measured. On a busy host, where rounds are lost to
/// whoever else runs, a pair has fewer of them once the time for all is spent.
pub(super) fn matrix_ps(cpus: &[u32], effort: &Effort) -> Option<Vec<Vec<u64>>> {
    let pairs = (cpus.len() * cpus.len().saturating_sub(1) / 2).max(1) as u32;
    let each = effort.hand_over / pairs;
    let mut matrix = vec![vec![0; cpus.len()]; cpus.len()];
    for one in 0..cpus.len() {
        for other in one + 1..cpus.len() {
            let began = Instant::now();
            let mut least = None;
            for round in 0..effort.rounds {
                if round >= FEWEST_ROUNDS && began.elapsed() > each {
                    break;
                }
                let ps = round_ps(cpus[one], cpus[other]);
                least = least.into_iter().chain(ps).min();
            }
            let ps = least?;
            matrix[one][other] = ps;
            matrix[other][one] = ps;
        }
    }
    Some(matrix)
}

fn round_ps(one: u32, other: u32) -> Option<u64> {
    let line = Line(AtomicU64::new(0));
    let barrier = Barrier::new(2);
    // The word counts turns; each side waits for its parity.
    let play = |cpu: u32, first: u64| {
        let pinned = pin::this_thread(cpu);
        barrier.wait();
        if !pinned {
            line.0.store(GIVEN_UP, Ordering::Release);
            return None;
        }
        let began = Instant::now();
        let mut turn = first;
        while turn < 2 * TURNS {
            let mut spins = 0u32;
            loop {
                let seen = line.0.load(Ordering::Acquire);
                if seen == turn {
                    break;
                }
                spins = spins.wrapping_add(1);
                let late = spins.is_multiple_of(1 << 14) && began.elapsed() > PATIENCE;
                if seen == GIVEN_UP || late {
                    line.0.store(GIVEN_UP, Ordering::Release);
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
        let answer = scope.spawn(|| play(other, 1));
        let call = scope.spawn(|| play(one, 0));
        let (answer, call) = (answer.join().ok()?, call.join().ok()?);
        answer?;
        Some(call?.as_nanos() as u64 * 1000 / (2 * TURNS))
    })
}
