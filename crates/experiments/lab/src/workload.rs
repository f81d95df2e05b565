//! The interface of workloads: a workload runs a point of an experiment and returns metrics.

use crate::failure::Failure;
use crate::point::Point;
use crate::setting::Setting;
use longma_topology::units::{Size, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// A program or model that can be run at a point and measured, such as a guest program or a device model.
///
/// `run` is called from several threads concurrently. [`Metrics::results`] must depend only on the point.
pub trait Workload: Send + Sync {
    /// Name in an experiment file.
    fn name(&self) -> &str;

    /// Description in one line.
    fn description(&self) -> &str;

    /// Its parameters.
    fn parameters(&self) -> &[Parameter];

    /// Names of parameters that only locate an input, whose contents [`Workload::inputs`] reports. They are not part of
    /// a result or its key.
    fn location_parameters(&self) -> &'static [&'static str] {
        &[]
    }

    /// Increased whenever the same point gives different results than before, so that stored results are not reused.
    fn revision(&self) -> u32 {
        1
    }

    /// Further inputs of a point by name, for example the digest of the program it runs.
    ///
    /// # Errors
    /// If an input of the point is missing.
    fn inputs(&self, _point: &Point) -> Result<BTreeMap<String, String>, Failure> {
        Ok(BTreeMap::new())
    }

    /// The files that [`Workload::inputs`] reports.
    ///
    /// # Errors
    /// If an input of the point is missing.
    fn files(&self, _point: &Point) -> Result<Vec<InputFile>, Failure> {
        Ok(Vec::new())
    }

    /// Identifies the setup of a point. [`Workload::rehearse`] is called once per setup.
    fn setup(&self, point: &Point) -> String {
        point.key.to_string()
    }

    /// Sets up a point without running it.
    ///
    /// # Errors
    /// Why it cannot be run.
    fn rehearse(&self, _point: &Point) -> Result<Rehearsal, Failure> {
        Ok(Rehearsal::default())
    }

    /// Runs a point and measures it.
    ///
    /// # Errors
    /// Why there are no metrics. Returns [`FailureKind::Stopped`](crate::FailureKind::Stopped) soon after `stop` is
    /// set.
    fn run(&self, point: &Point, stop: &Stop) -> Result<Metrics, Failure>;
}

/// A file that a point reads, such as its program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InputFile {
    /// Its name in the experiment: a path relative to the point's folder, or the name of a built-in file.
    pub name: String,
    /// Its path on this host.
    pub path: PathBuf,
    /// Whether the command contains it.
    pub is_built_in: bool,
}

/// Description of a workload's parameter.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Name in an experiment file.
    pub name: &'static str,
    /// Type of its values.
    pub kind: Kind,
    /// Default value; `None` if a value is required.
    pub default: Option<Setting>,
    /// Meaning, with the unit if the type does not determine it.
    pub description: &'static str,
}

/// Type of a parameter's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// true or false.
    Flag,
    /// An integer.
    Integer,
    /// A number.
    Number,
    /// A text.
    Text,
    /// One of the listed words.
    Word(&'static [&'static str]),
    /// A size such as "64 KiB".
    Size,
    /// A time such as "85 ns".
    Time,
    /// A list of texts.
    Texts,
    /// A table of named texts.
    Named,
}

impl Kind {
    /// Checks that `value` is of this type.
    ///
    /// # Errors
    /// The error and its remedy.
    pub fn check(self, value: &Setting) -> Result<(), (String, String)> {
        let fits = match (self, value) {
            (Kind::Flag, Setting::Flag(_))
            | (Kind::Integer, Setting::Integer(_))
            | (Kind::Number, Setting::Integer(_) | Setting::Number(_))
            | (Kind::Text, Setting::Text(_))
            | (Kind::Texts, Setting::Texts(_))
            | (Kind::Named, Setting::Named(_)) => true,
            (Kind::Size, Setting::Text(text)) => {
                return text.parse::<Size>().map(|_| ()).map_err(|e| (e.message, e.help));
            }
            (Kind::Time, Setting::Text(text)) => {
                return text.parse::<Time>().map(|_| ()).map_err(|e| (e.message, e.help));
            }
            (Kind::Word(words), Setting::Text(text)) if !words.contains(&text.as_str()) => {
                let help = crate::read::suggestion(text, words.iter().copied(), "choice");
                return Err((format!("there is no choice \"{text}\""), help));
            }
            (Kind::Word(_), Setting::Text(_)) => true,
            _ => false,
        };
        if fits { Ok(()) } else { Err((format!("expected {self}"), String::new())) }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Flag => "true or false",
            Kind::Integer => "a whole number",
            Kind::Number => "a number",
            Kind::Text => "a text",
            Kind::Size => "a size such as \"64 KiB\"",
            Kind::Time => "a time such as \"85 ns\"",
            Kind::Texts => "a list of texts",
            Kind::Named => "a table of texts",
            Kind::Word(words) => return write!(f, "one of \"{}\"", words.join("\", \"")),
        })
    }
}

/// The properties of a point that are known without running it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rehearsal {
    /// The measures; `None` if the workload does not define them.
    pub measures: Option<Vec<Measure>>,
    /// Parameters without effect (or entries of them, as `TABLE.NAME`), each with the reason.
    pub ineffective: Vec<(String, String)>,
    /// Parameters with an effect.
    pub used: Vec<String>,
}

/// A metric of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measure {
    /// Name. Starts with `host.` if it depends on the host's speed.
    pub name: String,
    /// Unit; empty if only the experiment knows it.
    pub unit: String,
    /// Description.
    pub description: String,
}

impl Measure {
    /// Creates a measure.
    pub fn new(name: impl Into<String>, unit: impl Into<String>, description: impl Into<String>) -> Self {
        Self { name: name.into(), unit: unit.into(), description: description.into() }
    }
}

/// Results of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Metrics that depend only on the point: the same on every run and every host.
    pub results: BTreeMap<String, f64>,
    /// Low and high ends of the 95 % intervals of those results that are estimates.
    pub intervals: BTreeMap<String, [f64; 2]>,
    /// Metrics that depend on the host's speed, such as wall-clock seconds. They are not part of the result.
    pub host: BTreeMap<String, f64>,
}

impl Metrics {
    /// Adds a result.
    pub fn result(&mut self, name: &str, value: f64) {
        self.results.insert(name.into(), value);
    }
}

/// A shared request to stop.
#[derive(Debug, Default)]
pub struct Stop(AtomicBool);

impl Stop {
    /// Requests a stop.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether a stop was requested.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The workloads that experiments can use.
#[derive(Default)]
pub struct Registry {
    workloads: BTreeMap<String, Box<dyn Workload>>,
}

impl Registry {
    /// Adds a workload, replacing one with the same name.
    pub fn add(&mut self, workload: impl Workload + 'static) {
        self.workloads.insert(workload.name().into(), Box::new(workload));
    }

    /// The workload called `name`.
    pub fn get(&self, name: &str) -> Option<&dyn Workload> {
        self.workloads.get(name).map(AsRef::as_ref)
    }

    /// All workloads in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Workload> {
        self.workloads.values().map(AsRef::as_ref)
    }
}
