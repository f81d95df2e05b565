//! The types of values that a key can have: numbers, text, quantities, names, lists, matrices, and parts by name.

use super::{Map, Node, PartDoc, Problems, Value, as_str, as_table};
use crate::units::*;
use serde::{Serialize, Serializer};
use std::fmt;
use std::ops::{Deref, Range};
use toml::de::DeValue;

impl<T: Value> Value for Option<T> {
    const REQUIRED: bool = false;
    fn kind() -> String {
        T::kind()
    }
    fn read(node: &Node<'_>, problems: &mut Problems) -> Option<Self> {
        T::read(node, problems).map(Some)
    }
    fn placeholder() -> Self {
        None
    }
    fn is_absent(&self) -> bool {
        self.is_none()
    }
    fn set_place(&mut self, span: Range<usize>) {
        if let Some(inner) = self {
            inner.set_place(span);
        }
    }
    fn describe(parts: &mut Vec<PartDoc>) {
        T::describe(parts);
    }
}

impl<T: Value> Value for Vec<T> {
    const REQUIRED: bool = false;
    fn kind() -> String {
        format!("list of {}", T::kind().replace("table: ", "tables: "))
    }
    fn read(node: &Node<'_>, problems: &mut Problems) -> Option<Self> {
        let DeValue::Array(array) = node.get_ref() else {
            return problems.wrong_type(node, &format!("a {}", Self::kind()));
        };
        let mut values = Vec::with_capacity(array.len());
        let mut sound = true;
        for element in array.iter() {
            match T::read(element, problems) {
                Some(mut value) => {
                    value.set_place(element.span());
                    values.push(value);
                }
                None => sound = false,
            }
        }
        sound.then_some(values)
    }
    fn placeholder() -> Self {
        Vec::new()
    }
    fn is_absent(&self) -> bool {
        self.is_empty()
    }
    fn describe(parts: &mut Vec<PartDoc>) {
        T::describe(parts);
    }
}

impl<T: Value> Value for Map<T> {
    const REQUIRED: bool = false;
    fn kind() -> String {
        format!("{} by name", T::kind().replace("table: ", "tables: "))
    }
    fn read(node: &Node<'_>, problems: &mut Problems) -> Option<Self> {
        let table = as_table(node, &Self::kind(), problems)?;
        let mut map = Map::new();
        for (key, element) in table.iter() {
            let mut value = T::read(element, problems).unwrap_or_else(T::placeholder);
            value.set_place(key.span());
            map.insert(key.get_ref().to_string(), value);
        }
        Some(map)
    }
    fn placeholder() -> Self {
        Map::new()
    }
    fn is_absent(&self) -> bool {
        self.is_empty()
    }
    fn describe(parts: &mut Vec<PartDoc>) {
        T::describe(parts);
    }
}

fn integer(node: &Node<'_>, max: u64, problems: &mut Problems) -> Option<u64> {
    let DeValue::Integer(number) = node.get_ref() else {
        return problems.wrong_type(node, "a whole number");
    };
    let value = i128::from_str_radix(number.as_str(), number.radix()).ok();
    match value.filter(|v| (0..=i128::from(max)).contains(v)) {
        Some(value) => Some(value as u64),
        None => {
            let message = format!("{} is out of range", number.as_str());
            problems.error(node.span(), message, "here", format!("give a number from 0 to {max}"));
            None
        }
    }
}

macro_rules! integer_value {
    ($ty:ty, $max:expr) => {
        impl Value for $ty {
            fn kind() -> String {
                "integer".into()
            }
            fn read(node: &Node<'_>, problems: &mut Problems) -> Option<Self> {
                integer(node, $max, problems).map(|v| v as $ty)
            }
            fn placeholder() -> Self {
                0
            }
        }
    };
}
integer_value!(u32, u64::from(u32::MAX));
integer_value!(u64, i64::MAX as u64);

impl Value for bool {
    fn kind() -> String {
        "boolean".into()
    }
    fn read(node: &Node<'_>, problems: &mut Problems) -> Option<Self> {
        match node.get_ref() {
            DeValue::Boolean(value) => Some(*value),
            _ => problems.wrong_type(node, "true or false"),
        }
    }
    fn placeholder() -> Self {
        false
    }
}

impl Value for String {
    fn kind() -> String {
        "text".into()
    }
    fn read(node: &Node<'_>, problems: &mut Problems) -> Option<Self> {
        as_str(node, "text", problems).map(Into::into)
    }
    fn placeholder() -> Self {
        String::new()
    }
}

/// The name of another part, with its position in the file.
#[derive(Clone, Debug, Default)]
pub struct Name {
    text: String,
    span: Range<usize>,
}

impl Name {
    /// A name that is not from a file.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), span: 0..0 }
    }

    /// Its position in the file.
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }
}

impl Deref for Name {
    type Target = str;
    fn deref(&self) -> &str {
        &self.text
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl Value for Name {
    fn kind() -> String {
        "name".into()
    }
    fn read(node: &Node<'_>, problems: &mut Problems) -> Option<Self> {
        let text = as_str(node, "the name of a part", problems)?;
        Some(Name { text: text.into(), span: node.span() })
    }
    fn placeholder() -> Self {
        Name::default()
    }
}

/// The sources of a part's numbers: one key of `[sources]`, or a list of keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cited(pub Vec<Name>);

impl Cited {
    /// Cites one source.
    pub fn one(key: &str) -> Self {
        Cited(vec![Name::new(key)])
    }
}

impl Serialize for Cited {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            many => many.serialize(serializer),
        }
    }
}

impl Value for Cited {
    const REQUIRED: bool = false;
    fn kind() -> String {
        "name of a source, or list of names".into()
    }
    fn read(node: &Node<'_>, problems: &mut Problems) -> Option<Self> {
        match node.get_ref() {
            DeValue::Array(_) => Vec::read(node, problems).map(Cited),
            _ => Name::read(node, problems).map(|name| Cited(vec![name])),
        }
    }
    fn placeholder() -> Self {
        Cited::default()
    }
    fn is_absent(&self) -> bool {
        self.0.is_empty()
    }
}

/// A square table of values between parts of one kind: row = from, column = to.
#[derive(Clone, Debug, Default)]
pub struct Matrix<T> {
    /// The rows.
    pub rows: Vec<Vec<T>>,
    spans: Vec<(Range<usize>, Vec<Range<usize>>)>,
}

impl<T> Matrix<T> {
    /// A matrix that is not from a file.
    pub fn new(rows: Vec<Vec<T>>) -> Self {
        Self { rows, spans: Vec::new() }
    }

    pub(crate) fn row_span(&self, row: usize) -> Range<usize> {
        self.spans.get(row).map(|s| s.0.clone()).unwrap_or_default()
    }

    pub(crate) fn span(&self, row: usize, column: usize) -> Range<usize> {
        self.spans.get(row).and_then(|s| s.1.get(column).cloned()).unwrap_or_default()
    }
}

impl<T: PartialEq> PartialEq for Matrix<T> {
    fn eq(&self, other: &Self) -> bool {
        self.rows == other.rows
    }
}

impl<T: Serialize> Serialize for Matrix<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.rows.serialize(serializer)
    }
}

impl<T: Value> Value for Matrix<T> {
    fn kind() -> String {
        format!("list of lists of {}", T::kind())
    }
    fn read(node: &Node<'_>, problems: &mut Problems) -> Option<Self> {
        let rows = Vec::<Vec<T>>::read(node, problems)?;
        let elements = |n: &Node<'_>| match n.get_ref() {
            DeValue::Array(array) => array.iter().map(|e| e.span()).collect(),
            _ => Vec::new(),
        };
        let DeValue::Array(array) = node.get_ref() else { return None };
        Some(Self { rows, spans: array.iter().map(|row| (row.span(), elements(row))).collect() })
    }
    fn placeholder() -> Self {
        Self { rows: Vec::new(), spans: Vec::new() }
    }
}

macro_rules! quantity_value {
    ($($ty:ty),*) => { $(
        impl Value for $ty {
            fn kind() -> String {
                let name = stringify!($ty);
                let word: String = name.chars().flat_map(|c| {
                    let gap = c.is_uppercase().then_some(' ');
                    gap.into_iter().chain(c.to_lowercase())
                }).collect();
                word.trim().into()
            }
            fn read(node: &Node<'_>, problems: &mut Problems) -> Option<Self> {
                let text = match node.get_ref() {
                    DeValue::String(text) => text,
                    DeValue::Integer(_) | DeValue::Float(_) => {
                        let help = "0 x".parse::<Self>().unwrap_err().help;
                        problems.error(node.span(), format!("this {} has no unit", Self::kind()), "a bare number", help);
                        return None;
                    }
                    _ => return problems.wrong_type(node, &format!("a {} (a string)", Self::kind())),
                };
                let parsed = text.parse::<Self>();
                match parsed {
                    Ok(value) => Some(value),
                    Err(error) => {
                        problems.error(node.span(), error.message, "here", error.help);
                        None
                    }
                }
            }
            fn placeholder() -> Self {
                Self::default()
            }
        }
    )* };
}
quantity_value!(Size, Frequency, Time, Width, TransferRate, BitRate, Cycles, PerCycle, Latency, Bandwidth);
