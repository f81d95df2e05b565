//! One flow and the program that takes it, on each pair of a modelled host's cores.
//! Not the model: each pair is a run of `longma run`, with the guest `flow_receive` between a sender at line rate and a program that reads.
//! Source: Hanford et al. 2014 for the pairs and the costs; what the model leaves out is in the book's chapter.

mod idle;
mod run;
mod stages;
mod turns;

pub use idle::{idle, nowhere};
pub use stages::STAGES;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use longma_affinity::places::{Class, Pair, classify};
use longma_topology::{CpuLocation, Machine};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use run::{Nameless, Undone, one};

/// The receive path as a guest program.
const RECEIVER: &[u8] = include_bytes!("../../../../guests/prebuilt/loongarch64/flow_receive-lasx");
/// The largest segment that it takes: packets of 9000 bytes without their headers.
const SEGMENT_BYTES: u64 = 8960;
/// The receiver's buffer, in segments: 3 MiB of the largest ones. Of small ones it is as many, which the NIC's ring and FIFO have room for: the
/// modelled sender has no congestion control, and would lose what is too much for them over and over.
const WINDOW_SEGMENTS: u64 = 351;
/// What of a packet is headers of IPv4 and TCP.
const HEADER_BYTES: u64 = 40;
/// The smallest segment that it can be told of.
const LEAST_SEGMENT_BYTES: u64 = 536;
/// What arrives before anything is counted: nearly twice all buffers of the ring (1024 of 9000 bytes), so that caches have what they have
/// in the long run.
const BEFORE_BYTES: u64 = 16_000_000;
/// What arrives behind that in full detail before the rate is measured; a receiver that is slower than the line has its buffer filled then
/// (`guests/c/flow_rate.h`), and as much goes by once more.
const SETTLE_BYTES: u64 = 3_000_000;
/// What is still to come when counting ends: the window may end later than asked for, and as much waits then as when it began.
const AFTER_BYTES: u64 = 16_000_000;

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
    /// The largest packet, bytes; the NIC's and the receiver's if none is given.
    pub mtu: Option<u64>,
    /// What the NIC and the kernel do besides.
    pub settings: Vec<Offload>,
}

impl Sweep<'_> {
    /// Bytes of the largest packet through `nic`.
    ///
    /// # Errors
    /// A larger one than the NIC or the receiver takes is asked for, or a smaller one than the receiver can be told of.
    pub fn mtu(&self, nic: &Nic) -> Result<u64, String> {
        let (least, most) = (LEAST_SEGMENT_BYTES + HEADER_BYTES, SEGMENT_BYTES + HEADER_BYTES);
        let (limit, whose) = match nic.mtu <= most {
            true => (nic.mtu, format!("the NIC {}", nic.name)),
            false => (most, "the modelled receiver".into()),
        };
        match self.mtu {
            Some(mtu) if mtu > limit => Err(format!("packets of {mtu} bytes: {whose} takes {limit} at most")),
            asked if asked.unwrap_or(limit) < least => Err(format!(
                "packets of {} bytes: the modelled receiver takes {least} at least",
                asked.unwrap_or(limit)
            )),
            asked => Ok(asked.unwrap_or(limit)),
        }
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

/// The smallest value that the receiver takes: a ring without room and a poll without frames receive nothing.
fn least(name: &str) -> u64 {
    match name {
        "ring" => 2,
        "budget" => 1,
        _ => 0,
    }
}

impl std::str::FromStr for Offload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or_else(|| format!("`{text}`: write NAME=VALUE"))?;
        let Some((name, most, _)) = OFFLOADS.iter().find(|offload| offload.0 == name) else {
            let known: Vec<&str> = OFFLOADS.iter().map(|offload| offload.0).collect();
            return Err(format!("there is no `{name}`: give one of {}", known.join(", ")));
        };
        let least = least(name);
        let value = value.parse().ok().filter(|value| (least..=*most).contains(value));
        let value = value.ok_or_else(|| format!("{name}: give a whole number from {least} to {most}"))?;
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
    /// Its queue pairs.
    pub queues: u32,
}

impl Nic {
    /// What of the line's rate is data in packets of `mtu` bytes, Gb/s: no flow has more.
    /// A frame is its packet with 18 bytes around it and 20 between frames (IEEE 802.3-2018, 3.1.1 and 4.4.2).
    pub fn goodput(&self, mtu: u64) -> f64 {
        self.gbps * mtu.saturating_sub(HEADER_BYTES) as f64 / (mtu as f64 + 38.0)
    }
}

/// What one run of a pair gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Whose cores.
    pub pair: Pair,
    /// Of what was random.
    pub seed: u64,
    /// How they lie to each other.
    pub class: Class,
    /// What arrives and is read in the long run, Gb/s.
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
    /// Every run: all pairs with each seed.
    pub fn runs(&self, pairs: &[Pair]) -> Vec<(Pair, u64)> {
        let seeds = (0..u64::from(self.seeds.max(1))).map(|number| self.seed.wrapping_add(number));
        seeds.flat_map(|seed| pairs.iter().map(move |pair| (*pair, seed))).collect()
    }
}

/// What a pair's run draws from: another for each pair, so that pairs of a class differ in what is random; the same whichever pairs are swept.
/// Source: the finalizer of `SplitMix64` (Steele et al., OOPSLA 2014).
fn drawn(seed: u64, pair: Pair) -> u64 {
    let of_pair = u64::from(pair.flow) << 32 | u64::from(pair.application);
    let mut mixed = seed ^ of_pair.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Makes `runs`, as many at a time as this process may use CPUs; `keep` is given each as it ends. Those that are done when `stop` is asked for
/// are the result.
///
/// # Errors
/// A pair cannot be run, or names a core that the machine does not have; what `keep` says.
pub fn measure(
    sweep: &Sweep,
    nic: &Nic,
    places: &[CpuLocation],
    runs: &[(Pair, u64)],
    stop: &AtomicBool,
    keep: &(dyn Fn(&Measured) -> Result<(), String> + Sync),
) -> Result<Vec<Measured>, String> {
    nowhere(&sweep.settings, places, nic).map_or(Ok(()), Err)?;
    let program = Nameless::new(RECEIVER).map_err(|error| format!("cannot keep the receiver: {error}"))?;
    let next = AtomicUsize::new(0);
    let results = Mutex::new((Vec::new(), Vec::new()));
    let jobs = std::thread::available_parallelism().map_or(1, usize::from).min(runs.len().max(1));
    let work = |number: usize| {
        turns::keep_on_one_processor(number);
        while let Some((pair, seed)) = runs.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
            let unknown =
                || Undone::Failed(format!("the pair {pair} names a core that the machine does not have"));
            let class = classify(places, pair).ok_or_else(unknown);
            let result = class.and_then(|class| one(sweep, nic, &program, (pair, class, seed), stop));
            let result = result.and_then(|one| keep(&one).map(|()| one).map_err(Undone::Failed));
            let (done, failures) = &mut *results.lock().unwrap_or_else(PoisonError::into_inner);
            match result {
                Ok(one) => done.push(one),
                Err(Undone::Failed(why)) => failures.push(((pair, seed), why)),
                Err(Undone::Stopped) => {}
            }
            // What runs elsewhere comes to its end and is kept.
            if !failures.is_empty() || stop.load(Ordering::Relaxed) {
                next.store(runs.len(), Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| (0..jobs).for_each(|number| drop(scope.spawn(move || work(number)))));
    let (mut done, failures) = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    // The same words whichever came first.
    if let Some((_, why)) = failures.into_iter().min() {
        return Err(why);
    }
    done.sort_by_key(|one: &Measured| (one.pair, one.seed));
    Ok(done)
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
            ("ring=1", "from 2 to 4096"),
            ("budget=0", "from 1 to 4096"),
        ] {
            let error = wrong.parse::<Offload>().unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn every_pair_draws_from_a_seed_of_its_own() {
        let pairs = (0..12).flat_map(|flow| (0..12).map(move |application| Pair { flow, application }));
        let drawn: std::collections::BTreeSet<u64> =
            pairs.flat_map(|pair| (1..=4).map(move |seed| drawn(seed, pair))).collect();
        assert_eq!(drawn.len(), 4 * 144);
    }

    #[test]
    fn a_line_carries_its_rate_less_what_is_around_the_data() {
        let nic = Nic { name: "eth0".into(), gbps: 40.0, mtu: 9000, socket: None, queues: 8 };
        assert!((nic.goodput(9000) - 40.0 * 8960.0 / 9038.0).abs() < 1e-12);
        assert!((nic.goodput(1500) - 40.0 * 1460.0 / 1538.0).abs() < 1e-12);
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
