//! Published values: what others measured at some of the points.
//! Not a comparison: that is `compare`.
//! Source: each value cites its own.

use super::Figure;
use crate::point::Point;
use crate::read::{Map, Marks, Name, choice, part};
use crate::setting::Setting;

choice! {
    /// How a published value was read.
    pub enum Reading = "a way of reading" {
        /// Printed as a number in a table or in the text.
        Printed = "printed",
        /// Measured off a figure.
        Digitised = "digitised",
        /// Worked out from other published numbers; `note` says how.
        Computed = "computed",
    }
}

part! {
    /// Published values of the points that have these parameters.
    pub struct Published = "published values" {
        /// The points: parameters with the values they have there; all points if left out. `machine` is a machine's name.
        at: Map<Setting>,
        /// The values, by metric and in its unit.
        values: Map<Figure>,
        /// How they were read.
        read: Reading,
        /// Where they were published.
        source: Name,
        /// What a reader should know of them: the place in the source, how they were worked out.
        note: Option<String>,
    }
}

impl Published {
    pub(crate) fn marks(&self) -> &Marks {
        &self.marks
    }

    /// Whether a published value is of this point.
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
