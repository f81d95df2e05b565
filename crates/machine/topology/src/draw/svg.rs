//! Renders boxes as an SVG 1.1 document.

use super::boxes::{Element, Kind, Placed};
use super::text::cut;
use std::fmt::Write;

/// The size of a cell in pixels, for a 12-pixel monospaced font.
const CELL: (f64, f64) = (7.6, 15.0);
const MARGIN: f64 = 12.0;

pub(super) fn render(picture: &Element, columns: usize, title: &str) -> String {
    let (columns, rows) = picture.size(columns);
    let width = columns as f64 * CELL.0 + 2.0 * MARGIN;
    let height = rows as f64 * CELL.1 + 2.0 * MARGIN;
    // Writing to a String cannot fail.
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"12\">"
    );
    let _ = writeln!(svg, "<title>{}</title>", escape(title));
    let _ = writeln!(svg, "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>");
    for placed in picture.place(columns) {
        draw(&mut svg, &placed);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Fill and border colour of a type of box.
fn colours(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Machine => ("#ffffff", "#9aa5b1"),
        Kind::Host => ("#f5f7fa", "#7b8794"),
        Kind::Chip => ("#e6f0fa", "#4a7fb5"),
        Kind::Node => ("#fff8e1", "#c9a227"),
        Kind::Cluster => ("#fffdf5", "#d3c9a4"),
        Kind::Memory => ("#f3e1f7", "#9c4dad"),
        Kind::Cache => ("#dff2e1", "#3f8f4f"),
        Kind::Core => ("#ffffff", "#52606d"),
        Kind::Crossbar => ("#e4e7eb", "#7b8794"),
        Kind::Port => ("#d9e8fb", "#3b6fb5"),
        Kind::Bus => ("#e3edfb", "#3b6fb5"),
        Kind::Device => ("#fde3dc", "#c1502e"),
        Kind::Switch => ("#fdeccf", "#b7791f"),
        Kind::Note => ("#ffffff", "#cbd2d9"),
    }
}

fn draw(svg: &mut String, placed: &Placed) {
    let (fill, edge) = colours(placed.kind);
    let (x, y) = (placed.x as f64 * CELL.0 + MARGIN, placed.y as f64 * CELL.1 + MARGIN);
    let (width, height) = (placed.width as f64 * CELL.0, placed.height as f64 * CELL.1);
    // Separate neighbouring boxes by a small margin.
    let (inset_x, inset_y) = (1.5, if placed.holds { 2.0 } else { 5.0 });
    let _ = writeln!(
        svg,
        "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"5\" fill=\"{fill}\" stroke=\"{edge}\"/>",
        x + inset_x,
        y + inset_y,
        width - 2.0 * inset_x,
        height - 2.0 * inset_y
    );
    let centred = !placed.holds && placed.kind != Kind::Note;
    let (at, anchor) = if centred { (x + width / 2.0, "middle") } else { (x + 2.0 * CELL.0, "start") };
    // Centre the text of a leaf vertically.
    let text_rows = placed.lines.len() as f64;
    let first = if placed.holds { 1.0 } else { (placed.height as f64 - text_rows) / 2.0 };
    for (index, line) in placed.lines.iter().enumerate() {
        let baseline = y + (first + index as f64) * CELL.1 + 11.5;
        let weight = if index == 0 && placed.holds { " font-weight=\"bold\"" } else { "" };
        let line = escape(&cut(line, placed.width.saturating_sub(4)));
        let _ = writeln!(
            svg,
            "<text x=\"{at:.1}\" y=\"{baseline:.1}\" text-anchor=\"{anchor}\" xml:space=\"preserve\"{weight} fill=\"#1f2933\">{line}</text>"
        );
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
