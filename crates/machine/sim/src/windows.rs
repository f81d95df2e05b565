//! What a resource moved in each window of time, booked when it moves, not when somebody asked for it.
//! Not when work is done: a calendar says so, bucket by bucket. What lies in a bucket is taken to be spread evenly over it.

use std::collections::VecDeque;

use crate::{Duration, Time};

/// Windows beyond the first that are kept: what is later than all of them is not counted.
const MOST_WINDOWS: u64 = 1 << 20;

/// Windows of one length, from a first one on.
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    /// When the first of `moving_ps` begins.
    begin_ps: u64,
    length_ps: u64,
    /// How long the resource moved bytes in each window.
    moving_ps: VecDeque<u64>,
}

impl Windows {
    /// Windows of `length`, which is not zero, the first of which begins at `origin`.
    pub fn new(origin: Time, length: Duration) -> Self {
        Self { begin_ps: origin.ps(), length_ps: length.ps().max(1), moving_ps: VecDeque::new() }
    }

    /// `moving_ps` of the time from `begin_ps` on, so long as `length_ps`, went to bytes. What was before the first window is not counted.
    pub fn add(&mut self, begin_ps: u64, length_ps: u64, moving_ps: u64) {
        let (mut from, end) = (begin_ps.max(self.begin_ps), begin_ps.saturating_add(length_ps));
        while from < end {
            let window = (from - self.begin_ps) / self.length_ps;
            let until = end.min(self.begin_ps + (window + 1) * self.length_ps);
            let share = u128::from(moving_ps) * u128::from(until - from) / u128::from(length_ps);
            if window >= MOST_WINDOWS {
                return;
            }
            let window = window as usize;
            if self.moving_ps.len() <= window {
                self.moving_ps.resize(window + 1, 0);
            }
            self.moving_ps[window] += share as u64;
            from = until;
        }
    }

    /// The next window, if it is over at `now`: when it began, and how long the resource moved bytes in it. It is not given again.
    pub fn take(&mut self, now: Time) -> Option<(Time, Duration)> {
        let begin = Time::from_ps(self.begin_ps);
        let end = self.begin_ps.checked_add(self.length_ps).filter(|end| *end <= now.ps())?;
        self.begin_ps = end;
        Some((begin, Duration::from_ps(self.moving_ps.pop_front().unwrap_or(0))))
    }
}
