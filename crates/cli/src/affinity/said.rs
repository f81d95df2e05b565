//! All that `longma affinity` says. Names of programs, words of loads, files of results: what others wrote comes to a terminal through here,
//! without what that would take for orders.
//! Not the live map's own orders to the terminal: those are in `show`.

use super::Outcome;
use crate::machine;
use longma_topology::{display_path, is_control_or_invisible, sanitize, sanitize_lines};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

/// Prints text.
pub fn print(text: &str) -> Outcome {
    machine::print(&sanitize_lines(text))
}

/// Prints a value; its strings keep what they hold, escaped.
pub fn print_json(value: &Value) -> Outcome {
    machine::print(&(escaped(&format!("{value:#}")) + "\n"))
}

/// Prints a value in one line.
pub fn print_json_line(value: &Value) -> Outcome {
    machine::print(&(escaped(&value.to_string()) + "\n"))
}

/// JSON with the characters as escapes that it does not demand them for: they can stand in strings alone.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match is_control_or_invisible(c) && c != '\n' {
            // Those beyond four digits are two escapes in JSON.
            true => c.encode_utf16(&mut [0; 2]).iter().for_each(|half| {
                write!(text, "\\u{half:04x}").expect("a string takes all");
            }),
            false => text.push(c),
        }
    }
    text
}

/// Says something besides the results.
pub fn note(text: &str) {
    aside(&format!("longma: {}\n", sanitize(text)));
}

/// Says that a file's last line is left out, if it is cut.
pub fn cut(file: &Path, is_cut: bool) {
    if is_cut {
        note(&format!(
            "{}: its last line was not written to its end and is dropped: the sweep's own command makes that run again",
            display_path(file)
        ));
    }
}

/// Says lines besides the results.
pub fn lines(text: &str) {
    aside(&sanitize_lines(text));
}

/// Shows how far it is, over what was shown before; an empty text takes that away.
pub fn progress(text: &str) {
    aside(&format!("\r\x1b[K{}", sanitize(text)));
}

/// Whoever has closed standard error does not want to hear it: no reason to end in the middle.
fn aside(text: &str) {
    let mut err = std::io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_what_a_string_holds_and_has_no_order_in_it() {
        let value = Value::from("\u{1b}[2J\u{9b}3m\u{7f}\u{202e}\u{2028}\u{e0041}ä\n");
        let text = escaped(&format!("{value:#}"));
        assert!(!text.chars().any(is_control_or_invisible), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
