//! A figure of the report as the experiment file describes it. `report` draws it.

use crate::read::{Name, SourcePositions, choice, part};

choice! {
    /// Kind of a figure.
    pub enum PlotKind = "a kind of plot" {
        /// Lines over a parameter.
        Line = "line",
        /// Grouped bars.
        Bar = "bar",
        /// Bars whose parts add up, such as cycles by cause.
        Stacked = "stacked",
        /// A table of coloured cells.
        Heat = "heat",
        /// A table of circles whose areas represent the values.
        Circles = "circles",
    }
}

choice! {
    /// An axis with a logarithmic scale.
    pub enum LogAxis = "an axis" {
        /// The horizontal axis.
        X = "x",
        /// The vertical axis.
        Y = "y",
        /// The scale of colours or areas.
        Value = "value",
    }
}

part! {
    /// A figure of the report.
    pub struct Plot = "plot" {
        /// Title.
        title: String,
        /// Kind of figure.
        kind: PlotKind,
        /// The parameter on the horizontal axis; `machine` is the machine, `metric` the metrics.
        x: Name,
        /// The parameter on the vertical axis of a heat map or circle matrix, or the one that distinguishes lines or
        /// bars.
        by: Option<Name>,
        /// A parameter that gets a drawing for each of its values, with the same vertical axis.
        panels: Option<Name>,
        /// The metrics to draw; all if left out.
        metrics: Vec<Name>,
        /// Axes with a logarithmic scale.
        log: Vec<LogAxis>,
    }
}

impl PlotKind {
    /// Whether it has two axes of parameters instead of one.
    pub(crate) fn is_matrix(self) -> bool {
        matches!(self, PlotKind::Heat | PlotKind::Circles)
    }
}

impl Plot {
    /// Returns whether `axis` is logarithmic.
    pub fn is_log(&self, axis: LogAxis) -> bool {
        self.log.contains(&axis)
    }

    pub(crate) fn marks(&self) -> &SourcePositions {
        &self.marks
    }
}
