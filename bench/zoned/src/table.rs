//! Formats the figures as Markdown: one table for each shape and durability.

use crate::figures::Figures;
use crate::measure::Task;
use std::fmt::Write;

/// A column: its heading, its value, and whether more is better.
type Column = (&'static str, fn(&Figures) -> Option<f64>, bool);

const COLUMNS: &[Column] = &[
    ("load k/s", |f| Some(f.load_per_s / 1e3), true),
    ("random insert k/s", |f| Some(f.insert_per_s / 1e3), true),
    ("random read k/s", |f| Some(f.read_per_s / 1e3), true),
    ("scan k/s", |f| Some(f.scan_per_s / 1e3), true),
    ("mixed k/s", |f| Some(f.mixed_per_s / 1e3), true),
    ("written per byte inserted", |f| f.written_per_byte, false),
    ("written per byte updated", |f| f.mixed_written_per_byte, false),
    ("space per byte", |f| Some(f.space_per_byte), false),
    ("seconds", |f| Some(f.seconds), false),
    ("insert, processor us", |f| f.insert_processor_us, false),
    ("read, processor us", |f| f.read_processor_us, false),
    ("mixed, processor us", |f| f.mixed_processor_us, false),
];

/// Formats all figures; the best of each column is bold.
pub fn markdown(all: &[Figures]) -> String {
    let mut text = String::new();
    let mut rest = all;
    while let Some(first) = rest.first() {
        let same =
            |f: &&Figures| f.task.shape == first.task.shape && f.task.durability == first.task.durability;
        let (group, after) = rest.split_at(rest.iter().take_while(same).count());
        let Task { shape, durability, records, batch, cache_mib, .. } = &first.task;
        let _ = writeln!(
            text,
            "Keys and values of {} bytes, {}, {records} records, batches of {batch}, a cache of {cache_mib} MiB:\n",
            shape.name(),
            durability.name()
        );
        let heads: Vec<_> = COLUMNS.iter().map(|column| column.0).collect();
        let _ = writeln!(text, "| engine | {} |", heads.join(" | "));
        let _ = writeln!(text, "| --- |{}", " ---: |".repeat(COLUMNS.len()));
        for figures in group {
            let cells: Vec<_> = COLUMNS.iter().map(|column| cell(column, figures, group)).collect();
            let _ = writeln!(text, "| {} | {} |", figures.task.engine, cells.join(" | "));
        }
        text.push('\n');
        rest = after;
    }
    text
}

fn cell((_, value, more): &Column, figures: &Figures, group: &[Figures]) -> String {
    let Some(own) = value(figures) else { return "-".into() };
    let best = group.iter().filter_map(value).reduce(if *more { f64::max } else { f64::min });
    let text = match own {
        large if large >= 100.0 => format!("{large:.0}"),
        middle if middle >= 10.0 => format!("{middle:.1}"),
        small => format!("{small:.2}"),
    };
    if Some(own) == best { format!("**{text}**") } else { text }
}
