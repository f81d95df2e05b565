//! Draws charts over one axis: lines and bars, both measured and published values.

use super::chart::{Cell, Panel};
use super::draw::{COLOURS, Frame, LETTER, extent, grid, label_height, svg, text, tip, x_labels};
use super::put;
use super::scale::{Scale, categories};
use crate::experiment::{LogAxis, PlotKind};
use crate::setting::Setting;
use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
/// Width of one of several panels, two of which fit beside each other.
const PANEL_WIDTH: f64 = 440.0;
const HEIGHT: f64 = 320.0;

/// Draws the chart. Returns its SVG and the number of marks.
pub(super) fn draw(panel: &Panel<'_>) -> (String, usize) {
    let width = if panel.plot.panels.is_some() { PANEL_WIDTH } else { WIDTH };
    let frame = Frame { left: 0.0, right: width - 18.0, top: 26.0, bottom: HEIGHT };
    let log = panel.plot.is_log(LogAxis::Y);
    let values: Vec<f64> = reached(panel).into_iter().chain(panel.reach.iter().copied()).collect();
    let y = Scale::of(values.into_iter(), (frame.bottom, frame.top), log, true);
    let y = y.padded(if log { 0.06 } else { 0.0 }, 0.04);
    let ticks: Vec<_> = y.ticks(6).into_iter().map(|(value, label)| (y.place(value), label)).collect();
    let widest = ticks.iter().map(|(_, label)| label.chars().count()).max().unwrap_or(0);
    let frame = Frame { left: 16.0 + widest as f64 * LETTER, ..frame };
    let axis = |frame: Frame, out: &mut String| match panel.plot.kind {
        PlotKind::Bar => bars(panel, frame, &y, out),
        PlotKind::Stacked => stacks(panel, frame, &y, out),
        _ => lines(panel, frame, &y, out),
    };
    let frame = fit_labels(frame, &axis(frame, &mut String::new()).1, width);
    let mut content = String::new();
    grid(&mut content, frame, &ticks);
    let what =
        if panel.what.is_empty() { panel.unit.clone() } else { format!("{} ({})", panel.what, panel.unit) };
    text(&mut content, "axis", 2.0, 13.0, &what);
    let (marks, x_ticks) = axis(frame, &mut content);
    let (left, right, bottom) = (frame.left, frame.right, frame.bottom);
    put!(
        content,
        "<line class=\"base\" x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{bottom:.1}\" y2=\"{bottom:.1}\"/>\n"
    );
    x_labels(&mut content, frame, &x_ticks);
    let height = HEIGHT + label_height(&x_ticks) + 20.0;
    text(&mut content, "axis end", frame.right, height - 4.0, &panel.axes[0]);
    (svg(width, height, &panel.plot.title, &content), marks)
}

/// Values that the vertical axis must reach.
pub(super) fn reached(panel: &Panel<'_>) -> Vec<f64> {
    if panel.plot.kind == PlotKind::Stacked {
        let stacks = categories(panel.cells.iter().map(|cell| &cell.x)).into_iter();
        return stacks
            .flat_map(|x| [false, true].map(|p| (x.clone(), p)))
            .flat_map(|(x, p)| sums(panel, &x, p))
            .collect();
    }
    let log = panel.plot.is_log(LogAxis::Y);
    let ends = |cell: &Cell| {
        let half = cell.half.unwrap_or(0.0);
        // A logarithmic axis does not reach 0.
        let low = Some(cell.value - half).filter(|low| !log || *low > 0.0).unwrap_or(cell.value);
        [low, cell.value, cell.value + half]
    };
    panel.cells.iter().flat_map(ends).collect()
}

/// The cells of a stack in the order of the series.
fn parts<'a>(panel: &'a Panel<'_>, x: &Setting, published: bool) -> Vec<(usize, &'a Cell)> {
    let of = |name: &String| {
        panel
            .cells
            .iter()
            .filter(|c| c.x == *x && c.published == published && c.series == *name)
            .collect::<Vec<_>>()
    };
    panel
        .series
        .iter()
        .enumerate()
        .flat_map(|(index, name)| of(name).into_iter().map(move |c| (index, c)))
        .collect()
}

/// The sum of the negative parts of a stack, and the sum of the others.
fn sums(panel: &Panel<'_>, x: &Setting, published: bool) -> [f64; 2] {
    let (low, high): (Vec<f64>, Vec<f64>) =
        parts(panel, x, published).into_iter().map(|(_, cell)| cell.value).partition(|value| *value < 0.0);
    [low.iter().sum(), high.iter().sum()]
}

/// The frame, reduced so that the labels below it stay inside the drawing.
fn fit_labels(frame: Frame, ticks: &[(f64, String)], width: f64) -> Frame {
    let (mut left, mut right) = (0f64, 0f64);
    for (x, label) in ticks {
        let (before, after) = extent(ticks, label);
        left = left.max(before - x);
        right = right.max(x + after - width);
    }
    Frame { left: frame.left + left, right: frame.right - right, ..frame }
}

/// Positions of the values along the horizontal axis, with its ticks.
struct HorizontalAxis {
    categories: Vec<Setting>,
    positions: Vec<f64>,
    ticks: Vec<(f64, String)>,
}

/// Maximum number of ticks; more are thinned out.
const MAX_TICKS: usize = 16;

impl HorizontalAxis {
    /// Evenly spaced positions, for bars and for lines over categories.
    fn even(categories: Vec<Setting>, frame: Frame) -> Self {
        let step = (frame.right - frame.left) / categories.len().max(1) as f64;
        let positions: Vec<_> = (0..categories.len()).map(|i| frame.left + step * (i as f64 + 0.5)).collect();
        let every = categories.len().div_ceil(60);
        let named = positions.iter().zip(&categories).step_by(every.max(1));
        let ticks = named.map(|(x, setting)| (*x, setting.to_string())).collect();
        Self { categories, positions, ticks }
    }

    /// Positions proportional to the numbers.
    fn numeric(categories: Vec<Setting>, frame: Frame, log: bool) -> Self {
        let numbers: Vec<_> = categories.iter().filter_map(Setting::number).collect();
        let scale = Scale::of(numbers.iter().copied(), (frame.left + 12.0, frame.right - 12.0), log, false);
        let positions: Vec<_> = numbers.iter().map(|n| scale.place(*n)).collect();
        let has_units = categories.iter().any(|s| s.text().is_some_and(|t| t.parse::<f64>().is_err()));
        let ticks = if categories.len() <= MAX_TICKS || has_units {
            let mut ticks: Vec<(f64, String)> = Vec::new();
            for (x, setting) in positions.iter().zip(&categories) {
                let label = setting.to_string();
                // Skip a label that would overlap the previous one.
                let half = label.chars().count() as f64 * LETTER / 2.0 + 4.0;
                let end = ticks.last().map(|(x, w)| x + w.chars().count() as f64 * LETTER / 2.0 + 4.0);
                if end.is_none_or(|end| end <= x - half) {
                    ticks.push((*x, label));
                }
            }
            ticks
        } else {
            scale.ticks(8).into_iter().map(|(value, label)| (scale.place(value), label)).collect()
        };
        Self { categories, positions, ticks }
    }

    fn place(&self, x: &Setting) -> f64 {
        self.categories.iter().position(|c| c == x).map_or(0.0, |index| self.positions[index])
    }
}

fn lines(panel: &Panel<'_>, frame: Frame, y: &Scale, out: &mut String) -> (usize, Vec<(f64, String)>) {
    let all = categories(panel.cells.iter().map(|cell| &cell.x));
    let axis = if all.iter().all(|s| s.number().is_some()) {
        HorizontalAxis::numeric(all, frame, panel.plot.is_log(LogAxis::X))
    } else {
        HorizontalAxis::even(all, frame)
    };
    let mut marks = 0;
    for (index, series) in panel.series.iter().enumerate() {
        // Draw the measured values last, on top.
        for published in [true, false] {
            let cells = panel.cells.iter().filter(|c| c.series == *series && c.published == published);
            let mut positions: Vec<(f64, f64, &Cell)> =
                cells.map(|c| (axis.place(&c.x), y.place(c.value), c)).collect();
            positions.sort_by(|a, b| a.0.total_cmp(&b.0));
            marks += positions.len();
            line(&positions, index % COLOURS, published, out);
            for (x, _, cell) in &positions {
                error_bar(*x, cell, y, index % COLOURS, out);
            }
        }
    }
    (marks, axis.ticks)
}

fn line(positions: &[(f64, f64, &Cell)], colour: usize, published: bool, out: &mut String) {
    let class = if published { "published" } else { "ours" };
    let path: Vec<_> = positions.iter().map(|(x, y, _)| format!("{x:.1} {y:.1}")).collect();
    if path.len() > 1 {
        put!(out, "<path class=\"line {class} s{colour}\" d=\"M{}\"/>\n", path.join("L"));
    }
    for (x, y, cell) in positions {
        let tip = tip(&cell.tip);
        if published {
            put!(
                out,
                "<path class=\"mark diamond s{colour}\" d=\"M{x:.1} {:.1}l6 6-6 6-6-6z\" {tip}/>\n",
                y - 6.0
            );
        } else {
            put!(out, "<circle class=\"mark dot s{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.8\" {tip}/>\n");
        }
    }
}

fn bars(panel: &Panel<'_>, frame: Frame, y: &Scale, out: &mut String) -> (usize, Vec<(f64, String)>) {
    let axis = HorizontalAxis::even(categories(panel.cells.iter().map(|cell| &cell.x)), frame);
    let step = (frame.right - frame.left) / axis.categories.len().max(1) as f64;
    // Each group has a slot for every measured and every published series.
    let has = |series: &String, published| {
        panel.cells.iter().any(|c| c.series == *series && c.published == published)
    };
    let slots: Vec<_> = panel
        .series
        .iter()
        .enumerate()
        .flat_map(|(index, series)| [false, true].map(|published| (index, series, published)))
        .filter(|(_, series, published)| has(series, *published))
        .collect();
    let width = (step * 0.8 / slots.len().max(1) as f64).min(54.0);
    let zero = y.place(0.0);
    let mut marks = 0;
    for cell in &panel.cells {
        let Some(slot) = slots.iter().position(|(_, s, p)| **s == cell.series && *p == cell.published) else {
            continue;
        };
        let left = axis.place(&cell.x) + width * (slot as f64 - slots.len() as f64 / 2.0);
        let place = y.place(cell.value);
        let (top, height) = (place.min(zero), (place - zero).abs().max(0.8));
        let (class, inset) = if cell.published { ("outline", 1.0) } else { ("bar", 0.5) };
        put!(
            out,
            "<rect class=\"mark {class} s{}\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{height:.1}\" rx=\"1.5\" {}/>\n",
            slots[slot].0 % COLOURS,
            left + inset,
            (width - 2.0 * inset).max(0.6),
            tip(&cell.tip)
        );
        error_bar(left + width / 2.0, cell, y, slots[slot].0 % COLOURS, out);
        marks += 1;
    }
    (marks, axis.ticks)
}

/// A bar per category whose parts are the series; published values are a second bar beside it.
fn stacks(panel: &Panel<'_>, frame: Frame, y: &Scale, out: &mut String) -> (usize, Vec<(f64, String)>) {
    let axis = HorizontalAxis::even(categories(panel.cells.iter().map(|cell| &cell.x)), frame);
    let step = (frame.right - frame.left) / axis.categories.len().max(1) as f64;
    let forms = if panel.has_published() { 2 } else { 1 };
    let width = (step * 0.7 / forms as f64).min(54.0);
    let mut marks = 0;
    for x in &axis.categories {
        for (form, published) in [false, true].into_iter().take(forms).enumerate() {
            let left = axis.place(x) + width * (form as f64 - forms as f64 / 2.0);
            let (mut low, mut high) = (0.0, 0.0);
            for (series, cell) in parts(panel, x, published) {
                let base = if cell.value < 0.0 { &mut low } else { &mut high };
                let (from, to) = (y.place(*base), y.place(*base + cell.value));
                *base += cell.value;
                let (class, inset) = if published { ("outline", 1.0) } else { ("bar", 0.5) };
                put!(
                    out,
                    "<rect class=\"mark {class} s{}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" {}/>\n",
                    series % COLOURS,
                    left + inset,
                    from.min(to),
                    (width - 2.0 * inset).max(0.6),
                    (from - to).abs(),
                    tip(&cell.tip)
                );
                marks += 1;
            }
        }
    }
    (marks, axis.ticks)
}

/// Draws the interval of a value. An end that a logarithmic axis does not reach has no cap.
fn error_bar(x: f64, cell: &Cell, y: &Scale, colour: usize, out: &mut String) {
    const HALF_CAP: f64 = 3.0;
    let Some(half) = cell.half else { return };
    let ends = [cell.value - half, cell.value + half];
    let [low, high] = ends.map(|end| y.place(end));
    let (left, right) = (x - HALF_CAP, x + HALF_CAP);
    put!(out, "<path class=\"error s{colour}\" d=\"M{x:.1} {low:.1}V{high:.1}");
    for end in ends.into_iter().filter(|end| y.has(*end)) {
        put!(out, "M{left:.1} {:.1}H{right:.1}", y.place(end));
    }
    out.push_str("\"/>\n");
}
