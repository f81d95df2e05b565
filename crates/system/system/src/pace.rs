//! The pace of a machine with a network. Its peers run in host time, so its clock must not run ahead while it waits for
//! them: a sleep or a timeout of the guest takes at least as long in host time.

use std::time::{Duration, Instant};

use crate::machine::{Machine, Stop};

/// The longest wait for a frame at a time, so that the caller can attend to the console.
const MAX_WAIT: Duration = Duration::from_millis(10);

/// Exchanges the frames of a machine after each of its runs, and waits if the machine is ahead of the host.
#[derive(Debug)]
pub struct Pace {
    /// When the machine was at `cycle`.
    instant: Instant,
    cycle: u64,
}

impl Pace {
    /// Starts at the machine's current cycle.
    pub fn of(machine: &Machine) -> Self {
        Self { instant: Instant::now(), cycle: machine.cycles() }
    }

    /// The cycles to run between two exchanges: a millisecond.
    pub const CYCLES: u64 = 1_000_000;

    /// Exchanges frames after a run that has stopped for the reason `stop`. Waits for one if the machine is ahead of
    /// the host or idle. A machine that is behind does not catch up.
    pub fn exchange(&mut self, machine: &mut Machine, stop: Stop) {
        let now = Instant::now();
        let ahead = self.ahead(machine.cycles(), now);
        let wait = match stop {
            Stop::Idle => MAX_WAIT,
            Stop::Limit => ahead.min(MAX_WAIT),
            _ => Duration::ZERO,
        };
        machine.exchange_frames(wait);
    }

    /// The machine's lead over the host.
    fn ahead(&mut self, cycle: u64, now: Instant) -> Duration {
        let due = self.instant + Duration::from_nanos(cycle - self.cycle);
        if due <= now {
            (self.instant, self.cycle) = (now, cycle);
        }
        due.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_waits_while_it_is_ahead_and_does_not_catch_up() {
        let start = Instant::now();
        let mut pace = Pace { instant: start, cycle: 0 };
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        assert_eq!(pace.ahead(5_000_000, at(2)), Duration::from_millis(3));
        assert_eq!(pace.ahead(6_000_000, at(100)), Duration::ZERO);
        assert_eq!(pace.ahead(16_000_000, at(101)), Duration::from_millis(9));
    }
}
