//! The results file of a modelled sweep, from which an interrupted sweep continues. It has one JSON object per line: a
//! header with all inputs that determine the results, then one line per run. Each line ends with a checksum. Sweeps of
//! a real host use another format, defined in `longma-affinity`.

use super::{COSTS as COST_NAMES, MAX_FRAME_CYCLES, MEGABYTES, Measurement, Nic, STAGES, Sweep, nic};
use longma_affinity::files;
use longma_affinity::pairs::{classify, of_machine};
use longma_locks::IgnorePoison;
use longma_text::{display_path, sanitize};
use longma_topology::{CpuLocation, Machine};
use rustix::fs::{FlockOperation, OFlags};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Version of the file format.
const FORMAT: u32 = 3;
/// The first bytes of every file.
const MAGIC: &str = "{\"affinity_model\"";
/// Largest file that is read. A run takes about 700 bytes.
const MAX_BYTES: u64 = 1 << 30;
/// Lower bound of rates, and of costs that cannot be 0.
const MIN_POSITIVE: f64 = 1e-6;
/// Upper bound of all costs.
const MAX_COST: f64 = 1e15;
/// Tolerance for rounding: how far a difference may be below 0, and the relative error of sums.
const ROUNDING: f64 = 1e-3;
/// Text between a line's content and its checksum, and the checksum's length in hexadecimal digits.
const CHECKSUM_FIELD: &str = ",\"check\":\"";
const CHECKSUM_DIGITS: usize = 16;

/// The inputs that, together with a run's pair and seed, determine its result.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    affinity_model: u32,
    version: String,
    machine: String,
    machine_sha256: String,
    frame_cycles: u32,
    #[serde(default)]
    softirq_share: u32,
    bytes: u64,
    mtu: u64,
    settings: BTreeMap<String, u64>,
}

/// The content of a file.
pub struct Contents {
    /// The inputs of the sweep.
    pub header: Header,
    /// The runs.
    pub known: Vec<Measurement>,
    /// Whether an incomplete last line was ignored.
    pub is_cut: bool,
    /// The machine's CPUs.
    pub places: Vec<CpuLocation>,
    /// The machine's NIC.
    pub nic: Nic,
}

/// The open file, locked against other writers.
pub struct ResultsFile {
    file: Mutex<File>,
    path: PathBuf,
    /// The runs that the file held when it was opened.
    pub known: Vec<Measurement>,
    /// Whether an incomplete last line was dropped.
    pub is_cut: bool,
}

impl Header {
    fn of(sweep: &Sweep, nic: &Nic, version: &str) -> Result<Self, String> {
        let (_, text) = Machine::text(sweep.machine).map_err(|error| error.to_string())?;
        Ok(Self {
            affinity_model: FORMAT,
            version: version.into(),
            machine: sweep.machine.into(),
            machine_sha256: longma_lab::digest(text.as_bytes()),
            frame_cycles: sweep.frame_cycles,
            softirq_share: sweep.softirq_share,
            bytes: sweep.bytes,
            mtu: sweep.mtu(nic)?,
            settings: sweep.settings.iter().map(|of| (of.name.to_string(), of.value)).collect(),
        })
    }

    /// Checks that `longma affinity sweep` can have written the header: the machine is a name or a regular file, and
    /// the numbers are in range.
    fn check(&self) -> Result<(), String> {
        // Opening a pipe as the machine file would block. A sweep of a machine read from a pipe cannot be continued.
        if Path::new(&self.machine).exists() && !Path::new(&self.machine).is_file() {
            return Err(format!("its machine: {} is not a regular file", sanitize(&self.machine)));
        }
        let megabytes = self.bytes / 1_000_000;
        if !self.bytes.is_multiple_of(1_000_000) || !MEGABYTES.contains(&megabytes) {
            return Err(format!(
                "bytes is {}: it must be {} to {} MB",
                self.bytes,
                MEGABYTES.start(),
                MEGABYTES.end()
            ));
        }
        if self.frame_cycles > MAX_FRAME_CYCLES {
            return Err(format!(
                "frame_cycles is {}: it must be at most {MAX_FRAME_CYCLES}",
                self.frame_cycles
            ));
        }
        if self.softirq_share > 100 {
            return Err(format!("softirq_share is {}: it must be at most 100", self.softirq_share));
        }
        Ok(())
    }

    /// The sweep that the file describes, with the seeds of its runs.
    ///
    /// # Errors
    /// Fails if a setting does not exist.
    pub fn sweep(&self, known: &[Measurement]) -> Result<Sweep<'_>, String> {
        let seeds: BTreeSet<u64> = known.iter().map(|one| one.seed).collect();
        let settings = self.settings.iter().map(|(name, value)| format!("{name}={value}").parse());
        Ok(Sweep {
            longma: Path::new("/proc/self/exe"),
            machine: &self.machine,
            pairs: Vec::new(),
            frame_cycles: self.frame_cycles,
            softirq_share: self.softirq_share,
            bytes: self.bytes,
            seed: seeds.first().copied().unwrap_or(1),
            seeds: seeds.len() as u32,
            mtu: Some(self.mtu),
            settings: settings.collect::<Result<_, _>>()?,
        })
    }

    /// The command that continues the sweep.
    pub fn command(&self, file: &Path) -> String {
        let (machine, megabytes) = (sanitize(&self.machine), self.bytes / 1_000_000);
        let mut command = format!(
            "longma affinity sweep --model {machine} --frame-cycles {} --softirq-share {} --megabytes {megabytes} --mtu {}",
            self.frame_cycles, self.softirq_share, self.mtu
        );
        self.settings.iter().for_each(|(name, value)| command += &format!(" --with {name}={value}"));
        command + &format!(" --output {}", display_path(file))
    }

    /// Names the first input that differs from `other`.
    fn difference(&self, other: &Self) -> Option<&'static str> {
        let differs = [
            (self.affinity_model != other.affinity_model, "the file format"),
            (self.version != other.version, "the version of the models"),
            (self.machine_sha256 != other.machine_sha256, "the machine"),
            (self.frame_cycles != other.frame_cycles, "--frame-cycles"),
            (self.softirq_share != other.softirq_share, "--softirq-share"),
            (self.bytes != other.bytes, "--megabytes"),
            (self.mtu != other.mtu, "the MTU"),
            (self.settings != other.settings, "the --with settings"),
        ];
        differs.into_iter().find(|(differs, _)| *differs).map(|(_, what)| what)
    }
}

impl ResultsFile {
    /// Opens or creates the file to continue `sweep`. `version` is the version of the models.
    ///
    /// # Errors
    /// Fails if the file holds another sweep, is damaged, or is locked by another process.
    pub fn open(
        path: &Path,
        sweep: &Sweep,
        nic: &Nic,
        places: &[CpuLocation],
        version: &str,
    ) -> Result<Self, String> {
        let header = Header::of(sweep, nic, version)?;
        let failed = |error: std::io::Error| format!("{}: {error}", display_path(path));
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = files::regular(options, OFlags::empty(), path).map_err(failed)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| format!("{} is being written by another sweep", display_path(path)))?;
        let mut results =
            Self { file: Mutex::new(file), path: path.into(), known: Vec::new(), is_cut: false };
        let file = results.file.get_mut().ignore_poison();
        let mut text = String::new();
        std::io::Read::by_ref(file).take(MAX_BYTES).read_to_string(&mut text).map_err(failed)?;
        let Lines { whole, lacks_end, is_cut } = Lines::of(&text);
        results.is_cut = is_cut;
        if whole == 0 && !(text.starts_with(MAGIC) || MAGIC.starts_with(&text)) {
            return Err(format!("{}, line 1: not a result of a modelled sweep", display_path(path)));
        }
        results.known = parse(&text[..whole], |stored| check_same_sweep(&header, stored), places, nic)
            .map_err(|why| format!("{}{why}; choose another file with --output", display_path(path)))?
            .map_or(Vec::new(), |(_, known)| known);
        let placed = file.set_len(whole as u64).and_then(|()| file.seek(SeekFrom::End(0)));
        let ended = placed.and_then(|_| if lacks_end { file.write_all(b"\n") } else { Ok(()) });
        ended.map_err(failed)?;
        if whole == 0 {
            results.append(&header)?;
        }
        Ok(results)
    }

    /// Appends a run.
    ///
    /// # Errors
    /// Fails if the run cannot be written.
    pub fn add(&self, run: &Measurement) -> Result<(), String> {
        self.append(run)
    }

    fn append(&self, line: &impl Serialize) -> Result<(), String> {
        let text = with_checksum(line) + "\n";
        let mut file = self.file.lock().ignore_poison();
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
        written.map_err(|error| format!("{}: {error}", display_path(&self.path)))
    }
}

impl Drop for ResultsFile {
    fn drop(&mut self) {
        // Unlock explicitly: a child of another thread that is between fork and exec has a copy of the descriptor,
        // which would keep the lock.
        let file = self.file.get_mut().ignore_poison();
        let _ = rustix::fs::flock(file, FlockOperation::Unlock);
    }
}

/// Reads the file at `path` with the models of `version`. Returns `None` if it is not the file of a modelled sweep or cannot be read.
///
/// # Errors
/// Fails if the file is damaged, or if its machine or the version of the models has changed.
pub fn read(path: &Path, version: &str) -> Result<Option<Contents>, String> {
    // Only a regular file: bytes read from a pipe would be lost for the caller, which may try another format.
    let Ok(file) = files::regular(OpenOptions::new().read(true), OFlags::empty(), path) else {
        return Ok(None);
    };
    let mut text = String::new();
    if file.take(MAX_BYTES).read_to_string(&mut text).is_err() || !text.starts_with(MAGIC) {
        return Ok(None);
    }
    let at = |why: String| format!("{}{why}", display_path(path));
    let Lines { whole, is_cut, .. } = Lines::of(&text);
    let first = text[..whole].lines().next().ok_or_else(|| at(", line 1: the line is incomplete".into()))?;
    let of_header = |why: String| at(format!(", line 1: {why}"));
    let stored = header(first).map_err(at)?;
    stored.check().map_err(of_header)?;
    let machine = Machine::open(&stored.machine)
        .map_err(|error| of_header(format!("its machine: {}", sanitize(&error.to_string()))))?;
    let (places, nic) = (of_machine(&machine), nic(&machine).map_err(of_header)?);
    let now = Header::of(&stored.sweep(&[]).map_err(of_header)?, &nic, version).map_err(of_header)?;
    let known = parse(&text[..whole], |stored| check_same_sweep(&now, stored), &places, &nic).map_err(at)?;
    Ok(known.map(|(header, known)| Contents { header, known, is_cut, places, nic }))
}

/// The complete lines of a file.
struct Lines {
    /// Their length in bytes.
    whole: usize,
    /// Whether the last line lacks a newline; editors may remove it.
    lacks_end: bool,
    /// Whether an incomplete line follows.
    is_cut: bool,
}

impl Lines {
    /// A last line without a newline is complete if its checksum is right. Otherwise the sweep ended while writing it.
    fn of(text: &str) -> Self {
        let ended = text.rfind('\n').map_or(0, |end| end + 1);
        let is_whole = split_checksum(&text[ended..]).is_some_and(|(_, is_right)| is_right);
        let whole = if is_whole { text.len() } else { ended };
        Self { whole, lacks_end: whole > ended, is_cut: whole < text.trim_end().len() }
    }
}

/// Serializes a line with its checksum.
fn with_checksum(content: &impl Serialize) -> String {
    // The types have fields and no maps with non-string keys, so serialization cannot fail.
    let text = serde_json::to_string(content).expect("a result is plain data");
    let fields = text.strip_suffix('}').unwrap_or(&text);
    format!("{fields}{CHECKSUM_FIELD}{}\"}}", checksum(fields))
}

fn checksum(fields: &str) -> String {
    longma_lab::digest(fields.as_bytes())[..CHECKSUM_DIGITS].into()
}

/// A line without its checksum, and whether the checksum is right.
fn split_checksum(line: &str) -> Option<(String, bool)> {
    let (fields, check) = line.strip_suffix("\"}")?.rsplit_once(CHECKSUM_FIELD)?;
    Some((format!("{fields}}}"), check == checksum(fields)))
}

const DAMAGED: &str = "wrong checksum: the line was changed or damaged";

fn header(line: &str) -> Result<Header, String> {
    let not = |why: &str| format!(", line 1: not a result of a modelled sweep: {why}");
    // Format 1 had no checksums.
    let (text, is_right) = split_checksum(line).unwrap_or_else(|| (line.into(), false));
    let header: Header = serde_json::from_str(&text).map_err(|error| not(&error.to_string()))?;
    if header.affinity_model == FORMAT && !is_right {
        return Err(not(DAMAGED));
    }
    Ok(header)
}

fn check_same_sweep(header: &Header, stored: &Header) -> Result<(), String> {
    let differs = header.difference(stored);
    differs.map_or(Ok(()), |what| Err(format!(" holds another sweep: {what} differs")))
}

/// Parses the header and the runs from the complete lines of a file; `None` if it is empty.
fn parse(
    text: &str,
    is_meant: impl Fn(&Header) -> Result<(), String>,
    places: &[CpuLocation],
    nic: &Nic,
) -> Result<Option<(Header, Vec<Measurement>)>, String> {
    let mut lines = text.lines().enumerate();
    let Some((_, first)) = lines.next() else { return Ok(None) };
    let header = header(first)?;
    is_meant(&header)?;
    let max_gbps = nic.goodput(header.mtu);
    let mut seen = BTreeSet::new();
    let mut run = |line: &str| {
        let (text, is_right) = split_checksum(line).ok_or("it has no checksum at its end")?;
        let run: Measurement = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        check(&run, places, max_gbps)?;
        match (is_right, seen.insert((run.pair, run.seed))) {
            (false, _) => Err(DAMAGED.into()),
            (true, false) => Err(format!("the pair {} with seed {} is a duplicate", run.pair, run.seed)),
            (true, true) => Ok(run),
        }
    };
    let at =
        |line: usize, why: String| format!(", line {}: not a result of a modelled sweep: {why}", line + 1);
    let runs = lines.map(|(line, text)| run(text).map_err(|why| at(line, why))).collect::<Result<_, _>>()?;
    Ok(Some((header, runs)))
}

/// Checks that the values of a run are possible, on a link that carries at most `max_gbps` Gb/s.
fn check(run: &Measurement, places: &[CpuLocation], max_gbps: f64) -> Result<(), String> {
    if classify(places, run.pair) != Some(run.class) {
        return Err(format!("the pair {} is not {} on this machine", run.pair, run.class));
    }
    let within = |field: &str, value: f64, (least, max_gbps): (f64, f64)| {
        if (least..=max_gbps).contains(&value) {
            Ok(())
        } else {
            Err(format!("{field} is {value}: it must be from {least} to {max_gbps}"))
        }
    };
    within("gbps", run.gbps, (MIN_POSITIVE, max_gbps))?;
    // The first two costs, instructions and cycles, cannot be 0.
    for (index, (cost, name)) in run.costs.iter().zip(COST_NAMES).enumerate() {
        let least = if index < 2 { MIN_POSITIVE } else { 0.0 };
        within(&format!("costs: {}", name.0), *cost, (least, MAX_COST))?;
    }
    for (stage, name) in run.stages.iter().zip(STAGES) {
        within(&format!("stages: {name}"), *stage, (-ROUNDING, MAX_COST))?;
    }
    let (sum, cycles) = (run.stages.iter().sum::<f64>(), run.costs[1]);
    let tolerance = ROUNDING * cycles.max(1.0);
    within("stages: their sum", sum, (cycles - tolerance, cycles + tolerance))?;
    run.busy.iter().try_for_each(|(part, _)| within("busy", *part, (0.0, 1.0)))
}

#[cfg(test)]
mod tests {
    use super::super::SOFTIRQ_SHARE;
    use super::*;
    use longma_affinity::pairs::{Class, Pair};

    const VERSION: &str = "1";

    fn sweep<'a>(frame_cycles: u32) -> Sweep<'a> {
        Sweep {
            longma: Path::new("/proc/self/exe"),
            machine: "sandybridge-2x6",
            pairs: vec![],
            frame_cycles,
            softirq_share: SOFTIRQ_SHARE,
            bytes: 4_000_000,
            seed: 1,
            seeds: 1,
            mtu: None,
            settings: vec![],
        }
    }

    fn run(seed: u64) -> Measurement {
        let mut costs = [1.5; COST_NAMES.len()];
        costs[1] = 0.1 * STAGES.len() as f64;
        Measurement {
            pair: Pair { flow: 1, application: 2 },
            seed,
            class: Class::SharedCache,
            gbps: 39.5,
            costs,
            stages: [0.1; STAGES.len()],
            busy: [(0.5, "system".into()), (0.25, "base".into())],
        }
    }

    /// Writes a file with these runs and returns the error of opening it.
    fn refused(of: &Path, runs: &[Measurement]) -> String {
        let machine = Machine::open("sandybridge-2x6").unwrap();
        let (places, nic) = (of_machine(&machine), nic(&machine).unwrap());
        let path = of.join("made.jsonl");
        let mut text = with_checksum(&Header::of(&sweep(0), &nic, VERSION).unwrap()) + "\n";
        runs.iter().for_each(|run| text += &(with_checksum(run) + "\n"));
        std::fs::write(&path, &text).unwrap();
        let error = ResultsFile::open(&path, &sweep(0), &nic, &places, VERSION).err().unwrap_or_default();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "nothing is changed");
        error
    }

    #[test]
    fn an_invalid_header_is_rejected_before_other_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made.jsonl");
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let nic = nic(&Machine::open("sandybridge-2x6").unwrap()).unwrap();
        let refused = |change: &dyn Fn(&mut Header)| {
            let mut header = Header::of(&sweep(0), &nic, VERSION).unwrap();
            change(&mut header);
            std::fs::write(&path, with_checksum(&header) + "\n").unwrap();
            read(&path, VERSION).err().unwrap_or_default()
        };
        assert_eq!(refused(&|_| {}), "");
        for bytes in [0, 1, 901_000_000, u64::MAX] {
            let error = refused(&|header| header.bytes = bytes);
            assert!(
                error.contains(&format!("made.jsonl, line 1: bytes is {bytes}: it must be 1 to 900 MB")),
                "{error}"
            );
        }
        assert!(refused(&|header| header.frame_cycles = 100_001).contains("line 1: frame_cycles is 100001"));
        assert!(refused(&|header| header.softirq_share = 101).contains("line 1: softirq_share is 101"));
        assert!(refused(&|header| header.mtu = 40).contains("made.jsonl, line 1: packets of 40 bytes"));
        let error = refused(&|header| header.machine = pipe.to_str().unwrap().into());
        assert!(error.contains("pipe is not a regular file"), "{error}");
    }

    #[test]
    fn impossible_values_are_rejected_with_line_and_field() {
        let folder = tempfile::tempdir().unwrap();
        let with = |change: &dyn Fn(&mut Measurement)| {
            let mut changed = run(2);
            change(&mut changed);
            refused(folder.path(), &[run(1), changed])
        };
        assert_eq!(with(&|_| {}), "");
        let begins = "made.jsonl, line 3: not a result of a modelled sweep: ";
        type Case<'a> = (&'a dyn Fn(&mut Measurement), &'a str);
        let cases: [Case; 8] = [
            (&|run| run.gbps = -39.5, "gbps is -39.5"),
            // More than a 40 Gb/s link carries in packets of 9000 bytes.
            (&|run| run.gbps = 39.7, "gbps is 39.7: it must be from"),
            (&|run| run.costs[0] = 0.0, "costs: instructions is 0"),
            (&|run| run.costs[3] = -1.0, "costs: LLC references is -1"),
            (&|run| run.stages[3] = 500.0, "stages: their sum is 500.8"),
            (&|run| run.busy[1].0 = 7.0, "busy is 7"),
            (&|run| run.class = Class::OtherSocket, "the pair 1,2 is not other-socket on this machine"),
            (&|run| run.seed = 1, "the pair 1,2 with seed 1 is a duplicate"),
        ];
        for (change, why) in cases {
            let error = with(change);
            assert!(error.contains(&format!("{begins}{why}")), "{error}");
        }
    }

    #[test]
    fn every_changed_byte_is_detected() {
        let machine = Machine::open("sandybridge-2x6").unwrap();
        let (places, nic) = (of_machine(&machine), nic(&machine).unwrap());
        let first = Header::of(&sweep(0), &nic, VERSION).unwrap();
        let text = format!("{}\n{}\n", with_checksum(&first), with_checksum(&run(1)));
        let parsed = |text: &str| parse(text, |stored| check_same_sweep(&first, stored), &places, &nic);
        assert_eq!(parsed(&text).unwrap().unwrap().1, [run(1)]);
        for at in (0..text.len()).filter(|at| text.as_bytes()[*at] != b'\n') {
            let mut bytes = text.clone().into_bytes();
            // Flips the lowest bit: a digit becomes another digit.
            bytes[at] ^= 1;
            let changed = String::from_utf8(bytes).unwrap();
            assert!(parsed(&changed).is_err(), "{changed}");
        }
    }

    #[test]
    fn complete_runs_are_read_back_exactly_and_an_incomplete_line_is_dropped() {
        let machine = Machine::open("sandybridge-2x6").unwrap();
        let (places, nic) = (of_machine(&machine), nic(&machine).unwrap());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept.jsonl");
        let open = |frame_cycles| ResultsFile::open(&path, &sweep(frame_cycles), &nic, &places, VERSION);
        let first = open(0).unwrap();
        first.add(&run(1)).unwrap();
        first.add(&Measurement { gbps: 0.1 + 0.2, ..run(2) }).unwrap();
        assert!(open(0).err().unwrap().contains("is being written"));
        // A copy of the descriptor, as a child of another thread has it between fork and exec.
        let _elsewhere = first.file.lock().unwrap().try_clone().unwrap();
        drop(first);
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&text[..], b"{\"pair\":{\"fl"].concat()).unwrap();
        assert_eq!(open(0).unwrap().known, [run(1), Measurement { gbps: 0.1 + 0.2, ..run(2) }]);
        assert_eq!(std::fs::read(&path).unwrap(), text);
        let other = open(3000).err().unwrap();
        assert!(
            other.contains("holds another sweep: --frame-cycles differs; choose another file"),
            "{other}"
        );
        let changed = String::from_utf8(text.clone()).unwrap().replacen("39.5", "39.4", 1);
        std::fs::write(&path, &changed).unwrap();
        let error = open(0).err().unwrap();
        assert!(error.contains("line 2: not a result of a modelled sweep: wrong checksum"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), changed);
        // A file truncated at any length continues after its last complete line.
        let ends = (0..text.len()).filter(|at| text[*at] == b'\n');
        for length in (0..text.len()).step_by(7).chain(ends) {
            std::fs::write(&path, &text[..length]).unwrap();
            let known = open(0).unwrap().known.clone();
            // A line counts as complete even without its newline.
            let complete =
                text.iter().enumerate().filter(|(at, byte)| *at <= length && **byte == b'\n').count();
            assert_eq!(known.len(), complete.saturating_sub(1), "{length}");
        }
        std::fs::write(&path, "my letter").unwrap();
        assert!(open(0).err().unwrap().contains("not a result of a modelled sweep"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "my letter");
    }
}
