//! Conditions between parameters: combinations that do not meet them are left out.

use super::ExperimentFile;
use crate::read::{Problems, suggestion};
use crate::setting::Setting;
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// Operators, longer ones first.
const OPERATORS: [&str; 6] = ["<=", ">=", "==", "!=", "<", ">"];

/// A comparison of a parameter with another one or with a value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Requirement {
    left: Side,
    operator: &'static str,
    right: Side,
}

#[derive(Clone, Debug, PartialEq)]
enum Side {
    Parameter(String),
    Value(Setting),
}

impl Requirement {
    /// Parses `NAME OPERATOR NAME` or `NAME OPERATOR VALUE`. A text is in single quotes. `is_parameter` returns whether
    /// a name is a parameter.
    pub(crate) fn parse(text: &str, is_parameter: &dyn Fn(&str) -> bool) -> Result<Self, String> {
        let found = OPERATORS.iter().find_map(|operator| Some((*operator, text.split_once(operator)?)));
        let Some((operator, (left, right))) = found else {
            return Err("write it as `NAME <= NAME`, with <, <=, ==, !=, >= or >".into());
        };
        let side = |text: &str| {
            let text = text.trim();
            let quoted = text.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
            let value = match (quoted, text.parse::<bool>()) {
                (Some(quoted), _) => Setting::Text(quoted.into()),
                (None, Ok(flag)) => Setting::Flag(flag),
                (None, Err(_)) if is_parameter(text) => return Ok(Side::Parameter(text.into())),
                (None, Err(_)) => Setting::Text(text.into()),
            };
            let is_value = quoted.is_some() || !matches!(value, Setting::Text(_)) || value.number().is_some();
            if is_value {
                Ok(Side::Value(value))
            } else {
                Err(format!("`{text}` is no parameter of this file"))
            }
        };
        let requirement = Self { left: side(left)?, operator, right: side(right)? };
        match (&requirement.left, &requirement.right) {
            (Side::Value(_), Side::Value(_)) => Err("it names no parameter".into()),
            _ => Ok(requirement),
        }
    }

    /// Whether these settings meet the condition. A parameter without a setting meets every condition.
    pub(crate) fn holds(&self, settings: &dyn Fn(&str) -> Option<Setting>) -> bool {
        let value = |side: &Side| match side {
            Side::Parameter(name) => settings(name),
            Side::Value(value) => Some(value.clone()),
        };
        let Some((left, right)) = value(&self.left).zip(value(&self.right)) else { return true };
        let order = match (left.number(), right.number()) {
            (Some(left), Some(right)) => left.partial_cmp(&right),
            _ => Some(left.to_string().cmp(&right.to_string())),
        };
        let Some(order) = order else { return false };
        match self.operator {
            "<=" => order != Ordering::Greater,
            ">=" => order != Ordering::Less,
            "==" => order == Ordering::Equal,
            "!=" => order != Ordering::Equal,
            "<" => order == Ordering::Less,
            _ => order == Ordering::Greater,
        }
    }
}

/// Names of the parameters that the file sets or varies.
fn names(file: &ExperimentFile) -> BTreeSet<&str> {
    let swept = file.sweep.keys().chain(file.zip.iter().flat_map(|columns| columns.keys()));
    file.parameters.keys().chain(swept).map(String::as_str).chain(["machine"]).collect()
}

/// The conditions of the file. Malformed ones are reported by [`check`] and left out here.
pub(crate) fn requirements(file: &ExperimentFile) -> Vec<Requirement> {
    let names = names(file);
    file.require
        .iter()
        .filter_map(|text| Requirement::parse(text, &|name| names.contains(name)).ok())
        .collect()
}

/// Reports malformed conditions.
pub(super) fn check(file: &ExperimentFile, problems: &mut Problems) {
    let names = names(file);
    for text in &file.require {
        if let Err(message) = Requirement::parse(text, &|name| names.contains(name)) {
            let help = suggestion(text, names.iter().copied(), "parameter");
            problems.error(file.marks.key("require"), format!("`{text}`: {message}"), "here", help);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_compared_as_quantities_and_texts_only_for_equality() {
        let holds = |text: &str| {
            let settings = |name: &str| match name {
                "l2" => Some(Setting::from("512 KiB")),
                "l3" => Some(Setting::from("1 MiB")),
                "threads" => Some(Setting::Integer(4)),
                "mode" => Some(Setting::from("fast")),
                _ => None,
            };
            let is_parameter = |name: &str| ["l2", "l3", "threads", "mode", "absent"].contains(&name);
            Requirement::parse(text, &is_parameter).map(|one| one.holds(&settings))
        };
        for text in
            ["l2 < l3", "l2 <= 512 KiB", "threads != 2", "mode == 'fast'", "4 >= threads", "absent > 3"]
        {
            assert_eq!(holds(text), Ok(true), "{text}");
        }
        for text in ["l2 > l3", "l3 <= 512 KiB", "threads==2", "mode != 'fast'"] {
            assert_eq!(holds(text), Ok(false), "{text}");
        }
        for text in ["l2", "l2 < l4", "1 < 2", ""] {
            assert!(holds(text).is_err(), "{text}");
        }
    }
}
