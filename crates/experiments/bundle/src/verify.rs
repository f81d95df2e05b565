//! Compares the results of a bundle with those of a second run.

use crate::manifest::{BundledExperiment, BundledInput, BundledPoint, Contents, FIGURES};
use longma_lab::{Campaign, Key, Point, Record, Registry, Results, digest};
use longma_topology::Machine;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The second run of an experiment of a bundle.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Verification {
    /// Name of the experiment.
    pub experiment: String,
    /// Number of points in the bundle.
    pub points: usize,
    /// Number of points that were to be run again.
    pub selected: usize,
    /// Number of points with a result in the bundle and in the second run.
    pub compared: usize,
    /// Number of them with the same result.
    pub equal: usize,
    /// Number of points without a result in the bundle.
    pub missing: usize,
    /// The points with different results.
    pub differences: Vec<Difference>,
    /// Machines and input files that differ from those of the bundle, because the command contains others.
    pub changed_inputs: Vec<String>,
}

/// What [`compare_rendered`] found in files that are made from results.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rendered {
    /// Number of files with the same bytes.
    pub equal: usize,
    /// Paths of files whose bytes differ, or that only one side has.
    pub different: Vec<String>,
    /// Paths of those that this build cannot make.
    pub not_compared: Vec<String>,
}

/// Compares the bundle's files in `folder` that are made from its results, such as the report, with `again`, the same
/// files made again. `files` are the paths of all files of the bundle; `can_make` tells which this build can make.
///
/// # Errors
/// The error of the operating system.
pub fn compare_rendered<'a>(
    folder: &Path,
    files: impl Iterator<Item = &'a String>,
    again: &Contents,
    can_make: impl Fn(&str) -> bool,
) -> std::io::Result<Rendered> {
    let is_rendered = |name: &&&String| again.contains_key(**name) || name.starts_with(FIGURES);
    let mut rendered = Rendered::default();
    let of_bundle: BTreeSet<&String> = files.collect();
    for name in of_bundle.iter().filter(is_rendered) {
        match again.get(*name) {
            Some(bytes) if std::fs::read(folder.join(name))? == *bytes => rendered.equal += 1,
            None if !can_make(name) => rendered.not_compared.push(name.to_string()),
            _ => rendered.different.push(name.to_string()),
        }
    }
    rendered.different.extend(again.keys().filter(|name| !of_bundle.contains(name)).cloned());
    Ok(rendered)
}

/// A point whose results differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Key of the point in the bundle.
    pub key: Key,
    /// Its varying parameters.
    pub point: String,
    /// The metrics that differ, each with the value in the bundle and that of the second run.
    pub metrics: BTreeMap<String, (Option<f64>, Option<f64>)>,
    /// The failures in the bundle and in the second run, if they differ.
    pub failures: Option<(Option<String>, Option<String>)>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        /// Maximum number of metrics to list.
        const SHOWN: usize = 4;
        if let Some((one, other)) = &self.failures {
            let outcome = |failure: &Option<String>| failure.clone().unwrap_or_else(|| "no failure".into());
            return write!(f, "{}, again {}", outcome(one), outcome(other));
        }
        let value = |value: &Option<f64>| value.map_or("nothing".into(), |value| value.to_string());
        // The metrics of the whole run come first: components have many counters, with several dots in their names.
        let mut names: Vec<_> = self.metrics.keys().collect();
        names.sort_by_key(|name| (!name.starts_with("run."), name.matches('.').count()));
        let one = |name: &&&String| {
            let (before, after) = &self.metrics[**name];
            format!("{name} {}, again {}", value(before), value(after))
        };
        f.write_str(&names.iter().take(SHOWN).map(|name| one(&name)).collect::<Vec<_>>().join("; "))?;
        match names.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more metrics"),
        }
    }
}

/// The keys that the points of the bundle have in `campaign`, which depend on the version of the models.
///
/// # Errors
/// If the experiment does not have the points of the bundle.
pub fn local_keys(
    bundled: &BundledExperiment,
    campaign: &Campaign<'_>,
) -> Result<BTreeMap<Key, Key>, String> {
    let name = &campaign.experiment.parts().name;
    if bundled.name != *name {
        return Err(format!("bundle.json gives the experiment {name} another name"));
    }
    let same = |(one, point): (&BundledPoint, &Point)| one.point == point.label();
    if bundled.points.len() != campaign.points.len() || !bundled.points.iter().zip(&campaign.points).all(same)
    {
        return Err(format!("the file of {name} has other points than bundle.json lists"));
    }
    let pairs = bundled.points.iter().zip(&campaign.points);
    Ok(pairs.map(|(one, point)| (one.key.clone(), point.key.clone())).collect())
}

/// Compares the points with a result in `again`, the results of the second run, with those of the bundle.
pub fn verify(
    bundled: &BundledExperiment,
    keys: &BTreeMap<Key, Key>,
    results: &Results,
    again: &Results,
) -> Verification {
    let mut verification = Verification {
        experiment: bundled.name.clone(),
        points: bundled.points.len(),
        ..Verification::default()
    };
    let mut seen = BTreeSet::new();
    for BundledPoint { key, point } in bundled.points.iter().filter(|point| seen.insert(&point.key)) {
        let Some(before) = results.get(key) else {
            verification.missing += 1;
            continue;
        };
        let Some(after) = keys.get(key).and_then(|key| again.get(key)) else { continue };
        verification.compared += 1;
        match difference(before, after) {
            None => verification.equal += 1,
            Some((metrics, failures)) => {
                let (key, point) = (key.clone(), point.clone());
                verification.differences.push(Difference { key, point, metrics, failures });
            }
        }
    }
    verification.points = seen.len();
    verification
}

type Metrics = BTreeMap<String, (Option<f64>, Option<f64>)>;
type Failures = Option<(Option<String>, Option<String>)>;

/// The differences between two records, except in metrics of the host.
fn difference(before: &Record, after: &Record) -> Option<(Metrics, Failures)> {
    let names: BTreeSet<_> = before.metrics.keys().chain(after.metrics.keys()).collect();
    let pair = |name: &String| (before.metrics.get(name).copied(), after.metrics.get(name).copied());
    let differ =
        names.into_iter().map(|name| (name.clone(), pair(name))).filter(|(_, (one, two))| one != two);
    let metrics: Metrics = differ.collect();
    let message = |record: &Record| record.failure.as_ref().map(|failure| failure.message.clone());
    let failures = Some((message(before), message(after))).filter(|(one, two)| one != two);
    (!metrics.is_empty() || failures.is_some()).then_some((metrics, failures))
}

/// Returns the names of machines and input files that differ from those of the bundle.
pub fn changed_inputs(
    bundled: &BundledExperiment,
    campaign: &Campaign<'_>,
    registry: &Registry,
) -> Vec<String> {
    let folder = campaign.experiment.folder();
    let machines = bundled.machines.iter().filter(|machine| {
        let is_path = machine.name.contains(['/', '.']);
        let file =
            if is_path { folder.join(&machine.name).display().to_string() } else { machine.name.clone() };
        !Machine::open(&file).is_ok_and(|open| digest(open.to_toml().as_bytes()) == machine.sha256)
    });
    let mut changed: Vec<String> = machines.map(|machine| format!("the machine {}", machine.name)).collect();
    let workload = registry.get(&campaign.experiment.parts().workload);
    let files = campaign.points.iter().filter_map(|point| workload?.files(point).ok()).flatten();
    let files: BTreeMap<String, _> = files.map(|file| (file.name, file.path)).collect();
    let is_changed = |input: &&BundledInput| {
        let found = files.get(&input.name).and_then(|path| std::fs::read(path).ok());
        found.is_some_and(|bytes| digest(&bytes) != input.sha256)
    };
    changed.extend(bundled.inputs.iter().filter(is_changed).map(|input| format!("the file {}", input.name)));
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str, metrics: &[(&str, f64)]) -> Record {
        let metrics: serde_json::Map<_, _> =
            metrics.iter().map(|(name, value)| (name.to_string(), (*value).into())).collect();
        let record = serde_json::json!({ "key": key, "workload": "w", "machine": null, "parameters": {},
            "metrics": metrics, "failure": null, "host": { "seconds": 1.0 } });
        serde_json::from_value(record).unwrap()
    }

    fn results(records: &[Record]) -> Results {
        let mut results = Results::default();
        for record in records {
            results.add(record.clone());
        }
        results
    }

    #[test]
    fn only_points_of_both_runs_are_compared_and_each_difference_has_both_values() {
        let point = |key: &str| BundledPoint { key: key.into(), point: format!("n {key}") };
        let bundled = BundledExperiment {
            name: "x".into(),
            file: "x.toml".into(),
            folder: "files".into(),
            quick: false,
            command: String::new(),
            machines: Vec::new(),
            inputs: Vec::new(),
            points: ["a", "b", "c", "d", "a"].map(point).to_vec(),
        };
        let keys = ["a", "b", "c", "d"].map(|key| (Key::from(key), Key::from(&*format!("{key}2"))));
        let before = [record("a", &[("m", 1.0)]), record("b", &[("m", 1.0), ("o", 2.0)]), record("c", &[])];
        let after = [record("a2", &[("m", 1.0)]), record("b2", &[("m", 1.5)])];
        let found = verify(&bundled, &keys.into_iter().collect(), &results(&before), &results(&after));
        assert_eq!((found.points, found.compared, found.equal, found.missing), (4, 2, 1, 1));
        assert_eq!(found.differences.len(), 1);
        assert_eq!(found.differences[0].point, "n b");
        assert_eq!(found.differences[0].to_string(), "m 1, again 1.5; o 2, again nothing");
    }
}
