//! The values of a swept parameter: a list, or a range with a step or a factor. `points` enumerates the points.

use crate::parameters::{Pair, Varied};
use crate::read::{Node, Problems, Value};
use crate::setting::Setting;
use longma_topology::units::{Frequency, Size, Time};
use serde::{Serialize, Serializer};
use std::ops::Range;
use std::sync::Arc;
use toml::de::DeValue;

/// Maximum number of values of an axis.
const MAX_VALUES: usize = 100_000;

/// The values of a swept parameter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// The values in the order of the file.
    pub values: Vec<Setting>,
    at: Range<usize>,
    keys: Range<usize>,
}

/// The values of a parameter that varies together with others.
pub type Column = Axis;

impl Axis {
    /// Position of its name in the file.
    pub(crate) fn at(&self) -> Range<usize> {
        self.at.clone()
    }

    /// Position of its values in the file.
    pub(crate) fn span(&self) -> Range<usize> {
        self.keys.clone()
    }
}

impl Serialize for Axis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.values.serialize(serializer)
    }
}

impl Value for Axis {
    fn kind() -> String {
        "list of values, or range".into()
    }

    fn read(node: &Node<'_>, problems: &mut Problems) -> Option<Self> {
        let values = match node.get_ref() {
            DeValue::Array(_) => Vec::<Setting>::read(node, problems)?,
            DeValue::Table(_) => range(node, problems)?,
            _ => return problems.wrong_type(node, "a list of values or a range"),
        };
        if values.is_empty() {
            let help = "give at least one value".into();
            problems.error(node.span(), "there is nothing to sweep over".into(), "here", help);
            return None;
        }
        Some(Axis { values, at: node.span(), keys: node.span() })
    }

    fn placeholder() -> Self {
        Axis::default()
    }

    fn set_place(&mut self, span: Range<usize>) {
        self.at = span;
    }
}

crate::read::part! {
    /// A range of values, both ends included.
    pub struct Steps = "range" {
        /// The first value.
        from: Setting,
        /// The last value, if a step reaches it.
        to: Setting,
        /// The increment; 1 if neither step nor factor is given.
        step: Option<Setting>,
        /// The multiplier.
        factor: Option<super::Figure>,
    }
}

/// All combinations of one row per axis. The last axis varies fastest.
pub(crate) fn combinations(axes: &[Vec<(&str, &Axis)>]) -> Vec<Vec<(String, Setting)>> {
    let mut all = vec![Vec::new()];
    for columns in axes {
        let rows = columns.iter().map(|(_, axis)| axis.values.len()).min().unwrap_or(0);
        let row = |index: usize| {
            columns.iter().map(move |(name, axis)| (name.to_string(), axis.values[index].clone()))
        };
        all = all
            .iter()
            .flat_map(|before| (0..rows).map(|r| before.iter().cloned().chain(row(r)).collect()))
            .collect();
    }
    all
}

/// All combinations of the values of axes, made one at a time, because there may be a million.
pub(crate) struct Combinations {
    /// The rows of each axis.
    axes: Vec<Vec<Vec<Pair>>>,
}

impl Combinations {
    pub(crate) fn of(axes: &[Vec<(&str, &Axis)>]) -> Self {
        let rows = |columns: &Vec<(&str, &Axis)>| {
            let rows = columns.iter().map(|(_, axis)| axis.values.len()).min().unwrap_or(0);
            let pair =
                |name: &str, axis: &Axis, row: usize| Arc::new((name.to_string(), axis.values[row].clone()));
            (0..rows).map(|row| columns.iter().map(|(name, axis)| pair(name, axis, row)).collect()).collect()
        };
        Self { axes: axes.iter().map(rows).collect() }
    }

    pub(crate) fn count(&self) -> usize {
        self.axes.iter().map(Vec::len).product()
    }

    /// Combinations in which one axis takes its first values and the others their first one; at most `max` in all.
    pub(crate) fn each_value(&self, max: usize) -> impl Iterator<Item = Varied> {
        let share = max / self.axes.len().max(1);
        let mut stride = self.count();
        let indices = self.axes.iter().flat_map(move |axis| {
            stride /= axis.len().max(1);
            (0..axis.len().min(share)).map(move |row| row * stride)
        });
        indices.map(|index| self.get(index))
    }

    /// The combination with this index; the last axis varies fastest.
    pub(crate) fn get(&self, mut index: usize) -> Varied {
        let mut rows = Vec::new();
        for axis in self.axes.iter().rev() {
            rows.push(&axis[index % axis.len()]);
            index /= axis.len();
        }
        rows.into_iter().rev().flatten().cloned().collect()
    }
}

/// A type of value that a range supports.
struct Scale {
    number: fn(&Setting) -> Option<f64>,
    setting: fn(f64) -> Setting,
}

/// Integers, numbers and quantities. The first type that fits both ends is used.
const SCALES: [Scale; 5] = [
    Scale {
        number: |s| if let Setting::Integer(n) = s { Some(*n as f64) } else { None },
        setting: |x| Setting::Integer(x.round() as i64),
    },
    Scale {
        number: |s| match s {
            Setting::Integer(n) => Some(*n as f64),
            Setting::Number(x) => Some(*x),
            _ => None,
        },
        setting: Setting::Number,
    },
    Scale {
        number: |s| s.text()?.parse::<Size>().ok().map(|q| q.bytes() as f64),
        setting: |x| Setting::Text(Size::new(x.round() as u64).to_string()),
    },
    Scale {
        number: |s| s.text()?.parse::<Time>().ok().map(|q| q.ps() as f64),
        setting: |x| Setting::Text(Time::new(x.round() as u64).to_string()),
    },
    Scale {
        number: |s| s.text()?.parse::<Frequency>().ok().map(|q| q.hz() as f64),
        setting: |x| Setting::Text(Frequency::new(x.round() as u64).to_string()),
    },
];

fn range(node: &Node<'_>, problems: &mut Problems) -> Option<Vec<Setting>> {
    let before = problems.count();
    let range = Steps::read(node, problems)?;
    if problems.count() > before {
        return None;
    }
    let mut refuse = |message: &str, help: &str| {
        problems.error(node.span(), message.into(), "this range", help.into());
        None
    };
    let wanted: Vec<_> =
        [Some(&range.from), Some(&range.to), range.step.as_ref()].into_iter().flatten().collect();
    let Some(scale) = SCALES.iter().find(|scale| wanted.iter().all(|s| (scale.number)(s).is_some())) else {
        return refuse(
            "the ends of a range are numbers or quantities of one kind",
            "write { from = 1, to = 8 }",
        );
    };
    let number = |setting: &Setting| (scale.number)(setting).unwrap_or(0.0);
    let (from, to) = (number(&range.from), number(&range.to));
    let step = range.step.as_ref().map_or(1.0, number);
    let grows = match range.factor {
        Some(_) if range.step.is_some() => return refuse("a range has a step or a factor, not both", ""),
        Some(factor) => factor.0 > 1.0 && from > 0.0,
        None => step > 0.0,
    };
    if !grows || to < from {
        return refuse(
            "this range never reaches its end",
            "give from <= to, and a step above 0 or a factor above 1",
        );
    }
    let mut values = Vec::new();
    // Tolerate rounding errors at the last value.
    let end = to + to.abs().max(1.0) * 1e-12;
    for index in 0.. {
        let value = match range.factor {
            Some(factor) => from * factor.0.powi(index),
            None => from + step * f64::from(index),
        };
        if value > end {
            break;
        }
        if values.len() == MAX_VALUES {
            return refuse("this range has over 100,000 values", "take larger steps");
        }
        values.push((scale.setting)(value));
    }
    values.dedup();
    Some(values)
}
