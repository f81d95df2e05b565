//! Text of others (programs' names, files, other machines) without what a terminal would take for orders.
//! Not text of this program: its own escape sequences are written beside, never through here.

/// A text in one line: control characters, and those that turn the direction of what follows, become U+FFFD.
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if is_order(c) { '\u{fffd}' } else { c }).collect()
}

/// The same of several lines: their ends and tabs stay.
pub fn harmless_lines(text: &str) -> String {
    let stays = |c: char| matches!(c, '\n' | '\t') || !is_order(c);
    text.chars().map(|c| if stays(c) { c } else { '\u{fffd}' }).collect()
}

/// Whether a terminal may do something else with it than show it.
pub fn is_order(c: char) -> bool {
    let turns =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_to_a_terminal_become_a_sign_and_words_stay() {
        // ESC, and CSI as one character.
        assert_eq!(
            harmless("a\x1b[31mb\u{9b}2Jc\n\u{202e}d ä"),
            "a\u{fffd}[31mb\u{fffd}2Jc\u{fffd}\u{fffd}d ä"
        );
        assert_eq!(harmless_lines("a\tb\nc\r\u{7f}"), "a\tb\nc\u{fffd}\u{fffd}");
    }
}
