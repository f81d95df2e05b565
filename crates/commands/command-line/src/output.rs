//! Printing to standard output: text, JSON and tables.

use serde_json::Value;
use std::error::Error;
use std::io::{ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

/// Columns of the output if the terminal's width is unknown.
const DEFAULT_COLUMNS: usize = 100;

/// The exit status of a command, or why it failed.
pub type Outcome = Result<ExitCode, Box<dyn Error>>;

/// Prints to standard output. A closed pipe is not an error.
///
/// # Errors
/// If standard output cannot be written for another reason.
pub fn print(text: &str) -> Outcome {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(format!("cannot write the output: {error}").into())
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Prints a value as JSON on several lines, without characters that could control a terminal.
///
/// # Errors
/// As [`print`].
pub fn print_json(value: &Value) -> Outcome {
    print(&longma_text::escape_json(&format!("{value:#}\n")))
}

/// Whether to print in colour: on a terminal, unless NO_COLOR is set (<https://no-color.org>).
pub fn has_colour() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// The width of the terminal, in columns.
pub fn columns() -> usize {
    terminal_size::terminal_size().map_or(DEFAULT_COLUMNS, |(width, _)| usize::from(width.0))
}

/// Formats rows with aligned columns.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().enumerate().map(|(c, t)| format!("{t:w$}", w = widths[c]));
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
