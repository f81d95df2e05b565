//! Runs one pair: builds the command, waits for it, and evaluates its statistics.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use longma_affinity::child::{ChildError, Start, how_it_ended};
use longma_affinity::pairs::{Class, Pair};
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::Value;

use super::{
    COSTS, DETAILED_WARM_UP_BYTES, DRAIN_BYTES, HEADER_BYTES, Measurement, Nic, ReceiverSetting,
    SEGMENT_BYTES, Sweep, WARM_UP_BYTES, WINDOW_SEGMENTS, count, pair_seed, stages, working_cores,
};

/// Time limit. A pair takes some seconds.
const TIME_LIMIT: Duration = Duration::from_secs(300);

/// An in-memory file that a child can open by path. It disappears with this process.
pub(super) struct MemFile(File);

impl MemFile {
    pub(super) fn new(bytes: &[u8]) -> io::Result<Self> {
        let mut file = File::from(memfd_create("longma", MemfdFlags::CLOEXEC)?);
        file.write_all(bytes)?;
        Ok(Self(file))
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// Why a run has no result.
pub(super) enum RunFailure {
    /// The sweep was stopped.
    Stopped,
    /// The run failed. The message names the pair and the reason.
    Failed(String),
}

/// Runs one pair.
pub(super) fn run_pair(
    sweep: &Sweep,
    nic: &Nic,
    program: &MemFile,
    (pair, class, seed): (Pair, Class, u64),
    stop: &AtomicBool,
) -> Result<Measurement, RunFailure> {
    let failed = |why: String| RunFailure::Failed(format!("pair {pair}: {why}"));
    let mut out = MemFile::new(&[]).map_err(|error| failed(error.to_string()))?;
    let arguments = command_line(sweep, nic, (pair, seed), (program, &out)).map_err(failed)?;
    // The guest must not see this process's environment.
    let start =
        Start { words: arguments, cpus: None, namespace: None, limit: TIME_LIMIT, has_environment: false };
    let ended = start.spawn().and_then(|child| child.end(stop)).map_err(|error| match error {
        ChildError::Stopped { .. } => RunFailure::Stopped,
        error => failed(error.to_string()),
    })?;
    let errors = ended.err;
    let figure = |unit: &str| -> Result<f64, RunFailure> {
        let found = errors.lines().find_map(|line| line.strip_suffix(unit)?.parse().ok());
        found.ok_or_else(|| failed(format!("it {}: {}", how_it_ended(ended.status), errors.trim())))
    };
    let (gbps, bytes) = (
        figure(" Gb/s")?,
        figure(" bytes of interest, the mean of those that arrived and those that were read")?,
    );
    let mtu = sweep.mtu(nic).map_err(failed)?;
    check_rate(gbps, nic, mtu).map_err(failed)?;
    let mut text = String::new();
    let read = out.0.seek(SeekFrom::Start(0)).and_then(|_| out.0.read_to_string(&mut text));
    read.map_err(|error| failed(error.to_string()))?;
    let result: Value = serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
    Ok(evaluate(&result, &sweep.settings, (pair, class, seed), (gbps, bytes)))
}

/// Checks a rate against the capacity of the link. A higher rate is a bug of the model.
fn check_rate(gbps: f64, nic: &Nic, mtu: u64) -> Result<(), String> {
    let goodput = nic.goodput(mtu);
    // The rate is printed with a resolution of 1 kb/s.
    if gbps <= goodput + 1e-6 {
        return Ok(());
    }
    Err(format!(
        "model error: it reports {gbps} Gb/s, but {} carries at most {goodput:.3} Gb/s of data in packets of {mtu} bytes",
        nic.name
    ))
}

/// The command that runs a pair.
fn command_line(
    sweep: &Sweep,
    nic: &Nic,
    (pair, seed): (Pair, u64),
    (program, out): (&MemFile, &MemFile),
) -> Result<Vec<String>, String> {
    let segment = sweep.mtu(nic)? - HEADER_BYTES;
    let bytes = WARM_UP_BYTES + DETAILED_WARM_UP_BYTES + sweep.bytes;
    let longma = sweep.longma.to_str().ok_or("the path of this program is not valid UTF-8")?;
    let mut arguments: Vec<String> =
        [longma, "run", "--level", "timing", "--roi", "--warm", "all", "--quiet", "--machine", sweep.machine]
            .map(String::from)
            .into();
    arguments.extend([
        "--stats-out".into(),
        out.path(),
        "--seed".into(),
        pair_seed(seed, pair).to_string(),
        "--wire".into(),
    ]);
    arguments.push(format!(
        "{},tcp,bytes={},message=131072,mss={segment}",
        nic.name,
        2 * bytes + DRAIN_BYTES
    ));
    let (in_softirq, of_owner) = divided(sweep);
    let settings = [
        ("flow", u64::from(pair.flow)),
        ("application", pair.application.into()),
        ("begin", WARM_UP_BYTES),
        ("settle", DETAILED_WARM_UP_BYTES),
        ("bytes", bytes),
        ("path", of_owner),
        ("segment", segment),
        // User settings follow and may override this.
        ("near", 1),
    ];
    let window = (segment < SEGMENT_BYTES).then_some(("room", WINDOW_SEGMENTS * segment));
    let offloads = sweep.settings.iter().map(|setting| (setting.name, setting.value));
    let before = [("before", in_softirq + sweep.setting("before"))];
    arguments.extend(
        settings
            .into_iter()
            .chain(window)
            .chain(offloads)
            .chain(before)
            .map(|(name, value)| format!("--env={name}={value}")),
    );
    arguments.extend(["--".into(), program.path(), nic.name.clone()]);
    Ok(arguments)
}

/// The cycles added to each frame in the softirq, and by the socket's owner.
fn divided(sweep: &Sweep) -> (u64, u64) {
    let all = u64::from(sweep.frame_cycles);
    let in_softirq = all * u64::from(sweep.softirq_share.min(100)) / 100;
    (in_softirq, all - in_softirq)
}

/// Evaluates the statistics of a run in which `bytes` were counted.
fn evaluate(
    result: &Value,
    settings: &[ReceiverSetting],
    (pair, class, seed): (Pair, Class, u64),
    (gbps, bytes): (f64, f64),
) -> Measurement {
    let (all, cores) = (&result["statistics"], working_cores(pair, settings));
    let gbit = (bytes * 8e-9).max(f64::MIN_POSITIVE);
    let costs = COSTS.map(|(_, _, unit, of)| of(all, &cores) / unit / gbit);
    let stages = stages::cycles(result, &cores).map(|cycles| cycles / 1e6 / gbit);
    let busy = [pair.flow, pair.application].map(|core| {
        let (cycles, idle) =
            (count(all, &format!("core{core}.cycles")), count(all, &format!("core{core}.idle_cycles")));
        let causes = all.get(format!("core{core}")).and_then(|core| core.get("cpi")?.as_object());
        let cost = |cause: &Value| cause["value"].as_f64().unwrap_or(0.0);
        let main_cause = causes
            .into_iter()
            .flatten()
            .filter(|(name, _)| *name != "idle")
            .max_by(|one, other| cost(one.1).total_cmp(&cost(other.1)));
        let main_cause = main_cause.map_or("-".into(), |(name, _)| name.clone());
        (if cycles > 0.0 { 1.0 - idle / cycles } else { 0.0 }, main_cause)
    });
    Measurement { pair, seed, class, gbps, costs, stages, busy }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(frame_cycles: u32, softirq_share: u32, settings: &[&str]) -> Vec<String> {
        let sweep = Sweep {
            longma: std::path::Path::new("longma"),
            machine: "sandybridge-2x6",
            pairs: vec![],
            frame_cycles,
            softirq_share,
            bytes: 4_000_000,
            seed: 1,
            seeds: 1,
            mtu: None,
            settings: settings.iter().map(|setting| setting.parse().unwrap()).collect(),
        };
        let nic = Nic { name: "eth0".into(), gbps: 40.0, mtu: 9000, socket: None, queues: 8 };
        let file = || MemFile::new(&[]).unwrap();
        command_line(&sweep, &nic, (Pair { flow: 1, application: 2 }, 1), (&file(), &file())).unwrap()
    }

    /// The last setting of a name holds.
    fn value(words: &[String], name: &str) -> u64 {
        let prefix = format!("--env={name}=");
        words.iter().filter_map(|word| word.strip_prefix(&prefix)).next_back().unwrap().parse().unwrap()
    }

    #[test]
    fn added_cycles_are_divided_between_the_softirq_and_the_sockets_owner() {
        for (share, settings, before, path) in [
            (0, &[][..], 0, 3000),
            (56, &[], 1680, 1320),
            (100, &[], 3000, 0),
            (100, &["before=50"], 3050, 0),
        ] {
            let words = words(3000, share, settings);
            assert_eq!((value(&words, "before"), value(&words, "path")), (before, path), "{share}");
        }
    }

    #[test]
    fn a_rate_above_the_line_rate_is_a_model_error() {
        let nic = Nic { name: "eth0".into(), gbps: 40.0, mtu: 9000, socket: None, queues: 8 };
        assert_eq!(check_rate(39.65, &nic, 9000), Ok(()));
        // Above the rate of the link.
        let refused = check_rate(42.347, &nic, 9000).unwrap_err();
        assert!(refused.contains("model error: it reports 42.347 Gb/s"), "{refused}");
        assert!(check_rate(39.65, &nic, 1500).is_err(), "smaller packets carry less");
    }
}
