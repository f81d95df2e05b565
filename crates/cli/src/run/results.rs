//! Views of a simulated run's result besides the summary: the page of `--report` and the assembly of `--annotate`.

use std::path::{Path, PathBuf};

use longma_run_results::{
    Figures, annotate,
    page::{ANNOTATED_FUNCTIONS, RunPage, SOURCE_LINES, page},
};
use longma_runner::{
    Report,
    simulation::{AnnotatedSelection, Annotation, RunResult, TimingSimulation},
};
use longma_topology::Machine;
use serde_json::Value;

use super::{arguments::Arguments, failure::Failure};

/// Number of functions that `--annotate` prints.
const HOTTEST: usize = 3;
/// Number of source lines that `--annotate` prints.
const LINES: usize = 15;

/// The requested views.
pub struct Views {
    /// The file of `--report`.
    report: Option<PathBuf>,
    /// The file of `--report-against` and its figures.
    against: Option<(String, Figures)>,
    /// The functions of `--annotate`.
    annotated: Option<AnnotatedSelection>,
    /// Whether single instructions can be counted: not in a sampled run.
    counts_instructions: bool,
}

impl Views {
    /// The views that the command line requests.
    ///
    /// # Errors
    /// The file of `--report-against` is not a result.
    pub fn of(arguments: &Arguments) -> Result<Self, Failure> {
        let against = arguments.report_against.as_ref().map(|path| {
            let figures = Figures::read(path).map_err(|error| Failure::own(&error, ""))?;
            Ok((path.display().to_string(), figures))
        });
        let named = |name: &String| match name.as_str() {
            "" => AnnotatedSelection::Hottest(HOTTEST),
            name => AnnotatedSelection::Named(name.into()),
        };
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        Ok(Self {
            report: arguments.report.as_ref().map(absolute),
            against: against.transpose()?,
            annotated: arguments.annotate.as_ref().map(named),
            counts_instructions: arguments.sample.is_none(),
        })
    }

    /// The file of `--report`.
    pub fn file(&self) -> Option<&PathBuf> {
        self.report.as_ref()
    }

    fn wants_instructions(&self) -> bool {
        self.counts_instructions && (self.report.is_some() || self.annotated.is_some())
    }

    /// Makes the simulation record the data of the views.
    pub fn request(&self, simulation: &mut TimingSimulation) {
        if self.report.is_some() {
            simulation.keep_intervals();
        }
        if self.wants_instructions() {
            simulation.count_instructions();
        }
    }

    /// The costs of single instructions, if a view shows them.
    pub fn annotation(&self, simulation: &TimingSimulation, report: &Report<'_>) -> Option<Annotation> {
        let hottest = AnnotatedSelection::Hottest(ANNOTATED_FUNCTIONS);
        let selection = self.annotated.as_ref().unwrap_or(&hottest);
        self.wants_instructions().then(|| simulation.annotation(report, selection, SOURCE_LINES))
    }

    /// The text of `--annotate`.
    pub fn text(&self, result: &RunResult, annotation: Option<&Annotation>) -> Option<String> {
        self.annotated.as_ref()?;
        let mut shown = annotation?.clone();
        shown.lines.truncate(LINES);
        Some(format!("\n{}", annotate::text(&shown, result.summary.stack.is_some())))
    }

    /// The result as JSON, with the functions of `--annotate`.
    pub fn object(&self, result: &RunResult, annotation: Option<&Annotation>) -> Value {
        let mut object = result.to_json();
        if let Some(annotation) = annotation.filter(|_| self.annotated.is_some()) {
            object["annotation"] = annotate::object(annotation);
        }
        object
    }

    /// The page of `--report`.
    pub fn page(&self, result: &RunResult, machine: &Machine, annotation: Option<&Annotation>) -> String {
        page(&RunPage {
            result,
            machine,
            command: &command(),
            annotation,
            against: self.against.as_ref().map(|(name, figures)| (name.as_str(), figures)),
        })
    }
}

/// The command as typed into a shell.
fn command() -> String {
    let mut words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let name = words.next().unwrap_or_default();
    let name = Path::new(&name).file_name().map_or(name.clone(), |file| file.to_string_lossy().into_owned());
    let words: Vec<String> =
        [name].into_iter().chain(words).map(|word| longma_text::quote_for_shell(&word)).collect();
    words.join(" ")
}
