//! Converts keys and values between bytes and text: arguments, files to load, and output.
//! Source: the escapes are a subset of C's (ISO/IEC 9899, 6.4.4.4).

use serde_json::{Value, json};
use std::fmt::Write as _;

/// Format of keys and values.
#[derive(clap::Args)]
pub struct TextFormat {
    /// Read and print keys and values as hexadecimal digits.
    #[arg(long)]
    hex: bool,
}

impl TextFormat {
    /// Whether keys and values are hexadecimal digits.
    pub const fn is_hex(&self) -> bool {
        self.hex
    }

    /// The bytes of a command-line argument. Arguments have no escapes.
    pub fn parse_argument(&self, text: &str) -> Result<Vec<u8>, String> {
        if self.hex { from_hex(text.as_bytes()) } else { Ok(text.into()) }
    }

    /// The bytes of a key or value in a file: the inverse of [`TextFormat::format`].
    pub fn parse_field(&self, text: &[u8]) -> Result<Vec<u8>, String> {
        if self.hex { from_hex(text) } else { unescape(text) }
    }

    /// A JSON value for bytes: a string, or `{"hex": "..."}` if the bytes are not UTF-8.
    pub fn json(&self, bytes: &[u8]) -> Value {
        match std::str::from_utf8(bytes) {
            _ if self.hex => hex(bytes).into(),
            Ok(text) => text.into(),
            Err(_) => json!({ "hex": hex(bytes) }),
        }
    }

    /// Formats bytes as text without tabs and line breaks. Different bytes give different text.
    pub fn format(&self, bytes: &[u8]) -> String {
        if self.hex { hex(bytes) } else { escape(bytes) }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses two hexadecimal digits.
fn byte(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16);
    Some((digit(high)? * 16 + digit(low)?) as u8)
}

fn from_hex(text: &[u8]) -> Result<Vec<u8>, String> {
    let pairs = text.chunks(2).map(|pair| match pair {
        [high, low] => byte(*high, *low),
        _ => None,
    });
    let wrong = || format!("`{}` is not an even number of hexadecimal digits", text.escape_ascii());
    pairs.collect::<Option<_>>().ok_or_else(wrong)
}

/// Escapes control characters, backslashes and invalid UTF-8; other characters stay unchanged.
fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let hex_escapes = |text: &mut String, bytes: &[u8]| {
        for byte in bytes {
            let _ = write!(text, "\\x{byte:02x}");
        }
    };
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                '\t' => text.push_str("\\t"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                control if control.is_control() => {
                    hex_escapes(&mut text, control.encode_utf8(&mut [0; 4]).as_bytes());
                }
                other => text.push(other),
            }
        }
        hex_escapes(&mut text, chunk.invalid());
    }
    text
}

/// The inverse of [`escape`].
fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|&byte| byte == b'\\') {
        bytes.extend(&rest[..at]);
        let (value, length) = match rest[at + 1..] {
            [b'\\', ..] => (Some(b'\\'), 2),
            [b't', ..] => (Some(b'\t'), 2),
            [b'n', ..] => (Some(b'\n'), 2),
            [b'r', ..] => (Some(b'\r'), 2),
            [b'x', high, low, ..] => (byte(high, low), 4),
            _ => (None, 0),
        };
        let Some(value) = value else {
            let length = if rest[at + 1..].starts_with(b"x") { 4 } else { 2 };
            let broken = String::from_utf8_lossy(&rest[at..rest.len().min(at + length)]);
            return Err(format!(
                "`{broken}` is not an escape: use `\\\\`, `\\t`, `\\n`, `\\r` or `\\x` with two hexadecimal digits; write a backslash as `\\\\`, or \
                 everything in hexadecimal digits (--hex)"
            ));
        };
        bytes.push(value);
        rest = &rest[at + length..];
    }
    bytes.extend(rest);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Random bytes, and random text with many escapes and lookalikes of escapes.
    fn content() -> impl Strategy<Value = Vec<u8>> {
        let pieces = prop::sample::select(vec![
            "\\", "x", "0", "01", "t", "\t", "\n", "\r", "\u{1}", "\u{85}", "ü", "河",
        ]);
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            prop::collection::vec(pieces, 0..20).prop_map(|pieces| pieces.concat().into_bytes()),
        ]
    }

    proptest! {
        #[test]
        fn printed_text_is_one_line_and_reads_back_as_the_same_bytes(bytes in content(), hex in any::<bool>()) {
            let text = TextFormat { hex };
            let printed = text.format(&bytes);
            prop_assert!(!printed.contains(|c: char| c.is_control()), "{printed:?}");
            prop_assert_eq!(text.parse_field(printed.as_bytes()), Ok(bytes));
        }

        #[test]
        fn any_text_is_parsed_or_rejected(bytes in content(), hex in any::<bool>()) {
            // Bytes that were escaped in different ways print the same.
            let text = TextFormat { hex };
            if let Ok(parsed) = text.parse_field(&bytes) {
                prop_assert_eq!(text.parse_field(text.format(&parsed).as_bytes()), Ok(parsed));
            }
        }
    }

    #[test]
    fn json_output_has_no_additional_escapes() {
        let text = TextFormat { hex: false };
        assert_eq!(text.json(b"a\\b\tc\x01").to_string(), r#""a\\b\tc\u0001""#);
        assert_eq!(text.json(b"\xff\x00"), json!({ "hex": "ff00" }));
        assert_eq!(TextFormat { hex: true }.json(b"\xff"), json!("ff"));
    }

    #[test]
    fn only_necessary_characters_are_escaped() {
        let text = TextFormat { hex: false };
        for (bytes, printed) in [
            (&b"river 10%"[..], "river 10%"),
            ("河图 \"ü\"".as_bytes(), "河图 \"ü\""),
            (b"\x01", "\\x01"),
            (b"\\x01", "\\\\x01"),
            (b"a\tb\nc\r", "a\\tb\\nc\\r"),
            (b"\xff\xc3", "\\xff\\xc3"),
        ] {
            assert_eq!(text.format(bytes), printed);
        }
        for broken in ["\\", "a\\q", "\\x", "\\x1", "\\x1g", "\\X01"] {
            assert!(text.parse_field(broken.as_bytes()).unwrap_err().contains("--hex"), "{broken}");
        }
    }
}
