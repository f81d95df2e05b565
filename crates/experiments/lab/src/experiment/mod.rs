//! An experiment: one file that says what is run at which points, what is measured, and what was published.
//! Not the running (`campaign`), nor the points counted out (`points`).
//! The published values cite their sources; the format is checked in the manner of machine files.

mod check;
mod mechanism;
mod plot;
mod published;
mod shown;
mod sweep;

pub use mechanism::{Explain, Mechanism};
pub use plot::{LogAxis, Plot, PlotKind};
pub use published::{Published, Reading};
pub use shown::Shown;
pub(crate) use sweep::combinations;
pub use sweep::{Axis, Column as SweepColumn};

use crate::read::{Map, PartDoc, Problems, Value, choice, part, read_text};
use crate::setting::Setting;
use crate::workload::Registry;
use longma_topology::Report;
use longma_topology::parts::Source;
use longma_topology::units::Time;
use std::path::{Path, PathBuf};

/// The largest experiment file that is read.
const MAX_FILE_BYTES: u64 = 4 << 20;

choice! {
    /// Which direction of a metric a person hopes for.
    pub enum Better = "a direction" {
        /// More is better.
        More = "more",
        /// Less is better.
        Less = "less",
    }
}

part! {
    /// A metric: what is measured at each point.
    pub struct Metric = "metric" {
        /// Its unit, as printed.
        unit: String,
        /// What it is called in tables and charts; its name if left out.
        title: Option<String>,
        /// Which of the workload's metrics it is; its own name if left out. `host.NAME` is one that this host's speed decides.
        of: Option<String>,
        /// Which of the workload's metrics it is divided by; a point where that is 0 has no value.
        per: Option<String>,
        /// What it is multiplied by to be in its unit.
        scale: Option<Figure>,
        /// Which direction is better.
        better: Option<Better>,
    }
}

part! {
    /// What is different in the quick form of an experiment.
    pub struct Quick = "quick form" {
        /// Parameters with other values.
        parameters: Map<Setting>,
        /// Axes with other values; they must be axes of the whole experiment.
        sweep: Map<Axis>,
        /// Parameters that vary together, in place of all of the whole form's.
        zip: Vec<Map<SweepColumn>>,
        /// Other machines.
        machines: Vec<crate::read::Name>,
    }
}

part! {
    /// An experiment file.
    pub struct ExperimentFile = "experiment file" {
        /// Version of this format: 1.
        format: u32,
        /// Short name: small letters, digits and hyphens, as the file's.
        name: String,
        /// One line that says what is measured.
        title: String,
        /// What a reader should know: the set-up, what differs from the paper's, what to look for.
        description: Option<String>,
        /// Where published values come from, by the key used in `source`.
        sources: Map<Source>,
        /// The workload that runs at every point.
        workload: crate::read::Name,
        /// Machines, each a built-in one's name or a machine file's path from this file; every point is run on each.
        machines: Vec<crate::read::Name>,
        /// Parameters of the workload that are the same at every point.
        parameters: Map<Setting>,
        /// Parameters that vary: every combination of their values is a point. `machine.PATH` varies a key of the machine file.
        sweep: Map<Axis>,
        /// Parameters that vary together: the first values of all, the second values of all, and so on.
        zip: Vec<Map<SweepColumn>>,
        /// How long a point may take.
        time_limit: Option<Time>,
        /// What is measured.
        metrics: Map<Metric>,
        /// What was published.
        published: Vec<Published>,
        /// The figures of the report.
        plots: Vec<Plot>,
        /// What tables and charts call parameters that vary. One with an entry stands for all that vary with it in a `[[zip]]` and have none.
        shown: Map<Shown>,
        /// What `longma explain` switches off and on.
        explain: Option<Explain>,
        /// The quick form, for a first look; the whole if left out.
        quick: Option<Quick>,
    }
}

/// A finite number of an experiment file.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
#[serde(transparent)]
pub struct Figure(pub f64);

impl Value for Figure {
    fn kind() -> String {
        "number".into()
    }
    fn read(node: &crate::read::Node<'_>, problems: &mut Problems) -> Option<Self> {
        crate::setting::finite(node, problems).map(Figure)
    }
    fn placeholder() -> Self {
        Figure(0.0)
    }
}

/// An experiment whose parts are known to fit each other.
#[derive(Clone, Debug)]
pub struct Experiment {
    file: ExperimentFile,
    path: PathBuf,
    folder: PathBuf,
}

/// Why an experiment could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The file is too large to be an experiment file.
    #[error("{path} holds more than the {MAX_FILE_BYTES} bytes that an experiment file may have")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file has errors.
    #[error("{0}")]
    Invalid(Report),
}

/// The outcome of checking a text: the experiment, if it has no errors, and all that was found.
#[derive(Clone, Debug)]
pub struct CheckedExperiment {
    /// The experiment; `None` if there are errors.
    pub experiment: Option<Experiment>,
    /// Errors and warnings.
    pub report: Report,
}

/// Every kind of part of an experiment file with its keys, for the book.
pub fn keys() -> Vec<PartDoc> {
    let mut parts = Vec::new();
    ExperimentFile::describe(&mut parts);
    parts
}

impl Experiment {
    /// Checks the text of an experiment file at `path`, whose paths begin at `folder`.
    pub fn check(path: &Path, folder: &Path, text: &str, registry: &Registry) -> CheckedExperiment {
        let mut problems = Problems::default();
        let file = read_text(text, &mut problems, |table, problems| {
            let file = ExperimentFile::read_table(table, 0..0, problems);
            check::check(&file, folder, registry, problems);
            shown::check(&file, problems);
            file
        });
        let report = problems.into_report(&path.display().to_string(), text);
        let experiment = Experiment { file, path: path.into(), folder: folder.into() };
        CheckedExperiment { experiment: (report.errors() == 0).then_some(experiment), report }
    }

    /// Checks as [`Experiment::check`] does, and has `further` look at what is sound by itself.
    pub(crate) fn check_further(
        path: &Path,
        folder: &Path,
        text: &str,
        registry: &Registry,
        further: impl FnOnce(&Experiment, &mut Problems),
    ) -> CheckedExperiment {
        let first = Self::check(path, folder, text, registry);
        let Some(experiment) = first.experiment else { return first };
        // What was found before is found again, since a report cannot be added to.
        let mut problems = Problems::default();
        let again = read_text(text, &mut problems, |table, problems| {
            let file = ExperimentFile::read_table(table, 0..0, problems);
            check::check(&file, folder, registry, problems);
            file
        });
        drop(again);
        further(&experiment, &mut problems);
        let report = problems.into_report(&path.display().to_string(), text);
        CheckedExperiment { experiment: (report.errors() == 0).then_some(experiment), report }
    }

    /// Opens the experiment file at `path`.
    ///
    /// # Errors
    /// If it cannot be read or has errors.
    pub fn open(path: &Path, registry: &Registry) -> Result<Self, OpenError> {
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::open_in(path, folder, registry)
    }

    /// Opens the experiment file at `path`, whose paths begin at `folder`.
    ///
    /// # Errors
    /// If it cannot be read or has errors.
    pub fn open_in(path: &Path, folder: &Path, registry: &Registry) -> Result<Self, OpenError> {
        let text = read_file(path)?;
        let checked = Self::check(path, folder, &text, registry);
        checked.experiment.ok_or(OpenError::Invalid(checked.report))
    }

    /// The parts, as the file gives them.
    pub fn parts(&self) -> &ExperimentFile {
        &self.file
    }

    /// The file it was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder at which paths inside the file begin.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Metrics by name, in the order of the file.
    pub fn metrics(&self) -> Vec<(&str, &Metric)> {
        in_order(&self.file.metrics, |m| m.marks.at())
    }
}

/// The entries of a map in the order in which the file has them.
pub(crate) fn in_order<T>(map: &Map<T>, at: impl Fn(&T) -> std::ops::Range<usize>) -> Vec<(&str, &T)> {
    let mut entries: Vec<_> = map.iter().map(|(name, value)| (name.as_str(), value)).collect();
    entries.sort_by_key(|(_, value)| at(value).start);
    entries
}

/// The text of an experiment file.
///
/// # Errors
/// If it cannot be read or is too large.
pub(crate) fn read_file(path: &Path) -> Result<String, OpenError> {
    let read = |error| OpenError::Read { path: path.into(), error };
    let opened = longma_topology::read_text(path, MAX_FILE_BYTES).map_err(read)?;
    opened.ok_or_else(|| OpenError::TooLarge { path: path.into() })
}

impl Metric {
    /// What tables and charts call a metric of this `name`.
    pub fn title<'a>(&'a self, name: &'a str) -> &'a str {
        self.title.as_deref().unwrap_or(name)
    }
}
