//! An experiment file: what runs at which points, what is measured, and what was published. `points` enumerates the
//! points, and `campaign` runs them.

mod check;
mod expected;
mod mechanism;
mod plot;
mod published;
mod requirement;
mod sensitivity;
mod shown;
mod sweep;

pub use expected::Expected;
pub use mechanism::{Explain, Mechanism};
pub use plot::{LogAxis, Plot, PlotKind};
pub use published::{Published, Reading};
pub(crate) use requirement::requirements;
pub use sensitivity::Variation;
pub(crate) use sensitivity::check_factors;
pub use shown::Shown;
pub use sweep::{Axis, Column as SweepColumn};
pub(crate) use sweep::{Combinations, combinations};

use crate::read::{Map, PartDoc, Problems, Value, choice, part, read_text};
use crate::setting::Setting;
use crate::workload::Registry;
use longma_topology::Report;
use longma_topology::parts::Source;
use longma_topology::units::Time;
use std::path::{Path, PathBuf};

/// Maximum size of an experiment file.
const MAX_FILE_BYTES: u64 = 4 << 20;

choice! {
    /// Which direction of a metric is better.
    pub enum Better = "a direction" {
        /// More is better.
        More = "more",
        /// Less is better.
        Less = "less",
    }
}

part! {
    /// A metric: a value measured at each point.
    pub struct Metric = "metric" {
        /// Unit, as printed.
        unit: String,
        /// Title in tables and charts; the name if left out.
        title: Option<String>,
        /// The workload's metric; the same name if left out. `host.NAME` is a metric that depends on the host's speed.
        of: Option<String>,
        /// A metric of the workload to divide by. A point where it is 0 has no value.
        per: Option<String>,
        /// Factor that converts the value to the unit.
        scale: Option<Figure>,
        /// A formula over metrics, in place of `of`, `per` and `scale`: `at(time, tree = 'cow') / time`.
        formula: Option<String>,
        /// Which direction is better.
        better: Option<Better>,
    }
}

part! {
    /// Changes for the quick form of an experiment.
    pub struct Quick = "quick form" {
        /// Parameters with other values.
        parameters: Map<Setting>,
        /// Axes with other values. They must be axes of the full experiment.
        sweep: Map<Axis>,
        /// Parameters that vary together; replaces all those of the full form.
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
        /// Short name: lower-case letters, digits and hyphens, the same as the file's name.
        name: String,
        /// What is measured, in one line.
        title: String,
        /// Further information: the setup, differences from the paper, what to look for.
        description: Option<String>,
        /// Sources of published values, by the key used in `source`.
        sources: Map<Source>,
        /// The workload that runs at every point.
        workload: crate::read::Name,
        /// Machines, each the name of a built-in one or the path of a machine file relative to this file. Every point
        /// runs on each machine.
        machines: Vec<crate::read::Name>,
        /// Parameters of the workload that are the same at every point.
        parameters: Map<Setting>,
        /// Parameters that vary: every combination of their values is a point. `machine.PATH` varies a key of the
        /// machine file.
        sweep: Map<Axis>,
        /// Parameters that vary together: the first values of all, the second values of all, and so on.
        zip: Vec<Map<SweepColumn>>,
        /// Conditions between parameters, such as `machine.caches.l2.size < machine.caches.l3.size` or `threads <= 4`.
        /// Combinations that do not meet all of them are left out.
        require: Vec<String>,
        /// Swept parameters that repeat a measurement, such as `seed`: tables, charts and comparisons show the means over
        /// their values with 95 % intervals.
        replicates: Vec<crate::read::Name>,
        /// Time limit of a point.
        time_limit: Option<Time>,
        /// Metrics.
        metrics: Map<Metric>,
        /// Published values.
        published: Vec<Published>,
        /// Figures of the report.
        plots: Vec<Plot>,
        /// Names of varying parameters in tables and charts. In a `[[zip]]`, a parameter with an entry represents those
        /// without one.
        shown: Map<Shown>,
        /// The mechanisms for `longma explain`.
        explain: Option<Explain>,
        /// How `longma experiment sensitivity` varies the estimates of the machine files.
        sensitivity: Option<Variation>,
        /// A quick form for a first look; the full experiment if left out.
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

/// A validated experiment.
#[derive(Clone, Debug)]
pub struct Experiment {
    file: ExperimentFile,
    path: PathBuf,
    folder: PathBuf,
}

/// Why an experiment cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// The file is too large to be an experiment file.
    #[error("{path} exceeds the maximum of {MAX_FILE_BYTES} bytes for an experiment file")]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is invalid.
    #[error("{0}")]
    Invalid(Report),
}

/// Result of checking a text.
#[derive(Clone, Debug)]
pub struct CheckedExperiment {
    /// The experiment; `None` if there are errors.
    pub experiment: Option<Experiment>,
    /// All errors and warnings.
    pub report: Report,
}

/// All parts of an experiment file with their keys, for the book.
pub fn keys() -> Vec<PartDoc> {
    let mut parts = Vec::new();
    ExperimentFile::describe(&mut parts);
    parts
}

impl Experiment {
    /// Checks the text of an experiment file at `path`. Paths in it are relative to `folder`.
    pub fn check(path: &Path, folder: &Path, text: &str, registry: &Registry) -> CheckedExperiment {
        let mut problems = Problems::default();
        let file = read_text(text, &mut problems, |table, problems| {
            let file = ExperimentFile::read_table(table, 0..0, problems);
            check::check(&file, folder, registry, problems);
            shown::check(&file, problems);
            requirement::check(&file, problems);
            file
        });
        let report = problems.into_report(&path.display().to_string(), text);
        let experiment = Experiment { file, path: path.into(), folder: folder.into() };
        CheckedExperiment { experiment: (report.errors() == 0).then_some(experiment), report }
    }

    /// Checks like [`Experiment::check`], and if there are no errors also runs `further`.
    pub(crate) fn check_with(
        path: &Path,
        folder: &Path,
        text: &str,
        registry: &Registry,
        further: impl FnOnce(&Experiment, &mut Problems),
    ) -> CheckedExperiment {
        let first = Self::check(path, folder, text, registry);
        let Some(experiment) = first.experiment else { return first };
        // A report cannot be extended, so check again from the start.
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
    /// If it cannot be read or is invalid.
    pub fn open(path: &Path, registry: &Registry) -> Result<Self, OpenError> {
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::open_in(path, folder, registry)
    }

    /// Opens the experiment file at `path`. Paths in it are relative to `folder`.
    ///
    /// # Errors
    /// If it cannot be read or is invalid.
    pub fn open_in(path: &Path, folder: &Path, registry: &Registry) -> Result<Self, OpenError> {
        let text = read_file(path)?;
        let checked = Self::check(path, folder, &text, registry);
        checked.experiment.ok_or(OpenError::Invalid(checked.report))
    }

    /// The contents of the file.
    pub fn parts(&self) -> &ExperimentFile {
        &self.file
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Directory to which paths in the file are relative.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Metrics by name, in the order of the file.
    pub fn metrics(&self) -> Vec<(&str, &Metric)> {
        in_file_order(&self.file.metrics, |m| m.marks.at())
    }
}

/// The entries of a map in the order of the file.
pub(crate) fn in_file_order<T>(map: &Map<T>, at: impl Fn(&T) -> std::ops::Range<usize>) -> Vec<(&str, &T)> {
    let mut entries: Vec<_> = map.iter().map(|(name, value)| (name.as_str(), value)).collect();
    entries.sort_by_key(|(_, value)| at(value).start);
    entries
}

/// Reads the text of an experiment file.
///
/// # Errors
/// If it cannot be read or is too large.
pub(crate) fn read_file(path: &Path) -> Result<String, OpenError> {
    let read = |error| OpenError::Read { path: path.into(), error };
    let opened = longma_topology::read_text(path, MAX_FILE_BYTES).map_err(read)?;
    opened.ok_or_else(|| OpenError::TooLarge { path: path.into() })
}

impl Metric {
    /// Title of a metric with this `name`.
    pub fn title<'a>(&'a self, name: &'a str) -> &'a str {
        self.title.as_deref().unwrap_or(name)
    }
}
