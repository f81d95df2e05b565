//! Reads parts out of a TOML text, noting every problem instead of stopping at the first.
//! Not the meaning of a machine: whether parts fit each other is `check`'s matter. Other files of the project are read with it too.
//! Source: TOML 1.1 through the toml crate's span-keeping parser.

use crate::problem::{Level, Problem, Report};
use std::collections::BTreeMap;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

mod values;

pub use values::{Cited, Matrix, Name};

/// Parts by name.
pub type Map<T> = BTreeMap<String, T>;
/// A value of a TOML text with its place.
pub type Node<'a> = Spanned<DeValue<'a>>;

/// Collects the problems of one file while it is read and checked.
#[derive(Debug, Default)]
pub struct Problems {
    pub(crate) list: Vec<Problem>,
}

/// Nobody reads more; a hostile file must not fill memory with complaints.
const MAX_PROBLEMS: usize = 1000;

impl Problems {
    /// Notes an error: what is wrong, a few words beside the place, and how to mend it.
    pub fn error(&mut self, span: Range<usize>, message: String, label: &str, help: String) {
        self.note(Level::Error, span, message, label, help);
    }

    /// Notes something that is probably not what was meant.
    pub fn warn(&mut self, span: Range<usize>, message: String, label: &str, help: String) {
        self.note(Level::Warning, span, message, label, help);
    }

    fn note(&mut self, level: Level, span: Range<usize>, message: String, label: &str, help: String) {
        if self.list.len() < MAX_PROBLEMS {
            self.list.push(Problem { level, message, label: label.into(), help, span });
        }
    }

    /// How many problems were noted so far.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Everything noted about `text`, which problems are reported of under the name `file`.
    pub fn into_report(self, file: &str, text: &str) -> Report {
        Report::new(file, text, self.list)
    }

    /// Notes that a value is of another type than wanted; always `None`.
    pub fn wrong_type<T>(&mut self, node: &Node<'_>, wanted: &str) -> Option<T> {
        let found = node.get_ref().type_str();
        let article = if found.starts_with(['a', 'i']) { "an" } else { "a" };
        self.error(node.span(), format!("expected {wanted}, found {article} {found}"), "here", String::new());
        None
    }
}

/// Reads the outermost table of `text` with `read`, and notes what is no TOML.
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
        // What a broken line hides is missing only because of it.
        problems.list.retain(|p| p.span != (0..0) || errors.iter().any(|e| e.span() == Some(0..0)));
    }
    value
}

/// The candidate nearest to `word`, if one is near enough to be what was meant.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Hostile files hold absurdly long words; edit distance is quadratic.
    if word.len() > 64 {
        return None;
    }
    let scored = candidates.into_iter().map(|c| (strsim::damerau_levenshtein(word, c), c));
    scored.filter(|(distance, c)| *distance <= 1 + c.len().min(word.len()) / 3).min().map(|(_, c)| c)
}

/// "did you mean `x`?", or the list of what there is.
pub fn suggestion<'a>(word: &str, known: impl IntoIterator<Item = &'a str>, what: &str) -> String {
    // Bounded work for hostile files: more names than this help nobody.
    let known: Vec<_> = known.into_iter().take(500).collect();
    match nearest(word, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => format!("no {what} is defined"),
        None => format!("{what}s are: {}", list(&known)),
    }
}

/// The first names of a list, as text.
pub(crate) fn list(names: &[&str]) -> String {
    let more = if names.len() > 16 { ", ..." } else { "" };
    names[..names.len().min(16)].join(", ") + more
}

/// What a key of a machine file may hold.
pub trait Value: Sized {
    /// False for lists, maps and optional keys.
    const REQUIRED: bool = true;
    /// In words, for the book and for error messages.
    fn kind() -> String;
    /// The value, or `None` after its problems were noted.
    fn read(node: &Node<'_>, problems: &mut Problems) -> Option<Self>;
    /// Stands in for a value that was missing or wrong, so that the rest can still be checked.
    fn placeholder() -> Self;
    /// True for a value that need not be written out.
    fn is_absent(&self) -> bool {
        false
    }
    /// Tells a part where its name stands.
    fn set_place(&mut self, _: Range<usize>) {}
    /// Adds what is inside to the book's list of parts.
    fn describe(_: &mut Vec<PartDoc>) {}
}

/// A kind of part as the book describes it.
#[derive(Clone, Debug)]
pub struct PartDoc {
    /// What it is called, such as `core`.
    pub name: &'static str,
    /// What it is.
    pub doc: String,
    /// Its keys in the order of definition.
    pub keys: Vec<KeyDoc>,
}

/// A key of a part as the book describes it.
#[derive(Clone, Debug)]
pub struct KeyDoc {
    /// The key.
    pub name: &'static str,
    /// What it holds.
    pub kind: String,
    /// Whether it must be given.
    pub required: bool,
    /// What holds if it is not given; empty if nothing does.
    pub default: &'static str,
    /// What it means.
    pub doc: String,
}

/// Where a part and its keys stand in the text, and which of them could not be read.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    at: Range<usize>,
    keys: BTreeMap<&'static str, Range<usize>>,
    broken: Vec<&'static str>,
    whole: bool,
}

impl PartialEq for Marks {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Marks {
    /// Where the part's name stands.
    pub fn at(&self) -> Range<usize> {
        self.at.clone()
    }

    /// Where the value of `key` stands; the part's name if the key is not written.
    pub fn key(&self, key: &str) -> Range<usize> {
        self.keys.get(key).cloned().unwrap_or_else(|| self.at())
    }

    /// True if every one of `keys` was read without a problem.
    pub fn sound(&self, keys: &[&str]) -> bool {
        !self.whole && !keys.iter().any(|k| self.broken.contains(k))
    }

    /// Of a part that could not be read.
    pub fn lost() -> Self {
        Self { whole: true, ..Self::default() }
    }

    /// Says where the part's name stands.
    pub fn set_place(&mut self, span: Range<usize>) {
        self.at = span;
    }
}

/// A table being read: hands out keys, then complains of those nobody asked for.
pub struct Open<'a, 'i> {
    table: &'a DeTable<'i>,
    what: &'static str,
    asked: Vec<&'static str>,
    marks: Marks,
}

impl<'a, 'i> Open<'a, 'i> {
    /// Begins to read `table`, a part called `what` that stands `at`.
    pub fn table(table: &'a DeTable<'i>, at: Range<usize>, what: &'static str) -> Self {
        Self { table, what, asked: Vec::new(), marks: Marks { at, ..Marks::default() } }
    }

    /// The value of the key `name`, its default, or a placeholder after the problem was noted.
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

    /// Notes the keys that nobody asked for.
    pub fn close(self, problems: &mut Problems) -> Marks {
        for (key, _) in self.table.iter().filter(|(k, _)| !self.asked.contains(&k.get_ref().as_ref())) {
            let name = key.get_ref();
            let help = match nearest(name, self.asked.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("keys are: {}", self.asked.join(", ")),
            };
            problems.error(key.span(), format!("{} has no key `{name}`", self.what), "unknown key", help);
        }
        self.marks
    }
}

/// Defines a kind of part: the struct, how it is read, where its keys stood, and its page in the book.
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
            /// Where it stands in the file.
            #[serde(skip)]
            pub(crate) marks: $crate::read::Marks,
        }

        impl $name {
            #[allow(dead_code)]
            pub(crate) const KEYS: &'static [&'static str] = &[$(stringify!($key)),*];

            pub(crate) fn read_table(
                table: &toml::de::DeTable<'_>,
                at: std::ops::Range<usize>,
                problems: &mut $crate::read::Problems,
            ) -> Self {
                let mut open = $crate::read::Open::table(table, at, $what);
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
                    marks: $crate::read::Marks::lost(),
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

/// Defines a set of words one of which a key holds.
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

            /// The word a machine file uses.
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
                let found = Self::WORDS.iter().find(|w| w.0 == word);
                if found.is_none() {
                    let help = $crate::read::suggestion(word, Self::WORDS.iter().map(|w| w.0), "choice");
                    problems.error(node.span(), format!("\"{word}\" is not {}", $what), "unknown word", help);
                }
                found.map(|w| w.1)
            }

            fn placeholder() -> Self {
                Self::WORDS[0].1
            }
        }
    };
}
pub use choice;

/// The table that `node` holds, if it holds one.
pub fn as_table<'a, 'i>(node: &'a Node<'i>, what: &str, problems: &mut Problems) -> Option<&'a DeTable<'i>> {
    match node.get_ref() {
        DeValue::Table(table) => Some(table),
        _ => problems.wrong_type(node, &format!("a table ({what})")),
    }
}

/// The text that `node` holds, if it holds one.
pub fn as_str<'a>(node: &'a Node<'_>, what: &str, problems: &mut Problems) -> Option<&'a str> {
    match node.get_ref() {
        DeValue::String(text) => Some(text),
        _ => problems.wrong_type(node, &format!("{what} (a string)")),
    }
}
