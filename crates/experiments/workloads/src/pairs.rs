//! Measures a network flow and its application on each pair of a modelled host's cores. Each pair is one run of `longma
//! run` with the guest `flow_receive`, which receives from a modelled sender at line rate and passes the data to a
//! reading application.
//!
//! Source: Hanford et al. 2014 for the pairs and the costs. The book's chapter lists what the model omits.

mod idle;
mod limits;
mod pinning;
pub mod results_file;
mod run;
mod stages;

pub use idle::{idle, missing_resource};
pub use limits::{busier, limit};
use longma_locks::IgnorePoison;
use longma_random::mix;
pub use stages::STAGES;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use longma_affinity::pairs::{Class, Pair, classify};
use longma_topology::{CpuLocation, Machine};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use run::{MemFile, RunFailure, run_pair};

/// The receive path as a guest program.
const RECEIVER: &[u8] = include_bytes!("../../../../guests/prebuilt/loongarch64/flow_receive-lasx");
/// Maximum segment size of the receiver: packets of 9000 bytes minus their headers.
const SEGMENT_BYTES: u64 = 8960;
/// Size of the receiver's buffer in segments: 3 MiB of the largest ones. The count is the same for smaller segments,
/// because the NIC's ring and FIFO limit the number of packets in flight. A larger window would cause repeated losses,
/// because the modelled sender has no congestion control.
const WINDOW_SEGMENTS: u64 = 351;
/// Length of the IPv4 and TCP headers.
const HEADER_BYTES: u64 = 40;
/// Minimum segment size that the receiver accepts.
const MIN_SEGMENT_BYTES: u64 = 536;
/// Bytes received to warm up the caches before counting. Almost twice the ring's 1024 buffers of 9000 bytes.
const WARM_UP_BYTES: u64 = 16_000_000;
/// Bytes received in full detail after that, before the rate is measured. They fill the buffer of a receiver that is
/// slower than the line (`guests/c/flow_rate.h`) and pass through it once.
const DETAILED_WARM_UP_BYTES: u64 = 3_000_000;
/// Bytes that remain to be received when counting ends. The interval may end late, and the buffer must be as full at
/// its end as at its start.
const DRAIN_BYTES: u64 = 16_000_000;

/// Bytes that a rate can be measured over, in units of 10^6 bytes.
pub const MEGABYTES: RangeInclusive<u64> = 1..=900;
/// Maximum number of cycles added to a frame. These cycles are simulated one by one.
pub const MAX_FRAME_CYCLES: u32 = 100_000;

/// Percent of the cycles added to a frame that the softirq spends on the flow's core, for each frame. The socket's owner
/// spends the rest, for each packet in the socket: a program that is reading, otherwise the softirq.
///
/// Source: Liao, Zhu and Bhuyan, "A new server I/O architecture for high speed networks", HPCA 2011, profile Linux as it
/// receives from a 10 Gb/s NIC: besides the copy, most time goes to the driver (26 % of all) and to the release of
/// buffers (20 %). The guest leaves both out. The driver runs in the softirq. Until Linux 5.15, the reader released
/// buffers with the socket locked (commit f35f821935d8).
pub const SOFTIRQ_SHARE: u32 = 100 * 26 / (26 + 20);

/// A sweep of the model.
#[derive(Debug)]
pub struct Sweep<'a> {
    /// The `longma` command that runs a pair.
    pub longma: &'a Path,
    /// Name or file of the machine.
    pub machine: &'a str,
    /// The pairs; all if empty.
    pub pairs: Vec<Pair>,
    /// Cycles added to the guest's own processing of each frame.
    pub frame_cycles: u32,
    /// Percent of these cycles that the softirq spends, from 0 to 100; see [`SOFTIRQ_SHARE`].
    pub softirq_share: u32,
    /// Bytes over which the rate of each pair is measured.
    pub bytes: u64,
    /// First seed of the random numbers.
    pub seed: u64,
    /// Number of consecutive seeds. Every pair runs with each seed.
    pub seeds: u32,
    /// MTU in bytes; `None` for the largest that the NIC and the receiver support.
    pub mtu: Option<u64>,
    /// Settings of the modelled NIC and kernel.
    pub settings: Vec<ReceiverSetting>,
}

impl Sweep<'_> {
    /// MTU through `nic` in bytes.
    ///
    /// # Errors
    /// If the requested MTU is larger than the NIC or the receiver supports, or smaller than the receiver accepts.
    pub fn mtu(&self, nic: &Nic) -> Result<u64, String> {
        let (min, max) = (MIN_SEGMENT_BYTES + HEADER_BYTES, SEGMENT_BYTES + HEADER_BYTES);
        let (limit, whose) = match nic.mtu <= max {
            true => (nic.mtu, format!("the NIC {}", nic.name)),
            false => (max, "the modelled receiver".into()),
        };
        match self.mtu {
            Some(mtu) if mtu > limit => {
                Err(format!("packets of {mtu} bytes: {whose} accepts at most {limit}"))
            }
            asked if asked.unwrap_or(limit) < min => Err(format!(
                "packets of {} bytes: the modelled receiver accepts at least {min}",
                asked.unwrap_or(limit)
            )),
            asked => Ok(asked.unwrap_or(limit)),
        }
    }
}

/// Settings of the receiver: name, maximum value, and meaning. The values of `rps` and `napi` are cores.
///
/// Source: the head of `guests/c/flow_receive.c`.
pub const RECEIVER_SETTINGS: [(&str, u64, &str); 15] = [
    ("gro", 1, "merge consecutive segments of a poll"),
    ("lro", 1, "the NIC merges segments while interrupts are delayed (delay_ns) or off"),
    ("rps", 1023, "core that runs protocol processing"),
    ("rfs", 1, "run protocol processing on the application's core"),
    ("send_queues", 16, "transmit rings for acknowledgements; 0: the flow's own"),
    ("xps", 1, "choose the transmit ring by the sending core"),
    ("busy_us", 1_000_000, "us that the application polls the NIC before it sleeps"),
    ("threaded", 1, "poll the NIC in a kernel thread instead of softirq (threaded NAPI)"),
    ("napi", 1023, "that thread's core; by default the flow's"),
    ("ring", 4096, "receive descriptors"),
    ("delay_ns", 1_000_000_000, "ns of interrupt delay"),
    ("frames", 65535, "frames that end the interrupt delay"),
    ("budget", 4096, "frames per poll"),
    (
        "near",
        1,
        "place rings and buffers on the NUMA node of the flow's core (the default); 0: of the application's core",
    ),
    ("before", 1 << 20, "additional cycles per frame in the network stack, before the socket"),
];

/// A setting from [`RECEIVER_SETTINGS`] with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverSetting {
    /// Name.
    pub name: &'static str,
    /// Value.
    pub value: u64,
}

/// Minimum value that the receiver accepts. With an empty ring or a poll budget of zero it would receive no frames.
fn min_value(name: &str) -> u64 {
    match name {
        "ring" => 2,
        "budget" => 1,
        _ => 0,
    }
}

impl std::str::FromStr for ReceiverSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or_else(|| format!("`{text}`: expected NAME=VALUE"))?;
        let Some((name, max, _)) = RECEIVER_SETTINGS.iter().find(|setting| setting.0 == name) else {
            let known: Vec<&str> = RECEIVER_SETTINGS.iter().map(|setting| setting.0).collect();
            return Err(format!("unknown setting `{name}`: give one of {}", known.join(", ")));
        };
        let min = min_value(name);
        let value = value.parse().ok().filter(|value| (min..=*max).contains(value));
        let value = value.ok_or_else(|| format!("{name}: give a whole number from {min} to {max}"))?;
        Ok(Self { name, value })
    }
}

/// The NIC that the flow arrives on.
#[derive(Debug)]
pub struct Nic {
    /// Name in the machine file.
    pub name: String,
    /// Rate in Gb/s.
    pub gbps: f64,
    /// MTU in bytes.
    pub mtu: u64,
    /// Socket that it is attached to; `None` if the machine file does not state it.
    pub socket: Option<u32>,
    /// Number of queue pairs.
    pub queues: u32,
}

impl Nic {
    /// Upper bound of a flow's payload rate in Gb/s with packets of `mtu` bytes. Each frame adds 18
    /// bytes of header and FCS, and 20 bytes of preamble and interframe gap (IEEE 802.3-2018, 3.1.1 and 4.4.2).
    pub fn goodput(&self, mtu: u64) -> f64 {
        self.gbps * mtu.saturating_sub(HEADER_BYTES) as f64 / (mtu as f64 + 38.0)
    }
}

/// Result of one run of a pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// The pair of cores.
    pub pair: Pair,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Topological relation of the cores.
    pub class: Class,
    /// Steady-state rate of data that arrives and is read, in Gb/s.
    pub gbps: f64,
    /// Costs in the order of [`COSTS`].
    pub costs: [f64; COSTS.len()],
    /// Cycles by [`STAGES`] in 10^6 per Gbit. They add up to the cost `cycles`.
    pub stages: [f64; STAGES.len()],
    /// For the flow's and the application's core: the fraction of time it was busy, and the largest component of its
    /// CPI stack.
    pub busy: [(f64, String); 2],
}

/// Computes a cost from a run's statistics and the cores that work for the flow.
pub type CostFunction = fn(&Value, &[u32]) -> f64;

/// Costs per Gbit: name, unit, divisor, and how they are computed from the statistics.
pub const COSTS: [(&str, &str, f64, CostFunction); 6] = [
    ("instructions", "M/Gbit", 1e6, |all, cores| core_sum(all, cores, &["instructions"])),
    ("cycles", "M/Gbit", 1e6, |all, cores| {
        core_sum(all, cores, &["cycles"]) - core_sum(all, cores, &["idle_cycles"])
    }),
    ("L2 references", "k/Gbit", 1e3, |all, cores| {
        core_sum(all, cores, &["l2.loads", "l2.stores", "l2.fetches", "l2.prefetches"])
    }),
    ("LLC references", "k/Gbit", 1e3, |all, _| {
        last_cache_sum(all, &["loads", "stores", "fetches", "prefetches"])
    }),
    ("LLC misses", "k/Gbit", 1e3, |all, _| {
        last_cache_sum(all, &["load_misses", "store_misses", "fetch_misses", "prefetch_misses"])
    }),
    ("memory lines", "k/Gbit", 1e3, |all, _| {
        count(all, "memory.line_reads") + count(all, "memory.line_writes")
    }),
];

/// A statistic by its name; 0 if it never occurred.
fn count(all: &Value, name: &str) -> f64 {
    let found = name.split('.').try_fold(all, |at, word| at.get(word));
    found.and_then(|found| found.get("value")?.as_f64()).unwrap_or(0.0)
}

fn core_sum(all: &Value, cores: &[u32], names: &[&str]) -> f64 {
    let of = |core: &u32| names.iter().map(|name| count(all, &format!("core{core}.{name}"))).sum::<f64>();
    cores.iter().map(of).sum()
}

/// The cores that work for the flow of a pair: its two, and those that settings give to the protocol and to NAPI threads.
fn working_cores(pair: Pair, settings: &[ReceiverSetting]) -> Vec<u32> {
    let of = |name: &str| settings.iter().find(|setting| setting.name == name).map(|setting| setting.value);
    let is_on = |name: &str| of(name) == Some(1);
    let protocol = of("rps").filter(|_| !is_on("rfs"));
    let thread = of("napi").filter(|_| is_on("threaded"));
    let more = protocol.into_iter().chain(thread).filter_map(|core| u32::try_from(core).ok());
    let cores: BTreeSet<u32> = [pair.flow, pair.application].into_iter().chain(more).collect();
    cores.into_iter().collect()
}

/// Sum over the shared last-level caches, whatever their names. Devices write to these caches.
fn last_cache_sum(all: &Value, names: &[&str]) -> f64 {
    let Some(parts) = all.as_object() else { return 0.0 };
    let last = parts
        .keys()
        .filter(|part| part.starts_with("l3") || (part.starts_with("l2") && !parts.contains_key("l3")));
    last.flat_map(|part| names.iter().map(move |name| count(all, &format!("{part}.{name}")))).sum()
}

/// The first Ethernet device of the machine's first host that has a rate.
///
/// # Errors
/// If there is none.
pub fn nic(machine: &Machine) -> Result<Nic, String> {
    let placed = machine.hosts.first().map_or(&[][..], |host| &host.devices);
    let buses = machine.hosts.first().map_or(&[][..], |host| &host.buses);
    // Attached to a port of a chip, directly or through a bus.
    let socket = |on: &str| {
        let port = buses.iter().find(|bus| bus.name == on).map_or(on, |bus| &bus.on);
        port.split('.').next()?.strip_prefix("chip")?.parse().ok()
    };
    let ethernet = |device: &str| machine.devices.get(device).and_then(|device| device.ethernet.as_ref());
    let found = placed.iter().find_map(|placed| {
        let ethernet = ethernet(&placed.device)?;
        let gbps = ethernet.rate?.bits_per_second() as f64 * 1e-9;
        let socket = socket(&placed.on);
        Some(Nic {
            name: placed.name.clone(),
            gbps,
            mtu: ethernet.mtu_bytes(),
            socket,
            queues: ethernet.queues,
        })
    });
    found.ok_or_else(|| {
        format!("{} has no Ethernet device with a rate: add one to the machine file", machine.name)
    })
}

impl Sweep<'_> {
    /// Value of a setting; 0 if it is not given.
    fn setting(&self, name: &str) -> u64 {
        self.settings.iter().find(|setting| setting.name == name).map_or(0, |setting| setting.value)
    }

    /// All runs: every pair with each seed.
    pub fn runs(&self, pairs: &[Pair]) -> Vec<(Pair, u64)> {
        let seeds = (0..u64::from(self.seeds.max(1))).map(|number| self.seed.wrapping_add(number));
        seeds.flat_map(|seed| pairs.iter().map(move |pair| (*pair, seed))).collect()
    }
}

/// Seed for a run of a pair. The seed differs between pairs and does not depend on the other pairs of the sweep.
fn pair_seed(seed: u64, pair: Pair) -> u64 {
    let of_pair = u64::from(pair.flow) << 32 | u64::from(pair.application);
    mix(seed ^ of_pair.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Executes `runs` in parallel on all CPUs available to this process. Calls `on_result` for each result. If `stop` is set,
/// returns the results so far.
///
/// # Errors
/// If a pair cannot be run or names a core that the machine does not have, or if `on_result` fails.
pub fn measure(
    sweep: &Sweep,
    nic: &Nic,
    places: &[CpuLocation],
    runs: &[(Pair, u64)],
    stop: &AtomicBool,
    on_result: &(dyn Fn(&Measurement) -> Result<(), String> + Sync),
) -> Result<Vec<Measurement>, String> {
    missing_resource(&sweep.settings, places, nic).map_or(Ok(()), Err)?;
    let program =
        MemFile::new(RECEIVER).map_err(|error| format!("cannot store the receiver program: {error}"))?;
    let next = AtomicUsize::new(0);
    let results = Mutex::new((Vec::new(), Vec::new()));
    let jobs = std::thread::available_parallelism().map_or(1, usize::from).min(runs.len().max(1));
    let work = |number: usize| {
        pinning::pin_to_processor(number);
        while let Some((pair, seed)) = runs.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
            let unknown =
                || RunFailure::Failed(format!("the pair {pair} names a core that the machine does not have"));
            let class = classify(places, pair).ok_or_else(unknown);
            let result = class.and_then(|class| run_pair(sweep, nic, &program, (pair, class, seed), stop));
            let result = result
                .and_then(|measured| on_result(&measured).map(|()| measured).map_err(RunFailure::Failed));
            let (measurements, failures) = &mut *results.lock().ignore_poison();
            match result {
                Ok(measured) => measurements.push(measured),
                Err(RunFailure::Failed(why)) => failures.push(((pair, seed), why)),
                Err(RunFailure::Stopped) => {}
            }
            // Runs in progress on other threads finish, and their results are used.
            if !failures.is_empty() || stop.load(Ordering::Relaxed) {
                next.store(runs.len(), Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| (0..jobs).for_each(|number| drop(scope.spawn(move || work(number)))));
    let (mut measurements, failures) = results.into_inner().ignore_poison();
    // Report the failure of the first pair in order, so that the message does not depend on timing.
    if let Some((_, why)) = failures.into_iter().min() {
        return Err(why);
    }
    measurements.sort_by_key(|measured: &Measurement| (measured.pair, measured.seed));
    Ok(measurements)
}

/// Averages each pair over its seeds. Other fields have the values of the first seed.
pub fn over_seeds(measured: &[Measurement]) -> Vec<Measurement> {
    let by_pair = measured.chunk_by(|one, other| one.pair == other.pair);
    by_pair.filter_map(mean).collect()
}

fn mean(of: &[Measurement]) -> Option<Measurement> {
    let first = of.first()?;
    let mean = |value: &dyn Fn(&Measurement) -> f64| of.iter().map(value).sum::<f64>() / of.len() as f64;
    Some(Measurement {
        gbps: mean(&|one| one.gbps),
        costs: std::array::from_fn(|cost| mean(&|one| one.costs[cost])),
        stages: std::array::from_fn(|stage| mean(&|one| one.stages[stage])),
        busy: std::array::from_fn(|core| (mean(&|one| one.busy[core].0), first.busy[core].1.clone())),
        ..first.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_with_unknown_names_or_values_out_of_range_are_rejected() {
        assert_eq!("rfs=1".parse(), Ok(ReceiverSetting { name: "rfs", value: 1 }));
        for (wrong, reason) in [
            ("rfs", "NAME=VALUE"),
            ("rfs=2", "from 0 to 1"),
            ("tso=1", "one of gro"),
            ("ring=x", "whole number"),
            ("ring=1", "from 2 to 4096"),
            ("budget=0", "from 1 to 4096"),
        ] {
            let error = wrong.parse::<ReceiverSetting>().unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn cores_that_settings_name_work_for_the_flow_too() {
        let cores = |settings: &[&str]| {
            let settings: Vec<ReceiverSetting> =
                settings.iter().map(|setting| setting.parse().unwrap()).collect();
            working_cores(Pair { flow: 2, application: 1 }, &settings)
        };
        assert_eq!(cores(&["gro=1"]), [1, 2]);
        assert_eq!(cores(&["rps=3"]), [1, 2, 3]);
        assert_eq!(cores(&["rps=3", "rfs=1", "napi=5"]), [1, 2], "rfs overrides rps, and there is no thread");
        assert_eq!(cores(&["threaded=1", "napi=5"]), [1, 2, 5]);
    }

    #[test]
    fn every_pair_has_its_own_seed() {
        let pairs = (0..12).flat_map(|flow| (0..12).map(move |application| Pair { flow, application }));
        let seeds: std::collections::BTreeSet<u64> =
            pairs.flat_map(|pair| (1..=4).map(move |seed| pair_seed(seed, pair))).collect();
        assert_eq!(seeds.len(), 4 * 144);
    }

    #[test]
    fn goodput_excludes_headers_and_framing() {
        let nic = Nic { name: "eth0".into(), gbps: 40.0, mtu: 9000, socket: None, queues: 8 };
        assert!((nic.goodput(9000) - 40.0 * 8960.0 / 9038.0).abs() < 1e-12);
        assert!((nic.goodput(1500) - 40.0 * 1460.0 / 1538.0).abs() < 1e-12);
    }

    #[test]
    fn over_seeds_averages_each_pair() {
        let measured = |flow, seed, gbps| Measurement {
            pair: Pair { flow, application: 0 },
            seed,
            class: Class::SameCpu,
            gbps,
            costs: [gbps; COSTS.len()],
            stages: [1.0; STAGES.len()],
            busy: [(gbps, "base".into()), (0.0, "idle".into())],
        };
        let means = over_seeds(&[measured(0, 1, 10.0), measured(0, 2, 20.0), measured(1, 1, 5.0)]);
        assert_eq!(means.iter().map(|mean| mean.gbps).collect::<Vec<_>>(), [15.0, 5.0]);
        assert_eq!((means[0].costs[3], means[0].busy[0].0, means[0].stages[2]), (15.0, 15.0, 1.0));
    }
}
