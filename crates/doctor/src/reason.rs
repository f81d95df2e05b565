//! Error messages of the operating system.

use std::io;

/// The system's error message without the error number.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split_once(" (os error").map_or(text.as_str(), |(words, _)| words).into()
}
