//! Modifies machines: applies an experiment's values to keys of a machine file.

use crate::key::digest;
use crate::setting::Setting;
use longma_topology::Machine;
use std::collections::BTreeMap;
use std::path::Path;

/// Keys to modify: those among the fixed parameters, overridden by those among the varying ones.
pub(crate) fn machine_edits<'a>(
    fixed: &[(&'a String, &'a Setting)],
    varied: &'a [(String, Setting)],
) -> BTreeMap<String, Setting> {
    let all = fixed.iter().copied().chain(varied.iter().map(|(name, value)| (name, value)));
    all.filter_map(|(name, value)| Some((name.strip_prefix("machine.")?.into(), value.clone()))).collect()
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
        let own = format!("{}-{}", machine.name, &digest(changed.as_bytes())[..8]);
        set(&mut root, "name", own.into())?;
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
    let words: Vec<_> = path.split('.').collect();
    let mut place = root;
    for word in &words[..words.len() - 1] {
        place = match place {
            toml::Value::Table(table) => table.get_mut(*word),
            toml::Value::Array(array) => word.parse().ok().and_then(|index: usize| array.get_mut(index)),
            _ => None,
        }
        .ok_or_else(|| format!("the machine has no `{word}` (in `{path}`)"))?;
    }
    match place {
        toml::Value::Table(table) => {
            table.insert(words[words.len() - 1].into(), value);
            Ok(())
        }
        _ => Err(format!("`{path}` is not a key of the machine")),
    }
}
