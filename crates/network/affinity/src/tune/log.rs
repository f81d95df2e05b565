//! The tuner's decision log: which setting was changed and why. JSON lines in two rotating files of limited size. It is
//! not used to restore settings.

use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Size in bytes at which the file is rotated. The previous rotated file is overwritten.
pub const MAX_LOG_BYTES: u64 = 512 << 10;

/// Type of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecisionKind {
    /// Tuning started.
    Begun,
    /// A setting was changed.
    Moved,
    /// A setting would have been changed (dry run).
    WouldMove,
    /// A setting is not changed, or not any longer.
    LeftAlone,
    /// Something cannot be observed or changed on this host.
    Missing,
    /// Tuning ended, and all settings were restored.
    Ended,
}

impl DecisionKind {
    /// Display name.
    pub fn word(self) -> &'static str {
        match self {
            Self::WouldMove => "would move",
            Self::LeftAlone => "left alone",
            _ => self.key(),
        }
    }

    /// Name in JSON and in labels of metrics.
    pub fn key(self) -> &'static str {
        match self {
            Self::Begun => "begun",
            Self::Moved => "moved",
            Self::WouldMove => "would-move",
            Self::LeftAlone => "left-alone",
            Self::Missing => "missing",
            Self::Ended => "ended",
        }
    }
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Time in seconds since 1970.
    pub at: f64,
    /// Kind of decision.
    pub act: DecisionKind,
    /// The object of the decision.
    pub subject: String,
    /// CPU list before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// CPU list after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The reason.
    pub why: String,
}

impl Decision {
    /// Creates a decision with the current time.
    pub fn new(act: DecisionKind, subject: impl Into<String>, why: impl Into<String>) -> Self {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        Self { at, act, subject: subject.into(), from: None, to: None, why: why.into() }
    }
}

/// The log, open for writing.
pub struct Log {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Log {
    /// Opens or creates the log at `path`. Its directory must exist.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let options = options.append(true).create(true).mode(0o600);
        let file = crate::files::regular(options, rustix::fs::OFlags::NOFOLLOW, path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path: path.into(), file, bytes })
    }

    /// Appends a decision.
    ///
    /// # Errors
    /// The error of the operating system; the decision is then lost.
    pub fn add(&mut self, decision: &Decision) -> io::Result<()> {
        let mut line = serde_json::to_vec(decision)?;
        line.push(b'\n');
        if self.bytes > 0 && self.bytes + line.len() as u64 > MAX_LOG_BYTES {
            std::fs::rename(&self.path, before(&self.path))?;
            *self = Self::open(&self.path)?;
        }
        self.file.write_all(&line)?;
        self.bytes += line.len() as u64;
        Ok(())
    }
}

/// Path of the rotated file.
fn before(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

/// Reads the decisions of the log at `path`, oldest first, and the number of invalid lines, which a full disk may
/// leave.
///
/// # Errors
/// If a log exists and cannot be read. A missing log is not an error.
pub fn read(path: &Path) -> io::Result<(Vec<Decision>, usize)> {
    let (mut decisions, mut lost) = (Vec::new(), 0);
    for path in [before(path), path.into()] {
        let mut text = Vec::new();
        match crate::files::readable(&path) {
            Ok(file) => file.take(2 * MAX_LOG_BYTES).read_to_end(&mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice::<Decision>(line) {
                Ok(decision) => decisions.push(decision),
                Err(_) => lost += 1,
            }
        }
    }
    Ok((decisions, lost))
}

#[cfg(test)]
mod tests;
