//! Tables that fit the terminal, and the words for what is in them.
//! Not JSON: that is the service's own.

use crate::machine::{columns, table};
use longma_placement::placement::Placement;
use longma_placement::store::Vm;
use serde::Serialize;
use std::error::Error;
use std::io::IsTerminal;

/// Between two columns.
const GAP: usize = 2;
/// No column is made narrower.
const NARROWEST: usize = 6;

/// Rows, the first of them the headings, in lines no longer than the terminal's: the widest columns are cut. In a pipe nothing is cut.
pub fn fitting(rows: &[Vec<String>]) -> String {
    let width = if std::io::stdout().is_terminal() { columns() } else { usize::MAX };
    table(&narrowed(rows, width))
}

fn narrowed(rows: &[Vec<String>], width: usize) -> Vec<Vec<String>> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widest =
        |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0);
    let mut widths: Vec<usize> = (0..count).map(widest).collect();
    while widths.iter().sum::<usize>() + GAP * count.saturating_sub(1) > width {
        let Some(most) = widths.iter_mut().max().filter(|w| **w > NARROWEST) else { break };
        *most -= 1;
    }
    let cut = |text: &String, width: usize| match text.chars().count() > width {
        true => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
        false => text.clone(),
    };
    rows.iter().map(|row| row.iter().zip(&widths).map(|(text, width)| cut(text, *width)).collect()).collect()
}

/// Headings.
pub fn heading<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(String::from).to_vec()
}

/// JSON as the service sent it.
pub fn json(value: &impl Serialize) -> super::Outcome {
    crate::machine::print_json(&serde_json::to_value(value).map_err(Box::<dyn Error>::from)?)
}

/// MiB in the unit that people would use.
pub fn mib(mib: u64) -> String {
    match mib {
        0..1024 => format!("{mib} MiB"),
        _ if mib.is_multiple_of(1024) => format!("{} GiB", mib / 1024),
        _ => format!("{:.1} GiB", mib as f64 / 1024.0),
    }
}

/// A part as per cent.
pub fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// Numbers as people list them.
pub fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|i| i.to_string()).collect();
    if items.is_empty() { "-".into() } else { items.join(",") }
}

/// A word of the API for an enum.
pub fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(serde_json::Value::Object(object)) => object.keys().next().cloned().unwrap_or_default(),
        _ => String::new(),
    }
}

/// Nodes of a placement.
pub fn nodes(placement: &Placement) -> String {
    list(placement.cells.iter().map(|c| c.node))
}

/// Where a virtual machine is, in a few words.
pub fn place(vm: &Vm) -> (String, String) {
    let Some(placement) = &vm.placement else { return ("-".into(), "-".into()) };
    let nodes = match &vm.target {
        Some(target) => format!("{} to {}", nodes(placement), self::nodes(target)),
        None => nodes(placement),
    };
    (placement.host.clone(), nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_column_is_cut_and_a_narrow_one_never() {
        let rows =
            vec![heading(["ID", "WHAT"]), vec!["1".into(), "a very long text that has no room".into()]];
        let cut = narrowed(&rows, 20);
        assert_eq!(cut[1], ["1", "a very long tex…"]);
        assert!(table(&cut).lines().all(|line| line.chars().count() <= 20));
        assert_eq!(narrowed(&rows, usize::MAX), rows);
        assert_eq!(narrowed(&rows, 3)[1][1].chars().count(), NARROWEST, "there is an end to it");
    }

    #[test]
    fn memory_is_in_the_unit_that_people_use() {
        assert_eq!([mib(512), mib(2048), mib(1536)], ["512 MiB", "2 GiB", "1.5 GiB"]);
    }
}
