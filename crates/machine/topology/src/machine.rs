//! A machine: the parts of one file, known to fit each other.
//! Not the checks themselves (`check`), nor the copies counted out (`layout`).

use crate::builtin::BUILTIN;
use crate::check::check_parts;
use crate::layout::Layout;
use crate::parts::{LINE_BYTES, MachineFile};
use crate::problem::Report;
use crate::read::{Problems, read_text};
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// The largest machine file that is read.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// A machine whose parts are known to fit each other.
#[derive(Clone, Debug)]
pub struct Machine {
    file: MachineFile,
    layout: Layout,
}

/// The outcome of checking a text: the machine, if it has no errors, and all that was found.
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
    /// It is neither a built-in name nor a file.
    #[error("there is no machine and no file called `{name}`{hint}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What was probably meant, or how to list what there is.
        hint: String,
    },
    /// The file cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The file is too large to be a machine file.
    #[error("{path} holds more than the {MAX_FILE_BYTES} bytes that a machine file may have")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file has errors.
    #[error("{}", .0.in_brief())]
    Invalid(Report),
}

/// Reads and checks the text of a machine file. `file` is the name that problems are reported under.
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
    /// Bytes of the longest line of its caches; [`LINE_BYTES`] if it has none.
    pub fn line_bytes(&self) -> u64 {
        self.file.caches.values().map(|cache| cache.line.bytes()).max().unwrap_or(LINE_BYTES)
    }

    /// Reads a machine from a text.
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
                None => "; `longma machine list` names the machines there are".into(),
            };
            return Err(OpenError::Unknown { name: name.into(), hint });
        }
        let read = |error| OpenError::Read { path: path.into(), error };
        let opened = crate::bounded::read_text(path, MAX_FILE_BYTES).map_err(read)?;
        let text = opened.ok_or_else(|| OpenError::TooLarge { path: path.into() })?;
        Ok((name.into(), text))
    }

    /// Every core, cache and node counted out.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The parts as a machine file, with every default written out.
    pub fn to_toml(&self) -> String {
        self.file.to_toml()
    }

    /// The parts, as the file gives them.
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
