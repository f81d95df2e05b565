//! Estimates of ratios from a sample of units, with confidence intervals.
//!
//! Source: the ratio estimator of Cochran, "Sampling Techniques" (third edition, 1977), chapter 6.

use serde::Serialize;

/// The meaning of an estimate's interval.
pub const INTERVAL: &str = "95 % interval of the choice of units";

/// An estimate with its 95 % interval, which covers the random choice of units only.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The estimate.
    pub value: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
}

impl Estimate {
    /// This estimate times a constant.
    pub fn times(self, factor: f64) -> Self {
        Self { value: self.value * factor, low: self.low * factor, high: self.high * factor }
    }

    /// The interval, widened to contain `count`, to which the value was rounded.
    pub fn around_count(&self, count: u64) -> [f64; 2] {
        [self.low.min(count as f64), self.high.max(count as f64)]
    }

    /// Half the length of the interval, relative to the value; 0 if the value is 0.
    pub fn relative_error(&self) -> f64 {
        if self.value == 0.0 { 0.0 } else { (self.high - self.low) / 2.0 / self.value.abs() }
    }
}

/// Sums over units of the numerator and the denominator of a ratio.
#[derive(Clone, Copy, Debug, Default)]
pub struct RatioSums {
    numerator: f64,
    denominator: f64,
    numerator_squared: f64,
    product: f64,
    denominator_squared: f64,
    /// The number of units whose denominator is not 0.
    units: u64,
}

impl RatioSums {
    /// Adds a unit.
    pub fn add(&mut self, numerator: f64, denominator: f64) {
        self.units += u64::from(denominator != 0.0);
        self.numerator += numerator;
        self.denominator += denominator;
        self.numerator_squared += numerator * numerator;
        self.product += numerator * denominator;
        self.denominator_squared += denominator * denominator;
    }

    /// Extends the sums to all units of `all`, whose denominators are the same. Units that were not added get the
    /// numerator 0.
    pub fn over(self, all: &Self) -> Self {
        Self {
            denominator: all.denominator,
            denominator_squared: all.denominator_squared,
            units: all.units,
            ..self
        }
    }

    /// The number of units whose denominator is not 0.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// The sum of the numerators.
    pub fn numerator(&self) -> f64 {
        self.numerator
    }

    /// The sum of the denominators.
    pub fn denominator(&self) -> f64 {
        self.denominator
    }

    /// The ratio, from `units` units; units that were not added have two zeros. `None` with fewer than two units or if
    /// the denominator is 0.
    pub fn estimate(&self, units: u64) -> Option<Estimate> {
        if units < 2 || self.denominator <= 0.0 {
            return None;
        }
        let (count, value) = (units as f64, self.numerator / self.denominator);
        let squares =
            self.numerator_squared - 2.0 * value * self.product + value * value * self.denominator_squared;
        // Rounding can make the difference of nearly equal sums negative.
        let deviation = (squares.max(0.0) / (count - 1.0)).sqrt();
        let mean_denominator = self.denominator / count;
        let half = longma_confidence::student_t(count - 1.0) * deviation / (mean_denominator * count.sqrt());
        // No quantity of a simulation is negative.
        Some(Estimate { value, low: (value - half).max(0.0), high: value + half })
    }
}

#[cfg(test)]
mod tests {
    use longma_random::SplitMix64;

    use super::*;

    #[test]
    fn equal_units_give_an_interval_without_length() {
        let mut sums = RatioSums::default();
        (0..50).for_each(|_| sums.add(7000.0, 10_000.0));
        let estimate = sums.estimate(50).unwrap();
        assert!((estimate.value - 0.7).abs() < 1e-12 && estimate.relative_error() < 1e-6, "{estimate:?}");
    }

    #[test]
    fn nothing_is_estimated_from_one_unit() {
        let mut sums = RatioSums::default();
        sums.add(1.0, 2.0);
        assert_eq!(sums.estimate(1), None);
        assert_eq!(RatioSums::default().estimate(100), None);
    }

    /// Draws samples of a population with a known ratio. About 95 of 100 intervals must contain it.
    #[test]
    fn intervals_contain_the_true_ratio_as_often_as_they_state() {
        let mut random = SplitMix64::new(1);
        let population: Vec<(f64, f64)> = (0..20_000)
            .map(|_| {
                let length = 1000.0 + random.below(60) as f64;
                (length * (0.3 + random.fraction() * if random.below(4) == 0 { 3.0 } else { 0.5 }), length)
            })
            .collect();
        let sum = |of: fn(&(f64, f64)) -> f64| population.iter().map(of).sum::<f64>();
        let truth = sum(|unit| unit.0) / sum(|unit| unit.1);
        let contains = (0..2000).filter(|_| {
            let mut sums = RatioSums::default();
            for _ in 0..100 {
                let (numerator, denominator) = population[random.index(population.len())];
                sums.add(numerator, denominator);
            }
            let estimate = sums.estimate(100).unwrap();
            (estimate.low..=estimate.high).contains(&truth)
        });
        let share = contains.count() as f64 / 2000.0;
        assert!((0.925..=0.97).contains(&share), "{share} of the intervals contain {truth}");
    }
}
