//! The file of a modelled sweep: lines of JSON, what decides its results and then one for each run, so that a sweep that was stopped goes on.
//! Not the runs. Results of a sweep on a real host have a file of another form, which is `longma-affinity`'s.

use crate::experiment::VERSION;
use longma_affinity::load::MOST_GBPS;
use longma_affinity::places::classify;
use longma_topology::{CpuPlace, Machine};
use longma_workloads::pairs::{Measured, Nic, Sweep};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The form of the file.
const FORMAT: u32 = 1;
/// How it begins.
const BEGINNING: &str = "{\"affinity_model\"";
/// A run takes some 700 bytes.
const MAX_BYTES: u64 = 1 << 30;
/// More than any cost can be; a difference of sums may lie a little below 0.
const COSTS: std::ops::RangeInclusive<f64> = -1e-3..=1e15;

/// What decides the results of all runs, besides their pair and their seed.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    affinity_model: u32,
    version: String,
    machine: String,
    machine_sha256: String,
    frame_cycles: u32,
    bytes: u64,
    mtu: u64,
    settings: BTreeMap<String, u64>,
}

/// The open file, which nobody else writes to.
pub struct Kept {
    file: Mutex<File>,
    path: PathBuf,
    /// The runs that it held.
    pub known: Vec<Measured>,
}

impl Header {
    fn of(sweep: &Sweep, nic: &Nic) -> Result<Self, String> {
        let (_, text) = Machine::text(sweep.machine).map_err(|error| error.to_string())?;
        Ok(Self {
            affinity_model: FORMAT,
            version: VERSION.into(),
            machine: sweep.machine.into(),
            machine_sha256: longma_lab::digest(text.as_bytes()),
            frame_cycles: sweep.frame_cycles,
            bytes: sweep.bytes,
            mtu: sweep.mtu(nic)?,
            settings: sweep.settings.iter().map(|of| (of.name.to_string(), of.value)).collect(),
        })
    }

    /// What differs from another, in a word.
    fn difference(&self, other: &Self) -> Option<&'static str> {
        let differs = [
            (self.affinity_model != other.affinity_model, "the form of the file"),
            (self.version != other.version, "the version of the models"),
            (self.machine_sha256 != other.machine_sha256, "the machine"),
            (self.frame_cycles != other.frame_cycles, "--frame-cycles"),
            (self.bytes != other.bytes, "--megabytes"),
            (self.mtu != other.mtu, "the packets' size"),
            (self.settings != other.settings, "what --with says"),
        ];
        differs.into_iter().find(|(differs, _)| *differs).map(|(_, what)| what)
    }
}

impl Kept {
    /// Opens the file to go on with `sweep`, or makes it.
    ///
    /// # Errors
    /// If it holds another sweep, is damaged, or is being written.
    pub fn open(path: &Path, sweep: &Sweep, nic: &Nic, places: &[CpuPlace]) -> Result<Self, String> {
        let header = Header::of(sweep, nic)?;
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).create(true).truncate(false).open(path);
        let mut file = opened.map_err(failed)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| format!("{} is being written by another sweep", path.display()))?;
        let mut text = String::new();
        Read::by_ref(&mut file).take(MAX_BYTES).read_to_string(&mut text).map_err(failed)?;
        // A last line without its end was being written when the sweep ended.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        if whole == 0 && !(text.is_empty() || text.starts_with(BEGINNING)) {
            return Err(format!("{}, line 1: no result of a modelled sweep", path.display()));
        }
        let known = parse(&text[..whole], &header, places)
            .map_err(|why| format!("{}{why}; choose another file with --output", path.display()))?;
        file.set_len(whole as u64).and_then(|()| file.seek(SeekFrom::End(0))).map_err(failed)?;
        let kept = Self { file: Mutex::new(file), path: path.into(), known };
        if whole == 0 {
            kept.append(&header)?;
        }
        Ok(kept)
    }

    /// Keeps a run.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add(&self, run: &Measured) -> Result<(), String> {
        self.append(run)
    }

    fn append(&self, line: &impl Serialize) -> Result<(), String> {
        // Plain data of ours can always be written as JSON.
        let mut text = serde_json::to_vec(line).expect("a result is plain data");
        text.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let written = file.write_all(&text).and_then(|()| file.sync_data());
        written.map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

/// The runs in the whole lines of a file of the sweep that `header` tells of.
fn parse(text: &str, header: &Header, places: &[CpuPlace]) -> Result<Vec<Measured>, String> {
    let mut lines = text.lines().enumerate();
    let Some((_, first)) = lines.next() else { return Ok(Vec::new()) };
    let there: Header = serde_json::from_str(first)
        .map_err(|error| format!(", line 1: no result of a modelled sweep: {error}"))?;
    if let Some(what) = header.difference(&there) {
        return Err(format!(" holds another sweep: {what} differs"));
    }
    let run = |(line, text): (usize, &str)| {
        let run: Result<Measured, _> = serde_json::from_str(text);
        let checked =
            run.map_err(|error| error.to_string()).and_then(|run| check(&run, places).map(|()| run));
        checked.map_err(|why| format!(", line {}: no result of a modelled sweep: {why}", line + 1))
    };
    lines.map(run).collect()
}

/// What of a run cannot be.
fn check(run: &Measured, places: &[CpuPlace]) -> Result<(), String> {
    if classify(places, run.pair) != Some(run.class) {
        return Err(format!("the pair {} is not {} on this machine", run.pair, run.class));
    }
    let within = |field: &str, value: f64, range: std::ops::RangeInclusive<f64>| {
        let (least, most) = (range.start(), range.end());
        if range.contains(&value) {
            Ok(())
        } else {
            Err(format!("{field} is {value}: it must be from {least} to {most}"))
        }
    };
    within("gbps", run.gbps, 0.0..=MOST_GBPS)?;
    run.costs.iter().try_for_each(|cost| within("a number of costs", *cost, COSTS))?;
    run.stages.iter().try_for_each(|stage| within("a number of stages", *stage, COSTS))?;
    run.busy.iter().try_for_each(|(part, _)| within("a number of busy", *part, 0.0..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_affinity::places::{Class, Pair, of_machine};
    use longma_workloads::pairs::{STAGES, nic};

    fn sweep<'a>(frame_cycles: u32) -> Sweep<'a> {
        Sweep {
            longma: Path::new("/proc/self/exe"),
            machine: "sandybridge-2x6",
            pairs: vec![],
            frame_cycles,
            bytes: 4_000_000,
            seed: 1,
            seeds: 1,
            mtu: None,
            settings: vec![],
        }
    }

    fn run(seed: u64) -> Measured {
        Measured {
            pair: Pair { flow: 1, application: 2 },
            seed,
            class: Class::SharedCache,
            gbps: 39.5,
            costs: [1.5; longma_workloads::pairs::COSTS.len()],
            stages: [0.1; STAGES.len()],
            busy: [(0.5, "system".into()), (0.25, "base".into())],
        }
    }

    #[test]
    fn runs_are_there_again_bit_for_bit_and_a_line_that_was_being_written_is_not() {
        let machine = Machine::open("sandybridge-2x6").unwrap();
        let (places, nic) = (of_machine(&machine), nic(&machine).unwrap());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept.jsonl");
        let open = |frame_cycles| Kept::open(&path, &sweep(frame_cycles), &nic, &places);
        let first = open(0).unwrap();
        first.add(&run(1)).unwrap();
        first.add(&Measured { gbps: 0.1 + 0.2, ..run(2) }).unwrap();
        assert!(open(0).err().unwrap().contains("is being written"));
        drop(first);
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&text[..], b"{\"pair\":{\"fl"].concat()).unwrap();
        assert_eq!(open(0).unwrap().known, [run(1), Measured { gbps: 0.1 + 0.2, ..run(2) }]);
        assert_eq!(std::fs::read(&path).unwrap(), text);
        let other = open(3000).err().unwrap();
        assert!(
            other.contains("holds another sweep: --frame-cycles differs; choose another file"),
            "{other}"
        );
        for (from, to, why) in [
            (
                "39.5",
                "-39.5",
                "line 2: no result of a modelled sweep: gbps is -39.5: it must be from 0 to 1000000",
            ),
            ("[0.5,", "[7.0,", "a number of busy is 7"),
            ("shared-cache", "other-socket", "not other-socket on this machine"),
        ] {
            let changed = String::from_utf8(text.clone()).unwrap().replacen(from, to, 1);
            std::fs::write(&path, &changed).unwrap();
            let error = open(0).err().unwrap();
            assert!(error.contains(why) && error.contains("kept.jsonl"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), changed);
        }
        std::fs::write(&path, "my letter").unwrap();
        assert!(open(0).err().unwrap().contains("no result of a modelled sweep"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "my letter");
    }
}
