//! Lays out nested boxes on a grid of character cells. `picture` chooses the boxes; `text` and `svg` render them.

use unicode_width::UnicodeWidthStr;

/// The type of part that a box shows; determines its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Machine,
    Host,
    Chip,
    Node,
    Cluster,
    Memory,
    Cache,
    Core,
    Crossbar,
    Port,
    Bus,
    Device,
    Switch,
    Note,
}

/// A box, or an arrangement of boxes.
#[derive(Clone, Debug)]
pub(super) enum Element {
    /// Lines of text above the boxes inside.
    Box { kind: Kind, lines: Vec<String>, inside: Vec<Element> },
    /// Stacked vertically, all as wide as the widest.
    Stack(Vec<Element>),
    /// In rows, wrapped to the width.
    Flow(Vec<Element>),
}

/// A box with its position and size, in cells.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Placed {
    pub kind: Kind,
    pub lines: Vec<String>,
    pub x: usize,
    pub y: usize,
    pub width: usize,
    pub height: usize,
    /// Whether it contains other boxes.
    pub holds: bool,
}

/// Cells between a box's border and its contents, left and right together.
const FRAME: usize = 4;
const GAP: usize = 1;

impl Element {
    pub(super) fn leaf(kind: Kind, lines: &[String]) -> Self {
        Element::Box { kind, lines: lines.to_vec(), inside: Vec::new() }
    }

    /// Width and height in cells for a width limit of `max_width` cells. The renderer truncates text that does not fit.
    pub(super) fn size(&self, max_width: usize) -> (usize, usize) {
        match self {
            Element::Box { lines, inside, .. } => {
                let text = lines.iter().map(|l| l.width()).max().unwrap_or(0);
                let sizes = inside.iter().map(|e| e.size(max_width.saturating_sub(FRAME)));
                let (width, height) = sizes.fold((text, 0), |a, s| (a.0.max(s.0), a.1 + s.1));
                ((width + FRAME).min(max_width), height + lines.len() + 2)
            }
            Element::Stack(elements) => {
                let sizes = elements.iter().map(|e| e.size(max_width));
                sizes.fold((0, 0), |a, s| (a.0.max(s.0), a.1 + s.1))
            }
            Element::Flow(elements) => {
                let rows = rows(elements, max_width);
                let row_size = |row: &Vec<(usize, usize)>| {
                    let width = row.iter().map(|s| s.0).sum::<usize>() + GAP * row.len().saturating_sub(1);
                    (width, row.iter().map(|s| s.1).max().unwrap_or(0))
                };
                rows.iter().map(row_size).fold((0, 0), |a, s| (a.0.max(s.0), a.1 + s.1))
            }
        }
    }

    /// The positions of all boxes in `width` cells, outer boxes before inner ones.
    pub(super) fn place(&self, width: usize) -> Vec<Placed> {
        let mut placed = Vec::new();
        let (_, height) = self.size(width);
        self.put(0, 0, width, height, &mut placed);
        placed
    }

    fn put(&self, x: usize, y: usize, width: usize, height: usize, placed: &mut Vec<Placed>) {
        match self {
            Element::Box { kind, lines, inside } => {
                let (kind, lines, holds) = (*kind, lines.clone(), !inside.is_empty());
                let top = y + 1 + lines.len();
                placed.push(Placed { kind, lines, x, y, width, height, holds });
                put_stack(
                    inside,
                    x + FRAME / 2,
                    top,
                    width.saturating_sub(FRAME),
                    (y + height).saturating_sub(top + 1),
                    placed,
                );
            }
            Element::Stack(elements) => put_stack(elements, x, y, width, height, placed),
            Element::Flow(elements) => put_flow(elements, x, y, width, height, placed),
        }
    }
}

/// The sizes of the elements, row by row.
fn rows(elements: &[Element], max_width: usize) -> Vec<Vec<(usize, usize)>> {
    let rows = greedy(elements.iter().map(|e| e.size(max_width)).collect(), max_width);
    // Balance the rows: nine boxes in rows of up to eight become five and four.
    let count = rows.len();
    if count > 1 {
        let each = elements.len().div_ceil(count);
        let sizes: Vec<_> = rows.into_iter().flatten().collect();
        let even: Vec<Vec<_>> = sizes.chunks(each).map(|c| c.to_vec()).collect();
        let width =
            |row: &Vec<(usize, usize)>| row.iter().map(|s| s.0).sum::<usize>() + GAP * (row.len() - 1);
        if even.iter().all(|row| width(row) <= max_width) {
            return even;
        }
        return greedy(sizes, max_width);
    }
    rows
}

fn greedy(sizes: Vec<(usize, usize)>, max_width: usize) -> Vec<Vec<(usize, usize)>> {
    let mut rows: Vec<Vec<(usize, usize)>> = Vec::new();
    let mut used = 0;
    for size in sizes {
        match rows.last_mut() {
            Some(row) if used + GAP + size.0 <= max_width => {
                used += GAP + size.0;
                row.push(size);
            }
            _ => {
                used = size.0;
                rows.push(vec![size]);
            }
        }
    }
    rows
}

/// Places elements below each other; the last one takes the remaining height.
fn put_stack(
    elements: &[Element],
    x: usize,
    y: usize,
    width: usize,
    height: usize,
    placed: &mut Vec<Placed>,
) {
    let mut top = y;
    for (index, element) in elements.iter().enumerate() {
        let own_height = element.size(width).1;
        let own_height = if index + 1 == elements.len() {
            (y + height).saturating_sub(top).max(own_height)
        } else {
            own_height
        };
        element.put(x, top, width, own_height, placed);
        top += own_height;
    }
}

/// Places elements in rows; the elements of a row share the remaining width evenly.
fn put_flow(elements: &[Element], x: usize, y: usize, width: usize, height: usize, placed: &mut Vec<Placed>) {
    let rows = rows(elements, width);
    let (mut top, mut next) = (y, elements.iter());
    let columns = rows.iter().map(Vec::len).max().unwrap_or(1);
    for (index, row) in rows.iter().enumerate() {
        let used = row.iter().map(|s| s.0).sum::<usize>() + GAP * row.len().saturating_sub(1);
        let spare = width.saturating_sub(used);
        let row_height = row.iter().map(|s| s.1).max().unwrap_or(0);
        let row_height = if index + 1 == rows.len() {
            (y + height).saturating_sub(top).max(row_height)
        } else {
            row_height
        };
        let mut left = x;
        for (column, (size, element)) in row.iter().zip(next.by_ref()).enumerate() {
            // A short last row keeps the columns of the rows above.
            let share = if row.len() == columns || row.len() == 1 {
                spare * (column + 1) / row.len() - spare * column / row.len()
            } else {
                0
            };
            element.put(left, top, size.0 + share, row_height, placed);
            left += size.0 + share + GAP;
        }
        top += row_height;
    }
}
