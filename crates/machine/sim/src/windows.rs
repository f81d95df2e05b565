//! The traffic of a resource in windows of time. A transfer is counted in the window in which it takes place, not in
//! the window of its request. Within a bucket of a [`Calendar`](crate::Calendar), traffic is assumed to be evenly
//! distributed.

use std::collections::VecDeque;

use crate::{Duration, Time};

/// Maximum number of windows. Traffic after the last window is not counted.
const MAX_WINDOWS: u64 = 1 << 20;

/// Consecutive windows of equal length.
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    /// Start of the first window.
    begin_ps: u64,
    length_ps: u64,
    /// For each window, the time in which the resource transferred bytes.
    busy_ps: VecDeque<u64>,
}

impl Windows {
    /// Creates windows of `length` (not zero), the first of which begins at `origin`.
    pub fn new(origin: Time, length: Duration) -> Self {
        Self { begin_ps: origin.ps(), length_ps: length.ps().max(1), busy_ps: VecDeque::new() }
    }

    /// Records that the resource transferred bytes for `busy_ps` in the interval of length `length_ps` that starts at
    /// `begin_ps`.
    /// Time before the first window is not counted.
    pub fn add(&mut self, begin_ps: u64, length_ps: u64, busy_ps: u64) {
        let (mut from, end) = (begin_ps.max(self.begin_ps), begin_ps.saturating_add(length_ps));
        while from < end {
            let window = (from - self.begin_ps) / self.length_ps;
            let window_end = end.min(self.begin_ps + (window + 1) * self.length_ps);
            let share = u128::from(busy_ps) * u128::from(window_end - from) / u128::from(length_ps);
            if window >= MAX_WINDOWS {
                return;
            }
            let window = window as usize;
            if self.busy_ps.len() <= window {
                self.busy_ps.resize(window + 1, 0);
            }
            self.busy_ps[window] += share as u64;
            from = window_end;
        }
    }

    /// Takes the next window if it is complete at `now`: its start, and the time in which the resource transferred
    /// bytes.
    pub fn take(&mut self, now: Time) -> Option<(Time, Duration)> {
        let begin = Time::from_ps(self.begin_ps);
        let end = self.begin_ps.checked_add(self.length_ps).filter(|end| *end <= now.ps())?;
        self.begin_ps = end;
        Some((begin, Duration::from_ps(self.busy_ps.pop_front().unwrap_or(0))))
    }
}
