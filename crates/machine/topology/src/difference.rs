//! The keys in which two machines differ.

use std::collections::BTreeMap;

use serde::Serialize;
use toml::Value;

use crate::machine::Machine;
use crate::module;

/// A key that has different values in two machines.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The key, such as `caches.l2.size`.
    pub key: String,
    /// The value in the first machine, or the default; `None` if it has no such part.
    pub first: Option<String>,
    /// The value in the second machine.
    pub second: Option<String>,
}

/// Keys that do not describe hardware.
const NOTES: [&str; 6] = ["name", "title", "description", "source", "source_of", "sources"];

/// The keys in which two machines differ, by name, with all defaults. Names, descriptions and sources are not compared.
pub fn differences(first: &Machine, second: &Machine) -> Vec<Difference> {
    let [first, second] = [first, second].map(|machine| {
        let mut keys = BTreeMap::new();
        // Serializing plain data with string keys cannot fail.
        let value = Value::try_from(machine.parts()).expect("parts are plain data");
        flatten(&value, String::new(), &mut keys);
        keys
    });
    let mut keys: Vec<&String> = first.keys().chain(second.keys()).collect();
    keys.sort();
    keys.dedup();
    let differs = keys.into_iter().filter(|key| first.get(*key) != second.get(*key));
    differs
        .map(|key| Difference {
            key: key.clone(),
            first: first.get(key).cloned(),
            second: second.get(key).cloned(),
        })
        .collect()
}

fn flatten(value: &Value, path: String, to: &mut BTreeMap<String, String>) {
    let below = |word: &str| if path.is_empty() { word.to_string() } else { format!("{path}.{word}") };
    match value {
        Value::Table(table) => {
            let described = table.iter().filter(|(key, _)| !NOTES.contains(&key.as_str()));
            described.for_each(|(key, value)| flatten(value, below(key), to));
        }
        Value::Array(array) if array.iter().any(Value::is_table) => {
            let numbered = array.iter().enumerate();
            numbered.for_each(|(index, value)| flatten(value, below(&index.to_string()), to));
        }
        Value::String(text) => {
            drop(to.insert(path, module::identified(text).unwrap_or_else(|| text.clone())));
        }
        other => drop(to.insert(path, other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_key_is_the_only_difference() {
        let base = Machine::open("loongson-3a5000").unwrap();
        assert_eq!(differences(&base, &base), []);
        let text = "extends = \"loongson-3a5000\"\nname = \"other\"\n[caches.l2]\nsize = \"128 KiB\"\n";
        let other = Machine::parse("other.toml", text).unwrap();
        let expected = Difference {
            key: "caches.l2.size".into(),
            first: Some(base.caches["l2"].size.to_string()),
            second: Some("128 KiB".into()),
        };
        assert_eq!(differences(&base, &other), [expected]);
    }

    #[test]
    fn parts_of_one_machine_only_have_no_value_in_the_other() {
        let [first, second] = ["loongson-3a5000", "godson3"].map(|name| Machine::open(name).unwrap());
        let all = differences(&first, &second);
        assert!(
            all.iter().any(|difference| difference.first.is_none())
                && all.iter().any(|difference| difference.second.is_none())
        );
        assert!(
            all.iter().all(|difference| !difference.key.contains("source") && difference.key != "name"),
            "{all:?}"
        );
    }
}
