//! Makes text from outside the program safe to show: program names, file names, messages of other hosts. On a terminal,
//! control sequences and invisible characters are removed; JSON and shell words are escaped.
//!
//! Source: Unicode Standard, ch. 23 (special areas and format characters); DerivedCoreProperties.txt
//! (Default_Ignorable_Code_Point); RFC 8259, section 7 (JSON); POSIX.1-2017, XCU 2.2 (shell quoting).

use std::path::Path;

/// The text on one line: each control character, line separator, bidirectional control and invisible character becomes
/// U+FFFD.
pub fn sanitize(text: &str) -> String {
    text.chars().map(|c| if is_control_or_invisible(c) { '\u{fffd}' } else { c }).collect()
}

/// Like [`sanitize`], for a text of several lines: newlines and tabs stay.
pub fn sanitize_lines(text: &str) -> String {
    let stays = |c: char| matches!(c, '\n' | '\t') || !is_control_or_invisible(c);
    text.chars().map(|c| if stays(c) { c } else { '\u{fffd}' }).collect()
}

/// A path for display, on one line.
pub fn display_path(path: &Path) -> String {
    sanitize(&path.to_string_lossy())
}

/// Escapes the characters that JSON allows in strings but that could control a terminal or be invisible. The value
/// stays the same. Line breaks stay: between values they are white space, and strings cannot contain them.
pub fn escape_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match is_control_or_invisible(c) && c != '\n' {
            // Characters beyond the Basic Multilingual Plane need a surrogate pair.
            true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text += &format!("\\u{unit:04x}")),
            false => text.push(c),
        }
    }
    text
}

/// Quotes a word for a POSIX shell if necessary.
pub fn quote_for_shell(word: &str) -> String {
    let is_plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ',' | '/' | ':' | '@' | '+');
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Whether the character may control a terminal, reorder or break the line, or be invisible.
pub fn is_control_or_invisible(c: char) -> bool {
    c.is_control() || turns(c) || is_unseen(c)
}

/// Line and paragraph separators, and characters that change the direction of the text.
fn turns(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}')
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Default-ignorable and blank characters: names that differ only in these look the same.
fn is_unseen(c: char) -> bool {
    matches!(c,
        '\u{00ad}' | '\u{034f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_characters_are_replaced_and_other_text_stays() {
        // ESC, and CSI as a single character.
        assert_eq!(
            sanitize("a\x1b[31mb\u{9b}2Jc\n\u{202e}d ä"),
            "a\u{fffd}[31mb\u{fffd}2Jc\u{fffd}\u{fffd}d ä"
        );
        assert_eq!(sanitize_lines("a\tb\nc\r\u{7f}"), "a\tb\nc\u{fffd}\u{fffd}");
    }

    #[test]
    fn line_separators_and_invisible_characters_are_replaced() {
        for c in ['\u{2028}', '\u{2029}', '\u{85}', '\u{200b}', '\u{2060}', '\u{feff}', '\u{ad}', '\u{e0041}']
        {
            assert_eq!(sanitize_lines(&format!("a{c}b")), "a\u{fffd}b", "{c:?}");
        }
        let words = "naïve Ω 漢字 العربية — “x” ±3 µs → ok";
        assert_eq!(sanitize(words), words);
        assert_eq!(display_path(Path::new("a\nb\u{2028}")), "a\u{fffd}b\u{fffd}");
    }
    #[test]
    fn words_are_quoted_for_the_shell_only_where_necessary() {
        let cases = [
            ("eth0:1", "eth0:1"),
            ("/a/b-c_d,e@f+g.h", "/a/b-c_d,e@f+g.h"),
            ("", "''"),
            ("a b", "'a b'"),
            ("$(reboot)", "'$(reboot)'"),
            ("it's", r"'it'\''s'"),
        ];
        for (word, quoted) in cases {
            assert_eq!(quote_for_shell(word), quoted);
        }
    }

    proptest! {
        #[test]
        fn escaped_json_has_the_same_value_and_nothing_that_a_terminal_acts_on(text: String, tag in 0xe0000u32..0xe1000) {
            let tag = char::from_u32(tag).unwrap();
            let value = serde_json::json!({ "a": text, "b": [format!("\u{202e}{tag}\u{7f}\n")] });
            for json in [value.to_string(), format!("{value:#}")] {
                let escaped = escape_json(&json);
                prop_assert_eq!(&serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), &value);
                prop_assert_eq!(&sanitize_lines(&escaped), &escaped);
            }
        }
    }
}

/// Compiles and runs the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
