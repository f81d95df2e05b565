//! What was published for a metric: a value or bounds.

use crate::number::number;
use std::fmt;

/// What was published for a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expected {
    /// A value.
    Value(f64),
    /// A lower bound.
    AtLeast(f64),
    /// An upper bound.
    AtMost(f64),
    /// A range, both ends included.
    Between(f64, f64),
}

impl Expected {
    /// The value, or `None` for bounds.
    pub fn value(self) -> Option<f64> {
        match self {
            Expected::Value(value) => Some(value),
            _ => None,
        }
    }

    /// The lower and the upper bound; `None` for a value.
    pub fn bounds(self) -> Option<(Option<f64>, Option<f64>)> {
        match self {
            Expected::Value(_) => None,
            Expected::AtLeast(low) => Some((Some(low), None)),
            Expected::AtMost(high) => Some((None, Some(high))),
            Expected::Between(low, high) => Some((Some(low), Some(high))),
        }
    }

    /// The bound closest to `value` if the value is outside.
    pub(crate) fn exceeded(self, value: f64) -> Option<f64> {
        let (low, high) = self.bounds()?;
        low.filter(|low| value < *low).or(high.filter(|high| value > *high))
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expected::Value(value) => f.write_str(&number(*value)),
            Expected::AtLeast(low) => write!(f, ">= {}", number(*low)),
            Expected::AtMost(high) => write!(f, "<= {}", number(*high)),
            Expected::Between(low, high) => write!(f, "{} to {}", number(*low), number(*high)),
        }
    }
}
