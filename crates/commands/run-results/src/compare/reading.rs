//! Reads the figures of a result file by their hierarchical names. The file is not parsed into the types that wrote it,
//! so that results of other versions can be read too.
//! Source: the book's chapter on simulated runs (results).

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    path::Path,
};

use longma_runner::simulation::RunResult;
use longma_sim::ManifestMachine;
use longma_topology::Machine;
use serde_json::{Map, Value};

/// The value and unit of one figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The value; `None` for a rate whose denominator is zero.
    pub value: Option<f64>,
    /// Its unit.
    pub unit: String,
}

/// The figures and the manifest of a result.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Figures by hierarchical name, for example `core0.cycles`.
    pub figures: BTreeMap<String, Figure>,
    /// The manifest, which describes the run, one line per key.
    pub manifest: BTreeMap<String, String>,
    /// The machine, if it is known.
    pub machine: Option<Machine>,
}

const REMEDY: &str = "give a file that `longma run --stats-out FILE` wrote";
/// Larger results are refused.
const MAX_RESULT_BYTES: u64 = 1 << 30;

impl Figures {
    /// Reads a result file, and the machine that `longma run --stats-out` wrote next to it, if it is still there.
    ///
    /// # Errors
    /// The file cannot be read or is no result.
    pub fn read(path: &Path) -> Result<Self, String> {
        let name = longma_text::display_path(path);
        let failed = |error: io::Error| format!("cannot read {name}: {error}");
        let mut text = String::new();
        let read =
            fs::File::open(path).and_then(|file| file.take(MAX_RESULT_BYTES).read_to_string(&mut text));
        if read.map_err(failed)? as u64 == MAX_RESULT_BYTES {
            return Err(format!("{name}: is larger than 1 GiB; {REMEDY}"));
        }
        let parsed = Self::parse(&text).map_err(|problem| format!("{name}: {problem}"))?;
        let machine = path.with_extension("machine.toml");
        let machine = machine.is_file().then(|| Machine::open(&machine.to_string_lossy()).ok()).flatten();
        // Another run may have replaced the machine file.
        let machine = machine.filter(|machine| parsed.names(machine));
        Ok(Self { machine, ..parsed })
    }

    /// Whether the result belongs to this machine: the manifest has the digest of the machine file.
    fn names(&self, machine: &Machine) -> bool {
        let digest = ManifestMachine::new(&machine.name, &machine.to_toml()).sha256;
        self.manifest.get("machine").is_some_and(|stated| stated.contains(&digest))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| format!("is not JSON ({error}); {REMEDY}"))?;
        if let Some(format) = value.get("format")
            && *format != RunResult::FORMAT
        {
            let format = longma_text::sanitize(&clip(&format.to_string()));
            return Err(format!(
                "has format {format}, and this version of longma reads format {}; {REMEDY}",
                RunResult::FORMAT
            ));
        }
        Self::of(&value, None)
    }

    /// The figures of a result, with its machine if that is known.
    ///
    /// # Errors
    /// The result has no statistics.
    pub fn of(value: &Value, machine: Option<Machine>) -> Result<Self, String> {
        let statistics = value
            .get("statistics")
            .and_then(Value::as_object)
            .ok_or_else(|| format!("has no statistics; {REMEDY}"))?;
        let mut figures = BTreeMap::new();
        flatten("", statistics, &mut figures);
        let mut manifest = BTreeMap::new();
        if let Some(Value::Object(entries)) = value.get("manifest") {
            manifest.extend(entries.iter().map(|(key, value)| (key.clone(), to_line(value))));
        }
        Ok(Self { figures, manifest, machine })
    }
}

fn clip(text: &str) -> String {
    text.chars().take(40).collect()
}

fn to_line(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(to_line).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

/// Adds all figures below `group` under their full names. The JSON parser bounds the recursion depth.
fn flatten(prefix: &str, group: &Map<String, Value>, figures: &mut BTreeMap<String, Figure>) {
    for (key, value) in group {
        let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        let Value::Object(inner) = value else { continue };
        let Some(unit) = inner.get("unit").and_then(Value::as_str) else {
            flatten(&name, inner, figures);
            continue;
        };
        let mut add = |name: String, value: Option<f64>, unit: &str| {
            figures.insert(name, Figure { value, unit: unit.into() });
        };
        match inner.get("value") {
            Some(Value::Object(histogram)) => {
                let number = |key| histogram.get(key).and_then(Value::as_f64);
                add(format!("{name}.count"), number("count"), "values");
                add(format!("{name}.mean"), number("mean"), unit);
            }
            Some(value) => add(name, value.as_f64(), unit),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_named_by_their_groups_and_histograms_give_count_and_mean() {
        let text = r#"{ "manifest": { "machine": "m", "arguments": ["a", "b"] }, "statistics": { "core0": {
            "cycles": { "value": 12, "unit": "cycles", "description": "d" },
            "ipc": { "value": null, "unit": "1", "description": "d" },
            "wait": { "value": { "count": 2, "mean": 1.5, "classes": [] }, "unit": "ps", "description": "d" } } } }"#;
        let read = Figures::parse(text).unwrap();
        let names: Vec<_> = read.figures.keys().map(String::as_str).collect();
        assert_eq!(names, ["core0.cycles", "core0.ipc", "core0.wait.count", "core0.wait.mean"]);
        assert_eq!(read.figures["core0.wait.mean"], Figure { value: Some(1.5), unit: "ps".into() });
        assert_eq!(read.figures["core0.ipc"].value, None);
        assert_eq!(read.manifest["arguments"], "a b");
    }

    #[test]
    fn a_file_that_is_not_a_result_is_rejected() {
        let other_formats = [
            r#"{"format": 2, "statistics": {}}"#,
            r#"{"format": 1.5, "statistics": {}}"#,
            r#"{"format": "\u001b[31m", "statistics": {}}"#,
            r#"{"format": [], "statistics": {}}"#,
            r#"{"format": null, "statistics": {}}"#,
        ];
        assert!(Figures::parse(r#"{"format": 1, "statistics": {}}"#).is_ok());
        for text in ["", "[1]", "{}", r#"{"statistics": 3}"#].into_iter().chain(other_formats) {
            let problem = Figures::parse(text).unwrap_err();
            assert!(problem.contains("--stats-out"), "{text}: {problem}");
            assert_eq!(longma_text::sanitize(&problem), problem);
        }
    }
}
