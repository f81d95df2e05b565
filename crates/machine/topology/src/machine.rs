//! A checked machine: the parts of one file, which are consistent, and its layout.

use crate::builtin::BUILTIN;
use crate::check::check_parts;
use crate::layout::Layout;
use crate::parts::{LINE_BYTES, MachineFile};
use crate::problem::Report;
use crate::read::{Problems, read_text};
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// The maximum size of a machine file.
const MAX_FILE_BYTES: u64 = 4 << 20;

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

/// Why a machine could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The name is neither a built-in machine nor a file.
    #[error("there is no machine or file called `{name}`{hint}")]
    Unknown {
        /// The name or path that was given.
        name: String,
        /// A suggestion, or how to list the built-in machines.
        hint: String,
    },
    /// The file cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The file is too large to be a machine file.
    #[error("{path} is larger than {MAX_FILE_BYTES} bytes, the maximum for a machine file")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file has errors.
    #[error("{}", .0.summary())]
    Invalid(Report),
}

/// Parses and checks the text of a machine file. `file` is the name that the report gives.
pub fn check(file: &str, text: &str) -> Checked {
    let mut problems = Problems::default();
    let (parts, layout) = read_text(text, &mut problems, |table, problems| {
        let parts = MachineFile::read_table(table, 0..0, problems);
        let layout = check_parts(&parts, problems);
        (parts, layout)
    });
    let report = problems.into_report(file, text);
    let machine = layout.filter(|_| report.errors() == 0).map(|layout| Machine { file: parts, layout });
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
        if let Some(builtin) = BUILTIN.iter().find(|b| b.name == name) {
            return Ok((format!("machines/{name}.toml"), builtin.text.into()));
        }
        let path = Path::new(name);
        let looks_like_path = name.contains(['/', '.']) || path.exists();
        if !looks_like_path {
            let names = BUILTIN.iter().map(|b| b.name);
            let hint = match crate::read::nearest(name, names) {
                Some(near) => format!("; did you mean `{near}`?"),
                None => "; `longma machine list` lists the built-in machines".into(),
            };
            return Err(OpenError::Unknown { name: name.into(), hint });
        }
        let read = |error| OpenError::Read { path: path.into(), error };
        let opened = crate::bounded::read_text(path, MAX_FILE_BYTES).map_err(read)?;
        let text = opened.ok_or_else(|| OpenError::TooLarge { path: path.into() })?;
        Ok((name.into(), text))
    }

    /// Every core, cache and node as an instance.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The parts as a machine file, with every default written out.
    pub fn to_toml(&self) -> String {
        self.file.to_toml()
    }

    /// The parts as they are written in the machine file.
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
