//! Published values of an experiment's points. `compare` compares them with the measured ones.

use super::{Expected, Figure};
use crate::point::Point;
use crate::read::{Map, Name, SourcePositions, choice, part};
use crate::setting::Setting;

choice! {
    /// How a published value was obtained.
    pub enum Reading = "a way of reading" {
        /// Printed as a number in a table or in the text.
        Printed = "printed",
        /// Measured from a figure.
        Digitised = "digitised",
        /// Computed from other published numbers, as described in `note`.
        Computed = "computed",
    }
}

part! {
    /// Published values of the points with given parameters.
    pub struct Published = "published values" {
        /// The points: parameters with their values; all points if left out. `machine` is the name of a machine.
        at: Map<Setting>,
        /// The values by metric, in its unit.
        values: Map<Figure>,
        /// Lower bounds by metric. With `at_most`, a range. To state only that one value exceeds another, give a formula for
        /// their difference and a bound of 0.
        at_least: Map<Figure>,
        /// Upper bounds by metric.
        at_most: Map<Figure>,
        /// How they were obtained.
        read: Reading,
        /// Where they were published.
        source: Name,
        /// Further information: the place in the source, how they were computed.
        note: Option<String>,
        /// Why ours differ: the experiment that shows it, and the share of the difference that it explains.
        reason: Option<String>,
    }
}

impl Published {
    pub(crate) fn marks(&self) -> &SourcePositions {
        &self.marks
    }

    /// What was published for `metric`.
    pub(crate) fn expected(&self, metric: &str) -> Option<Expected> {
        let figure = |map: &Map<Figure>| map.get(metric).map(|figure| figure.0);
        match (figure(&self.values), figure(&self.at_least), figure(&self.at_most)) {
            (Some(value), _, _) => Some(Expected::Value(value)),
            (None, Some(low), Some(high)) => Some(Expected::Between(low, high)),
            (None, Some(low), None) => Some(Expected::AtLeast(low)),
            (None, None, Some(high)) => Some(Expected::AtMost(high)),
            (None, None, None) => None,
        }
    }

    /// Number of published values.
    pub fn count(&self) -> usize {
        let maps = [&self.values, &self.at_least, &self.at_most];
        let names: std::collections::BTreeSet<_> = maps.into_iter().flat_map(Map::keys).collect();
        names.len()
    }

    /// Returns whether a published value belongs to this point.
    pub(crate) fn is_of(&self, point: &Point) -> bool {
        self.at.iter().all(|(name, value)| {
            let varied =
                point.varied.iter().find(|(varied, _)| varied == name).map(|(_, value)| value.clone());
            let machine =
                || point.machine.as_ref().filter(|_| name == "machine").map(|m| m.name.as_str().into());
            varied.or_else(machine).as_ref() == Some(value)
        })
    }
}
