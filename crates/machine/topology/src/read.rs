//! Reads the parts of a TOML file and records every problem instead of stopping at the first. Other crates use it for
//! their own files too.
//!
//! Source: TOML 1.1 through the toml crate, whose parser keeps the position of every value.

use crate::problem::{Level, Problem, Report};
use std::collections::BTreeMap;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

mod values;

pub use values::{Cited, Matrix, Name};

/// Parts by name.
pub type Map<T> = BTreeMap<String, T>;
/// A value of a TOML text with its position.
pub type Node<'a> = Spanned<DeValue<'a>>;

/// Collects the problems of one file while it is read and checked.
#[derive(Debug, Default)]
pub struct Problems {
    pub(crate) list: Vec<Problem>,
}

/// The maximum number of problems recorded, so that a hostile file cannot exhaust memory.
const MAX_PROBLEMS: usize = 1000;

impl Problems {
    /// Records an error: the fault, a label for the marked text, and the correction.
    pub fn error(&mut self, span: Range<usize>, message: String, label: &str, help: String) {
        self.note(Level::Error, span, message, label, help);
    }

    /// Records a warning about a probable mistake.
    pub fn warn(&mut self, span: Range<usize>, message: String, label: &str, help: String) {
        self.note(Level::Warning, span, message, label, help);
    }

    fn note(&mut self, level: Level, span: Range<usize>, message: String, label: &str, help: String) {
        if self.list.len() < MAX_PROBLEMS {
            self.list.push(Problem { level, message, label: label.into(), help, span });
        }
    }

    /// The number of problems recorded so far.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// The report on `text`; `file` is the name that it gives.
    pub fn into_report(self, file: &str, text: &str) -> Report {
        Report::new(file, text, self.list)
    }

    /// Records that a value has the wrong type; always `None`.
    pub fn wrong_type<T>(&mut self, node: &Node<'_>, expected: &str) -> Option<T> {
        let actual = node.get_ref().type_str();
        let article = if actual.starts_with(['a', 'i']) { "an" } else { "a" };
        self.error(
            node.span(),
            format!("expected {expected}, found {article} {actual}"),
            "here",
            String::new(),
        );
        None
    }
}

/// Reads the top-level table of `text` with `read`, and records syntax errors.
pub fn read_text<T>(
    text: &str,
    problems: &mut Problems,
    read: impl FnOnce(&DeTable<'_>, &mut Problems) -> T,
) -> T {
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let span = error.span().unwrap_or(0..0);
        let message = error.message().lines().collect::<Vec<_>>().join("; ");
        problems.error(span, message, "here", String::new());
    }
    let value = read(table.get_ref(), problems);
    if !errors.is_empty() {
        // A syntax error hides keys; do not report those as missing.
        problems.list.retain(|p| p.span != (0..0) || errors.iter().any(|e| e.span() == Some(0..0)));
    }
    value
}

/// The candidate nearest to `word` by edit distance, if it is near enough to be intended.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Computing an edit distance takes quadratic time, and a hostile file may contain very long words.
    if word.len() > 64 {
        return None;
    }
    let scored = candidates.into_iter().map(|c| (strsim::damerau_levenshtein(word, c), c));
    scored.filter(|(distance, c)| *distance <= 1 + c.len().min(word.len()) / 3).min().map(|(_, c)| c)
}

/// "did you mean `x`?", or the list of known names.
pub fn suggestion<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>, what: &str) -> String {
    // Bounds the work for hostile files.
    let candidates: Vec<_> = candidates.into_iter().take(500).collect();
    match nearest(word, candidates.iter().copied()) {
        Some(similar) => format!("did you mean `{similar}`?"),
        None if candidates.is_empty() => format!("no {what} is defined"),
        None => format!("{what}s are: {}", list(&candidates)),
    }
}

/// The first 16 names of a list, as text.
pub(crate) fn list(names: &[&str]) -> String {
    let more = if names.len() > 16 { ", ..." } else { "" };
    names[..names.len().min(16)].join(", ") + more
}

/// A type that a key of a machine file can have.
pub trait Value: Sized {
    /// False for lists, maps and optional keys.
    const REQUIRED: bool = true;
    /// The type in words, for the book and for error messages.
    fn kind() -> String;
    /// The value, or `None` after recording its problems.
    fn read(node: &Node<'_>, problems: &mut Problems) -> Option<Self>;
    /// The value to continue with after a missing or invalid one, so that the rest of the file can still be checked.
    fn placeholder() -> Self;
    /// True for a value that can be omitted when the file is written.
    fn is_absent(&self) -> bool {
        false
    }
    /// Sets the position of the part's name.
    fn set_place(&mut self, _: Range<usize>) {}
    /// Appends the parts inside this type to the book's list of parts.
    fn describe(_: &mut Vec<PartDoc>) {}
}

/// A kind of part as the book describes it.
#[derive(Clone, Debug)]
pub struct PartDoc {
    /// Its name, such as `core`.
    pub name: &'static str,
    /// Its documentation.
    pub doc: String,
    /// Its keys in the order of definition.
    pub keys: Vec<KeyDoc>,
}

/// A key of a part as the book describes it.
#[derive(Clone, Debug)]
pub struct KeyDoc {
    /// The key.
    pub name: &'static str,
    /// The type of its value.
    pub kind: String,
    /// Whether it is required.
    pub required: bool,
    /// The default; empty if there is none.
    pub default: &'static str,
    /// Its meaning.
    pub doc: String,
}

/// The positions of a part and its keys in the text, and the keys that could not be read.
#[derive(Clone, Debug, Default)]
pub struct SourcePositions {
    at: Range<usize>,
    keys: BTreeMap<&'static str, Range<usize>>,
    broken: Vec<&'static str>,
    whole: bool,
}

impl PartialEq for SourcePositions {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl SourcePositions {
    /// The position of the part's name.
    pub fn at(&self) -> Range<usize> {
        self.at.clone()
    }

    /// The position of the value of `key`, or of the part's name if the file does not set the key.
    pub fn key(&self, key: &str) -> Range<usize> {
        self.keys.get(key).cloned().unwrap_or_else(|| self.at())
    }

    /// True if all of `keys` were read without a problem.
    pub fn sound(&self, keys: &[&str]) -> bool {
        !self.whole && !keys.iter().any(|k| self.broken.contains(k))
    }

    /// The marks of a part that could not be read.
    pub fn unreadable() -> Self {
        Self { whole: true, ..Self::default() }
    }

    /// Sets the position of the part's name.
    pub fn set_place(&mut self, span: Range<usize>) {
        self.at = span;
    }
}

/// Reads a table key by key, then reports the keys that were not read.
pub struct TableReader<'a, 'i> {
    table: &'a DeTable<'i>,
    what: &'static str,
    asked: Vec<&'static str>,
    marks: SourcePositions,
}

impl<'a, 'i> TableReader<'a, 'i> {
    /// Starts to read `table`, a part called `what` at the position `at`.
    pub fn new(table: &'a DeTable<'i>, at: Range<usize>, what: &'static str) -> Self {
        Self { table, what, asked: Vec::new(), marks: SourcePositions { at, ..SourcePositions::default() } }
    }

    /// The value of the key `name`, its default, or a placeholder after recording the problem.
    pub fn key<T: Value>(
        &mut self,
        name: &'static str,
        default: Option<fn() -> T>,
        problems: &mut Problems,
    ) -> T {
        self.asked.push(name);
        let Some((key, node)) = self.table.iter().find(|(k, _)| k.get_ref() == name) else {
            if let Some(default) = default {
                return default();
            }
            if T::REQUIRED {
                self.marks.broken.push(name);
                let help = format!("add `{name} = ...` ({})", T::kind());
                problems.error(
                    self.marks.at(),
                    format!("{} has no `{name}`", self.what),
                    "missing here",
                    help,
                );
            }
            return T::placeholder();
        };
        self.marks.keys.insert(name, node.span());
        match T::read(node, problems) {
            Some(mut value) => {
                value.set_place(if node.span().is_empty() { key.span() } else { node.span() });
                value
            }
            None => {
                self.marks.broken.push(name);
                T::placeholder()
            }
        }
    }

    /// Records an error for each key that was not read.
    pub fn close(self, problems: &mut Problems) -> SourcePositions {
        for (key, _) in self.table.iter().filter(|(k, _)| !self.asked.contains(&k.get_ref().as_ref())) {
            let name = key.get_ref();
            let help = match nearest(name, self.asked.iter().copied()) {
                Some(similar) => format!("did you mean `{similar}`?"),
                None => format!("keys are: {}", self.asked.join(", ")),
            };
            problems.error(key.span(), format!("{} has no key `{name}`", self.what), "unknown key", help);
        }
        self.marks
    }
}

/// Defines a kind of part: the struct, the code that reads it, the positions of its keys, and its section in the book.
///
/// A crate that uses it depends on `serde` and `toml`, and has `use longma_topology::read;` at its root.
#[macro_export]
macro_rules! part {
    (
        $(#[doc = $doc:literal])*
        pub struct $name:ident = $what:literal {
            $( $(#[doc = $key_doc:literal])* $key:ident : $ty:ty $(= $default:expr)?, )*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize)]
        pub struct $name {
            $(
                $(#[doc = $key_doc])*
                #[serde(skip_serializing_if = "crate::read::Value::is_absent")]
                pub $key: $ty,
            )*
            /// Its position in the file.
            #[serde(skip)]
            pub(crate) marks: $crate::read::SourcePositions,
        }

        impl $name {
            #[allow(dead_code)]
            pub(crate) const KEYS: &'static [&'static str] = &[$(stringify!($key)),*];

            pub(crate) fn read_table(
                table: &toml::de::DeTable<'_>,
                at: std::ops::Range<usize>,
                problems: &mut $crate::read::Problems,
            ) -> Self {
                let mut open = $crate::read::TableReader::new(table, at, $what);
                $( let $key: $ty = open.key(stringify!($key), $crate::part!(@default $($default)?), problems); )*
                let marks = open.close(problems);
                Self { $($key,)* marks }
            }
        }

        impl $crate::read::Value for $name {
            fn kind() -> String {
                concat!("table: ", $what).into()
            }

            fn read(node: &$crate::read::Node<'_>, problems: &mut $crate::read::Problems) -> Option<Self> {
                let table = $crate::read::as_table(node, $what, problems)?;
                Some(Self::read_table(table, node.span(), problems))
            }

            fn placeholder() -> Self {
                Self {
                    $($key: <$ty as $crate::read::Value>::placeholder(),)*
                    marks: $crate::read::SourcePositions::unreadable(),
                }
            }

            fn set_place(&mut self, span: std::ops::Range<usize>) {
                self.marks.set_place(span);
            }

            fn describe(parts: &mut Vec<$crate::read::PartDoc>) {
                if parts.iter().any(|p| p.name == $what) {
                    return;
                }
                let keys = vec![$($crate::read::KeyDoc {
                    name: stringify!($key),
                    kind: <$ty as $crate::read::Value>::kind(),
                    required: <$ty as $crate::read::Value>::REQUIRED && $crate::part!(@shown $($default)?).is_empty(),
                    default: $crate::part!(@shown $($default)?),
                    doc: concat!($($key_doc),*).trim().into(),
                }),*];
                parts.push($crate::read::PartDoc { name: $what, doc: concat!($($doc),*).trim().into(), keys });
                $( <$ty as $crate::read::Value>::describe(parts); )*
            }
        }
    };
    (@default) => { None };
    (@default $default:expr) => { Some(|| $default) };
    (@shown) => { "" };
    (@shown $default:expr) => { stringify!($default) };
}
pub use part;

/// Defines the set of words that a key accepts.
#[macro_export]
macro_rules! choice {
    (
        $(#[doc = $doc:literal])*
        pub enum $name:ident = $what:literal {
            $( $(#[doc = $word_doc:literal])* $variant:ident = $word:literal, )*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        pub enum $name {
            $( $(#[doc = $word_doc])* #[serde(rename = $word)] $variant, )*
        }

        impl $name {
            /// Every word, in the order of definition.
            pub const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),*];

            /// The word as written in a machine file.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }
        }

        impl $crate::read::Value for $name {
            fn kind() -> String {
                let words: Vec<_> = Self::WORDS.iter().map(|w| format!("\"{}\"", w.0)).collect();
                words.join(", ")
            }

            fn read(node: &$crate::read::Node<'_>, problems: &mut $crate::read::Problems) -> Option<Self> {
                let word = $crate::read::as_str(node, $what, problems)?;
                let matching = Self::WORDS.iter().find(|w| w.0 == word);
                if matching.is_none() {
                    let help = $crate::read::suggestion(word, Self::WORDS.iter().map(|w| w.0), "choice");
                    problems.error(node.span(), format!("\"{word}\" is not {}", $what), "unknown word", help);
                }
                matching.map(|w| w.1)
            }

            fn placeholder() -> Self {
                Self::WORDS[0].1
            }
        }
    };
}
pub use choice;

/// The table in `node`; records an error if it is another type.
pub fn as_table<'a, 'i>(node: &'a Node<'i>, what: &str, problems: &mut Problems) -> Option<&'a DeTable<'i>> {
    match node.get_ref() {
        DeValue::Table(table) => Some(table),
        _ => problems.wrong_type(node, &format!("a table ({what})")),
    }
}

/// The string in `node`; records an error if it is another type.
pub fn as_str<'a>(node: &'a Node<'_>, what: &str, problems: &mut Problems) -> Option<&'a str> {
    match node.get_ref() {
        DeValue::String(text) => Some(text),
        _ => problems.wrong_type(node, &format!("{what} (a string)")),
    }
}
