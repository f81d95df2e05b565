//! The file of a sweep's results: lines of JSON, a header and then one for each run, so that a sweep that was stopped goes on.
//! Not what the results mean: that is `analysis`.

use super::bounds;
use crate::counters::{HardwareCounts, KernelCounts};
use crate::interface::Nic;
use crate::load::{Load, Rate};
use crate::places::{Class, Pair, classify};
use crate::steering::Steering;
use crate::vary::Variant;
use longma_topology::{CpuLocation, display_path, sanitize};
use rustix::fs::{FlockOperation, OFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// The form of the file.
const FORMAT: u32 = 1;
const MAX_BYTES: u64 = 1 << 30;

/// What all runs of a sweep have in common. A file takes no runs of another sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The form of the file.
    pub affinity_sweep: u32,
    /// The kernel's release.
    pub kernel: String,
    /// The processor's name.
    pub processor: String,
    /// Where the CPUs are.
    pub places: Vec<CpuLocation>,
    /// The interface.
    pub nic: Nic,
    /// How its flows are steered.
    pub steering: Steering,
    /// The load.
    pub load: Load,
    /// Seconds of a run.
    pub seconds: u32,
    /// The sender's CPUs, where it is on this host.
    pub sender: Option<crate::cpus::CpuSet>,
}

/// One run at one pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// The pair.
    pub pair: Pair,
    /// How its CPUs lie to each other.
    pub class: Class,
    /// Which of the repeats, from 0.
    pub repeat: u32,
    /// What of the interface was varied, and its values.
    #[serde(default, skip_serializing_if = "Variant::is_empty")]
    pub variant: Variant,
    /// When it began, in seconds since 1970.
    pub at: u64,
    /// What the load measured; none if it failed.
    pub rate: Option<Rate>,
    /// Why it failed.
    pub failure: Option<String>,
    /// Whether it was not made, because the interface does not take what was to be varied in this combination: `failure` says what.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refused: bool,
    /// What the kernel counted in the middle of the run.
    pub kernel: KernelCounts,
    /// What the hardware counted there, by CPU; none where it counts nothing.
    pub hardware: BTreeMap<u32, HardwareCounts>,
    /// Times that the load's process was moved to another CPU, where the kernel says so.
    pub migrations: Option<u64>,
}

/// A sweep's results as they are read.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// What the runs have in common.
    pub header: Header,
    /// The runs, in the order they were made.
    pub samples: Vec<Sample>,
    /// Whether the file's last line was not written to its end, and is left out.
    pub is_cut: bool,
}

/// The open file of a sweep, which nobody else writes to.
pub struct ResultFile {
    file: File,
    path: PathBuf,
    /// What it holds.
    pub known: Vec<Sample>,
    /// Whether its last line was not written to its end, and is dropped.
    pub is_cut: bool,
}

/// Why results cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    /// The system refuses.
    #[error("{}: {error}", display_path(path))]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// It is something else, or damaged.
    #[error("{}, line {line}: no result of an affinity sweep: {why}", display_path(path))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// It holds another sweep.
    #[error(
        "{} holds another sweep: {what} differs; choose another file with --output, or make the sweep the same",
        display_path(path)
    )]
    Other {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// Another process writes to it.
    #[error("{} is being written by another sweep", display_path(path))]
    Busy {
        /// The file.
        path: PathBuf,
    },
}

impl Header {
    /// The form that is written now.
    pub const FORMAT: u32 = FORMAT;

    /// What differs from another, in a word, if anything does that makes runs incomparable.
    fn difference(&self, other: &Self) -> Option<&'static str> {
        let differs = [
            (self.affinity_sweep != other.affinity_sweep, "the form of the file"),
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
    /// What of a run cannot be of the sweep that `header` begins.
    fn check(&self, header: &Header) -> Result<(), String> {
        let pair = self.pair;
        match classify(&header.places, pair) {
            None => return Err(format!("the pair {pair} names a CPU that the first line does not")),
            Some(class) if class != self.class => {
                return Err(format!("the pair {pair} is {class} by the first line, and not {}", self.class));
            }
            Some(_) => {}
        }
        bounds::check(self, header)
    }
}

impl Results {
    /// Reads the file of a sweep.
    ///
    /// # Errors
    /// If it cannot be read or is none. A last line that was not written to its end is left out: the sweep was stopped there.
    pub fn read(path: &Path) -> Result<Self, ResultError> {
        let mut file = crate::files::readable(path).map_err(|error| file_error(path, error))?;
        parse(path, &mut file)?.results.ok_or_else(|| ResultError::Damaged {
            path: path.into(),
            line: 1,
            why: "it is empty".into(),
        })
    }

    /// What was varied, each combination once.
    pub fn variants(&self) -> Vec<Variant> {
        let all: std::collections::BTreeSet<&Variant> =
            self.samples.iter().map(|sample| &sample.variant).collect();
        all.into_iter().cloned().collect()
    }

    /// The combinations that the interface did not take, each with its words.
    pub fn refused(&self) -> std::collections::BTreeMap<&Variant, &str> {
        let refused = self.samples.iter().filter(|sample| sample.refused);
        refused.filter_map(|sample| Some((&sample.variant, sample.failure.as_deref()?))).collect()
    }

    /// What is there in place of results, in words, if no run has one.
    pub fn nothing(&self) -> Option<String> {
        if self.samples.iter().any(|sample| sample.rate.is_some()) {
            return None;
        }
        let refused = self.samples.iter().filter(|sample| sample.refused).count();
        let failed = self.samples.len() - refused;
        let mut words = match (failed, refused) {
            (0, 0) => return Some("it has no run: the sweep ended before the first one did".into()),
            (_, 0) => format!("none of its {failed} runs has a result"),
            (0, _) => {
                format!("none of its {refused} runs was made: the interface does not take their settings")
            }
            _ => format!(
                "none of its runs has a result: {failed} failed, and {refused} were not made for the settings"
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
    /// Opens the file to go on with the sweep of `header`, or makes it.
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

    /// Keeps a run.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add(&mut self, sample: &Sample) -> Result<(), ResultError> {
        self.append(sample)?;
        self.known.push(sample.clone());
        Ok(())
    }

    fn append(&mut self, line: &impl Serialize) -> Result<(), ResultError> {
        // Plain data of ours can always be written as JSON.
        let mut text = serde_json::to_vec(line).expect("a result is plain data");
        text.push(b'\n');
        let written = self.file.write_all(&text).and_then(|()| self.file.sync_data());
        written.map_err(|error| file_error(&self.path, error))
    }
}

impl Drop for ResultFile {
    fn drop(&mut self) {
        // As with the journal: a child between fork and exec must not keep the lock.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

fn file_error(path: &Path, error: io::Error) -> ResultError {
    ResultError::File { path: path.into(), error }
}

/// A line of JSON as what it must be, or which part of it is not, and why.
fn plain<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    // Types of this program are no words for people, and the place is counted from the line's begin.
    let words = |error: &serde_json::Error| {
        let said = error.to_string();
        let said =
            said.split(" at line ").next().unwrap_or(&said).replace("expected f64", "expected a number");
        let said = said.replace("expected u64", "expected a whole number from 0 on");
        said.replace("expected u32", &format!("expected a whole number from 0 to {}", u32::MAX))
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

/// What a file holds.
struct Parsed {
    /// None if there is no header.
    results: Option<Results>,
    /// Bytes of the whole lines.
    length: u64,
    /// Whether the last of them has no line end, as an editor may leave it.
    lacks_end: bool,
    /// Whether a part of a line stands behind them.
    is_cut: bool,
}

/// Reads all whole lines. JSON that was cut anywhere is none, so one without its end is whole if it is JSON.
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
        // What is no beginning of ours is not overwritten.
        return match text.is_empty() || text.starts_with("{\"affinity_sweep\"") {
            true => Ok(Parsed { results: None, length: 0, lacks_end: false, is_cut }),
            false => Err(damaged(0, "it has no line of its own".into())),
        };
    };
    let header: Header = plain(first).map_err(|why| damaged(0, why))?;
    if header.affinity_sweep != FORMAT {
        return Err(damaged(0, format!("it is of form {}, and this is for {FORMAT}", header.affinity_sweep)));
    }
    bounds::check_header(&header).map_err(|why| damaged(0, why))?;
    let mut done = BTreeSet::new();
    let mut sample = |(line, text): (usize, &str)| {
        let sample: Sample = plain(text).map_err(|why| damaged(line, why))?;
        sample.check(&header).map_err(|why| damaged(line, why))?;
        // One that failed is made again; one that has a result, or that is refused, is not.
        let run = (sample.pair, sample.repeat, sample.variant.clone());
        let is_there = done.contains(&run);
        if is_there {
            let why = format!("repeat {} of the pair {} is there already", sample.repeat, sample.pair);
            return Err(damaged(line, why));
        }
        if sample.rate.is_some() || sample.refused {
            done.insert(run);
        }
        Ok(sample)
    };
    let samples = lines.map(&mut sample).collect::<Result<_, _>>()?;
    let results = Some(Results { header, samples, is_cut });
    Ok(Parsed { results, length: whole as u64, lacks_end, is_cut })
}
