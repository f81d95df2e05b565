//! Conversion between times and clock cycles.
//!
//! A simulation that follows clock edges uses `longma_sim::Clock` instead, which does not accumulate rounding errors.

use crate::units::Frequency;

const PS_PER_SECOND: u64 = 1_000_000_000_000;
/// Added before the division by [`PS_PER_SECOND`], which rounds down. The effect is to round up unless the excess is
/// below a hundredth of a cycle: a latency given in cycles and converted to whole picoseconds thus converts back to the
/// same number of cycles.
const ROUND_UP: u64 = 990_000_000_000;

impl Frequency {
    /// The whole cycles of this clock that a part needs for `ps` picoseconds. Rounds up, except that an excess of less
    /// than a hundredth of a cycle is dropped.
    #[inline]
    pub fn cycles_in_ps(self, ps: u64) -> u64 {
        // The product nearly always fits 64 bits, and a 64-bit division is much cheaper on the host.
        if let Some(product) = ps.checked_mul(self.hz()).and_then(|product| product.checked_add(ROUND_UP)) {
            return product / PS_PER_SECOND;
        }
        let product = u128::from(ps) * u128::from(self.hz()) + u128::from(ROUND_UP);
        u64::try_from(product / u128::from(PS_PER_SECOND)).unwrap_or(u64::MAX)
    }

    /// The cycles of a real core that correspond to a measured time of `measured_ps` picoseconds: the nearest whole number,
    /// at least 1. Unlike [`Frequency::cycles_in_ps`] it does not round up, because measurements err in both
    /// directions: a latency of 4 cycles may be measured as 4.02.
    pub fn measured_cycles(self, measured_ps: u64) -> u64 {
        let product = u128::from(measured_ps) * u128::from(self.hz()) + u128::from(PS_PER_SECOND / 2);
        u64::try_from(product / u128::from(PS_PER_SECOND)).unwrap_or(u64::MAX).max(1)
    }

    /// The duration of `cycles` in picoseconds, rounded to the nearest. A clock of 0 Hz is treated as 1 Hz.
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
    fn latencies_are_rounded_up_to_whole_cycles() {
        let clock = Frequency::new(2_500_000_000);
        assert_eq!(
            [0, 1, 5, 400, 401, 404, 405, 85_000].map(|ps| clock.cycles_in_ps(ps)),
            [0, 0, 1, 1, 1, 2, 2, 213]
        );
        assert_eq!([1, 200, 599, 600, 1608].map(|ps| clock.measured_cycles(ps)), [1, 1, 1, 2, 4]);
        assert_eq!(Frequency::new(3_000_000_000).ps_of_cycles(2), 667);
    }

    #[test]
    fn overflow_saturates() {
        let fast = Frequency::new(u64::MAX);
        assert_eq!([fast.cycles_in_ps(u64::MAX), fast.measured_cycles(u64::MAX)], [u64::MAX; 2]);
        assert_eq!(Frequency::new(0).ps_of_cycles(u64::MAX), u64::MAX);
    }

    proptest! {
        #[test]
        fn cycles_survive_conversion_to_a_time_and_back(hz in 1_000_000u64..20_000_000_000, cycles in 0u64..1_000_000) {
            let clock = Frequency::new(hz);
            prop_assert_eq!(clock.cycles_in_ps(clock.ps_of_cycles(cycles)), cycles);
        }

        #[test]
        fn both_widths_of_arithmetic_agree(hz in 1u64..20_000_000_000, ps: u64) {
            let exact = (u128::from(ps) * u128::from(hz) + u128::from(ROUND_UP)) / u128::from(PS_PER_SECOND);
            prop_assert_eq!(u128::from(Frequency::new(hz).cycles_in_ps(ps)), exact.min(u64::MAX.into()));
        }
    }
}
