//! Values with the uncertainty of the sampled runs that they are computed from.
//!
//! Source: first-order propagation of errors. The correlation of different measured values is unknown, so their
//! contributions are added, which is the upper bound for every correlation.

use longma_confidence::Interval;
use std::collections::BTreeMap;

/// A measured value: a point and the name of the workload's metric.
type Source = (usize, String);

/// A value, and the contribution of each uncertain measured value to its uncertainty.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Estimate {
    pub value: f64,
    /// Change of this value if the measured value is at the high end of its interval.
    changes: BTreeMap<Source, f64>,
}

impl From<f64> for Estimate {
    fn from(value: f64) -> Self {
        Self { value, changes: BTreeMap::new() }
    }
}

impl Estimate {
    /// A measured value with its interval, if it has one.
    pub(crate) fn measured(value: f64, interval: Option<[f64; 2]>, source: Source) -> Self {
        let half = interval.map(|[low, high]| (value - low).max(high - value));
        let changes = half.map(|half| (source, half)).into_iter().collect();
        Self { value, changes }
    }

    /// The interval; `None` if the value is exact.
    pub(crate) fn interval(&self) -> Option<Interval> {
        let half = self.changes.values().map(|change| change.abs()).sum();
        (!self.changes.is_empty()).then_some(Interval { mean: self.value, half: Some(half), count: 1 })
    }

    pub(crate) fn negated(self) -> Self {
        let value = -self.value;
        self.combined(-1.0, 0.0.into(), 0.0, value)
    }

    /// `self` and `other` combined by `operator`.
    pub(crate) fn binary(self, operator: char, other: Self) -> Self {
        let (left, right) = (self.value, other.value);
        let (by_left, by_right, value) = match operator {
            '+' => (1.0, 1.0, left + right),
            '-' => (1.0, -1.0, left - right),
            '*' => (right, left, left * right),
            _ => (1.0 / right, -left / right / right, left / right),
        };
        self.combined(by_left, other, by_right, value)
    }

    /// `value`, which changes with `self` and with `other` by these factors.
    fn combined(mut self, by_self: f64, other: Self, by_other: f64, value: f64) -> Self {
        self.value = value;
        self.changes.values_mut().for_each(|change| *change *= by_self);
        for (source, change) in other.changes {
            *self.changes.entry(source).or_default() += change * by_other;
        }
        self
    }
}

/// How several values are combined into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fold {
    Sum,
    Mean,
    Least,
    Most,
}

impl Fold {
    /// All values as one.
    pub(crate) fn of(self, values: Vec<Estimate>) -> Option<Estimate> {
        let count = values.len() as f64;
        let sum = |values: Vec<Estimate>| {
            values.into_iter().fold(Estimate::from(0.0), |sum, one| sum.binary('+', one))
        };
        let by_value = |a: &Estimate, b: &Estimate| a.value.total_cmp(&b.value);
        match self {
            Fold::Sum => Some(sum(values)),
            Fold::Mean => (count > 0.0).then(|| sum(values).binary('/', count.into())),
            Fold::Least => values.into_iter().min_by(by_value),
            Fold::Most => values.into_iter().max_by(by_value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(value: f64, half: f64, point: usize) -> Estimate {
        Estimate::measured(value, Some([value - half, value + half]), (point, "time".into()))
    }

    fn has_half(estimate: &Estimate, wanted: f64) {
        let half = estimate.interval().and_then(|interval| interval.half).unwrap();
        assert!((half - wanted).abs() < 1e-12, "{half} is not {wanted}");
    }

    #[test]
    fn uncertainties_of_different_runs_add_up_and_those_of_one_cancel() {
        let (one, other) = (measured(8.0, 0.5, 0), measured(4.0, 0.125, 1));
        has_half(&one.clone().binary('-', one.clone()), 0.0);
        has_half(&one.clone().binary('/', one.clone()), 0.0);
        has_half(&one.clone().binary('-', other.clone()), 0.625);
        let ratio = one.clone().binary('/', other);
        assert_eq!(ratio.value, 2.0);
        has_half(&ratio, 0.5 / 4.0 + 8.0 * 0.125 / 16.0);
        has_half(&one.clone().binary('*', 1000.0.into()), 500.0);
        has_half(&one.negated(), 0.5);
        assert_eq!(Estimate::from(3.0).binary('*', 2.0.into()).interval(), None);
    }

    #[test]
    fn a_fold_has_the_uncertainty_of_what_it_combines() {
        let of = |fold: Fold| fold.of(vec![measured(8.0, 0.5, 0), measured(4.0, 0.125, 1)]).unwrap();
        has_half(&of(Fold::Mean), 0.3125);
        has_half(&of(Fold::Sum), 0.625);
        assert_eq!(of(Fold::Least).value, 4.0);
        has_half(&of(Fold::Least), 0.125);
        assert_eq!(of(Fold::Most).value, 8.0);
        has_half(&of(Fold::Most), 0.5);
        assert_eq!(Fold::Mean.of(Vec::new()), None);
    }
}
