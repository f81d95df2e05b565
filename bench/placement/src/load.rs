//! Sends requests to an allocator, as fast as possible or at a given rate, and waits until each is durable.

use crate::profile::RequestTimes;
use longma_placement::Allocator;
use longma_placement::Request;
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

impl Load {
    /// Names begin with `name`. With `follows`, reads changes of other schedulers on the same database.
    pub fn new(allocator: Allocator, seed: u64, name: &str, follows: bool) -> Self {
        let (random, followed) = (Rng::new(seed), Instant::now());
        let deciding = (Duration::ZERO, 0);
        Self { allocator, random, name: name.into(), number: 0, follows, followed, deciding, news: 0 }
    }

    /// The next request as the JSON that a client sends.
    fn body(&mut self) -> String {
        self.number += 1;
        let request = fleet::request(&mut self.random, &format!("{}{}", self.name, self.number));
        serde_json::to_string(&request).expect("a request can be written")
    }

    fn next(&mut self) -> Result<PendingReservation, AllocateError> {
        let request = serde_json::from_str(&self.body()).expect("it was written as JSON");
        self.begin(&request)
    }

    fn begin(&mut self, request: &Request) -> Result<PendingReservation, AllocateError> {
        if self.follows && self.followed.elapsed() > FOLLOWING {
            self.news += self.allocator.apply_changes()?;
            self.followed = Instant::now();
        }
        let began = Instant::now();
        let begun = self.allocator.begin(request, Some(&request.name));
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

    /// Runs at the given rate per second; returns the times of the answered requests in order.
    pub fn paced(&mut self, rate: f64, seconds: f64) -> Vec<RequestTimes> {
        let pace = Duration::from_secs_f64(1.0 / rate.max(1.0));
        let mut times = Vec::new();
        let mut under_way: VecDeque<(RequestTimes, Instant, PendingReservation)> = VecDeque::new();
        let (start, mut body) = (Instant::now(), self.body());
        let mut due = start;
        while start.elapsed().as_secs_f64() < seconds {
            if Instant::now() >= due {
                let began = Instant::now();
                let request = serde_json::from_str(&body).expect("it was written as JSON");
                let parsed = Instant::now();
                if let Ok(begun) = self.begin(&request) {
                    let decided = Instant::now();
                    let (late, parse, decide) = (began - due, parsed - began, decided - parsed);
                    let request = RequestTimes { late, parse, decide, durable: Duration::ZERO };
                    under_way.push_back((request, decided, begun));
                }
                body = self.body();
                due += pace;
            }
            while under_way.front().is_some_and(|(_, _, begun)| begun.is_answered()) {
                times.extend(under_way.pop_front().map(|one| self.answer(one)));
            }
            if Instant::now() < due {
                // Sleep instead of spinning: with two cores, waiting threads must not take CPU time from others.
                std::thread::sleep(
                    Duration::from_micros(50).min(due.saturating_duration_since(Instant::now())),
                );
            }
        }
        times.extend(under_way.into_iter().map(|one| self.answer(one)));
        times
    }

    fn answer(
        &mut self,
        (times, decided, begun): (RequestTimes, Instant, PendingReservation),
    ) -> RequestTimes {
        let vm = self.allocator.finish(begun).expect("it is durable").vm;
        std::hint::black_box(serde_json::to_string(&vm).expect("a virtual machine can be written"));
        RequestTimes { durable: decided.elapsed(), ..times }
    }
}
