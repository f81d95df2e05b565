//! A figure of the report: which metrics over which parameters, drawn how.
//! Not the drawing: that is `report`.

use crate::read::{Marks, Name, choice, part};

choice! {
    /// How a figure is drawn.
    pub enum PlotKind = "a kind of plot" {
        /// A line over a parameter.
        Line = "line",
        /// Bars in groups.
        Bar = "bar",
        /// A table of coloured cells.
        Heat = "heat",
        /// A table of circles whose areas are the values.
        Circles = "circles",
    }
}

choice! {
    /// An axis whose scale is logarithmic.
    pub enum LogAxis = "an axis" {
        /// The horizontal one.
        X = "x",
        /// The vertical one.
        Y = "y",
        /// That of colours or areas.
        Value = "value",
    }
}

part! {
    /// A figure of the report.
    pub struct Plot = "plot" {
        /// What it shows.
        title: String,
        /// How it is drawn.
        kind: PlotKind,
        /// The parameter along the horizontal axis; `machine` is the machine, `metric` the metrics themselves.
        x: Name,
        /// The parameter along the vertical axis of a heat map or circle matrix, and what tells lines or bars apart otherwise.
        by: Option<Name>,
        /// The metrics that are drawn; all if left out.
        metrics: Vec<Name>,
        /// Axes that are logarithmic.
        log: Vec<LogAxis>,
    }
}

impl Plot {
    /// Whether `axis` is logarithmic.
    pub fn is_log(&self, axis: LogAxis) -> bool {
        self.log.contains(&axis)
    }

    pub(crate) fn marks(&self) -> &Marks {
        &self.marks
    }
}
