//! Statistics with hierarchical names: counters, histograms and rates, each with unit and description. Name components
//! are joined by dots as in gem5 and Sniper.

use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A number of events or units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Counter(u64);

impl Counter {
    /// Adds `n`, saturating at the maximum.
    pub fn add(&mut self, n: u64) {
        self.0 = self.0.saturating_add(n);
    }

    /// The count.
    pub const fn value(self) -> u64 {
        self.0
    }
}

/// A histogram with power-of-two classes: class 0 holds 0, class i holds 2^(i-1) to 2^i - 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Histogram {
    count: u64,
    sum: u128,
    min: Option<u64>,
    max: Option<u64>,
    classes: Vec<u64>,
}

impl Histogram {
    /// Records a value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        let class = (u64::BITS - value.leading_zeros()) as usize;
        match self.classes.get_mut(class) {
            Some(count) => *count += 1,
            None => self.add_class(class),
        }
        self.count += 1;
        self.sum += u128::from(value);
        self.min = Some(self.min.map_or(value, |m| m.min(value)));
        self.max = Some(self.max.map_or(value, |m| m.max(value)));
    }

    /// Records the first value of a class above all existing ones.
    #[cold]
    fn add_class(&mut self, class: usize) {
        self.classes.resize(class + 1, 0);
        self.classes[class] = 1;
    }

    /// Adds the values of `other`.
    pub fn merge(&mut self, other: &Self) {
        if self.classes.len() < other.classes.len() {
            self.classes.resize(other.classes.len(), 0);
        }
        self.classes.iter_mut().zip(&other.classes).for_each(|(sum, more)| *sum += more);
        self.count += other.count;
        self.sum += other.sum;
        self.min = [self.min, other.min].into_iter().flatten().min();
        self.max = self.max.max(other.max);
    }

    /// Number of recorded values.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Mean of the values; `None` if there are none.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// Minimum of the values; `None` if there are none.
    pub const fn min(&self) -> Option<u64> {
        self.min
    }

    /// Maximum of the values; `None` if there are none.
    pub const fn max(&self) -> Option<u64> {
        self.max
    }

    /// An upper bound of the `fraction` quantile (0 to 1); `None` if there are no values.
    pub fn quantile_bound(&self, fraction: f64) -> Option<u64> {
        let rank = (fraction.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0) as u64;
        let mut counted = 0;
        for (class, n) in self.classes.iter().enumerate() {
            counted += n;
            if counted >= rank {
                let top = if class == 0 { 0 } else { u64::MAX >> (u64::BITS - class as u32) };
                return self.max.map(|m| m.min(top));
            }
        }
        None
    }

    /// For each class that is not empty: its minimum, its maximum and its count.
    pub fn classes(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let bounds = |class: usize| match class {
            0 => (0, 0),
            c => (1u64 << (c - 1), u64::MAX >> (u64::BITS - c as u32)),
        };
        let filled = self.classes.iter().enumerate().filter(|c| *c.1 > 0);
        filled.map(move |(class, n)| (bounds(class).0, bounds(class).1, *n))
    }
}

/// The value of a statistic.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Value {
    /// A count.
    Counter(Counter),
    /// A distribution.
    Histogram(Histogram),
    /// A ratio. Numerator and denominator are stored so that rates can be merged.
    Rate {
        /// The numerator.
        numerator: f64,
        /// The denominator; if it is 0, the rate has no value.
        denominator: f64,
    },
}

/// A statistic with unit and description.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Statistic {
    /// The value.
    #[serde(flatten)]
    pub value: Value,
    /// Unit, such as "instructions" or "instructions/cycle".
    pub unit: String,
    /// Description in one line.
    pub description: String,
    /// The 95 % confidence interval, if the value is an estimate from a sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
}

/// Why statistics cannot be collected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StatisticsError {
    /// The name does not consist of words joined by dots.
    #[error("`{0}` is not a statistic's name: use small letters, digits, `_` and `-`, joined by dots")]
    BadName(String),
    /// The name is in use, or it is a prefix of other names.
    #[error("`{0}` is already a statistic or a group of statistics")]
    Taken(String),
    /// A part of the model has failed, so that the other statistics are not valid.
    #[error("{0}")]
    Failed(String),
}

/// All statistics of a run, ordered by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics {
    entries: BTreeMap<String, Statistic>,
    is_complete: bool,
}

impl Statistics {
    /// Creates an empty set of statistics that will also include counts of zero, so that every statistic is listed.
    pub fn complete() -> Self {
        Self { is_complete: true, ..Self::default() }
    }

    /// Returns whether a statistic with this count should be added: zeros are only part of a complete list.
    pub fn wants(&self, count: u64) -> bool {
        count > 0 || self.is_complete
    }

    /// Adds a statistic with a name such as "core0.l1d.misses".
    ///
    /// # Errors
    /// If the name is malformed or in use, or if a name would be both a value and a group.
    pub fn insert(
        &mut self,
        name: &str,
        value: Value,
        unit: &str,
        description: &str,
    ) -> Result<(), StatisticsError> {
        let word = |w: &str| {
            !w.is_empty()
                && w.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-')
        };
        if !name.split('.').all(word) {
            return Err(StatisticsError::BadName(name.into()));
        }
        let prefix = format!("{name}.");
        let is_group = self.entries.range(prefix.clone()..).next().is_some_and(|e| e.0.starts_with(&prefix));
        let inside_value = name.match_indices('.').any(|(at, _)| self.entries.contains_key(&name[..at]));
        if is_group || inside_value || self.entries.contains_key(name) {
            return Err(StatisticsError::Taken(name.into()));
        }
        let statistic =
            Statistic { value, unit: unit.into(), description: description.into(), interval: None };
        self.entries.insert(name.into(), statistic);
        Ok(())
    }

    /// Adds a counter.
    ///
    /// # Errors
    /// Same as [`Statistics::insert`].
    pub fn count(
        &mut self,
        name: &str,
        n: u64,
        unit: &str,
        description: &str,
    ) -> Result<(), StatisticsError> {
        self.insert(name, Value::Counter(Counter(n)), unit, description)
    }

    /// Adds a rate.
    ///
    /// # Errors
    /// Same as [`Statistics::insert`].
    pub fn rate(
        &mut self,
        name: &str,
        numerator: f64,
        denominator: f64,
        unit: &str,
        description: &str,
    ) -> Result<(), StatisticsError> {
        self.insert(name, Value::Rate { numerator, denominator }, unit, description)
    }

    /// Marks the statistic `name`, if there is one, as an estimate with this 95 % confidence interval.
    pub fn mark_estimate(&mut self, name: &str, interval: [f64; 2]) {
        if let Some(statistic) = self.entries.get_mut(name) {
            statistic.interval = Some(interval);
        }
    }

    /// The statistic `name`.
    pub fn get(&self, name: &str) -> Option<&Statistic> {
        self.entries.get(name)
    }

    /// Iterates over all statistics, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Statistic)> {
        self.entries.iter().map(|(name, statistic)| (name.as_str(), statistic))
    }

    /// Formats one line per statistic: name, value, unit, description.
    pub fn to_text(&self) -> String {
        let names = self.entries.keys().map(String::len).max().unwrap_or(0);
        let values: Vec<_> = self.entries.values().map(|s| s.value.to_text()).collect();
        let width = values.iter().map(String::len).max().unwrap_or(0);
        let mut text = String::new();
        for ((name, statistic), value) in self.entries.iter().zip(&values) {
            let Statistic { unit, description, .. } = statistic;
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "{name:names$}  {value:>width$}  {unit}  # {description}");
        }
        text
    }

    /// Converts to JSON: groups are nested objects, and each statistic is an object with value, unit and description.
    pub fn to_json(&self) -> serde_json::Value {
        let mut root = serde_json::Map::new();
        for (name, statistic) in &self.entries {
            let mut group = &mut root;
            let mut words = name.split('.').peekable();
            while let Some(word) = words.next() {
                if words.peek().is_none() {
                    group.insert(word.into(), statistic.to_json());
                } else {
                    let entry =
                        group.entry(word).or_insert_with(|| serde_json::Value::Object(Default::default()));
                    // `insert` rejects names that are both value and group.
                    group = entry.as_object_mut().expect("a group is an object");
                }
            }
        }
        serde_json::Value::Object(root)
    }
}

impl Statistic {
    fn to_json(&self) -> serde_json::Value {
        let value = match &self.value {
            Value::Counter(counter) => serde_json::json!(counter.0),
            Value::Rate { .. } => serde_json::json!(self.value.quotient()),
            Value::Histogram(h) => {
                let classes: Vec<_> =
                    h.classes().map(|(from, to, n)| serde_json::json!([from, to, n])).collect();
                serde_json::json!({ "count": h.count, "mean": h.mean(), "min": h.min, "max": h.max, "classes": classes })
            }
        };
        let mut object =
            serde_json::json!({ "value": value, "unit": self.unit, "description": self.description });
        if let Some(interval) = self.interval {
            object["interval"] = serde_json::json!(interval);
        }
        object
    }
}

impl Value {
    /// The value of a rate; `None` for other values and for a denominator of 0.
    pub fn quotient(&self) -> Option<f64> {
        match self {
            Value::Rate { numerator, denominator } if *denominator != 0.0 => Some(numerator / denominator),
            _ => None,
        }
    }

    fn to_text(&self) -> String {
        match self {
            Value::Counter(counter) => counter.0.to_string(),
            Value::Rate { .. } => self.quotient().map_or("-".into(), |q| format!("{q:.4}")),
            Value::Histogram(h) => match (h.mean(), h.min, h.max) {
                (Some(mean), Some(min), Some(max)) => {
                    format!("n={} mean={mean:.2} min={min} max={max}", h.count)
                }
                _ => "n=0".into(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Statistics {
        let mut statistics = Statistics::default();
        let mut histogram = Histogram::default();
        [0, 1, 3, 3, 900].into_iter().for_each(|v| histogram.record(v));
        statistics.count("core1.instructions", 12, "instructions", "retired").unwrap();
        statistics.count("core0.instructions", 1200, "instructions", "retired").unwrap();
        statistics.rate("core0.ipc", 1200.0, 800.0, "instructions/cycle", "retired per cycle").unwrap();
        statistics.insert("core0.load", Value::Histogram(histogram), "ps", "load to use").unwrap();
        statistics
    }

    #[test]
    fn text_is_sorted_by_name() {
        let text = sample().to_text();
        let names: Vec<_> = text.lines().map(|l| l.split_whitespace().next().unwrap()).collect();
        assert_eq!(names, ["core0.instructions", "core0.ipc", "core0.load", "core1.instructions"]);
        assert!(text.contains("1.5000  instructions/cycle  # retired per cycle"), "{text}");
    }

    #[test]
    fn json_nests_groups_and_keeps_units() {
        let json = sample().to_json();
        assert_eq!(json["core0"]["ipc"]["value"], 1.5);
        assert_eq!(json["core1"]["instructions"]["unit"], "instructions");
        assert_eq!(json["core0"]["load"]["value"]["classes"][3], serde_json::json!([512, 1023, 1]));
    }

    #[test]
    fn a_name_is_a_value_or_a_group_never_both() {
        let mut statistics = sample();
        let mut insert = |name: &str| statistics.count(name, 1, "x", "y");
        assert_eq!(insert("core0"), Err(StatisticsError::Taken("core0".into())));
        assert_eq!(insert("core0.ipc.total"), Err(StatisticsError::Taken("core0.ipc.total".into())));
        assert_eq!(insert("Core 0"), Err(StatisticsError::BadName("Core 0".into())));
        assert_eq!(insert("core0-big.cycles"), Ok(()));
        assert_eq!(insert("a..b"), Err(StatisticsError::BadName("a..b".into())));
    }

    #[test]
    fn an_estimate_has_an_interval_in_json_and_a_count_has_none() {
        let mut statistics = sample();
        statistics.mark_estimate("core0.instructions", [1100.0, 1300.0]);
        let json = statistics.to_json();
        assert_eq!(json["core0"]["instructions"]["interval"], serde_json::json!([1100.0, 1300.0]));
        assert!(json["core1"]["instructions"].get("interval").is_none());
    }

    #[test]
    fn a_rate_by_nothing_has_no_value() {
        let mut statistics = Statistics::default();
        statistics.rate("ipc", 0.0, 0.0, "instructions/cycle", "nothing ran").unwrap();
        assert_eq!(statistics.to_json()["ipc"]["value"], serde_json::Value::Null);
        assert!(statistics.to_text().starts_with("ipc  -"));
    }

    proptest! {
        #[test]
        fn a_merged_histogram_is_that_of_all_values(
            left in prop::collection::vec(any::<u64>(), 0..20),
            right in prop::collection::vec(any::<u64>(), 0..20),
        ) {
            let of = |values: &[u64]| {
                let mut histogram = Histogram::default();
                values.iter().for_each(|v| histogram.record(*v));
                histogram
            };
            let mut merged = of(&left);
            merged.merge(&of(&right));
            prop_assert_eq!(merged, of(&[left, right].concat()));
        }

        #[test]
        fn every_value_falls_into_one_class_that_contains_it(values in prop::collection::vec(any::<u64>(), 1..50)) {
            let mut histogram = Histogram::default();
            values.iter().for_each(|v| histogram.record(*v));
            let total: u64 = histogram.classes().map(|c| c.2).sum();
            prop_assert_eq!(total, values.len() as u64);
            for (from, to, n) in histogram.classes() {
                prop_assert_eq!(values.iter().filter(|v| (from..=to).contains(*v)).count() as u64, n);
            }
            prop_assert_eq!(histogram.quantile_bound(1.0), values.iter().max().copied());
        }
    }
}
