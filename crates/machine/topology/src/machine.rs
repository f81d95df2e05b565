//! A checked machine: the parts of one file, which are consistent, and its layout.

use crate::check::check_parts;
use crate::extends::read_extended;
use crate::files::{self, OpenError};
use crate::layout::Layout;
use crate::parts::{LINE_BYTES, MachineFile};
use crate::problem::Report;
use crate::read::Problems;
use std::ops::Deref;

/// A machine whose parts are consistent.
#[derive(Clone, Debug)]
pub struct Machine {
    file: MachineFile,
    layout: Layout,
}

/// The result of checking a text: the machine, if there are no errors, and the report.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The machine; `None` if there are errors.
    pub machine: Option<Machine>,
    /// Errors and warnings.
    pub report: Report,
}

/// Parses and checks the text of a machine file. `file` is the name that the report gives. If the file extends another
/// one by a path, the path is relative to the folder of `file`.
pub fn check(file: &str, text: &str) -> Checked {
    let mut problems = Problems::default();
    let (read, text) = read_extended(file, text, &mut problems, |table, problems| {
        let parts = MachineFile::read_table(table, 0..0, problems);
        let layout = check_parts(&parts, problems);
        (parts, layout)
    });
    let report = problems.into_report(file, &text);
    let machine = read
        .filter(|_| report.errors() == 0)
        .and_then(|(parts, layout)| layout.map(|layout| Machine { file: parts, layout }));
    Checked { machine, report }
}

impl Machine {
    /// The longest line of its caches, bytes; [`LINE_BYTES`] if it has no cache.
    pub fn line_bytes(&self) -> u64 {
        self.file.caches.values().map(|cache| cache.line.bytes()).max().unwrap_or(LINE_BYTES)
    }

    /// Parses a machine from a text.
    ///
    /// # Errors
    /// The report, if it has errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, Report> {
        let checked = check(file, text);
        checked.machine.ok_or(checked.report)
    }

    /// Opens a built-in machine by name, or a file by path.
    ///
    /// # Errors
    /// If there is no such machine or file, or if the file has errors.
    pub fn open(name: &str) -> Result<Self, OpenError> {
        let (file, text) = Self::text(name)?;
        Self::parse(&file, &text).map_err(OpenError::Invalid)
    }

    /// The text of a built-in machine or of a file, and the name to report problems under.
    ///
    /// # Errors
    /// If there is no such machine or file.
    pub fn text(name: &str) -> Result<(String, String), OpenError> {
        files::text(name)
    }

    /// Every core, cache and node as an instance.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The parts as a machine file, with every default written out.
    pub fn to_toml(&self) -> String {
        self.file.to_toml()
    }

    /// The parts as written in the machine file.
    pub fn parts(&self) -> &MachineFile {
        &self.file
    }
}

impl Deref for Machine {
    type Target = MachineFile;
    fn deref(&self) -> &MachineFile {
        &self.file
    }
}
