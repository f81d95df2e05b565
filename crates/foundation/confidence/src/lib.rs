//! Means of small samples with 95 % confidence intervals.
//!
//! Source: Student's t, two-sided, 95 % (any table); Welch's test for two means.
#![doc = include_str!("../README.md")]

use serde::Serialize;

/// A mean and its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// Half the width of the interval; `None` for a single value, whose variance is unknown.
    pub half: Option<f64>,
    /// Number of values.
    pub count: usize,
}

impl Interval {
    /// The interval of independent `values`; `None` without values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        let half = standard_error(values).map(|error| error * student_t(count as f64 - 1.0));
        Some(Self { mean: mean(values)?, half, count })
    }

    /// The interval of the mean of `later` less that of `earlier`, two independent groups; `None` if one has no values. The
    /// count is that of the smaller group.
    pub fn of_difference(earlier: &[f64], later: &[f64]) -> Option<Self> {
        let count = earlier.len().min(later.len());
        Some(Self { mean: mean(later)? - mean(earlier)?, half: half_of_difference(earlier, later), count })
    }
}

/// Returns whether the means of two groups differ significantly at 95 %; `None` if a group has fewer than two values.
pub fn differ(one: &[f64], other: &[f64]) -> Option<bool> {
    let half = half_of_difference(one, other)?;
    Some((mean(one)? - mean(other)?).abs() > half)
}

/// Half of the 95 % interval of the difference of the means of two independent groups (Welch); `None` if a group has fewer
/// than two values.
fn half_of_difference(one: &[f64], other: &[f64]) -> Option<f64> {
    let (first, second) = (standard_error(one)?.powi(2), standard_error(other)?.powi(2));
    if first + second == 0.0 {
        return Some(0.0);
    }
    let variance = first.powi(2) / (one.len() as f64 - 1.0) + second.powi(2) / (other.len() as f64 - 1.0);
    let freedom = (first + second).powi(2) / variance;
    Some(student_t(freedom) * (first + second).sqrt())
}

/// The mean; `None` without values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The standard error of the mean; `None` with fewer than two values.
fn standard_error(values: &[f64]) -> Option<f64> {
    let (mean, count) = (mean(values)?, values.len() as f64);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (count > 1.0).then(|| (squares / (count - 1.0) / count).sqrt())
}

/// The 97.5 % quantile of Student's t for 1 to 30 degrees of freedom.
const QUANTILES: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// The 97.5 % quantile of Student's t: half of a 95 % interval, in standard errors. Degrees of freedom below 1 count as 1;
/// up to 30 they are rounded down, which widens the interval.
///
/// Source: Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), table 26.10 and expansion 26.7.5, whose error
/// is below 0.0001 from 31 degrees of freedom on.
pub fn student_t(freedom: f64) -> f64 {
    const NORMAL: f64 = 1.959_963_984_540_054;
    if let Some(quantile) = QUANTILES.get(freedom.max(1.0) as usize - 1) {
        return *quantile;
    }
    let (z, v) = (NORMAL, freedom);
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let third = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + first / v + second / (v * v) + third / (v * v * v)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_known_values_is_the_text_books() {
        // Mean 5, standard deviation 2.582, t(3) = 3.182.
        let interval = Interval::of(&[2.0, 4.0, 6.0, 8.0]).unwrap();
        assert_eq!((interval.mean, interval.count), (5.0, 4));
        assert!((interval.half.unwrap() - 4.108).abs() < 1e-3);
        assert_eq!(Interval::of(&[7.0]).unwrap().half, None);
        assert_eq!(Interval::of(&[]), None);
    }

    #[test]
    fn groups_differ_only_if_their_variance_allows_it() {
        assert_eq!(differ(&[10.0, 10.1, 9.9], &[12.0, 12.1, 11.9]), Some(true));
        assert_eq!(differ(&[10.0, 14.0, 6.0], &[12.0, 8.0, 13.0]), Some(false));
        assert_eq!(differ(&[10.0], &[12.0, 12.1]), None);
        assert_eq!(differ(&[1.0, 1.0], &[1.0, 1.0]), Some(false));
    }

    #[test]
    fn the_interval_of_a_difference_is_welchs() {
        let interval = Interval::of_difference(&[8.0, 10.0, 9.0, 12.0], &[12.0, 13.0]).unwrap();
        assert_eq!((interval.mean, interval.count), (2.75, 2));
        let (first, second) = (2.916_666_f64 / 4.0, 0.5 / 2.0);
        let freedom = (first + second).powi(2) / (first.powi(2) / 3.0 + second.powi(2));
        assert!((interval.half.unwrap() - student_t(freedom) * (first + second).sqrt()).abs() < 1e-3);
        assert_eq!(Interval::of_difference(&[1.0], &[3.0, 4.0]).unwrap().half, None);
        assert_eq!(Interval::of_difference(&[], &[3.0]), None);
    }

    #[test]
    fn quantiles_are_those_of_the_tables() {
        let table = [(0.5, 12.706), (1.0, 12.706), (3.9, 3.182), (10.0, 2.228), (30.0, 2.042)];
        for (freedom, published) in table.into_iter().chain([(40.0, 2.021), (60.0, 2.000), (120.0, 1.980)]) {
            let ours = student_t(freedom);
            assert!((ours - published).abs() < 0.0006, "{freedom}: {ours}, not {published}");
        }
        assert!((student_t(f64::INFINITY) - 1.95996).abs() < 1e-5);
    }
}
