//! The result file of a sweep: a JSON header line followed by one line per run, so that an interrupted sweep can
//! continue. `analysis` evaluates it.

use super::bounds;
use crate::counters::{HardwareCounts, KernelCounts};
use crate::interface::Nic;
use crate::load::{Load, Rate};
use crate::pairs::{Class, Pair, classify};
use crate::steering::Steering;
use crate::vary::Variant;
use longma_text::{display_path, sanitize};
use longma_topology::CpuLocation;
use rustix::fs::{FlockOperation, OFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// Format version.
const FORMAT: u32 = 1;
const MAX_BYTES: u64 = 1 << 30;

/// Properties common to all runs of a sweep. A file holds the runs of one sweep only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Format version of the file.
    pub affinity_sweep: u32,
    /// Kernel release.
    pub kernel: String,
    /// Name of the processor.
    pub processor: String,
    /// CPU topology.
    pub places: Vec<CpuLocation>,
    /// The interface.
    pub nic: Nic,
    /// How its flows are steered.
    pub steering: Steering,
    /// The load.
    pub load: Load,
    /// Length of a run in seconds.
    pub seconds: u32,
    /// CPUs of the sender, if it is on this host.
    pub sender: Option<longma_cpu_set::CpuSet>,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// The pair of CPUs.
    pub pair: Pair,
    /// Topological relation of the CPUs.
    pub class: Class,
    /// Number of the repetition, from 0.
    pub repeat: u32,
    /// Values of the varied parameters.
    #[serde(default, skip_serializing_if = "Variant::is_empty")]
    pub variant: Variant,
    /// Start time in seconds since 1970.
    pub at: u64,
    /// Result of the load; `None` if the run failed.
    pub rate: Option<Rate>,
    /// Why the run failed.
    pub failure: Option<String>,
    /// Whether the run was skipped because the interface rejected this combination of settings. `failure` holds the
    /// reason.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refused: bool,
    /// Kernel counts over the middle part of the run.
    pub kernel: KernelCounts,
    /// Hardware counts in the same interval by CPU; empty if there are no counters.
    pub hardware: BTreeMap<u32, HardwareCounts>,
    /// Number of migrations of the load's process, if the kernel reports it.
    pub migrations: Option<u64>,
}

/// The contents of a result file.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// Properties common to all runs.
    pub header: Header,
    /// The runs in chronological order.
    pub samples: Vec<Sample>,
    /// Whether an incomplete last line was ignored.
    pub is_cut: bool,
}

/// The result file of a running sweep, locked against other writers.
pub struct ResultFile {
    file: File,
    path: PathBuf,
    /// Runs that it already holds.
    pub known: Vec<Sample>,
    /// Whether an incomplete last line was dropped.
    pub is_cut: bool,
}

/// Why results cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    /// The file cannot be read or written.
    #[error("{}: {error}", display_path(path))]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The file is not a result file, or is damaged.
    #[error("{}, line {line}: not a result of an affinity sweep: {why}", display_path(path))]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The error.
        why: String,
    },
    /// The file holds the results of a modelled sweep.
    #[error(
        "{} has results of a modelled sweep: `longma affinity report` reads it; advice needs a sweep of a host",
        display_path(path)
    )]
    Modelled {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file holds another sweep.
    #[error(
        "{} holds another sweep: {what} differs; choose another file with --output, or use the same options",
        display_path(path)
    )]
    Other {
        /// Path of the file.
        path: PathBuf,
        /// The difference.
        what: String,
    },
    /// Another process is writing to the file.
    #[error("{} is being written by another sweep", display_path(path))]
    Busy {
        /// Path of the file.
        path: PathBuf,
    },
}

impl Header {
    /// The current format version.
    pub const FORMAT: u32 = FORMAT;

    /// The first difference from another header that makes runs incomparable.
    fn difference(&self, other: &Self) -> Option<&'static str> {
        let differs = [
            (self.affinity_sweep != other.affinity_sweep, "the format of the file"),
            (self.kernel != other.kernel, "the kernel"),
            (
                self.processor != other.processor || self.places != other.places,
                "the processor, or which CPUs are online",
            ),
            (self.nic.name != other.nic.name || self.nic.driver != other.nic.driver, "the interface"),
            (self.nic.mtu != other.nic.mtu, "the MTU"),
            (self.steering != other.steering, "the steering of flows"),
            (self.load != other.load, "the load"),
            (self.seconds != other.seconds, "the length of a run"),
            (self.sender != other.sender, "the sender's CPU"),
        ];
        differs.into_iter().find(|(differs, _)| *differs).map(|(_, what)| what)
    }
}

impl Sample {
    /// Checks that a run is consistent with `header`.
    fn check(&self, header: &Header) -> Result<(), String> {
        let pair = self.pair;
        match classify(&header.places, pair) {
            None => return Err(format!("the pair {pair} names a CPU that the first line does not")),
            Some(class) if class != self.class => {
                return Err(format!(
                    "the pair {pair} is {class} according to the first line, not {}",
                    self.class
                ));
            }
            Some(_) => {}
        }
        bounds::check(self, header)
    }
}

impl Results {
    /// Reads a result file.
    ///
    /// # Errors
    /// If it cannot be read or is invalid. An incomplete last line is ignored, because an interrupted sweep may leave
    /// one.
    pub fn read(path: &Path) -> Result<Self, ResultError> {
        let mut file = crate::files::readable(path).map_err(|error| file_error(path, error))?;
        parse(path, &mut file)?.results.ok_or_else(|| ResultError::Damaged {
            path: path.into(),
            line: 1,
            why: "it is empty".into(),
        })
    }

    /// All combinations of varied values.
    pub fn variants(&self) -> Vec<Variant> {
        let all: std::collections::BTreeSet<&Variant> =
            self.samples.iter().map(|sample| &sample.variant).collect();
        all.into_iter().cloned().collect()
    }

    /// Combinations that the interface rejected, with the reason.
    pub fn refused(&self) -> std::collections::BTreeMap<&Variant, &str> {
        let refused = self.samples.iter().filter(|sample| sample.refused);
        refused.filter_map(|sample| Some((&sample.variant, sample.failure.as_deref()?))).collect()
    }

    /// Describes what the file contains if no run has a result; otherwise `None`.
    pub fn nothing(&self) -> Option<String> {
        if self.samples.iter().any(|sample| sample.rate.is_some()) {
            return None;
        }
        let refused = self.samples.iter().filter(|sample| sample.refused).count();
        let failed = self.samples.len() - refused;
        let mut words = match (failed, refused) {
            (0, 0) => return Some("it has no run: the sweep stopped before the first one finished".into()),
            (_, 0) => format!("none of its {failed} runs has a result"),
            (0, _) => {
                format!("none of its {refused} runs was made: the interface rejected their settings")
            }
            _ => format!(
                "none of its runs has a result: {failed} failed, and the interface rejected the settings of {refused}"
            ),
        };
        let last = |refused: bool| self.samples.iter().rfind(|sample| sample.refused == refused);
        if let Some(why) = last(failed == 0).and_then(|sample| sample.failure.as_deref()) {
            words.push_str(&format!(" (the last one: {})", sanitize(why)));
        }
        Some(words)
    }

    /// The runs of one combination.
    pub fn of(&self, variant: &Variant) -> Self {
        let samples = self.samples.iter().filter(|sample| sample.variant == *variant).cloned().collect();
        Self { header: self.header.clone(), samples, is_cut: self.is_cut }
    }
}

impl ResultFile {
    /// Opens the file to continue the sweep of `header`, or creates it.
    ///
    /// # Errors
    /// If it holds another sweep, is damaged or is being written.
    pub fn open(path: &Path, header: &Header) -> Result<Self, ResultError> {
        let failed = |error| file_error(path, error);
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = crate::files::regular(options, OFlags::empty(), path).map_err(failed)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| ResultError::Busy { path: path.into() })?;
        let mut opened = Self { file, path: path.into(), known: Vec::new(), is_cut: false };
        let Parsed { results, length, lacks_end, is_cut } = parse(path, &mut opened.file)?;
        opened.is_cut = is_cut;
        let written = opened.file.set_len(length).and_then(|()| opened.file.seek(io::SeekFrom::End(0)));
        let ended = written.and_then(|_| if lacks_end { opened.file.write_all(b"\n") } else { Ok(()) });
        ended.map_err(failed)?;
        match results {
            None => opened.append(header)?,
            Some(results) => {
                if let Some(what) = header.difference(&results.header) {
                    return Err(ResultError::Other { path: path.into(), what: what.into() });
                }
                opened.known = results.samples;
            }
        }
        Ok(opened)
    }

    /// Appends a run.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add(&mut self, sample: &Sample) -> Result<(), ResultError> {
        self.append(sample)?;
        self.known.push(sample.clone());
        Ok(())
    }

    fn append(&mut self, line: &impl Serialize) -> Result<(), ResultError> {
        // Our own plain data always serializes.
        let mut text = serde_json::to_vec(line).expect("a result is plain data");
        text.push(b'\n');
        let written = self.file.write_all(&text).and_then(|()| self.file.sync_data());
        written.map_err(|error| file_error(&self.path, error))
    }
}

impl Drop for ResultFile {
    fn drop(&mut self) {
        // Unlock explicitly, as for the journal: a child between fork and exec must not keep the lock.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

fn file_error(path: &Path, error: io::Error) -> ResultError {
    ResultError::File { path: path.into(), error }
}

/// Parses a line of JSON. The error names the field and the reason.
fn plain<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    // Replace Rust type names, and count the position from the start of the line.
    let words = |error: &serde_json::Error| {
        let message = error.to_string();
        let message = message
            .split(" at line ")
            .next()
            .unwrap_or(&message)
            .replace("expected f64", "expected a number");
        let message = message.replace("expected u64", "expected a whole number from 0");
        message.replace("expected u32", &format!("expected a whole number from 0 to {}", u32::MAX))
    };
    let mut from = serde_json::Deserializer::from_str(text);
    let found = serde_path_to_error::deserialize(&mut from).map_err(|error| {
        let (place, column) = (error.path().to_string(), error.inner().column());
        match &*place {
            "." | "?" => format!("{}, column {column}", words(error.inner())),
            _ => format!("{place}, column {column}: {}", words(error.inner())),
        }
    })?;
    from.end().map_err(|error| format!("{}, column {}", words(&error), error.column()))?;
    Ok(found)
}

/// Contents of a file.
struct Parsed {
    /// `None` if there is no header.
    results: Option<Results>,
    /// Number of bytes in complete lines.
    length: u64,
    /// Whether the last complete line has no newline, as some editors leave it.
    lacks_end: bool,
    /// Whether an incomplete line follows.
    is_cut: bool,
}

/// Reads all complete lines. Truncated JSON is never valid, so a last line that is valid JSON is complete even without
/// a newline.
fn parse(path: &Path, file: &mut File) -> Result<Parsed, ResultError> {
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(|error| file_error(path, error))?;
    let ended = text.rfind('\n').map_or(0, |end| end + 1);
    let is_whole = serde_json::from_str::<serde::de::IgnoredAny>(&text[ended..]).is_ok();
    let whole = if is_whole { text.len() } else { ended };
    let (lacks_end, is_cut) = (whole > ended, whole < text.trim_end().len());
    let damaged = |line: usize, why: String| ResultError::Damaged { path: path.into(), line: line + 1, why };
    let mut lines = text[..whole].lines().enumerate();
    let Some((_, first)) = lines.next() else {
        // Never overwrite a file that does not start like a result file.
        return match text.is_empty() || text.starts_with("{\"affinity_sweep\"") {
            true => Ok(Parsed { results: None, length: 0, lacks_end: false, is_cut }),
            false => Err(damaged(0, "it has no line".into())),
        };
    };
    if first.starts_with("{\"affinity_model\"") {
        return Err(ResultError::Modelled { path: path.into() });
    }
    let header: Header = plain(first).map_err(|why| damaged(0, why))?;
    if header.affinity_sweep != FORMAT {
        return Err(damaged(
            0,
            format!("it has format {}; this program reads format {FORMAT}", header.affinity_sweep),
        ));
    }
    bounds::check_header(&header).map_err(|why| damaged(0, why))?;
    let mut finished = BTreeSet::new();
    let mut sample = |(line, text): (usize, &str)| {
        let sample: Sample = plain(text).map_err(|why| damaged(line, why))?;
        sample.check(&header).map_err(|why| damaged(line, why))?;
        // A failed run is repeated. Successful and rejected runs are not repeated.
        let run = (sample.pair, sample.repeat, sample.variant.clone());
        let is_duplicate = finished.contains(&run);
        if is_duplicate {
            let why = format!("repeat {} of the pair {} occurs twice", sample.repeat, sample.pair);
            return Err(damaged(line, why));
        }
        if sample.rate.is_some() || sample.refused {
            finished.insert(run);
        }
        Ok(sample)
    };
    let samples = lines.map(&mut sample).collect::<Result<_, _>>()?;
    let results = Some(Results { header, samples, is_cut });
    Ok(Parsed { results, length: whole as u64, lacks_end, is_cut })
}
