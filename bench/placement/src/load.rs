//! Sends requests to an allocator, as fast as possible or at a given rate, and waits until each is durable.

use longma_placement::Allocator;
use longma_placement::allocator::{AllocateError, PendingReservation};
use longma_placement::fleet::{self, Rng};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Interval at which changes by other schedulers are read, as in the service.
const FOLLOWING: Duration = Duration::from_millis(200);

/// Current and peak resident memory of this process, in MiB.
pub fn memory_mib() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find(|l| l.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    (field("VmRSS").unwrap_or(0) / 1024, field("VmHWM").unwrap_or(0) / 1024)
}

/// The percentile of sorted durations, in us.
pub fn percentile(sorted: &[Duration], part: f64) -> f64 {
    let at = ((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(at).map_or(0.0, |d| d.as_secs_f64() * 1e6)
}

/// A client that requests virtual machines.
pub struct Load {
    pub allocator: Allocator,
    random: Rng,
    name: String,
    number: u64,
    follows: bool,
    followed: Instant,
    /// Total time of all decisions, and their number.
    pub deciding: (Duration, u64),
    /// Number of hosts changed by other schedulers.
    pub news: usize,
}

/// Answers at a given rate; sorted.
pub struct Paced {
    /// Time from when a request was due to its durable answer.
    pub latencies: Vec<Duration>,
    /// Of each answer: its start delay, the decision time, and the time until it was durable and observed.
    pub stages: [Vec<Duration>; 3],
}

impl Load {
    /// Names begin with `name`. With `follows`, reads changes of other schedulers on the same database.
    pub fn new(allocator: Allocator, seed: u64, name: &str, follows: bool) -> Self {
        let (random, followed) = (Rng::new(seed), Instant::now());
        let deciding = (Duration::ZERO, 0);
        Self { allocator, random, name: name.into(), number: 0, follows, followed, deciding, news: 0 }
    }

    fn next(&mut self) -> Result<PendingReservation, AllocateError> {
        if self.follows && self.followed.elapsed() > FOLLOWING {
            self.news += self.allocator.apply_changes()?;
            self.followed = Instant::now();
        }
        self.number += 1;
        let name = format!("{}{}", self.name, self.number);
        let request = fleet::request(&mut self.random, &name);
        let began = Instant::now();
        let begun = self.allocator.begin(&request, Some(&name));
        self.deciding = (self.deciding.0 + began.elapsed(), self.deciding.1 + 1);
        begun
    }

    fn end(&mut self, begun: PendingReservation) {
        self.allocator.finish(begun).expect("it is durable");
    }

    /// Makes every kind of request once, so that its ranking is cached, as a server does at its start.
    pub fn warm(&mut self) {
        let warm: Vec<_> = (0..500).filter_map(|_| self.next().ok()).collect();
        warm.into_iter().for_each(|begun| self.end(begun));
        self.deciding = (Duration::ZERO, 0);
    }

    /// Runs as fast as possible with `window` requests in flight; returns durable answers per second.
    pub fn fastest(&mut self, window: usize, seconds: f64) -> f64 {
        let mut waiting = VecDeque::new();
        let start = Instant::now();
        let mut done = 0u64;
        while start.elapsed().as_secs_f64() < seconds {
            while waiting.len() < window {
                match self.next() {
                    Ok(begun) => waiting.push_back(begun),
                    Err(_) => break,
                }
            }
            let Some(begun) = waiting.pop_front() else { break };
            self.end(begun);
            done += 1;
        }
        let rate = done as f64 / start.elapsed().as_secs_f64();
        waiting.into_iter().for_each(|begun| self.end(begun));
        rate
    }

    /// Runs at the given rate per second.
    pub fn paced(&mut self, rate: f64, seconds: f64) -> Paced {
        let pace = Duration::from_secs_f64(1.0 / rate.max(1.0));
        let mut paced = Paced { latencies: Vec::new(), stages: Default::default() };
        let mut under_way: VecDeque<(Instant, Instant, PendingReservation)> = VecDeque::new();
        let start = Instant::now();
        let mut due = start;
        while start.elapsed().as_secs_f64() < seconds {
            if Instant::now() >= due {
                let began = Instant::now();
                if let Ok(begun) = self.next() {
                    let decided = Instant::now();
                    paced.stages[0].push(began - due);
                    paced.stages[1].push(decided - began);
                    under_way.push_back((due, decided, begun));
                }
                due += pace;
            }
            while under_way.front().is_some_and(|(_, _, begun)| begun.is_answered()) {
                if let Some((at, decided, begun)) = under_way.pop_front() {
                    self.end(begun);
                    paced.latencies.push(at.elapsed());
                    paced.stages[2].push(decided.elapsed());
                }
            }
            if Instant::now() < due {
                // Sleep instead of spinning: with two cores, waiting threads must not take CPU time from others.
                std::thread::sleep(
                    Duration::from_micros(50).min(due.saturating_duration_since(Instant::now())),
                );
            }
        }
        under_way.into_iter().for_each(|(_, _, begun)| self.end(begun));
        paced.latencies.sort_unstable();
        paced.stages.iter_mut().for_each(|stage| stage.sort_unstable());
        paced
    }
}
