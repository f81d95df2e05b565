//! A point of an experiment: a machine and a value for every parameter.
//! Not which points there are: `points` counts them out. Not its result: that is in the store, under the key.

use crate::failure::Failure;
use crate::key::Key;
use crate::setting::Setting;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// One run of an experiment: a machine and a value for every parameter.
#[derive(Clone, Debug)]
pub struct Point {
    /// What its result is stored under.
    pub key: Key,
    /// The workload it runs.
    pub workload: String,
    /// The machine it runs on, if the experiment names any.
    pub machine: Option<Modelled>,
    /// Why it cannot be run as it is given: its machine does not fit together.
    pub refused: Option<Failure>,
    /// Every parameter of the workload, defaults included.
    pub parameters: BTreeMap<String, Setting>,
    /// Those of them that only say where something is.
    pub places: &'static [&'static str],
    /// What tells it from the experiment's other points, in the order of the file: swept parameters, and the machine as `machine`.
    pub varied: Vec<(String, Setting)>,
    /// The folder at which relative paths among the parameters begin.
    pub folder: PathBuf,
    /// How long it may take.
    pub time_limit: Option<Duration>,
}

/// A machine as a point sees it.
#[derive(Clone, Debug)]
pub struct Modelled {
    /// What the experiment calls it.
    pub name: String,
    /// The machine file with every default written out and the point's changes made, under a name of its own if there are any.
    pub text: Arc<str>,
    /// Why the changes cannot be made; the text is then what was to be changed, and the changes.
    pub refused: Option<String>,
}

impl Point {
    /// The parameter called `name`, if the workload has it.
    pub fn parameter(&self, name: &str) -> Option<&Setting> {
        self.parameters.get(name)
    }

    /// The text of the parameter called `name`; empty if it is none.
    pub fn text(&self, name: &str) -> &str {
        self.parameter(name).and_then(Setting::text).unwrap_or_default()
    }

    /// The path that the parameter called `name` means.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(self.text(name))
    }

    /// The parameters that are part of the result: all but those that only say where something is, which may differ between two runs of
    /// the same point.
    pub fn told(&self) -> BTreeMap<String, Setting> {
        let told = self.parameters.iter().filter(|(name, _)| !self.places.contains(&name.as_str()));
        told.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// What tells the point from others, in words.
    pub fn label(&self) -> String {
        let words: Vec<_> = self.varied.iter().map(|(name, value)| format!("{name} {value}")).collect();
        words.join(", ")
    }
}
