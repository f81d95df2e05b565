//! A point of an experiment: a machine and a value for every parameter. `points` enumerates the points.

use crate::failure::Failure;
use crate::key::Key;
use crate::parameters::{Parameters, Varied};
use crate::setting::Setting;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// One run of an experiment: a machine and a value for every parameter.
#[derive(Clone, Debug)]
pub struct Point {
    /// Key of its result.
    pub key: Key,
    /// Name of its workload.
    pub workload: Arc<str>,
    /// The machine, if the experiment names any.
    pub machine: Option<Arc<PointMachine>>,
    /// Why the point cannot run: its machine is inconsistent.
    pub refused: Option<Failure>,
    /// All parameters of the workload, including defaults.
    pub parameters: Parameters,
    /// Names of the parameters that only locate an input.
    pub location_parameters: &'static [&'static str],
    /// The varying parameters in the order of the file, including the machine as `machine`.
    pub varied: Varied,
    /// Directory against which relative paths in the parameters are resolved.
    pub folder: Arc<Path>,
    /// Time limit of the run.
    pub time_limit: Option<Duration>,
}

/// The machine of a point.
#[derive(Clone, Debug)]
pub struct PointMachine {
    /// Its name in the experiment.
    pub name: String,
    /// The machine file with all defaults and the point's changes. A changed machine has a different name.
    pub text: Arc<str>,
    /// Digest of this text. Many points share it.
    pub digest: Arc<str>,
    /// The keys that the experiment changes, such as `caches.l2.size`.
    pub changes: Arc<[String]>,
    /// Why the changes are invalid. The text then contains the original and the changes.
    pub refused: Option<String>,
}

impl Point {
    /// The parameter called `name`, if the workload has it.
    pub fn parameter(&self, name: &str) -> Option<&Setting> {
        self.parameters.get(name)
    }

    /// Text of the parameter called `name`; empty if it has none.
    pub fn text(&self, name: &str) -> &str {
        self.parameter(name).and_then(Setting::text).unwrap_or_default()
    }

    /// The parameter called `name` as a path, relative to [`Self::folder`] if it is not absolute.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(self.text(name))
    }

    /// The parameters that determine the result. Parameters that only locate an input are excluded: they may differ
    /// between runs of the same point.
    pub fn result_parameters(&self) -> BTreeMap<String, Setting> {
        self.each_result_parameter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// The same in the order of their names, without copies.
    pub(crate) fn each_result_parameter(&self) -> impl Iterator<Item = (&String, &Setting)> {
        self.parameters.iter().filter(|(name, _)| !self.location_parameters.contains(&name.as_str()))
    }

    /// Label of the point: its varying parameters with their values.
    pub fn label(&self) -> String {
        let settings: Vec<_> = self.varied.iter().map(|(name, value)| format!("{name} {value}")).collect();
        settings.join(", ")
    }
}
