//! Means with confidence intervals for small samples.
//!
//! Source: Student's t, two-sided, 95 % (any table); Welch's test for two means.

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

/// The 97.5 % quantile of Student's t for 1 to 30 degrees of freedom.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

impl Interval {
    /// Computes the interval; `None` without values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        let (mean, error) = (mean(values)?, standard_error(values));
        Some(Self { mean, half: error.map(|error| error * quantile(count as f64 - 1.0)), count })
    }
}

/// Computes the median; `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// Returns whether the means of two groups differ significantly at 95 %; `None` if a group has fewer than two values.
pub fn differ(one: &[f64], other: &[f64]) -> Option<bool> {
    let (error, other_error) = (standard_error(one)?, standard_error(other)?);
    let gap = (mean(one)? - mean(other)?).abs();
    let (first, second) = (error.powi(2), other_error.powi(2));
    if first + second == 0.0 {
        return Some(gap > 0.0);
    }
    let variance = first.powi(2) / (one.len() as f64 - 1.0) + second.powi(2) / (other.len() as f64 - 1.0);
    let freedom = (first + second).powi(2) / variance;
    Some(gap > quantile(freedom) * (first + second).sqrt())
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn standard_error(values: &[f64]) -> Option<f64> {
    let (mean, count) = (mean(values)?, values.len() as f64);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (count > 1.0).then(|| (squares / (count - 1.0) / count).sqrt())
}

/// The quantile for a number of degrees of freedom, rounded down to be conservative.
fn quantile(freedom: f64) -> f64 {
    let freedom = freedom.max(1.0) as usize;
    match freedom {
        1..=30 => T[freedom - 1],
        31..=60 => T[29],
        61..=120 => 2.0,
        _ => 1.98,
    }
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
    fn the_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }
}
