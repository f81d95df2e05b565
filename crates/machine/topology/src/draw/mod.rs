//! Draws a machine as nested boxes, for a terminal and as SVG, in the layout of hwloc's lstopo: memory above caches
//! above cores, I/O next to them.

mod boxes;
mod picture;
mod svg;
mod text;

use crate::machine::Machine;
use boxes::Element;
use picture::{Collapse, picture};

/// Whether each of several identical parts is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Identical parts are drawn once if the drawing would be too tall otherwise.
    Fitting,
    /// Every part is drawn.
    Every,
}

/// Heights above which identical parts are collapsed. A picture may be taller than a terminal.
const MAX_TEXT_ROWS: usize = 64;
const MAX_SVG_ROWS: usize = 110;

/// The machine as text, at most `width` columns wide (at least 40). `colour` adds ANSI colours.
pub fn draw_text(machine: &Machine, width: usize, detail: Detail, colour: bool) -> String {
    let width = width.max(40);
    text::render(&fitting(machine, width, MAX_TEXT_ROWS, detail), width, colour)
}

/// The machine as an SVG document, at most `columns` characters wide (at least 40).
pub fn draw_svg(machine: &Machine, columns: usize, detail: Detail) -> String {
    let columns = columns.max(40);
    svg::render(&fitting(machine, columns, MAX_SVG_ROWS, detail), columns, &machine.title)
}

/// The most detailed picture that is not too tall.
fn fitting(machine: &Machine, width: usize, rows: usize, detail: Detail) -> Element {
    let every = picture(machine, Collapse::Nothing);
    if detail == Detail::Every || every.size(width).1 <= rows {
        return every;
    }
    let levels = [Collapse::Hosts, Collapse::Cores, Collapse::Nodes, Collapse::Chips];
    let mut pictures = levels.into_iter().map(|level| picture(machine, level));
    let fits = pictures.find(|p| p.size(width).1 <= rows);
    fits.unwrap_or_else(|| picture(machine, Collapse::Chips))
}
