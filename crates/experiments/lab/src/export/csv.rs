//! A table as comma-separated values, for spreadsheets and plotting programs.
//!
//! Source: RFC 4180.

use crate::table::Table;

impl Table {
    /// The rows as CSV with a heading: parameters, metrics, and the failure. A metric with intervals is followed by half of
    /// its interval (`NAME.half`) and the number of its runs (`NAME.runs`). Absent values are empty.
    pub fn to_csv(&self) -> String {
        let has_intervals = self.rows.iter().any(|row| !row.intervals.is_empty());
        let mut heading: Vec<String> = self.parameters.clone();
        for metric in &self.metrics {
            heading.push(metric.name.clone());
            if has_intervals {
                heading.extend(["half", "runs"].map(|part| format!("{}.{part}", metric.name)));
            }
        }
        heading.push("failure".into());
        let mut rows = vec![heading];
        for row in &self.rows {
            let mut cells: Vec<String> = row.settings.iter().map(ToString::to_string).collect();
            let text = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
            for (index, value) in row.values.iter().enumerate() {
                cells.push(text(*value));
                if has_intervals {
                    let interval = row.interval(index);
                    cells.push(text(interval.and_then(|interval| interval.half)));
                    cells.push(interval.map_or(String::new(), |interval| interval.count.to_string()));
                }
            }
            cells.push(row.failure.clone().unwrap_or_default());
            rows.push(cells);
        }
        csv(&rows)
    }
}

/// Rows of the same length as comma-separated values.
pub fn csv(rows: &[Vec<String>]) -> String {
    let mut writer = ::csv::Writer::from_writer(Vec::new());
    // Writing to memory does not fail.
    rows.iter().for_each(|cells| drop(writer.write_record(cells)));
    String::from_utf8(writer.into_inner().unwrap_or_default()).unwrap_or_default()
}
