//! Renders boxes as lines of text with Unicode box-drawing characters (block U+2500).

use super::boxes::{Element, Kind, Placed};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

#[derive(Clone, Copy)]
struct Cell {
    /// `None` in the second cell of a wide character.
    letter: Option<char>,
    colour: u8,
}

pub(super) fn render(picture: &Element, width: usize, colour: bool) -> String {
    let (width, height) = picture.size(width);
    let mut canvas = vec![vec![Cell { letter: Some(' '), colour: 0 }; width]; height];
    for placed in picture.place(width) {
        frame(&mut canvas, &placed);
    }
    let mut text = String::new();
    for row in canvas {
        let mut line = String::new();
        let mut last = 0;
        for cell in row.into_iter() {
            let Some(letter) = cell.letter else { continue };
            if colour && cell.colour != last && letter != ' ' {
                line.push_str(&format!("\x1b[{}m", cell.colour));
                last = cell.colour;
            }
            line.push(letter);
        }
        text.push_str(line.trim_end());
        if last != 0 {
            text.push_str("\x1b[0m");
        }
        text.push('\n');
    }
    text
}

/// The ANSI colour of a type of box.
fn ansi(kind: Kind) -> u8 {
    match kind {
        Kind::Machine | Kind::Host | Kind::Note => 0,
        Kind::Chip => 36,
        Kind::Node => 33,
        Kind::Cluster | Kind::Crossbar => 90,
        Kind::Memory => 35,
        Kind::Cache => 32,
        Kind::Core => 37,
        Kind::Port | Kind::Bus => 34,
        Kind::Device | Kind::Switch => 31,
    }
}

fn frame(canvas: &mut [Vec<Cell>], placed: &Placed) {
    let Placed { x, y, width, height, .. } = *placed;
    if width < 2 || height < 2 {
        return;
    }
    let (right, bottom) = (x + width - 1, y + height - 1);
    let colour = ansi(placed.kind);
    let mut set = |column: usize, row: usize, letter: char| {
        if let Some(cell) = canvas.get_mut(row).and_then(|r| r.get_mut(column)) {
            *cell = Cell { letter: Some(letter), colour };
        }
    };
    for column in x + 1..right {
        set(column, y, '─');
        set(column, bottom, '─');
    }
    for row in y + 1..bottom {
        set(x, row, '│');
        set(right, row, '│');
    }
    let corners = if placed.holds { ['┌', '┐', '└', '┘'] } else { ['╭', '╮', '╰', '╯'] };
    for (column, row, letter) in
        [(x, y, corners[0]), (right, y, corners[1]), (x, bottom, corners[2]), (right, bottom, corners[3])]
    {
        set(column, row, letter);
    }
    let text_width = width.saturating_sub(4);
    for (index, line) in placed.lines.iter().enumerate() {
        let line = cut(line, text_width);
        // The text of leaves other than notes is centred, as in lstopo.
        let indent =
            if placed.holds || placed.kind == Kind::Note { 0 } else { (text_width - line.width()) / 2 };
        let mut column = x + 2 + indent;
        for letter in line.chars() {
            let cells = letter.width().unwrap_or(0);
            if cells == 0 {
                continue;
            }
            let row = &mut canvas[y + 1 + index];
            row[column] = Cell { letter: Some(letter), colour };
            if cells == 2 {
                row[column + 1].letter = None;
            }
            column += cells;
        }
    }
}

/// The text, truncated to `max_width` cells with an ellipsis.
pub(super) fn cut(line: &str, max_width: usize) -> String {
    let clean: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if clean.width() <= max_width {
        return clean;
    }
    let mut short = String::new();
    for letter in clean.chars() {
        if short.width() + letter.width().unwrap_or(0) + 1 > max_width {
            break;
        }
        short.push(letter);
    }
    if max_width > 0 {
        short.push('…');
    }
    short
}
