//! Threshold alarms with hysteresis: an alarm is raised when a value stays high and cleared when it stays low.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// When an alarm is raised and cleared.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Threshold {
    /// The alarm is raised when the value is at least this.
    pub raise: f64,
    /// The alarm is cleared when the value is at most this.
    pub clear: f64,
    /// Number of consecutive samples required for either, at least 1.
    pub samples: u32,
}

/// A change of an alarm's state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// The alarm was raised at this value.
    Raised(f64),
    /// The alarm was cleared.
    Cleared,
}

#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    is_raised: bool,
    /// Number of consecutive samples that indicate the opposite state.
    streak: u32,
}

/// Monitors one type of value by host and node.
#[derive(Clone, Debug)]
pub struct Monitor {
    threshold: Threshold,
    watched: BTreeMap<(String, u32), Watched>,
}

impl Monitor {
    /// Creates a monitor. A `clear` above `raise` is lowered to `raise`.
    pub fn new(threshold: Threshold) -> Self {
        let clear = threshold.clear.min(threshold.raise);
        Self { threshold: Threshold { clear, ..threshold }, watched: BTreeMap::new() }
    }

    /// Marks an alarm as already raised, to restore the state of the store after a restart.
    pub fn resume(&mut self, host: &str, node: u32) {
        self.watched.insert((host.into(), node), Watched { is_raised: true, streak: 0 });
    }

    /// Evaluates a sample. NaN resets the count of consecutive samples.
    pub fn sample(&mut self, host: &str, node: u32, value: f64) -> Option<Change> {
        let watched = self.watched.entry((host.into(), node)).or_default();
        let crosses = match watched.is_raised {
            false => value >= self.threshold.raise,
            true => value <= self.threshold.clear,
        };
        watched.streak = if crosses { watched.streak + 1 } else { 0 };
        if watched.streak < self.threshold.samples.max(1) {
            return None;
        }
        *watched = Watched { is_raised: !watched.is_raised, streak: 0 };
        Some(if watched.is_raised { Change::Raised(value) } else { Change::Cleared })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_is_raised_once_and_does_not_flap() {
        let mut monitor = Monitor::new(Threshold { raise: 0.9, clear: 0.7, samples: 2 });
        let mut feed =
            |values: &[f64]| values.iter().filter_map(|v| monitor.sample("h", 0, *v)).collect::<Vec<_>>();
        assert_eq!(feed(&[0.95, 0.5, 0.95]), []);
        assert_eq!(feed(&[0.92, 0.99, 0.99]), [Change::Raised(0.92)]);
        assert_eq!(feed(&[0.8, 0.91, 0.75, 0.6, 0.8, f64::NAN]), []);
        assert_eq!(feed(&[0.7, 0.1]), [Change::Cleared]);
        monitor.resume("h", 1);
        assert_eq!(monitor.sample("h", 1, 0.1), None);
        assert_eq!(monitor.sample("h", 1, 0.1), Some(Change::Cleared));
    }
}
