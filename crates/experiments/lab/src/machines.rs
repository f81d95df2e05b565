//! Modifies machines: applies an experiment's values to keys of a machine file.

use crate::key::digest;
use crate::read::suggestion;
use crate::setting::Setting;
use longma_topology::{Machine, OpenError, names_module};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// A key of a machine and another value for it, written `caches.l2.size=512KiB`.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineEdit {
    path: String,
    value: Setting,
}

impl fmt::Display for MachineEdit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.path, self.value)
    }
}

impl FromStr for MachineEdit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, value) = text.split_once('=').unwrap_or((text, ""));
        if path.is_empty() || value.is_empty() {
            return Err("write it as KEY=VALUE, such as caches.l2.size=512KiB".into());
        }
        let value = match (value.parse::<bool>(), value.parse::<i64>(), value.parse::<f64>()) {
            (Ok(flag), ..) => Setting::Flag(flag),
            (_, Ok(integer), _) => Setting::Integer(integer),
            (.., Ok(number)) if number.is_finite() => Setting::Number(number),
            _ => Setting::Text(with_space(value)),
        };
        Ok(Self { path: path.into(), value })
    }
}

/// A quantity such as `512KiB` as machine files write it, with a space before the unit. Other texts are unchanged.
pub fn with_space(text: &str) -> String {
    let unit = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let is_unit =
        !unit.is_empty() && unit.chars().all(|letter| letter.is_ascii_alphabetic() || letter == '/');
    if number.parse::<f64>().is_ok() && is_unit { format!("{number} {unit}") } else { text.into() }
}

/// Why a machine with other values for some keys could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The machine itself cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A key does not exist, or the values are inconsistent.
    #[error("the machine {machine} cannot be changed: {message}")]
    Edit {
        /// The name or path of the machine.
        machine: String,
        /// The error and its remedy.
        message: String,
    },
}

/// Opens a machine by name or path, like [`Machine::open`], and gives some keys other values. A changed machine has a
/// different name.
///
/// # Errors
/// There is no such machine, it has no such key, or the values are inconsistent.
pub fn open_machine(name: &str, edits: &[MachineEdit]) -> Result<Machine, EditError> {
    let machine = Machine::open(name)?;
    let edits = edits.iter().map(|edit| (edit.path.clone(), edit.value.clone())).collect();
    edit_machine(&machine, &edits).map_err(|message| EditError::Edit { machine: name.into(), message })
}

/// Keys to modify: those among the fixed parameters, overridden by those among the varying ones.
pub(crate) fn machine_edits<'a>(
    fixed: &[(&'a String, &'a Setting)],
    varied: impl IntoIterator<Item = &'a (String, Setting)>,
) -> BTreeMap<String, Setting> {
    let all = fixed.iter().copied().chain(varied.into_iter().map(|(name, value)| (name, value)));
    all.filter_map(|(name, value)| Some((name.strip_prefix("machine.")?.into(), value.clone()))).collect()
}

/// Makes the paths of plug-ins relative to the folder of the experiment.
pub(crate) fn resolve_modules(edits: &mut BTreeMap<String, Setting>, folder: &Path) {
    for (_, setting) in edits.iter_mut().filter(|(key, _)| names_module(key)) {
        if let Setting::Text(path) = setting {
            *path = folder.join(&*path).display().to_string();
        }
    }
}

/// Returns whether `name` is the machine or a key of it.
pub(crate) fn is_of_machine(name: &str) -> bool {
    name == "machine" || name.starts_with("machine.")
}

/// The argument of `Machine::open` for a machine named in an experiment in `folder`.
pub(crate) fn machine_file(name: &str, folder: &Path) -> String {
    let is_path = name.contains(['/', '.']);
    if is_path { folder.join(name).display().to_string() } else { name.into() }
}

/// Returns the machine with other values for some keys, each a path such as `caches.l3.size` or `hosts.0.count`.
///
/// # Errors
/// If a key does not exist or the machine becomes inconsistent.
pub(crate) fn edit_machine(machine: &Machine, edits: &BTreeMap<String, Setting>) -> Result<Machine, String> {
    if edits.is_empty() {
        return Ok(machine.clone());
    }
    let mut root = toml::Value::try_from(machine.parts()).map_err(|error| error.to_string())?;
    for (path, setting) in edits {
        match path.as_str() {
            "name" => return Err("`name` cannot be set: a changed machine gets a name of its own".into()),
            "extends" => {
                return Err(
                    "`extends` is only for files: change the keys of the other machine instead".into()
                );
            }
            _ => {}
        }
        let value = toml::Value::try_from(setting).map_err(|error| error.to_string())?;
        set(&mut root, path, value)?;
    }
    let check = |root: &toml::Value| {
        let text = toml::to_string(root).map_err(|error| error.to_string())?;
        Ok::<_, String>(longma_topology::check("the changed machine", &text))
    };
    let mut checked = check(&root)?;
    let changed = checked.machine.as_ref().map(Machine::to_toml).filter(|text| *text != machine.to_toml());
    if let Some(changed) = changed {
        // Rename it, so that its results are not taken for those of the original machine.
        let new_name = format!("{}-{}", machine.name, &digest(changed.as_bytes())[..8]);
        set(&mut root, "name", new_name.into())?;
        checked = check(&root)?;
    }
    checked.machine.ok_or_else(|| {
        let first = checked.report.located().into_iter().find(|p| p.level == longma_topology::Level::Error);
        let message = first.map_or(String::new(), |p| format!("{}; {}", p.message, p.help));
        let changes: Vec<_> = edits.iter().map(|(path, value)| format!("{path} = {value}")).collect();
        format!("with {}: {message}", changes.join(", "))
    })
}

/// Sets the key at `path`. Its parent must exist.
fn set(root: &mut toml::Value, path: &str, value: toml::Value) -> Result<(), String> {
    let segments: Vec<_> = path.split('.').collect();
    let mut parent = root;
    for segment in &segments[..segments.len() - 1] {
        let known: Vec<String> = match parent {
            toml::Value::Table(table) => table.keys().cloned().collect(),
            toml::Value::Array(array) => (0..array.len()).map(|index| index.to_string()).collect(),
            _ => Vec::new(),
        };
        parent = match parent {
            toml::Value::Table(table) => table.get_mut(*segment),
            toml::Value::Array(array) => segment.parse().ok().and_then(|index: usize| array.get_mut(index)),
            _ => None,
        }
        .ok_or_else(|| {
            let help = suggestion(segment, known.iter().map(String::as_str), "part");
            format!("the machine has no `{segment}` (in `{path}`); {help}")
        })?;
    }
    match parent {
        toml::Value::Table(table) => {
            table.insert(segments[segments.len() - 1].into(), value);
            Ok(())
        }
        _ => Err(format!("`{path}` is not a key of the machine")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(edits: &[&str]) -> Result<Machine, String> {
        let edits: Vec<MachineEdit> = edits.iter().map(|text| text.parse().unwrap()).collect();
        open_machine("loongson-3a5000", &edits).map_err(|error| error.to_string())
    }

    #[test]
    fn keys_are_changed_and_the_machine_gets_a_name_of_its_own() {
        let machine = opened(&["caches.l2.size=512KiB"]).unwrap();
        assert_eq!(machine.caches["l2"].size.bytes(), 512 << 10);
        assert!(machine.name.starts_with("loongson-3a5000-"), "{}", machine.name);
        let same = opened(&[]).unwrap();
        assert_eq!(same.name, "loongson-3a5000");
        let spaced = opened(&["caches.l2.size=512 KiB"]).unwrap();
        assert_eq!(spaced.name, opened(&["caches.l2.size=512KiB"]).unwrap().name);
    }

    #[test]
    fn a_wrong_key_or_value_is_refused_with_a_suggestion() {
        let message = opened(&["caches.l2.sise=512KiB"]).unwrap_err();
        assert!(message.contains("sise") && message.contains("`size`"), "{message}");
        let message = opened(&["caches.l9.size=512KiB"]).unwrap_err();
        assert!(message.contains("`l9`") && message.contains("did you mean"), "{message}");
        let message = opened(&["caches.l2.size=many"]).unwrap_err();
        assert!(message.contains("many"), "{message}");
        assert!("caches.l2.size".parse::<MachineEdit>().unwrap_err().contains("KEY=VALUE"));
        assert!("=3".parse::<MachineEdit>().is_err());
        let message = opened(&["name=mine"]).unwrap_err();
        assert!(message.contains("`name`") && message.contains("name of its own"), "{message}");
        let message = opened(&["extends=hygon-8node"]).unwrap_err();
        assert!(message.contains("`extends`") && message.contains("of the other machine"), "{message}");
    }

    #[test]
    fn only_quantities_get_a_space() {
        for (text, spaced) in [("512KiB", "512 KiB"), ("2.5GHz", "2.5 GHz"), ("12.8GB/s", "12.8 GB/s")] {
            assert_eq!(with_space(text), spaced);
        }
        for text in ["512 KiB", "lru", "64", "l2", "3a5000"] {
            assert_eq!(with_space(text), text);
        }
    }
}
