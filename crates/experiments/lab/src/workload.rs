//! What a point of an experiment runs: a workload takes a point and gives metrics.
//! Not where the points come from (`experiment`), nor who runs them in which order (`campaign`).

use crate::failure::Failure;
use crate::point::Point;
use crate::setting::Setting;
use longma_topology::units::{Size, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Something that can be run at a point and measured: a guest program, a device, a piece of software.
///
/// `run` is called from several threads at once. What it returns in [`Metrics::results`] depends on the point alone.
pub trait Workload: Send + Sync {
    /// What an experiment file calls it.
    fn name(&self) -> &str;

    /// One line that says what it is.
    fn description(&self) -> &str;

    /// The parameters it takes.
    fn parameters(&self) -> &[Parameter];

    /// Parameters that only say where something is, which [`Workload::inputs`] says what it is of: no part of a result or of its key.
    fn places(&self) -> &'static [&'static str] {
        &[]
    }

    /// Raised whenever the same point gives other results than before, so that stored ones are not taken for them.
    fn revision(&self) -> u32 {
        1
    }

    /// What a point depends on besides its machine and parameters, by name: the digest of the program it runs, for instance.
    ///
    /// # Errors
    /// If something that the point needs is not there.
    fn inputs(&self, _point: &Point) -> Result<BTreeMap<String, String>, Failure> {
        Ok(BTreeMap::new())
    }

    /// What tells points apart that [`Workload::rehearse`] may answer differently; it is asked once for each.
    fn setup(&self, point: &Point) -> String {
        point.key.to_string()
    }

    /// Sets up a point without running it.
    ///
    /// # Errors
    /// Why it could not be run.
    fn rehearse(&self, _point: &Point) -> Result<Rehearsal, Failure> {
        Ok(Rehearsal::default())
    }

    /// Runs one point and measures it.
    ///
    /// # Errors
    /// Why there are no metrics. Ends soon with [`FailureKind::Stopped`](crate::FailureKind::Stopped) once `stop` asks for it.
    fn run(&self, point: &Point, stop: &Stop) -> Result<Metrics, Failure>;
}

/// A parameter as a workload describes it.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its name in an experiment file.
    pub name: &'static str,
    /// What it may hold.
    pub kind: Kind,
    /// The value where none is given; `None` if one must be given.
    pub default: Option<Setting>,
    /// What it means, with its unit if the kind does not tell.
    pub description: &'static str,
}

/// What a parameter may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// true or false.
    Flag,
    /// A whole number.
    Integer,
    /// A number.
    Number,
    /// A text.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A size such as "64 KiB".
    Size,
    /// A time such as "85 ns".
    Time,
    /// A list of texts.
    Texts,
    /// A table of texts.
    Named,
}

impl Kind {
    /// Whether `value` is of this kind; the error says what was expected.
    ///
    /// # Errors
    /// What is wrong with the value, and how to mend it.
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

/// What is known of a point without running it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rehearsal {
    /// What it measures; `None` if the workload cannot tell.
    pub measures: Option<Vec<Measure>>,
    /// Parameters, or entries of them as `TABLE.NAME`, that are given and do nothing, each with the reason.
    pub idle: Vec<(String, String)>,
    /// Those that do something.
    pub used: Vec<String>,
}

/// Something that a workload measures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measure {
    /// Its name, with `host.` before it if the host's speed decides it.
    pub name: String,
    /// Its unit; empty if only the experiment knows.
    pub unit: String,
    /// What it says.
    pub description: String,
}

impl Measure {
    /// A measure of these words.
    pub fn new(name: impl Into<String>, unit: impl Into<String>, description: impl Into<String>) -> Self {
        Self { name: name.into(), unit: unit.into(), description: description.into() }
    }
}

/// What a run gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// What the point alone decides: the same on every run and every host.
    pub results: BTreeMap<String, f64>,
    /// What this host's speed decides, such as seconds by the wall. Kept beside the results; no part of them.
    pub host: BTreeMap<String, f64>,
}

impl Metrics {
    /// Adds a result.
    pub fn result(&mut self, name: &str, value: f64) {
        self.results.insert(name.into(), value);
    }
}

/// A request to stop, seen by everything that runs.
#[derive(Debug, Default)]
pub struct Stop(AtomicBool);

impl Stop {
    /// Asks all to stop.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody asked.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The workloads an experiment may name.
#[derive(Default)]
pub struct Registry {
    workloads: BTreeMap<String, Box<dyn Workload>>,
}

impl Registry {
    /// Adds a workload; one of the same name is replaced.
    pub fn add(&mut self, workload: impl Workload + 'static) {
        self.workloads.insert(workload.name().into(), Box::new(workload));
    }

    /// The workload called `name`.
    pub fn get(&self, name: &str) -> Option<&dyn Workload> {
        self.workloads.get(name).map(AsRef::as_ref)
    }

    /// Every workload in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Workload> {
        self.workloads.values().map(AsRef::as_ref)
    }
}
