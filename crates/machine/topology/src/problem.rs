//! Problems of a machine file, with position and correction. Reports are rendered with the miette crate.

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, Severity, SourceCode,
};
use serde::Serialize;
use std::fmt;
use std::ops::Range;

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The file cannot be used.
    Error,
    /// The file can be used, but a value is probably a mistake.
    Warning,
}

/// One problem of a machine file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Error or warning.
    pub level: Level,
    /// The fault, as a sentence without a full stop.
    pub message: String,
    /// A few words next to the marked text.
    pub label: String,
    /// How to fix it; may be empty.
    pub help: String,
    /// The marked text, a range of bytes.
    pub span: Range<usize>,
}

/// A machine file's text and its problems, in the order of the text.
#[derive(Clone, Debug)]
pub struct Report {
    file: String,
    text: String,
    problems: Vec<Problem>,
}

/// A problem with its line and column, for `--format json`.
#[derive(Clone, Debug, Serialize)]
pub struct LocatedProblem<'a> {
    /// Error or warning.
    pub level: Level,
    /// The file's name as given.
    pub file: &'a str,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The fault.
    pub message: &'a str,
    /// A few words on the marked text.
    pub label: &'a str,
    /// How to fix it.
    pub help: &'a str,
}

impl Report {
    pub(crate) fn new(file: &str, text: &str, mut problems: Vec<Problem>) -> Self {
        for problem in &mut problems {
            let end = problem.span.end.min(text.len());
            problem.span = problem.span.start.min(end)..end;
        }
        problems.sort_by_key(|p| (p.span.start, p.level, p.span.end));
        problems.dedup();
        Self { file: file.into(), text: text.into(), problems }
    }

    /// Adds an error that a caller found when it used the machine. The error is reported at the first line of the text
    /// that begins with `table`.
    pub fn add_error(&mut self, message: String, table: &str) {
        let starts = std::iter::once(0).chain(self.text.match_indices('\n').map(|(at, _)| at + 1));
        let start = starts.into_iter().find(|at| self.text[*at..].starts_with(table));
        let span = start.map_or(0..0, |at| at..at + table.len());
        let problem =
            Problem { level: Level::Error, message, label: String::new(), help: String::new(), span };
        let at = self.problems.partition_point(|existing| existing.span.start <= problem.span.start);
        self.problems.insert(at, problem);
    }

    /// All problems, in the order of the text.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The number of errors.
    pub fn errors(&self) -> usize {
        self.problems.iter().filter(|p| p.level == Level::Error).count()
    }

    /// The number of warnings.
    pub fn warnings(&self) -> usize {
        self.problems.len() - self.errors()
    }

    /// All problems with line and column.
    pub fn located(&self) -> Vec<LocatedProblem<'_>> {
        let locate = |p: &'_ Problem| {
            let start = floor(&self.text, p.span.start);
            let line = start.matches('\n').count() + 1;
            let column = start.rsplit('\n').next().unwrap_or("").chars().count() + 1;
            (line, column)
        };
        let with_place = |p| {
            let (line, column) = locate(p);
            let Problem { level, message, label, help, .. } = p;
            LocatedProblem { level: *level, file: &self.file, line, column, message, label, help }
        };
        self.problems.iter().map(with_place).collect()
    }

    /// The number of problems and the first error, on one line.
    pub fn summary(&self) -> String {
        let first = self.located().into_iter().find(|p| p.level == Level::Error);
        let first = first.map(|p| {
            let help = if p.help.is_empty() { String::new() } else { format!("; {}", p.help) };
            format!(": line {}, column {}: {}{help}", p.line, p.column, p.message)
        });
        format!("{self}{}", first.unwrap_or_default())
    }

    /// All problems as text for people, each with the lines of the file that it concerns. `colour` adds ANSI colours.
    pub fn render(&self, width: usize, colour: bool) -> String {
        let theme = if colour { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
        let printer = GraphicalReportHandler::new_themed(theme).with_width(width).with_links(false);
        let mut out = String::new();
        for problem in &self.problems {
            let source = NamedSource::new(&self.file, self.text.clone());
            let excerpt = Shown { problem, source };
            if printer.render_report(&mut out, &excerpt).is_err() {
                out.push_str(&format!("{}\n", problem.message));
            }
        }
        out
    }
}

/// The text before byte `at`, rounded down to a character boundary.
fn floor(text: &str, mut at: usize) -> &str {
    at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    &text[..at]
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        write!(f, "{}: {}, {}", self.file, plural(self.errors(), "error"), plural(self.warnings(), "warning"))
    }
}

impl std::error::Error for Report {}

#[derive(Debug)]
struct Shown<'a> {
    problem: &'a Problem,
    source: NamedSource<String>,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem.message)
    }
}

impl std::error::Error for Shown<'_> {}

impl Diagnostic for Shown<'_> {
    fn severity(&self) -> Option<Severity> {
        Some(match self.problem.level {
            Level::Error => Severity::Error,
            Level::Warning => Severity::Warning,
        })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        (!self.problem.help.is_empty()).then(|| Box::new(&self.problem.help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        Some(&self.source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let label = (!self.problem.label.is_empty()).then(|| self.problem.label.clone());
        let span = (self.problem.span.start, self.problem.span.len());
        Some(Box::new(std::iter::once(LabeledSpan::new(label, span.0, span.1))))
    }
}
