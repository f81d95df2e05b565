//! The texts of machine files: built-in ones by name, others by path.

use std::path::{Path, PathBuf};

use crate::builtin::BUILTIN;
use crate::problem::Report;

/// The maximum size of a machine file.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Why a machine could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The name is neither that of a built-in machine nor that of a file.
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

/// The text of a built-in machine or of a file, and the name to report problems under.
///
/// # Errors
/// If there is no such machine or file.
pub(crate) fn text(name: &str) -> Result<(String, String), OpenError> {
    if let Some(builtin) = BUILTIN.iter().find(|b| b.name == name) {
        return Ok((format!("machines/{name}.toml"), builtin.text.into()));
    }
    let path = Path::new(name);
    let looks_like_path = name.contains(['/', '.']) || path.exists();
    if !looks_like_path {
        let names = BUILTIN.iter().map(|b| b.name);
        let hint = match crate::read::nearest(name, names) {
            Some(similar) => format!("; did you mean `{similar}`?"),
            None => "; `longma machine list` lists the built-in machines".into(),
        };
        return Err(OpenError::Unknown { name: name.into(), hint });
    }
    let read = |error| OpenError::Read { path: path.into(), error };
    let opened = crate::bounded::read_text(path, MAX_FILE_BYTES).map_err(read)?;
    let text = opened.ok_or_else(|| OpenError::TooLarge { path: path.into() })?;
    Ok((name.into(), text))
}
