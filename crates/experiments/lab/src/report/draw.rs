//! SVG helpers shared by all charts: frame, ticks, text.
//!
//! Source: SVG 1.1.

use super::{escape, put};
use std::fmt::Write as _;

/// Number of distinct series colours; further series reuse them.
pub const COLOURS: usize = 8;
/// Average width of a character in the charts.
pub const LETTER: f64 = 6.6;

/// Plot area of a drawing.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Position of its left edge.
    pub left: f64,
    /// Position of its right edge.
    pub right: f64,
    /// Position of its top edge.
    pub top: f64,
    /// Position of its bottom edge.
    pub bottom: f64,
}

/// A drawing of the given size. `label` describes it for screen readers.
pub fn svg(width: f64, height: f64, label: &str, content: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {width:.0} {height:.0}\" style=\"width:{width:.0}px\" role=\"img\" aria-label=\"{}\">\n{content}</svg>\n",
        escape(label)
    )
}

/// Text at a position with a CSS class.
pub fn text(out: &mut String, class: &str, x: f64, y: f64, label: &str) {
    put!(out, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>\n", escape(label));
}

/// Horizontal grid lines with labels on the left.
pub fn grid(out: &mut String, frame: Frame, ticks: &[(f64, String)]) {
    for (y, label) in ticks {
        put!(
            out,
            "<line class=\"grid\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\n",
            frame.left,
            frame.right
        );
        text(out, "tick end", frame.left - 7.0, y + 4.0, label);
    }
}

/// Labels below the frame, rotated if they would overlap.
pub fn x_labels(out: &mut String, frame: Frame, ticks: &[(f64, String)]) {
    let rotated = is_crowded(ticks);
    for (x, label) in ticks {
        let y = frame.bottom + 16.0;
        if rotated {
            put!(
                out,
                "<text class=\"tick end\" transform=\"translate({:.1} {y:.1}) rotate(-35)\">{}</text>\n",
                x + 4.0,
                escape(&clip(label))
            );
        } else {
            text(out, "tick middle", *x, y + 2.0, label);
        }
    }
}

/// Returns whether labels below a frame would overlap.
pub fn is_crowded(ticks: &[(f64, String)]) -> bool {
    let half = |label: &str| label.chars().count() as f64 * LETTER / 2.0 + 4.0;
    ticks.windows(2).any(|pair| pair[0].0 + half(&pair[0].1) > pair[1].0 - half(&pair[1].1))
}

/// How far the label `label` below a frame reaches to the left and to the right of its tick.
pub fn extent(ticks: &[(f64, String)], label: &str) -> (f64, f64) {
    if is_crowded(ticks) {
        // The cosine of 35 degrees; a turned label ends 4 to the right of its tick.
        (clip(label).chars().count() as f64 * LETTER * 0.82 - 4.0, 4.0)
    } else {
        let half = label.chars().count() as f64 * LETTER / 2.0;
        (half, half)
    }
}

/// Height needed for the labels below the frame.
pub fn label_height(ticks: &[(f64, String)]) -> f64 {
    let longest = ticks.iter().map(|(_, label)| clip(label).chars().count()).max().unwrap_or(0);
    if is_crowded(ticks) { 26.0 + longest as f64 * LETTER * 0.6 } else { 26.0 }
}

/// Truncates a label.
pub fn clip(label: &str) -> String {
    const MAX_LABEL_CHARS: usize = 24;
    if label.chars().count() <= MAX_LABEL_CHARS {
        label.into()
    } else {
        label.chars().take(MAX_LABEL_CHARS - 1).chain(['…']).collect()
    }
}

/// The tooltip attribute of a mark.
pub fn tip(label: &str) -> String {
    format!("data-tip=\"{}\"", escape(label).replace('\n', "&#10;"))
}
