//! The value of a parameter: a flag, a number, a text, a list of texts, or a table of texts.

use crate::read::{Node, Problems, Value};
use longma_topology::units::{BitRate, Frequency, Size, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use toml::de::DeValue;

/// The value of a parameter at one point of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Setting {
    /// true or false.
    Flag(bool),
    /// An integer.
    Integer(i64),
    /// A finite number.
    Number(f64),
    /// A word, a path, or a quantity with its unit, such as "64 KiB".
    Text(String),
    /// A list of texts, such as the arguments of a program.
    Texts(Vec<String>),
    /// Texts by name.
    Named(BTreeMap<String, String>),
}

impl Setting {
    /// The value as a number. Quantities are in bytes, picoseconds, hertz or bits per second.
    pub fn number(&self) -> Option<f64> {
        match self {
            Setting::Integer(n) => Some(*n as f64),
            Setting::Number(x) => Some(*x),
            Setting::Text(text) => quantity(text),
            _ => None,
        }
    }

    /// The number, also of cycles, which are a quantity of machine files only.
    pub(crate) fn amount(&self) -> Option<f64> {
        self.number().or_else(|| self.text().and_then(cycles))
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Setting::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// The number of `14 cycles`.
pub(crate) fn cycles(text: &str) -> Option<f64> {
    text.strip_suffix(" cycles").or_else(|| text.strip_suffix(" cycle"))?.parse().ok()
}

/// Parses any quantity in its base unit.
fn quantity(text: &str) -> Option<f64> {
    // Program arguments are texts but often numbers.
    if let Some(x) = text.parse::<f64>().ok().filter(|x| x.is_finite()) {
        return Some(x);
    }
    let size = text.parse::<Size>().ok().map(Size::bytes);
    let time = || text.parse::<Time>().ok().map(Time::ps);
    let frequency = || text.parse::<Frequency>().ok().map(Frequency::hz);
    let rate = || text.parse::<BitRate>().ok().map(BitRate::bits_per_second);
    size.or_else(time).or_else(frequency).or_else(rate).map(|n| n as f64)
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Flag(flag) => flag.fmt(f),
            Setting::Integer(n) => n.fmt(f),
            Setting::Number(x) => x.fmt(f),
            Setting::Text(text) => text.fmt(f),
            Setting::Texts(texts) => texts.join(" ").fmt(f),
            Setting::Named(texts) => {
                let pairs: Vec<_> = texts.iter().map(|(name, text)| format!("{name}={text}")).collect();
                pairs.join(" ").fmt(f)
            }
        }
    }
}

impl From<&str> for Setting {
    fn from(text: &str) -> Self {
        Setting::Text(text.into())
    }
}

impl From<i64> for Setting {
    fn from(n: i64) -> Self {
        Setting::Integer(n)
    }
}

/// The finite number in `node`.
pub(crate) fn finite(node: &Node<'_>, problems: &mut Problems) -> Option<f64> {
    let number = match node.get_ref() {
        DeValue::Integer(n) => i128::from_str_radix(n.as_str(), n.radix()).ok().map(|n| n as f64),
        DeValue::Float(x) => x.as_str().parse().ok(),
        _ => return problems.wrong_type(node, "a number"),
    };
    let found = number.filter(|x: &f64| x.is_finite());
    if found.is_none() {
        problems.error(node.span(), "this is not a finite number".into(), "here", String::new());
    }
    found
}

impl Value for Setting {
    fn kind() -> String {
        "value".into()
    }

    fn read(node: &Node<'_>, problems: &mut Problems) -> Option<Self> {
        match node.get_ref() {
            DeValue::Boolean(flag) => Some(Setting::Flag(*flag)),
            DeValue::String(text) => Some(Setting::Text(text.to_string())),
            DeValue::Integer(n) => {
                let value = i64::from_str_radix(n.as_str(), n.radix()).ok();
                if value.is_none() {
                    problems.error(node.span(), "this number is too large".into(), "here", String::new());
                }
                value.map(Setting::Integer)
            }
            DeValue::Float(_) => finite(node, problems).map(Setting::Number),
            DeValue::Array(_) => Vec::read(node, problems).map(Setting::Texts),
            DeValue::Table(_) => BTreeMap::read(node, problems).map(Setting::Named),
            DeValue::Datetime(_) => problems.wrong_type(node, "a value"),
        }
    }

    fn placeholder() -> Self {
        Setting::Flag(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_is_a_number_in_its_base_unit() {
        assert_eq!(Setting::from("64 KiB").number(), Some(65536.0));
        assert_eq!(Setting::from("85 ns").number(), Some(85_000.0));
        assert_eq!(Setting::Number(0.5).number(), Some(0.5));
        assert_eq!(Setting::from("bind").number(), None);
    }

    #[test]
    fn a_setting_survives_a_round_trip_through_json() {
        let named = BTreeMap::from([("copy".to_string(), "Copy: (.*)".to_string())]);
        let all = [
            Setting::Flag(true),
            Setting::Integer(-3),
            Setting::Number(0.1),
            Setting::from("x"),
            Setting::Texts(vec!["a".into()]),
            Setting::Named(named),
        ];
        for setting in all {
            let text = serde_json::to_string(&setting).unwrap();
            assert_eq!(serde_json::from_str::<Setting>(&text).unwrap(), setting, "{text}");
        }
    }
}
