//! Patterns of SCAN: `*`, `?`, `[a-z]`, `[^a-z]`, and `\` before a literal character.
//!
//! Source: Redis documentation, KEYS and SCAN. Matching backtracks only to the last `*`, so it takes at most as many
//! steps as the product of both lengths; see Cox, "Glob Matching Can Be Simple And Fast Too" (2017).

/// A piece of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Byte(u8),
    Any,
    /// A bit for each byte.
    Class([u64; 4]),
    Star,
}

impl Piece {
    fn accepts(&self, byte: u8) -> bool {
        match self {
            Self::Byte(own) => *own == byte,
            Self::Any => true,
            Self::Class(bits) => bits[usize::from(byte / 64)] >> (byte % 64) & 1 == 1,
            Self::Star => false,
        }
    }
}

/// A pattern.
#[derive(Clone, Debug)]
pub(crate) struct Pattern(Vec<Piece>);

impl Pattern {
    /// Parses a pattern. Every text is valid: an unclosed bracket extends to the end.
    pub fn new(text: &[u8]) -> Self {
        let (mut pieces, mut rest) = (Vec::new(), text);
        while let [first, after @ ..] = rest {
            rest = after;
            pieces.push(match first {
                b'*' if pieces.last() == Some(&Piece::Star) => continue,
                b'*' => Piece::Star,
                b'?' => Piece::Any,
                b'[' => class(&mut rest),
                b'\\' if !rest.is_empty() => {
                    let escaped = rest[0];
                    rest = &rest[1..];
                    Piece::Byte(escaped)
                }
                byte => Piece::Byte(*byte),
            });
        }
        Self(pieces)
    }

    /// The bytes with which every match begins.
    pub fn prefix(&self) -> Vec<u8> {
        self.0
            .iter()
            .map_while(|piece| if let Piece::Byte(byte) = piece { Some(*byte) } else { None })
            .collect()
    }

    /// Whether the pattern matches all of `text`. Adds the comparisons to `steps`.
    pub fn matches(&self, text: &[u8], steps: &mut usize) -> bool {
        let (mut piece, mut at, mut retry) = (0, 0, None);
        loop {
            *steps += 1;
            match self.0.get(piece) {
                Some(Piece::Star) => {
                    retry = Some((piece + 1, at));
                    piece += 1;
                    continue;
                }
                Some(one) if at < text.len() && one.accepts(text[at]) => {
                    (piece, at) = (piece + 1, at + 1);
                    continue;
                }
                None if at == text.len() => return true,
                _ => {}
            }
            // The last star matches another byte.
            match retry {
                Some((after, from)) if from < text.len() => {
                    retry = Some((after, from + 1));
                    (piece, at) = (after, from + 1);
                }
                _ => return false,
            }
        }
    }
}

/// Parses a class after its opening bracket.
fn class(rest: &mut &[u8]) -> Piece {
    let negated = rest.first() == Some(&b'^');
    if negated {
        *rest = &rest[1..];
    }
    let mut bits = [0; 4];
    let mut add = |low: u8, high: u8| {
        (low..=high).for_each(|byte| bits[usize::from(byte / 64)] |= 1 << (byte % 64));
    };
    loop {
        match **rest {
            [] => break,
            [b']', ref after @ ..] => {
                *rest = after;
                break;
            }
            [b'\\', byte, ref after @ ..] => {
                add(byte, byte);
                *rest = after;
            }
            // As in Redis, also if the third character is a bracket.
            [low, b'-', high, ref after @ ..] => {
                add(low.min(high), low.max(high));
                *rest = after;
            }
            [byte, ref after @ ..] => {
                add(byte, byte);
                *rest = after;
            }
        }
    }
    Piece::Class(if negated { bits.map(|word: u64| !word) } else { bits })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A direct implementation of the definition, which may take exponential time.
    fn matches(pattern: &[Piece], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], _) => text.is_empty(),
            ([Piece::Star, rest @ ..], _) => (0..=text.len()).any(|skip| matches(rest, &text[skip..])),
            ([piece, rest @ ..], [byte, after @ ..]) => piece.accepts(*byte) && matches(rest, after),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn a_match_agrees_with_the_definition(pattern in "[ab*?\\[\\]^\\\\-]{0,8}", text in "[ab\\[\\]-]{0,8}") {
            let pattern = Pattern::new(pattern.as_bytes());
            let found = pattern.matches(text.as_bytes(), &mut 0);
            prop_assert_eq!(found, matches(&pattern.0, text.as_bytes()));
            prop_assert!(!found || text.as_bytes().starts_with(&pattern.prefix()));
        }
    }

    #[test]
    fn patterns_match_as_in_the_documentation() {
        for (pattern, text, expected) in [
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h\\*llo", "hello", false),
            ("h\\*llo", "h*llo", true),
            ("", "", true),
            ("*", "", true),
            ("[", "a", false),
            ("[[?-]?", "@", true),
            ("[[?-]?", "-", false),
            ("[[?-]?", "@x", false),
            ("[]", "a", false),
        ] {
            assert_eq!(
                Pattern::new(pattern.as_bytes()).matches(text.as_bytes(), &mut 0),
                expected,
                "{pattern} {text}"
            );
        }
        assert_eq!(Pattern::new(b"user:*x").prefix(), b"user:");
    }

    #[test]
    fn many_stars_take_little_time() {
        let pattern = Pattern::new("*a".repeat(2000).as_bytes());
        assert!(!pattern.matches(&vec![b'b'; 2000], &mut 0));
        assert!(!pattern.matches(&vec![b'a'; 1999], &mut 0));
    }
}
