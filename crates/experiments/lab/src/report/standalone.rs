//! The figures of an experiment as SVG files, for papers: each with its title and legend, in the colours of the light
//! page. Variables, scripts and tooltips are left out, because other programs do not support them.
//!
//! Source: SVG 1.1.

use super::chart::{Panel, panels};
use super::draw::{COLOURS, LETTER};
use super::{Chapter, escape, put};
use crate::experiment::PlotKind;
use std::fmt::Write as _;

/// The colours of the series on the light page (`page.css`).
const SERIES: [&str; COLOURS] =
    ["#0072b2", "#d55e00", "#009e73", "#b1569b", "#c79200", "#3f9fd6", "#7a5c3d", "#5b5f66"];
/// The colours of the light page's background and of its secondary text.
const BACKGROUND: &str = "#ffffff";
const SOFT: &str = "#626873";

/// A figure as a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FigureFile {
    /// Name without a folder: the number of the plot, and of its panel if it has several.
    pub name: String,
    /// The SVG document.
    pub svg: String,
}

/// All figures of a chapter that have values.
pub fn figures(chapter: &Chapter<'_>) -> Vec<FigureFile> {
    let parts = chapter.campaign.experiment.parts();
    let mut files = Vec::new();
    for (number, plot) in parts.plots.iter().enumerate() {
        let panels = panels(chapter, plot);
        for (index, panel) in panels.iter().enumerate() {
            let of_several = if panels.len() > 1 { format!("-{}", index + 1) } else { String::new() };
            let name = format!("{}-{}{of_several}.svg", parts.name, number + 1);
            files.push(FigureFile { name, svg: document(panel) });
        }
    }
    files
}

fn document(panel: &Panel<'_>) -> String {
    let (drawing, _) = panel.draw();
    let title = match panel.title.is_empty() {
        true => panel.plot.title.clone(),
        false => format!("{}: {}", panel.plot.title, panel.title),
    };
    framed(&title, &legend_entries(panel), &drawing)
}

/// A document with a title, a legend, and a drawing. A legend entry is a symbol (SVG, at most 10 by 10) and its name.
pub(super) fn framed(title: &str, entries: &[(String, String)], drawing: &str) -> String {
    let (width, height) = size(drawing);
    let mut heading = String::new();
    put!(heading, "<text class=\"title\" x=\"2\" y=\"16\">{}</text>\n", escape(title));
    let top = legend(entries, width, &mut heading);
    let drawing =
        drawing.replacen("<svg ", &format!("<svg y=\"{top}\" width=\"{width}\" height=\"{height}\" "), 1);
    let mut style = include_str!("standalone.css").to_string();
    for (index, colour) in SERIES.iter().enumerate() {
        put!(
            style,
            "path.line.s{index}, .error.s{index}, .outline.s{index}, .diamond.s{index} {{ stroke: {colour}; }} \
             .bar.s{index}, .dot.s{index}, .outline.s{index}, .disc.s{index} {{ fill: {colour}; }} .dot.s{index} {{ stroke: {BACKGROUND}; }} \
             .diamond.s{index} {{ fill: {BACKGROUND}; }} .bar + .error.s{index} {{ stroke: #1d1f24; }}\n"
        );
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{0}\" viewBox=\"0 0 {width} {0}\" \
         font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"12\">\n<style>\n{style}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"{BACKGROUND}\"/>\n{heading}{1}</svg>\n",
        height + top,
        without_tips(&drawing)
    )
}

/// The key of a series.
pub(super) fn key(series: usize) -> String {
    format!("<rect width=\"10\" height=\"10\" rx=\"2\" fill=\"{}\"/>", SERIES[series % COLOURS])
}

/// Width and height of a drawing, from its viewBox.
fn size(drawing: &str) -> (u32, u32) {
    let numbers = drawing.split('"').nth(1).unwrap_or_default();
    let mut sides = numbers.split(' ').skip(2).map(|side| side.parse().unwrap_or(0));
    (sides.next().unwrap_or(0), sides.next().unwrap_or(0))
}

/// The keys of a panel's legend with their names.
fn legend_entries(panel: &Panel<'_>) -> Vec<(String, String)> {
    let mut entries: Vec<(String, String)> = Vec::new();
    if panel.names_series() {
        entries.extend(panel.series.iter().enumerate().map(|(index, name)| (key(index), name.clone())));
    }
    if panel.has_published() && panel.plot.kind != PlotKind::Heat {
        let (ours, published) = match panel.plot.kind {
            PlotKind::Line => (
                format!("<circle cx=\"5\" cy=\"5\" r=\"3.8\" fill=\"{SOFT}\"/>"),
                format!("<path d=\"M5 0l5 5-5 5-5-5z\" fill=\"none\" stroke=\"{SOFT}\"/>"),
            ),
            _ => (
                format!("<rect width=\"10\" height=\"10\" fill=\"{SOFT}\"/>"),
                format!(
                    "<rect width=\"10\" height=\"10\" fill=\"none\" stroke=\"{SOFT}\" stroke-dasharray=\"3 2.5\"/>"
                ),
            ),
        };
        entries.extend([(ours, "ours".into()), (published, "published".into())]);
    }
    entries
}

/// Draws the legend below the title, in lines that fit the width. Returns where the drawing begins.
fn legend(entries: &[(String, String)], width: u32, out: &mut String) -> u32 {
    const LINE: u32 = 18;
    const KEY: f64 = 12.0;
    let (mut x, mut y) = (2.0, 26);
    for (index, (key, name)) in entries.iter().enumerate() {
        let length = KEY + 4.0 + name.chars().count() as f64 * LETTER + 16.0;
        if index > 0 && x + length > f64::from(width) {
            (x, y) = (2.0, y + LINE);
        }
        put!(
            out,
            "<g transform=\"translate({x:.1} {y})\">{key}<text class=\"tick\" x=\"{:.1}\" y=\"9\">{}</text></g>\n",
            KEY + 4.0,
            escape(name)
        );
        x += length;
    }
    if entries.is_empty() { y } else { y + LINE }
}

/// The drawing without the attributes that the page's script reads.
fn without_tips(drawing: &str) -> String {
    let mut parts = drawing.split(" data-tip=\"");
    let mut out = parts.next().unwrap_or_default().to_string();
    // Quotes inside a tip are escaped.
    parts.for_each(|part| out.push_str(part.split_once('"').map_or(part, |(_, rest)| rest)));
    out
}
