//! Draws charts over two axes: heat maps and circle matrices, both measured and published values.
//!
//! Source: the colours of a heat map interpolate five colours of viridis (Smith and van der Walt 2015), which is
//! perceptually uniform, also in grey.

use super::chart::{Cell, Panel};
use super::draw::{Frame, LETTER, clip, label_height, svg, text, tip, x_labels};
use super::put;
use super::scale::{Scale, categories};
use crate::experiment::{LogAxis, PlotKind};
use crate::number::number;
use crate::setting::Setting;
use std::fmt::Write as _;

const RAMP: [[f64; 3]; 5] =
    [[68.0, 1.0, 84.0], [59.0, 82.0, 139.0], [33.0, 145.0, 140.0], [94.0, 201.0, 98.0], [253.0, 231.0, 37.0]];
/// Gap between the measured and the published matrix.
const GAP: f64 = 44.0;

/// Layout of a matrix.
struct Cells {
    columns: Vec<Setting>,
    rows: Vec<Setting>,
    side: (f64, f64),
    scale: Scale,
}

/// Draws the chart. Returns its SVG and the number of marks.
pub(super) fn draw(panel: &Panel<'_>) -> (String, usize) {
    let columns = categories(panel.cells.iter().map(|c| &c.x));
    let rows = categories(panel.cells.iter().map(|c| &c.y));
    let has_published = panel.plot.kind == PlotKind::Heat && panel.cells.iter().any(|c| c.published);
    let title = panel.axes[1].chars().count();
    let names = rows.iter().map(|row| clip(&row.to_string()).chars().count());
    let label = names.chain([title]).max().unwrap_or(0) as f64 * LETTER + 14.0;
    let max_width = if has_published { 420.0 } else { 620.0 };
    let cell_width = (max_width / columns.len().max(1) as f64).clamp(16.0, 76.0);
    let cell_height = if panel.plot.kind == PlotKind::Circles {
        cell_width.min(52.0)
    } else {
        (cell_width * 0.62).clamp(16.0, 40.0)
    };
    let magnitudes = panel.cells.iter().map(|c| c.value);
    let scale = Scale::of(
        magnitudes,
        (0.0, 1.0),
        panel.plot.is_log(LogAxis::Value),
        panel.plot.kind == PlotKind::Circles,
    );
    let cells = Cells { columns, rows, side: (cell_width, cell_height), scale };
    let size = (cell_width * cells.columns.len() as f64, cell_height * cells.rows.len() as f64);
    let frame = Frame { left: label, right: label + size.0, top: 40.0, bottom: 40.0 + size.1 };
    let mut content = String::new();
    text(&mut content, "axis", 2.0, 13.0, &format!("{} ({})", panel.what, panel.unit));
    text(&mut content, "axis end", label - 8.0, 32.0, &panel.axes[1]);
    let ours: Vec<_> = panel.cells.iter().filter(|c| !c.published || !has_published).collect();
    let mut marks = cells.draw(panel.plot.kind, frame, &ours, true, &mut content);
    let mut right = frame.right;
    let ticks = cells.column_ticks(frame.left);
    if has_published {
        text(&mut content, "axis", frame.left, 32.0, "ours");
        let left = frame.right + GAP;
        let second = Frame { left, right: left + size.0, ..frame };
        text(&mut content, "axis", left, 32.0, "published");
        let published: Vec<_> = panel.cells.iter().filter(|c| c.published).collect();
        marks += cells.draw(panel.plot.kind, second, &published, false, &mut content);
        right = second.right;
    }
    let height = frame.bottom + label_height(&ticks) + 20.0;
    text(&mut content, "axis end", frame.right, height - 4.0, &panel.axes[0]);
    let label = panel.what.chars().count() + panel.unit.chars().count() + 4;
    let width = (right + 24.0).max(label as f64 * LETTER + 10.0);
    (svg(width, height, &panel.plot.title, &content), marks)
}

impl Cells {
    fn column_ticks(&self, left: f64) -> Vec<(f64, String)> {
        let place = |index: usize| left + self.side.0 * (index as f64 + 0.5);
        self.columns.iter().enumerate().map(|(index, column)| (place(index), column.to_string())).collect()
    }

    fn draw(&self, kind: PlotKind, frame: Frame, cells: &[&Cell], names: bool, out: &mut String) -> usize {
        for (index, row) in self.rows.iter().enumerate() {
            let middle = frame.top + self.side.1 * (index as f64 + 0.5);
            if names {
                text(out, "tick end", frame.left - 8.0, middle + 4.0, &clip(&row.to_string()));
            }
            if kind == PlotKind::Circles {
                put!(
                    out,
                    "<line class=\"grid\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>\n",
                    frame.left,
                    frame.right
                );
            }
        }
        x_labels(out, frame, &self.column_ticks(frame.left));
        let index = |all: &[Setting], one: &Setting| all.iter().position(|s| s == one).unwrap_or(0) as f64;
        for cell in cells {
            let x = frame.left + self.side.0 * index(&self.columns, &cell.x);
            let y = frame.top + self.side.1 * index(&self.rows, &cell.y);
            if kind == PlotKind::Heat { self.heat(cell, x, y, out) } else { self.circle(cell, x, y, out) }
        }
        cells.len()
    }

    fn heat(&self, cell: &Cell, x: f64, y: f64, out: &mut String) {
        let share = self.scale.place(cell.value);
        let [r, g, b] = colour(share);
        let (cell_width, cell_height) = self.side;
        put!(
            out,
            "<rect class=\"mark cell\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\" fill=\"rgb({r:.0},{g:.0},{b:.0})\" {}/>\n",
            x + 1.0,
            y + 1.0,
            cell_width - 2.0,
            cell_height - 2.0,
            tip(&cell.tip)
        );
        let label = number(cell.value);
        if label.chars().count() as f64 * 6.0 < cell_width - 4.0 {
            let class = if share > 0.6 { "inside dark" } else { "inside light" };
            text(out, class, x + cell_width / 2.0, y + cell_height / 2.0 + 4.0, &label);
        }
    }

    fn circle(&self, cell: &Cell, x: f64, y: f64, out: &mut String) {
        // The area represents the value, so the radius is proportional to its square root.
        let radius = self.scale.place(cell.value).sqrt() * (self.side.1.min(self.side.0) / 2.0 - 2.0);
        let class = if cell.published { "ring" } else { "disc" };
        put!(
            out,
            "<circle class=\"mark {class} s0\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{:.1}\" {}/>\n",
            x + self.side.0 / 2.0,
            y + self.side.1 / 2.0,
            radius.max(1.2),
            tip(&cell.tip)
        );
    }
}

/// Colour of a fraction from 0 to 1.
fn colour(share: f64) -> [f64; 3] {
    let place = share * (RAMP.len() - 1) as f64;
    let index = (place.floor() as usize).min(RAMP.len() - 2);
    let part = place - index as f64;
    std::array::from_fn(|channel| RAMP[index][channel] * (1.0 - part) + RAMP[index + 1][channel] * part)
}
