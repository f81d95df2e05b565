//! Finds the estimates of a machine: parameters whose source is of the kind `estimate`.

use crate::setting::{Setting, cycles};
use longma_topology::Machine;
use longma_topology::parts::SourceKind;
use toml::{Table, Value};

/// A parameter of a machine whose value is an estimate.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Its parameter: `machine.` and the path of the key.
    pub parameter: String,
    /// Its value.
    pub value: Setting,
    /// The name of its source in the machine file.
    pub source: String,
}

/// The estimates of `machine` that are single numbers or quantities, in the order of their paths. A part without a
/// source inherits the source of the part that contains it.
pub fn estimates(machine: &Machine) -> Vec<Estimate> {
    let mut found = Vec::new();
    // The text of a valid machine is a valid table.
    let root: Table = machine.to_toml().parse().unwrap_or_default();
    let is_estimate =
        |name: &str| machine.sources.get(name).is_some_and(|source| source.kind == SourceKind::Estimate);
    for (key, value) in root.iter().filter(|(key, _)| *key != "sources") {
        walk(&format!("machine.{key}"), value, &mut Vec::new(), &is_estimate, &mut found);
    }
    found.sort_by(|a, b| a.parameter.cmp(&b.parameter));
    found
}

fn walk<'a>(
    path: &str,
    value: &'a Value,
    outer: &mut Vec<&'a Table>,
    is_estimate: &dyn Fn(&str) -> bool,
    found: &mut Vec<Estimate>,
) {
    match value {
        Value::Table(table) => {
            outer.push(table);
            for (key, value) in table.iter().filter(|(key, _)| !is_note(key)) {
                let path = format!("{path}.{key}");
                match source(key, outer, is_estimate).zip(setting(value)) {
                    Some((source, value)) => found.push(Estimate { parameter: path, value, source }),
                    None => walk(&path, value, outer, is_estimate, found),
                }
            }
            outer.pop();
        }
        Value::Array(parts) => {
            for (index, part) in parts.iter().enumerate().filter(|(_, part)| part.is_table()) {
                walk(&format!("{path}.{index}"), part, outer, is_estimate, found);
            }
        }
        _ => {}
    }
}

/// Keys that describe a part and do not change it, and numbers that only identify something.
fn is_note(key: &str) -> bool {
    matches!(key, "name" | "title" | "description" | "source" | "source_of" | "node" | "vendor" | "device")
}

/// The source of `key` in the innermost of the tables, if it is an estimate.
fn source(key: &str, tables: &[&Table], is_estimate: &dyn Fn(&str) -> bool) -> Option<String> {
    let own = tables.last().and_then(|table| table.get("source_of")?.as_table()?.get(key));
    let cited = own.or_else(|| tables.iter().rev().find_map(|table| table.get("source")))?;
    let names = match cited {
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect::<Vec<_>>(),
    };
    names.into_iter().find(|name| is_estimate(name)).map(String::from)
}

/// A number or a quantity above 0.
fn setting(value: &Value) -> Option<Setting> {
    let setting = match value {
        Value::Integer(number) => Setting::Integer(*number),
        Value::Float(number) => Setting::Number(*number),
        Value::String(text) => Setting::Text(text.clone()),
        _ => return None,
    };
    setting.amount().filter(|number| *number > 0.0).map(|_| setting)
}

/// The setting times `factor`; `None` if a whole number stays the same.
pub(super) fn scaled(setting: &Setting, factor: f64) -> Option<Setting> {
    let scaled = match setting {
        Setting::Integer(number) => Setting::Integer((*number as f64 * factor).round().max(1.0) as i64),
        Setting::Number(number) => Setting::Number(number * factor),
        Setting::Text(text) => {
            let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
            let number = number.parse::<f64>().ok()? * factor;
            let is_whole = cycles(text).is_some_and(|cycles| cycles.fract() == 0.0);
            let number = if is_whole { number.round().max(1.0) } else { number };
            // Quantities have at most a few digits after the point.
            let number = format!("{number:.6}");
            let number = number.trim_end_matches('0').trim_end_matches('.');
            Setting::Text(format!("{number} {unit}").trim_end().into())
        }
        _ => return None,
    };
    (scaled != *setting).then_some(scaled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_found_by_their_sources() {
        let machine = Machine::open("loongson-3a5000").unwrap();
        let found = estimates(&machine);
        let of = |parameter: &str| found.iter().find(|estimate| estimate.parameter == parameter);
        assert_eq!(
            of("machine.cores.la464.rob_entries").map(|one| &*one.source),
            Some("depth"),
            "{found:#?}"
        );
        assert_eq!(of("machine.cores.la464.clock"), None);
        assert_eq!(
            of("machine.caches.l2.latency").map(|one| one.value.to_string()).as_deref(),
            Some("14 cycles")
        );
        assert!(found.iter().all(|one| one.value.amount().is_some_and(|number| number > 0.0)));
    }

    #[test]
    fn quantities_are_scaled_in_their_unit() {
        let text = |text: &str, factor| scaled(&text.into(), factor).map(|setting| setting.to_string());
        assert_eq!(text("110 MB/s", 0.5).as_deref(), Some("55 MB/s"));
        assert_eq!(text("7.8 us", 2.0).as_deref(), Some("15.6 us"));
        assert_eq!(text("lru", 2.0), None);
        assert_eq!(text("15 cycles", 0.5).as_deref(), Some("8 cycles"));
        assert_eq!(scaled(&Setting::Integer(1), 0.5), None);
        assert_eq!(scaled(&Setting::Integer(5), 0.5), Some(Setting::Integer(3)));
        assert_eq!(scaled(&Setting::Number(1.5), 2.0), Some(Setting::Number(3.0)));
    }
}
