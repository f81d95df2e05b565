//! The constant frequency timer. Source: LoongArch Reference Manual, volume 1, section 7.6 (timer CSRs).

use std::cell::Cell;

use serde::{Deserialize, Serialize};

/// The countdown, kept as a deadline of the stable counter.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timer {
    /// The tick at which the countdown reaches 0; `None` while it is stopped.
    deadline: Cell<Option<u64>>,
    /// Ticks from one expiry to the next; `None` for a countdown that expires once.
    period: Cell<Option<u64>>,
}

impl Timer {
    /// Starts or stops the countdown according to a value of TCFG.
    pub fn configure(&self, configuration: u64, now: u64) {
        // The two lowest bits of the start value are 0. A countdown from 0 expires at the next tick.
        let ticks = (configuration & 0xffff_ffff_fffc).max(1);
        let is_periodic = configuration & 2 != 0;
        self.deadline.set((configuration & 1 != 0).then(|| now.saturating_add(ticks)));
        self.period.set(is_periodic.then_some(ticks));
    }

    /// Whether [`Timer::configure`] can lead to this state.
    pub fn is_possible(&self) -> bool {
        self.period.get() != Some(0)
    }

    /// The remaining ticks.
    pub fn value(&self, now: u64) -> u64 {
        self.deadline.get().map_or(0, |deadline| deadline.saturating_sub(now))
    }

    /// The tick of the next expiry.
    pub fn deadline(&self) -> Option<u64> {
        self.deadline.get()
    }

    /// Whether the countdown has expired since the last call. A periodic countdown restarts. Several expiries since the
    /// last call count as one, as on hardware while the interrupt is pending.
    pub fn take_expiry(&self, now: u64) -> bool {
        let Some(deadline) = self.deadline.get().filter(|deadline| *deadline <= now) else { return false };
        self.deadline.set(self.period.get().map(|period| {
            let missed = (now - deadline) / period;
            deadline.saturating_add((missed + 1).saturating_mul(period))
        }));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_countdown_expires_once() {
        let timer = Timer::default();
        timer.configure(100 | 1, 1000);
        assert_eq!((timer.value(1000), timer.value(1099)), (100, 1));
        assert!(!timer.take_expiry(1099));
        assert!(timer.take_expiry(1100));
        assert!(!timer.take_expiry(9999));
        assert_eq!((timer.value(9999), timer.deadline()), (0, None));
    }

    #[test]
    fn a_periodic_countdown_keeps_its_phase_when_expiries_are_lost() {
        let timer = Timer::default();
        timer.configure(100 | 3, 0);
        assert!(timer.take_expiry(100));
        assert_eq!(timer.deadline(), Some(200));
        assert!(timer.take_expiry(450));
        assert_eq!(timer.deadline(), Some(500));
        timer.configure(100 | 2, 500);
        assert_eq!(timer.deadline(), None);
    }

    #[test]
    fn a_countdown_from_zero_or_from_the_maximum_never_stalls() {
        let timer = Timer::default();
        timer.configure(3, 7);
        assert_eq!(timer.deadline(), Some(8));
        assert!(timer.take_expiry(u64::MAX));
        timer.configure(u64::MAX, u64::MAX - 1);
        assert_eq!(timer.deadline(), Some(u64::MAX));
    }
}
