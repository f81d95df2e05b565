//! One flow and the program that takes it, on each pair of a modelled host's cores.
//! Not the model: each pair is a run of `longma run`, with the guest `flow_receive` between a sender at line rate and a program that reads.
//! Source: Hanford et al. 2014 for the pairs and the costs; what the model leaves out is in the book's chapter.

mod stages;

pub use stages::STAGES;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use longma_affinity::places::{Class, Pair, classify};
use longma_topology::{CpuPlace, Machine};
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::Value;

/// The receive path as a guest program.
const RECEIVER: &[u8] = include_bytes!("../../../guests/prebuilt/loongarch64/flow_receive-lasx");
/// The largest segment that it takes: packets of 9000 bytes without their headers.
const SEGMENT_BYTES: u64 = 8960;
/// The smallest one that it can be told of.
const LEAST_SEGMENT_BYTES: u64 = 536;
/// What arrives before anything is counted: nearly twice all buffers of the ring (1024 of 9000 bytes), so that caches have what they have
/// in the long run.
const BEFORE_BYTES: u64 = 16_000_000;
/// What arrives behind that in full detail before the rate is measured: more than the receive buffer, which is filled or emptied by then.
const SETTLE_BYTES: u64 = 6_000_000;
/// What is still to come when counting ends: more than a window, so that as much waits then as when it began.
const AFTER_BYTES: u64 = 8_000_000;
/// A pair takes some seconds.
const LIMIT: Duration = Duration::from_secs(300);

/// What of the model is swept.
#[derive(Debug)]
pub struct Sweep<'a> {
    /// The `longma` that runs a pair.
    pub longma: &'a Path,
    /// The machine's name or file.
    pub machine: &'a str,
    /// The pairs; all if there are none.
    pub pairs: Vec<Pair>,
    /// Cycles of a frame besides the guest's.
    pub frame_cycles: u32,
    /// Bytes over which the rate of each pair is measured.
    pub bytes: u64,
    /// The first seed of what is random.
    pub seed: u64,
    /// How many seeds, each with every pair: this one and those that follow it.
    pub seeds: u32,
    /// The largest packet, bytes; the NIC's if none is given. A larger one than that is the NIC's.
    pub mtu: Option<u64>,
    /// What the NIC and the kernel do besides.
    pub settings: Vec<Offload>,
}

impl Sweep<'_> {
    /// Bytes of the largest packet through `nic`.
    pub fn mtu(&self, nic: &Nic) -> u64 {
        self.mtu.map_or(nic.mtu, |mtu| mtu.min(nic.mtu))
    }
}

/// What a receiver can be told: its name, the largest value, and what it is. `rps` and `napi` are cores.
/// Source: the head of `guests/c/flow_receive.c`.
pub const OFFLOADS: [(&str, u64, &str); 15] = [
    ("gro", 1, "segments that follow one another in a poll are merged"),
    ("lro", 1, "the NIC merges them, while interrupts are held back (delay_ns) or off"),
    ("rps", 1023, "the core where protocol runs"),
    ("rfs", 1, "protocol runs on the application's core"),
    ("send_queues", 16, "rings that acknowledgements go by; 0: the flow's own"),
    ("xps", 1, "the ring of the core that sends"),
    ("busy_us", 1_000_000, "us that the application polls the NIC before it sleeps"),
    ("threaded", 1, "a thread takes frames in place of softirq"),
    ("napi", 1023, "that thread's core; the flow's if not given"),
    ("ring", 4096, "receive descriptors"),
    ("delay_ns", 1_000_000_000, "ns that an interrupt is held back"),
    ("frames", 65535, "frames that end that"),
    ("budget", 4096, "frames of a poll"),
    (
        "near",
        1,
        "rings and buffers lie in the memory of the flow's core, as they do if not given; 0: of the application's",
    ),
    ("before", 1 << 20, "cycles of a frame before the socket"),
];

/// One of [`OFFLOADS`] with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// Its name.
    pub name: &'static str,
    /// What it is set to.
    pub value: u64,
}

impl std::str::FromStr for Offload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or_else(|| format!("`{text}`: write NAME=VALUE"))?;
        let Some((name, most, _)) = OFFLOADS.iter().find(|offload| offload.0 == name) else {
            let known: Vec<&str> = OFFLOADS.iter().map(|offload| offload.0).collect();
            return Err(format!("there is no `{name}`: give one of {}", known.join(", ")));
        };
        let value = value.parse().ok().filter(|value| value <= most);
        let value = value.ok_or_else(|| format!("{name}: give a whole number from 0 to {most}"))?;
        Ok(Self { name, value })
    }
}

/// The NIC that the flow comes in by.
#[derive(Debug)]
pub struct Nic {
    /// Its name in the machine file.
    pub name: String,
    /// Its rate, Gb/s.
    pub gbps: f64,
    /// The largest packet, bytes.
    pub mtu: u64,
    /// The socket that it is attached to; none if the machine file does not say.
    pub socket: Option<u32>,
}

/// What one run of a pair gave.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Whose cores.
    pub pair: Pair,
    /// Of what was random.
    pub seed: u64,
    /// How they lie to each other.
    pub class: Class,
    /// What arrived, Gb/s.
    pub gbps: f64,
    /// As [`COSTS`] has them.
    pub costs: [f64; COSTS.len()],
    /// Cycles by [`STAGES`], 10^6 a Gbit; together they are the cost `cycles`.
    pub stages: [f64; STAGES.len()],
    /// Of the flow's core and of the application's: the part of the time in which it was not idle, and what most of that went to.
    pub busy: [(f64, String); 2],
}

/// How a cost is read from a run's statistics.
pub type Counted = fn(&Value, Pair) -> f64;

/// What is counted for each Gbit: its name, its unit, what it is divided by, and where it stands in the statistics.
pub const COSTS: [(&str, &str, f64, Counted); 6] = [
    ("instructions", "M/Gbit", 1e6, |all, pair| of_cores(all, pair, &["instructions"])),
    ("cycles", "M/Gbit", 1e6, |all, pair| {
        of_cores(all, pair, &["cycles"]) - of_cores(all, pair, &["idle_cycles"])
    }),
    ("L2 references", "k/Gbit", 1e3, |all, pair| {
        of_cores(all, pair, &["l2.loads", "l2.stores", "l2.fetches", "l2.prefetches"])
    }),
    ("LLC references", "k/Gbit", 1e3, |all, _| {
        of_last_caches(all, &["loads", "stores", "fetches", "prefetches"])
    }),
    ("LLC misses", "k/Gbit", 1e3, |all, _| {
        of_last_caches(all, &["load_misses", "store_misses", "fetch_misses", "prefetch_misses"])
    }),
    ("memory lines", "k/Gbit", 1e3, |all, _| {
        count(all, "memory.line_reads") + count(all, "memory.line_writes")
    }),
];

/// A statistic by its name; 0 of what never happened.
fn count(all: &Value, name: &str) -> f64 {
    let found = name.split('.').try_fold(all, |at, word| at.get(word));
    found.and_then(|found| found.get("value")?.as_f64()).unwrap_or(0.0)
}

fn of_cores(all: &Value, pair: Pair, names: &[&str]) -> f64 {
    let of = |core: u32| names.iter().map(|name| count(all, &format!("core{core}.{name}"))).sum::<f64>();
    if pair.flow == pair.application { of(pair.flow) } else { of(pair.flow) + of(pair.application) }
}

/// The sum over the shared caches of the last level, whatever they are called: those that devices write to.
fn of_last_caches(all: &Value, names: &[&str]) -> f64 {
    let Some(parts) = all.as_object() else { return 0.0 };
    let last = parts
        .keys()
        .filter(|part| part.starts_with("l3") || (part.starts_with("l2") && !parts.contains_key("l3")));
    last.flat_map(|part| names.iter().map(move |name| count(all, &format!("{part}.{name}")))).sum()
}

/// The NIC of the machine's first host that a flow comes in by.
///
/// # Errors
/// It has none with a rate.
pub fn nic(machine: &Machine) -> Result<Nic, String> {
    let placed = machine.hosts.first().map_or(&[][..], |host| &host.devices);
    let buses = machine.hosts.first().map_or(&[][..], |host| &host.buses);
    // On a chip's port, or on a bus that is.
    let socket = |on: &str| {
        let port = buses.iter().find(|bus| bus.name == on).map_or(on, |bus| &bus.on);
        port.split('.').next()?.strip_prefix("chip")?.parse().ok()
    };
    let ethernet = |device: &str| machine.devices.get(device).and_then(|device| device.ethernet.as_ref());
    let found = placed.iter().find_map(|placed| {
        let ethernet = ethernet(&placed.device)?;
        let gbps = ethernet.rate?.bits_per_second() as f64 * 1e-9;
        let socket = socket(&placed.on);
        Some(Nic { name: placed.name.clone(), gbps, mtu: ethernet.mtu_bytes(), socket })
    });
    found.ok_or_else(|| {
        format!("{} has no Ethernet device with a rate: add one to the machine file", machine.name)
    })
}

/// All pairs with all seeds, several runs at a time; `told` hears how many are done.
///
/// # Errors
/// A pair cannot be run, or names a core that the machine does not have.
pub fn measure(
    sweep: &Sweep,
    nic: &Nic,
    places: &[CpuPlace],
    pairs: &[Pair],
    stop: &AtomicBool,
    told: &(dyn Fn(usize) + Sync),
) -> Result<Vec<Measured>, String> {
    let program = Nameless::new(RECEIVER).map_err(|error| format!("cannot keep the receiver: {error}"))?;
    let seeds = (0..u64::from(sweep.seeds.max(1))).map(|number| sweep.seed.wrapping_add(number));
    let runs: Vec<(Pair, u64)> = seeds.flat_map(|seed| pairs.iter().map(move |pair| (*pair, seed))).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results = Mutex::new(Vec::new());
    let jobs = std::thread::available_parallelism().map_or(1, usize::from).min(runs.len().max(1));
    let work = || {
        while let Some((pair, seed)) = runs.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
            let class = classify(places, pair)
                .ok_or_else(|| format!("the pair {pair} names a core that the machine does not have"));
            let result = class.and_then(|class| one(sweep, nic, &program, (pair, class, seed), stop));
            let failed = result.is_err();
            results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
            if failed || stop.load(Ordering::Relaxed) {
                next.store(runs.len(), Ordering::Relaxed);
            }
            told(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut measured = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    measured.sort_by_key(|one| (one.pair, one.seed));
    Ok(measured)
}

/// Each pair's means over its seeds, as of the first of them.
pub fn over_seeds(measured: &[Measured]) -> Vec<Measured> {
    let by_pair = measured.chunk_by(|one, other| one.pair == other.pair);
    by_pair.filter_map(mean).collect()
}

fn mean(of: &[Measured]) -> Option<Measured> {
    let first = of.first()?;
    let mean = |value: &dyn Fn(&Measured) -> f64| of.iter().map(value).sum::<f64>() / of.len() as f64;
    Some(Measured {
        gbps: mean(&|one| one.gbps),
        costs: std::array::from_fn(|cost| mean(&|one| one.costs[cost])),
        stages: std::array::from_fn(|stage| mean(&|one| one.stages[stage])),
        busy: std::array::from_fn(|core| (mean(&|one| one.busy[core].0), first.busy[core].1.clone())),
        ..first.clone()
    })
}

/// Bytes in memory that a child opens as a file, and that are gone with this process.
struct Nameless(File);

impl Nameless {
    fn new(bytes: &[u8]) -> io::Result<Self> {
        let mut file = File::from(memfd_create("longma", MemfdFlags::CLOEXEC)?);
        file.write_all(bytes)?;
        Ok(Self(file))
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// Runs one pair.
fn one(
    sweep: &Sweep,
    nic: &Nic,
    program: &Nameless,
    (pair, class, seed): (Pair, Class, u64),
    stop: &AtomicBool,
) -> Result<Measured, String> {
    let failed = |error: io::Error| format!("pair {pair}: {error}");
    let mut out = Nameless::new(&[]).map_err(failed)?;
    let segment = SEGMENT_BYTES.min(sweep.mtu(nic).saturating_sub(40).max(LEAST_SEGMENT_BYTES));
    let settings = [
        format!("--env=flow={}", pair.flow),
        format!("--env=application={}", pair.application),
        format!("--env=begin={BEFORE_BYTES}"),
        format!("--env=settle={SETTLE_BYTES}"),
        format!("--env=bytes={}", BEFORE_BYTES + SETTLE_BYTES + sweep.bytes),
        format!("--env=path={}", sweep.frame_cycles),
        format!("--env=segment={segment}"),
        // What is given below may say otherwise.
        "--env=near=1".into(),
    ];
    let offloads = sweep.settings.iter().map(|offload| format!("--env={}={}", offload.name, offload.value));
    let mut child = Command::new(sweep.longma)
        .args(["run", "--level", "timing", "--roi", "--warm", "all", "--quiet", "--machine", sweep.machine])
        .args(["--stats-out", &out.path(), "--seed", &seed.to_string()])
        .args([
            "--wire",
            &format!(
                "{},tcp,bytes={},message=131072,mss={segment}",
                nic.name,
                BEFORE_BYTES + SETTLE_BYTES + sweep.bytes + AFTER_BYTES
            ),
        ])
        .args(settings)
        .args(offloads)
        .args(["--", &program.path(), &nic.name])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let said = wait(&mut child, stop).map_err(|why| format!("pair {pair}: {why}"))?;
    let figure = |unit: &str| -> Result<f64, String> {
        let found = said.lines().find_map(|line| line.strip_suffix(unit)?.parse().ok());
        found.ok_or_else(|| format!("pair {pair}: {}", said.trim()))
    };
    let (gbps, bytes) = (
        figure(" Gb/s")?,
        figure(" bytes of interest, the mean of those that arrived and those that were read")?,
    );
    let mut text = String::new();
    out.0.seek(SeekFrom::Start(0)).and_then(|_| out.0.read_to_string(&mut text)).map_err(failed)?;
    let result: Value = serde_json::from_str(&text).map_err(|error| format!("pair {pair}: {error}"))?;
    Ok(evaluate(&result, (pair, class, seed), (gbps, bytes)))
}

/// Waits for a run, which is ended after its time or when all is; gives what it said on standard error.
fn wait(child: &mut Child, stop: &AtomicBool) -> Result<String, String> {
    let began = Instant::now();
    let mut pipe = child.stderr.take();
    // It says a few lines: they fit into the pipe.
    while child.try_wait().map_err(|error| error.to_string())?.is_none() {
        if stop.load(Ordering::Relaxed) || began.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("it was ended after {:.0} s", began.elapsed().as_secs_f64()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut said = String::new();
    pipe.as_mut().map_or(Ok(0), |pipe| pipe.read_to_string(&mut said)).map_err(|error| error.to_string())?;
    Ok(said)
}

/// What the statistics of a run say, in which so many bytes were counted.
fn evaluate(result: &Value, (pair, class, seed): (Pair, Class, u64), (gbps, bytes): (f64, f64)) -> Measured {
    let all = &result["statistics"];
    let gbit = (bytes * 8e-9).max(f64::MIN_POSITIVE);
    let costs = COSTS.map(|(_, _, unit, of)| of(all, pair) / unit / gbit);
    let stages = stages::cycles(result, pair).map(|cycles| cycles / 1e6 / gbit);
    let busy = [pair.flow, pair.application].map(|core| {
        let (cycles, idle) =
            (count(all, &format!("core{core}.cycles")), count(all, &format!("core{core}.idle_cycles")));
        let causes = all.get(format!("core{core}")).and_then(|core| core.get("cpi")?.as_object());
        let cost = |cause: &Value| cause["value"].as_f64().unwrap_or(0.0);
        let most = causes
            .into_iter()
            .flatten()
            .filter(|(name, _)| *name != "idle")
            .max_by(|one, other| cost(one.1).total_cmp(&cost(other.1)));
        let most = most.map_or("-".into(), |(name, _)| name.clone());
        (if cycles > 0.0 { 1.0 - idle / cycles } else { 0.0 }, most)
    });
    Measured { pair, seed, class, gbps, costs, stages, busy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offload_is_named_with_a_value_that_it_can_have() {
        assert_eq!("rfs=1".parse(), Ok(Offload { name: "rfs", value: 1 }));
        for (wrong, said) in [
            ("rfs", "NAME=VALUE"),
            ("rfs=2", "from 0 to 1"),
            ("tso=1", "one of gro"),
            ("ring=x", "whole number"),
        ] {
            let error = wrong.parse::<Offload>().unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_pairs_value_is_the_mean_over_its_seeds() {
        let one = |flow, seed, gbps| Measured {
            pair: Pair { flow, application: 0 },
            seed,
            class: Class::SameCpu,
            gbps,
            costs: [gbps; COSTS.len()],
            stages: [1.0; STAGES.len()],
            busy: [(gbps, "base".into()), (0.0, "idle".into())],
        };
        let means = over_seeds(&[one(0, 1, 10.0), one(0, 2, 20.0), one(1, 1, 5.0)]);
        assert_eq!(means.iter().map(|mean| mean.gbps).collect::<Vec<_>>(), [15.0, 5.0]);
        assert_eq!((means[0].costs[3], means[0].busy[0].0, means[0].stages[2]), (15.0, 15.0, 1.0));
    }
}
