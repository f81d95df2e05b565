//! Sizes in options, such as `64MiB`.

use longma_topology::units::Size;

/// Parses a size with its unit, for example 64MiB, into bytes. For clap's `value_parser`.
///
/// # Errors
/// If the text is not a size, or larger than a `u64`.
pub fn size(text: &str) -> Result<u64, String> {
    // `Size` requires a space before the unit; accept sizes without it.
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let spaced = format!("{} {}", number.trim_end(), if unit.is_empty() { "B" } else { unit });
    spaced.parse::<Size>().map(Size::bytes).map_err(|error| match unit {
        "PiB" | "EiB" | "PB" | "EB" => format!("\"{text}\" is too large: TiB is the largest unit"),
        _ => format!("{}; {}", error.message, error.help),
    })
}
