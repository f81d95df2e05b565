//! Assigns the values of an experiment to the series and panels of a plot. `figure` draws lines and bars, `matrix` heat
//! maps and circles.

use super::{Chapter, escape, figure, matrix, put};
use crate::experiment::{Plot, PlotKind};
use crate::names::Names;
use crate::point::Point;
use crate::replicates::groups;
use crate::setting::Setting;
use crate::table::{Column, Row, with_interval};
use longma_confidence::Interval;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// A value in a chart.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// Coordinate on the horizontal axis.
    pub(super) x: Setting,
    /// Coordinate on the vertical axis of a matrix; empty in other charts.
    pub(super) y: Setting,
    /// Name of its series.
    pub(super) series: String,
    /// The value in the metric's unit.
    pub(super) value: f64,
    /// Half of its interval, if it has one.
    pub(super) half: Option<f64>,
    /// Whether it is a published value instead of a measured one.
    pub(super) published: bool,
    /// Text of its tooltip.
    pub(super) tip: String,
}

/// The values of one drawing, with its axes.
pub(super) struct Panel<'a> {
    pub(super) plot: &'a Plot,
    /// Title that distinguishes it from the plot's other panels.
    pub(super) title: String,
    pub(super) unit: String,
    /// Name of the values.
    pub(super) what: String,
    /// Titles of the horizontal axis and, for a matrix, the vertical axis.
    pub(super) axes: [String; 2],
    pub(super) cells: Vec<Cell>,
    /// Series in the order of their colours.
    pub(super) series: Vec<String>,
    /// Values that its vertical axis must reach, because other panels of the plot have them.
    pub(super) reach: Vec<f64>,
}

/// Writes the panels of `plot` as figures.
pub(super) fn write(chapter: &Chapter<'_>, plot: &Plot, out: &mut String) {
    let panels = panels(chapter, plot);
    if panels.is_empty() {
        put!(
            out,
            "<figure class=\"chart empty\"><figcaption>{}</figcaption><p class=\"note\">No results yet.</p></figure>\n",
            escape(&plot.title)
        );
    }
    for panel in &panels {
        let (svg, marks) = panel.draw();
        let kind = plot.kind.word();
        put!(
            out,
            "<figure class=\"chart {kind}\" data-marks=\"{marks}\"><figcaption>{}",
            escape(&plot.title)
        );
        if !panel.title.is_empty() {
            put!(out, " <span>{}</span>", escape(&panel.title));
        }
        out.push_str("</figcaption>\n");
        legend(panel, out);
        out.push_str(&svg);
        out.push_str("</figure>\n");
    }
}

impl Panel<'_> {
    /// Its SVG and the number of marks.
    pub(super) fn draw(&self) -> (String, usize) {
        if self.plot.kind.is_matrix() { matrix::draw(self) } else { figure::draw(self) }
    }

    /// Whether it has published values.
    pub(super) fn has_published(&self) -> bool {
        self.cells.iter().any(|cell| cell.published)
    }

    /// Whether a legend names its series.
    pub(super) fn names_series(&self) -> bool {
        !self.plot.kind.is_matrix()
            && (self.series.len() > 1 || self.series.iter().any(|name| !name.is_empty()))
    }
}

fn legend(panel: &Panel<'_>, out: &mut String) {
    let (published, named) = (panel.has_published(), panel.names_series());
    if !named && !published {
        return;
    }
    out.push_str("<div class=\"legend\">");
    for (index, name) in panel.series.iter().enumerate().filter(|_| named) {
        put!(out, "<span><i class=\"key s{}\"></i>{}</span>", index % super::draw::COLOURS, escape(name));
    }
    if published && panel.plot.kind != PlotKind::Heat {
        let how = if panel.plot.kind == PlotKind::Line { "diamond" } else { "outline" };
        put!(
            out,
            "<span><i class=\"key ours\"></i>ours</span><span><i class=\"key {how}\"></i>published</span>"
        );
    }
    out.push_str("</div>\n");
}

/// Coordinate of a point along `name`: a parameter, the machine, or the metric.
fn coordinate(point: &Point, metric: &Column, name: &str, names: &Names) -> Setting {
    match name {
        "metric" => metric.title.as_str().into(),
        "machine" => point.machine.as_ref().map_or("".into(), |m| m.name.as_str().into()),
        _ => {
            let setting = point.parameter(name).cloned().or_else(|| varied(point, name));
            let setting = setting.unwrap_or_else(|| "".into());
            let shown = names.value(name, &setting);
            // Keep a number as a number, so that the axis is numeric.
            if shown == setting.to_string() { setting } else { shown.as_str().into() }
        }
    }
}

fn varied(point: &Point, name: &str) -> Option<Setting> {
    point.varied.iter().find(|(varied, _)| varied == name).map(|(_, value)| value.clone())
}

pub(super) fn panels<'a>(chapter: &Chapter<'_>, plot: &'a Plot) -> Vec<Panel<'a>> {
    let table = &chapter.table;
    let metrics: Vec<_> = table
        .metrics
        .iter()
        .enumerate()
        .filter(|(_, m)| plot.metrics.is_empty() || plot.metrics.iter().any(|name| **name == m.name))
        .collect();
    let rows: BTreeMap<_, _> = table.rows.iter().map(|row| (&row.key, row)).collect();
    let values = |point: &Point, index: usize, name: &str| {
        let ours =
            rows.get(&point.key).and_then(|row| Some((row.values[index]?, row.interval(index), Some(*row))));
        let all = chapter.campaign.experiment.parts().published.iter();
        let published = all
            .filter(|p| p.is_of(point))
            .filter_map(|p| p.values.get(name))
            .map(|value| (value.0, None, None));
        ours.into_iter().chain(published).collect::<Vec<_>>()
    };
    let experiment = chapter.campaign.experiment;
    let replicates = experiment.parts().replicates.iter().map(|name| &**name);
    let redundant: Vec<&str> = redundant(chapter, plot).into_iter().chain(replicates).collect();
    let names = &table.names;
    let axes = [Some(&plot.x), plot.by.as_ref()].map(|axis| axis.map_or("", |name| names.title(name)).into());
    let mut panels: Vec<Panel<'a>> = Vec::new();
    for point in groups(&chapter.campaign).iter().map(|group| &chapter.campaign.points[group[0]]) {
        for (index, metric) in &metrics {
            for (value, interval, row) in values(point, *index, &metric.name) {
                let place = place(plot, point, metric, metrics.len(), &redundant, names);
                let kept = point.varied.iter().filter(|(name, _)| !experiment.is_replicate(name));
                let label = names.label(kept.map(|(name, value)| (name, value)));
                let (tip, published) = (tip(&label, metric, value, interval, row), row.is_none());
                let half = interval.and_then(|interval| interval.half);
                let series = place.series.clone();
                let cell = Cell { x: place.x, y: place.y, series: place.series, value, half, published, tip };
                let known = panels.iter().position(|p| p.title == place.panel && p.unit == metric.unit);
                let known = known.unwrap_or_else(|| {
                    let (title, what) = (place.panel, metric.title.clone());
                    panels.push(Panel {
                        plot,
                        title,
                        unit: metric.unit.clone(),
                        what,
                        axes: axes.clone(),
                        cells: Vec::new(),
                        series: Vec::new(),
                        reach: Vec::new(),
                    });
                    panels.len() - 1
                });
                let panel = &mut panels[known];
                if panel.what != metric.title {
                    panel.what.clear();
                }
                if !panel.series.contains(&series) {
                    panel.series.push(series);
                }
                panel.cells.push(cell);
            }
        }
    }
    if plot.panels.is_some() {
        share_axes(&mut panels);
    }
    panels
}

/// Gives all panels with one unit the same vertical axis and the same colours of their series.
fn share_axes(panels: &mut [Panel<'_>]) {
    let mut shared: BTreeMap<String, (Vec<f64>, Vec<String>)> = BTreeMap::new();
    for panel in panels.iter() {
        let (reach, series) = shared.entry(panel.unit.clone()).or_default();
        reach.extend(figure::reached(panel));
        for name in &panel.series {
            if !series.contains(name) {
                series.push(name.clone());
            }
        }
    }
    for panel in panels {
        if let Some((reach, series)) = shared.get(&panel.unit) {
            (panel.reach, panel.series) = (reach.clone(), series.clone());
        }
    }
}

/// Redundant parameters: those that vary together with one of the plot's axes, those that another parameter represents,
/// and those with the same value at all points. Even without them, all points have different coordinates.
fn redundant<'a>(chapter: &'a Chapter<'a>, plot: &Plot) -> Vec<&'a str> {
    let is_axis = |name: &str| {
        [Some(&plot.x), plot.by.as_ref(), plot.panels.as_ref()].iter().flatten().any(|axis| &***axis == name)
    };
    let zips = chapter.campaign.experiment.parts().zip.iter();
    let of_axes = zips.filter(|columns| columns.keys().any(|name| is_axis(name)));
    let together = of_axes.flat_map(|columns| columns.keys().map(String::as_str));
    let points = &chapter.campaign.points;
    let is_constant =
        |(name, value): &(String, Setting)| points.iter().all(|p| varied(p, name).as_ref() == Some(value));
    let constant =
        points.first().into_iter().flat_map(|point| point.varied.iter().filter(|v| is_constant(v)));
    let represented =
        points.first().into_iter().flat_map(|point| point.varied.iter()).map(|(name, _)| name.as_str());
    let represented = represented.filter(|name| chapter.table.names.is_represented(name));
    let candidates = together.chain(represented).chain(constant.map(|(name, _)| name.as_str()));
    let places = |redundant: &[&str]| {
        let place = |point: &Point| -> Vec<String> {
            let kept = point.varied.iter().filter(|(name, _)| !redundant.contains(&name.as_str()));
            kept.map(|(_, value)| value.to_string()).collect()
        };
        points.iter().map(place).collect::<BTreeSet<_>>().len()
    };
    let mut redundant: Vec<&str> = Vec::new();
    for name in candidates.filter(|name| !is_axis(name)) {
        redundant.push(name);
        if places(&redundant) < places(&[]) {
            redundant.pop();
        }
    }
    redundant
}

/// Position of a value in a plot.
struct Position {
    x: Setting,
    y: Setting,
    series: String,
    panel: String,
}

fn place(
    plot: &Plot,
    point: &Point,
    metric: &Column,
    metrics: usize,
    redundant: &[&str],
    names: &Names,
) -> Position {
    let is_matrix = plot.kind.is_matrix();
    let (by, panels) = (plot.by.as_deref(), plot.panels.as_deref());
    let used = |name: &str| &*plot.x == name || by == Some(name) || panels == Some(name);
    let mut rest: Vec<String> = Vec::new();
    if metrics > 1 && !used("metric") {
        rest.push(metric.title.clone());
    }
    if let Some(by) = by.filter(|_| !is_matrix) {
        let is_word = by == "metric" || by == "machine";
        let value = point.parameter(by).cloned().or_else(|| varied(point, by)).filter(|_| !is_word);
        rest.push(value.map_or_else(
            || coordinate(point, metric, by, names).to_string(),
            |value| names.titled_value(by, &value),
        ));
    }
    let others = point.varied.iter().filter(|(name, _)| !used(name) && !redundant.contains(&name.as_str()));
    rest.extend(others.map(|(name, value)| names.titled_value(name, value)));
    let rest = rest.join(", ");
    let x = coordinate(point, metric, &plot.x, names);
    let y = by.filter(|_| is_matrix).map_or_else(|| "".into(), |by| coordinate(point, metric, by, names));
    let panel = panels.map(|name| match point.parameter(name).cloned().or_else(|| varied(point, name)) {
        Some(value) if name != "metric" && name != "machine" => names.titled_value(name, &value),
        _ => coordinate(point, metric, name, names).to_string(),
    });
    let (series, panel) = match (is_matrix, panel) {
        (false, panel) => (rest, panel.unwrap_or_default()),
        (true, None) => (String::new(), rest),
        (true, Some(panel)) if rest.is_empty() => (String::new(), panel),
        (true, Some(panel)) => (String::new(), format!("{panel}, {rest}")),
    };
    Position { x, y, series, panel }
}

/// The tooltip of a value. `row` is the row of a measured value.
fn tip(label: &str, metric: &Column, value: f64, interval: Option<Interval>, row: Option<&Row>) -> String {
    let whose = match (row, interval) {
        (None, _) => "published".into(),
        (Some(_), None) => "ours".into(),
        (Some(row), Some(Interval { count, .. })) if count < row.replicates => {
            format!("ours, mean of {count} of {}", row.replicates)
        }
        (Some(_), Some(Interval { half: Some(_), count: 1, .. })) => "ours, sampled".into(),
        (Some(_), Some(interval)) => format!("ours, mean of {}", interval.count),
    };
    let at = if label.is_empty() { String::new() } else { format!("{label}\n") };
    format!("{at}{}: {} {} ({whose})", metric.title, with_interval(value, interval), metric.unit)
}
