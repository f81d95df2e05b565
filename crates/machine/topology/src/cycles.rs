//! Times as cycles of a clock, and cycles as times: the one place where either becomes the other, with one rounding each; what was
//! measured on a real host, which is no model's time, has its own.
//! Not the clock edges of a simulation: `longma-sim` counts those without drift.

use crate::units::Frequency;

const PS_PER_SECOND: u64 = 1_000_000_000_000;
/// What is added before rounding down to whole cycles, as a part of [`PS_PER_SECOND`]: a hundredth of a cycle is taken for rounding, so
/// that a latency stated in cycles comes out as stated after it was a time in whole picoseconds.
const ALMOST_A_CYCLE: u64 = 990_000_000_000;

impl Frequency {
    /// Cycles that something of `ps` picoseconds takes a part that works by this clock: whole ones, rounded up, but not for less than a
    /// hundredth of a cycle.
    #[inline]
    pub fn cycles_in_ps(self, ps: u64) -> u64 {
        // Nearly always 64 bits do, which cost the host much less.
        if let Some(product) =
            ps.checked_mul(self.hz()).and_then(|product| product.checked_add(ALMOST_A_CYCLE))
        {
            return product / PS_PER_SECOND;
        }
        let product = u128::from(ps) * u128::from(self.hz()) + u128::from(ALMOST_A_CYCLE);
        u64::try_from(product / u128::from(PS_PER_SECOND)).unwrap_or(u64::MAX)
    }

    /// The cycles that a part of a real host takes, by a measurement of `measured_ps` picoseconds: the nearest whole number, at least one.
    /// Not [`Frequency::cycles_in_ps`]: a measurement errs to either side, and what takes 4 cycles is measured as 4.02.
    pub fn measured_cycles(self, measured_ps: u64) -> u64 {
        let product = u128::from(measured_ps) * u128::from(self.hz()) + u128::from(PS_PER_SECOND / 2);
        u64::try_from(product / u128::from(PS_PER_SECOND)).unwrap_or(u64::MAX).max(1)
    }

    /// How long `cycles` take, picoseconds, rounded to the nearest. A clock of 0 Hz is taken for one of 1 Hz.
    pub fn ps_of_cycles(self, cycles: u64) -> u64 {
        let hz = u128::from(self.hz().max(1));
        let ps = (u128::from(cycles) * u128::from(PS_PER_SECOND) + hz / 2) / hz;
        u64::try_from(ps).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_part_that_works_by_a_clock_takes_whole_cycles() {
        let clock = Frequency::new(2_500_000_000);
        assert_eq!(
            [0, 1, 5, 400, 401, 404, 405, 85_000].map(|ps| clock.cycles_in_ps(ps)),
            [0, 0, 1, 1, 1, 2, 2, 213]
        );
        assert_eq!([1, 200, 599, 600, 1608].map(|ps| clock.measured_cycles(ps)), [1, 1, 1, 2, 4]);
        assert_eq!(Frequency::new(3_000_000_000).ps_of_cycles(2), 667);
    }

    #[test]
    fn what_does_not_fit_is_the_most() {
        let fast = Frequency::new(u64::MAX);
        assert_eq!([fast.cycles_in_ps(u64::MAX), fast.measured_cycles(u64::MAX)], [u64::MAX; 2]);
        assert_eq!(Frequency::new(0).ps_of_cycles(u64::MAX), u64::MAX);
    }

    proptest! {
        #[test]
        fn cycles_that_became_a_time_are_the_same_again(hz in 1_000_000u64..20_000_000_000, cycles in 0u64..1_000_000) {
            let clock = Frequency::new(hz);
            prop_assert_eq!(clock.cycles_in_ps(clock.ps_of_cycles(cycles)), cycles);
        }

        #[test]
        fn both_widths_of_arithmetic_agree(hz in 1u64..20_000_000_000, ps: u64) {
            let exact = (u128::from(ps) * u128::from(hz) + u128::from(ALMOST_A_CYCLE)) / u128::from(PS_PER_SECOND);
            prop_assert_eq!(u128::from(Frequency::new(hz).cycles_in_ps(ps)), exact.min(u64::MAX.into()));
        }
    }
}
