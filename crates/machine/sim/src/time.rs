//! Simulated time in picoseconds, and clocks without drift.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Picoseconds in a second.
const PS_PER_SECOND: u128 = 1_000_000_000_000;

/// A point in simulated time: picoseconds since the start. The maximum is 213 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(u64);

/// A duration in simulated time, picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Duration(u64);

impl Time {
    /// The start of the simulation.
    pub const ZERO: Self = Self(0);

    /// The point `ps` picoseconds after the start.
    #[inline]
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }

    /// Picoseconds since the start.
    #[inline]
    pub const fn ps(self) -> u64 {
        self.0
    }

    /// This point plus `duration`; `None` on overflow.
    pub const fn checked_add(self, duration: Duration) -> Option<Self> {
        match self.0.checked_add(duration.0) {
            Some(ps) => Some(Self(ps)),
            None => None,
        }
    }

    /// The duration since `earlier`; `None` if this point is before it.
    pub const fn checked_since(self, earlier: Self) -> Option<Duration> {
        match self.0.checked_sub(earlier.0) {
            Some(ps) => Some(Duration(ps)),
            None => None,
        }
    }
}

impl Duration {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// `ps` picoseconds.
    #[inline]
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }

    /// `ns` nanoseconds; `None` on overflow.
    pub const fn from_ns(ns: u64) -> Option<Self> {
        match ns.checked_mul(1000) {
            Some(ps) => Some(Self(ps)),
            None => None,
        }
    }

    /// The duration in picoseconds.
    #[inline]
    pub const fn ps(self) -> u64 {
        self.0
    }

    /// The duration in seconds, rounded to a double.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / PS_PER_SECOND as f64
    }

    /// The sum; `None` on overflow.
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(ps) => Some(Self(ps)),
            None => None,
        }
    }

    /// The product; `None` on overflow.
    pub const fn checked_mul(self, times: u64) -> Option<Self> {
        match self.0.checked_mul(times) {
            Some(ps) => Some(Self(ps)),
            None => None,
        }
    }
}

/// A cycle of a core's clock, counted from the start of the simulation. The context determines which core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Cycle(pub u64);

impl std::ops::Add<u64> for Cycle {
    type Output = Self;

    fn add(self, cycles: u64) -> Self {
        Self(self.0 + cycles)
    }
}

/// Formats picoseconds in the largest unit that is at least 1, with up to three decimals.
fn print(ps: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let units = [("s", 1_000_000_000_000), ("ms", 1_000_000_000), ("us", 1_000_000), ("ns", 1_000)];
    match units.iter().find(|u| ps >= u.1) {
        Some((unit, scale)) => {
            let text = format!("{}.{:03}", ps / scale, ps % scale / (scale / 1000));
            write!(f, "{} {unit}", text.trim_end_matches('0').trim_end_matches('.'))
        }
        None => write!(f, "{ps} ps"),
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(self.0, f)
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(self.0, f)
    }
}

/// A clock. Cycle 0 begins at time 0, and cycle n at n / frequency, rounded down. Rounding errors do not accumulate: a
/// clock of 3 GHz (333 1/3 ps) is still exact after 10^12 cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    hz: u64,
    /// Picoseconds per cycle as a reduced fraction. Small numbers allow 64-bit arithmetic in most cases.
    ps: u64,
    cycles: u64,
}

/// An invalid clock frequency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid clock of {hz} Hz: use 1 Hz to 1 THz")]
pub struct ClockError {
    /// The invalid frequency.
    pub hz: u64,
}

impl Clock {
    /// Creates a clock of `hz` hertz.
    ///
    /// # Errors
    /// If `hz` is 0 or above 10^12, for which a cycle would be shorter than a picosecond.
    pub const fn new(hz: u64) -> Result<Self, ClockError> {
        if hz == 0 || hz > PS_PER_SECOND as u64 {
            return Err(ClockError { hz });
        }
        // Euclid's algorithm.
        let (mut common, mut rest) = (PS_PER_SECOND as u64, hz);
        while rest != 0 {
            (common, rest) = (rest, common % rest);
        }
        Ok(Self { hz, ps: PS_PER_SECOND as u64 / common, cycles: hz / common })
    }

    /// The frequency in hertz.
    #[inline]
    pub const fn hz(self) -> u64 {
        self.hz
    }

    /// Start of `cycle`; `None` on overflow.
    #[inline]
    pub fn start_of(self, cycle: u64) -> Option<Time> {
        if let Some(ps) = cycle.checked_mul(self.ps) {
            return Some(Time(if self.cycles == 1 { ps } else { ps / self.cycles }));
        }
        let ps = u128::from(cycle) * PS_PER_SECOND / u128::from(self.hz);
        u64::try_from(ps).ok().map(Time)
    }

    /// The cycle that contains `time`.
    pub fn cycle_at(self, time: Time) -> u64 {
        // The start of a cycle is rounded down, so its first picosecond may precede the exact start.
        let next = (u128::from(time.0) + 1) * u128::from(self.hz);
        let cycles = next.div_ceil(PS_PER_SECOND) - 1;
        // hz <= 10^12, so the number of cycles is at most the number of picoseconds.
        cycles as u64
    }

    /// Duration of `cycles` cycles from time 0, rounded down; `None` on overflow.
    pub fn cycles(self, cycles: u64) -> Option<Duration> {
        self.start_of(cycles).map(|t| Duration(t.0))
    }

    /// Start of the first cycle at or after `time`: when a component with this clock observes an event. `None` on
    /// overflow.
    pub fn next_edge(self, time: Time) -> Option<Time> {
        let cycle = self.cycle_at(time);
        let start = self.start_of(cycle)?;
        if start >= time { Some(start) } else { self.start_of(cycle.checked_add(1)?) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_third_of_a_nanosecond_does_not_drift() {
        let clock = Clock::new(3_000_000_000).unwrap();
        assert_eq!(clock.start_of(1).unwrap().ps(), 333);
        assert_eq!(clock.start_of(3).unwrap().ps(), 1000);
        assert_eq!(clock.start_of(3_000_000_000_000).unwrap().ps(), 1_000_000_000_000_000);
    }

    #[test]
    fn time_does_not_wrap() {
        assert_eq!(Time::from_ps(u64::MAX).checked_add(Duration::from_ps(1)), None);
        assert_eq!(Time::from_ps(1).checked_since(Time::from_ps(2)), None);
        assert_eq!(Duration::from_ns(u64::MAX), None);
        assert_eq!(Clock::new(1).unwrap().start_of(u64::MAX), None);
        assert!(Clock::new(0).is_err() && Clock::new(1_000_000_000_001).is_err());
    }

    #[test]
    fn durations_print_in_a_readable_unit() {
        assert_eq!(Duration::from_ps(1_500).to_string(), "1.5 ns");
        assert_eq!(Duration::from_ps(999).to_string(), "999 ps");
        assert_eq!(Time::from_ps(2_000_000_000_000).to_string(), "2 s");
    }

    proptest! {
        #[test]
        fn a_cycle_contains_its_own_start(hz in 1u64..=1_000_000_000_000, cycle in 0u64..1_000_000_000) {
            let clock = Clock::new(hz).unwrap();
            if let Some(start) = clock.start_of(cycle) {
                prop_assert_eq!(clock.cycle_at(start), cycle);
                prop_assert_eq!(clock.next_edge(start), Some(start));
            }
        }

        #[test]
        fn the_next_edge_is_at_or_after_the_time(hz in 1_000_000u64..10_000_000_000, ps in 0u64..1_000_000_000_000_000) {
            let clock = Clock::new(hz).unwrap();
            let time = Time::from_ps(ps);
            let edge = clock.next_edge(time).unwrap();
            prop_assert!(edge >= time);
            let cycle = clock.cycle_at(edge);
            prop_assert!(cycle == 0 || clock.start_of(cycle - 1).unwrap() < time);
        }

        #[test]
        fn waiting_n_cycles_is_exact_to_a_picosecond(hz in 1_000u64..1_000_000_000_000, n in 0u64..1_000_000) {
            let exact = n as f64 * 1e12 / hz as f64;
            let got = Clock::new(hz).unwrap().cycles(n).unwrap().ps() as f64;
            prop_assert!((exact - got).abs() <= 1.0 + exact * 1e-12);
        }
    }
}
