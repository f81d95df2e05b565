//! Output of `longma affinity`. Program names, load commands and file contents come from other users, so their control
//! characters are stripped from text and escaped in JSON. `progress` and the live view (`show/live.rs`) add their own
//! control sequences.

use super::Outcome;
use longma_command_line::output;
use longma_text::{display_path, escape_json, sanitize, sanitize_lines};
use serde_json::Value;
use std::io::Write as _;
use std::path::Path;

/// Prints text to standard output.
pub fn print(text: &str) -> Outcome {
    output::print(&sanitize_lines(text))
}

/// Prints a value as indented JSON, with control characters escaped.
pub fn print_json(value: &Value) -> Outcome {
    output::print(&(escape_json(&format!("{value:#}")) + "\n"))
}

/// Prints a value as JSON on one line.
pub fn print_json_line(value: &Value) -> Outcome {
    output::print(&(escape_json(&value.to_string()) + "\n"))
}

/// Prints a message to standard error.
pub fn warn(text: &str) {
    write_stderr(&format!("longma: {}\n", sanitize(text)));
}

/// Warns that the last line of `file` is ignored, if `is_cut`.
pub fn warn_truncated(file: &Path, is_cut: bool) {
    if is_cut {
        warn(&format!(
            "{}: ignoring the incomplete last line; run the sweep again to repeat that run",
            display_path(file)
        ));
    }
}

/// Prints lines to standard error.
pub fn print_stderr(text: &str) {
    write_stderr(&sanitize_lines(text));
}

/// Overwrites the progress line on standard error; an empty text clears it.
pub fn progress(text: &str) {
    write_stderr(&format!("\r\x1b[K{}", sanitize(text)));
}

/// Write errors are ignored: a closed standard error must not end a sweep early.
fn write_stderr(text: &str) {
    let mut err = std::io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}
