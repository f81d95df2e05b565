//! The workload `zoned`: loads a published tree, runs a YCSB workload on it, and counts its reads and writes.
//! `bench/zoned` measures the durable map.
//!
//! Source: Liu Yang, Jin Peiquan, "ZB+-tree: a ZNS-SSD-aware index", evaluation.

use super::drive::Drive;
use longma_lab::{Failure, Kind, Measure, Metrics, Parameter, Point, Rehearsal, Setting, Stop, Workload};
use longma_locks::IgnorePoison;
use longma_topology::units::Size;
use longma_zoned::device::{Geometry, NullDevice};
use longma_zoned::{Error, OrderedMap};
use longma_zoned_lab::paper::{CachedNodes, CowTree, Fanout, PaperCounts, ZbTree};
use longma_zoned_lab::ycsb::{self, Distribution, Operation, scatter};
use longma_zoned_lab::{ModelledDevice, Parameters};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Number of operations between checks for a stop request.
const OPERATIONS_PER_CHECK: u64 = 4096;

const TREES: &[&str] = &["zb", "cow"];
const KEYS: &[&str] = &["hashed", "ordered"];
const KEPT: &[(&str, CachedNodes)] =
    &[("nothing", CachedNodes::Nothing), ("root", CachedNodes::Root), ("inner", CachedNodes::Inner)];
const KEPT_NAMES: &[&str] = &["nothing", "root", "inner"];
const WORKLOADS: &[&str] = &["A", "B", "C", "D", "E", "F", "W1", "W2", "W3", "W4", "W5"];
const DISTRIBUTIONS: &[(&str, Distribution)] = &[
    ("zipfian", Distribution::Zipfian),
    ("uniform", Distribution::Uniform),
    ("latest", Distribution::Latest),
    ("hotspot", Distribution::Hotspot),
    ("exponential", Distribution::Exponential),
];
const DISTRIBUTION_NAMES: &[&str] = &["zipfian", "uniform", "latest", "hotspot", "exponential"];

/// Metrics: name, unit, meaning.
const MEASURES: [(&str, &str, &str); 13] = [
    ("reads", "nodes", "read from the device"),
    ("writes", "nodes", "written to the device"),
    ("workload_reads", "nodes", "read after the load"),
    ("workload_writes", "nodes", "written after the load"),
    ("conventional_writes", "nodes", "written in place"),
    ("resets", "resets", "of zones"),
    ("workload_resets", "resets", "of zones after the load"),
    ("run_time_s", "s", "simulated, of the whole"),
    ("workload_time_s", "s", "simulated, after the load"),
    ("sequential_occupied", "share", "of the sequential zones in use"),
    ("conventional_occupied", "share", "of the conventional zones in use"),
    ("pairs_left", "pairs", "in the tree at the end"),
    ("host.wall_s", "s", "of the run"),
];

/// The device of the trees: it counts and times accesses, and keeps the contents in memory.
type Device = ModelledDevice<NullDevice>;

/// Maximum total number of pairs in cached trees: several hundred megabytes.
const MAX_CACHED_PAIRS: u64 = 12_000_000;

/// The published trees under YCSB workloads.
pub struct PaperTrees {
    parameters: Vec<Parameter>,
    zb: Loaded<ZbTree<Device>>,
    cow: Loaded<CowTree<Device>>,
}

/// Cached trees after their load, shared by points that differ only in the phases after it. The newest is last.
struct Loaded<T>(Mutex<Vec<(Load, CachedTree<T>)>>);

/// A cached tree. Its lock is held while it is loaded, so that other points wait.
type CachedTree<T> = Arc<Mutex<Option<T>>>;

impl<T> Default for Loaded<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Loaded<T> {
    /// The cache entry of a load. Evicts the oldest entries to make room for it.
    fn entry(&self, load: &Load) -> CachedTree<T> {
        let mut all = self.0.lock().ignore_poison();
        if let Some((_, entry)) = all.iter().find(|(known, _)| known == load) {
            return entry.clone();
        }
        while !all.is_empty()
            && all.iter().map(|(known, _)| known.pairs).sum::<u64>() + load.pairs > MAX_CACHED_PAIRS
        {
            all.remove(0);
        }
        let entry = CachedTree::default();
        all.push((load.clone(), entry.clone()));
        entry
    }
}

impl Default for PaperTrees {
    fn default() -> Self {
        let parameter = |name, kind, default: Option<Setting>, description| Parameter {
            name,
            kind,
            default,
            description,
        };
        let integer = |name, default: i64, description| {
            parameter(name, Kind::Integer, Some(default.into()), description)
        };
        let parameters = vec![
            parameter(
                "tree",
                Kind::Word(TREES),
                None,
                "`zb`: the ZB+-tree; `cow`: the copy-on-write B+-tree",
            ),
            parameter("workload", Kind::Word(WORKLOADS), None, "YCSB's A to F, or the paper's W1 to W5"),
            parameter(
                "distribution",
                Kind::Word(DISTRIBUTION_NAMES),
                Some("zipfian".into()),
                "distribution of the records",
            ),
            parameter("pairs", Kind::Integer, None, "pairs loaded first"),
            integer("operations", -1, "operations after the load; -1: as many as pairs"),
            parameter(
                "device",
                Kind::Text,
                Some("".into()),
                "the machine's zoned device, if it has several; without a machine a ZN540 with one \
                    conventional zone and 40 sequential zones of 2 GiB",
            ),
            integer("conventional_zones", -1, "zones written in place; -1: all of the device"),
            integer("sequential_zones", -1, "zones written at their write pointer; -1: all of the device"),
            parameter(
                "zone",
                Kind::Text,
                Some("".into()),
                "zone size, which is also the zone capacity; the device's if empty",
            ),
            integer("entries", 98, "maximum number of entries of a node"),
            parameter(
                "keys",
                Kind::Word(KEYS),
                Some("hashed".into()),
                "`hashed`: a record's key is a hash of its number (YCSB's default); `ordered`: its number, so records are loaded in key order",
            ),
            parameter(
                "kept",
                Kind::Word(KEPT_NAMES),
                Some("nothing".into()),
                "nodes cached in host memory, whose lookups read no device: `nothing`, the `root`, or all `inner` nodes",
            ),
            integer("seed", 1, "seed of the operations"),
        ];
        Self { parameters, zb: Loaded::default(), cow: Loaded::default() }
    }
}

impl Workload for PaperTrees {
    fn name(&self) -> &str {
        "zoned"
    }

    fn description(&self) -> &str {
        "a published tree for zoned flash under a YCSB workload, on an emulated device in simulated time"
    }

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn rehearse(&self, point: &Point) -> Result<Rehearsal, Failure> {
        let geometry = Setup::of(point)?.load.geometry;
        NullDevice::new(geometry).map_err(|error| Failure::refused(error.to_string()))?;
        let measures = MEASURES.map(|(name, unit, about)| Measure::new(name, unit, about));
        Ok(Rehearsal { measures: Some(measures.to_vec()), ..Rehearsal::default() })
    }

    fn run(&self, point: &Point, stop: &Stop) -> Result<Metrics, Failure> {
        let setup = Setup::of(point)?;
        let Load { geometry, parameters, entries, kept, .. } = setup.load;
        let device = NullDevice::new(geometry).map_err(|error| Failure::refused(error.to_string()))?;
        let device = ModelledDevice::new(device, parameters);
        let fanout = Fanout::of(&geometry).at_most(entries, entries);
        match point.text("tree") {
            "zb" => setup.measure(&self.zb, || ZbTree::counting(device, fanout, kept), point, stop),
            _ => setup.measure(&self.cow, || CowTree::counting(device, fanout, kept), point, stop),
        }
    }
}

/// Validated parameters of a point.
struct Setup {
    load: Load,
    workload: ycsb::Workload,
    operations: u64,
    seed: u64,
}

/// The parameters that determine the tree after its load.
#[derive(Clone, PartialEq)]
struct Load {
    geometry: Geometry,
    parameters: Parameters,
    pairs: u64,
    entries: usize,
    kept: CachedNodes,
    hashed: bool,
}

impl Setup {
    fn of(point: &Point) -> Result<Self, Failure> {
        let integer = |name: &str| {
            let number = point.parameter(name).and_then(Setting::number).unwrap_or(-1.0);
            if number < 0.0 {
                Err(Failure::refused(format!("{name} is {number}: give 0 or more")))
            } else {
                Ok(number as u64)
            }
        };
        let Drive { geometry, parameters } = Drive::of(point)?;
        let geometry = with_zones(geometry, point)?;
        let word = point.text("distribution");
        let distribution = DISTRIBUTIONS.iter().find(|known| known.0 == word).map(|known| known.1);
        let workload = ycsb::Workload::named(point.text("workload"));
        let (Some(workload), Some(distribution)) = (workload, distribution) else {
            return Err(Failure::refused("there is no such workload or distribution"));
        };
        let pairs = integer("pairs")?;
        let operations = match point.parameter("operations").and_then(Setting::number) {
            Some(-1.0) => pairs,
            _ => integer("operations")?,
        };
        let (entries, seed) = (integer("entries")? as usize, integer("seed")?);
        let word = point.text("kept");
        let kept = KEPT.iter().find(|known| known.0 == word).map(|known| known.1).unwrap_or_default();
        let load =
            Load { geometry, parameters, pairs, entries, kept, hashed: point.text("keys") != "ordered" };
        Ok(Self { load, workload: workload.with(distribution), operations, seed })
    }

    fn measure<T: Tree>(
        &self,
        loaded: &Loaded<T>,
        new: impl FnOnce() -> Result<T, Error>,
        point: &Point,
        stop: &Stop,
    ) -> Result<Metrics, Failure> {
        let begin = Instant::now();
        let Load { pairs, hashed, .. } = self.load;
        let mut look = 0;
        let mut check = || {
            look += 1;
            if look % OPERATIONS_PER_CHECK != 0 {
                return Ok(());
            }
            match point.time_limit {
                _ if stop.is_requested() => Err(Failure::stopped()),
                Some(limit) if begin.elapsed() > limit => Err(Failure::late(limit)),
                _ => Ok(()),
            }
        };
        let entry = loaded.entry(&self.load);
        let mut entry = entry.lock().ignore_poison();
        let mut tree = match &*entry {
            Some(tree) => tree.clone(),
            None => {
                let mut tree = new().map_err(refused)?;
                for record in 0..pairs {
                    check()?;
                    step(&mut tree, Operation::Insert(record), hashed).map_err(failed)?;
                }
                entry.insert(tree).clone()
            }
        };
        drop(entry);
        let (load, load_time) = (Counts::of(tree.counts()), tree.seconds());
        for operation in self.workload.stream(pairs, self.operations, self.seed) {
            check()?;
            step(&mut tree, operation, hashed).map_err(failed)?;
        }
        let all = Counts::of(tree.counts());
        let mut metrics = Metrics::default();
        let mut result = |name: &str, value: f64| metrics.result(name, value);
        result("reads", all.reads);
        result("writes", all.writes);
        result("workload_reads", all.reads - load.reads);
        result("workload_writes", all.writes - load.writes);
        result("conventional_writes", all.conventional_writes);
        result("resets", all.resets);
        result("workload_resets", all.resets - load.resets);
        result("run_time_s", tree.seconds());
        result("workload_time_s", tree.seconds() - load_time);
        let share = |(used, all): (u64, u64)| if all == 0 { 0.0 } else { used as f64 / all as f64 };
        result("sequential_occupied", share(tree.sequential_used()));
        result("conventional_occupied", share(tree.conventional_used()));
        result("pairs_left", tree.len() as f64);
        metrics.host.insert("wall_s".into(), begin.elapsed().as_secs_f64());
        Ok(metrics)
    }
}

/// The device's zones, modified by the point's parameters.
fn with_zones(mut geometry: Geometry, point: &Point) -> Result<Geometry, Failure> {
    let zones = |name: &str, default_drive: u32| match point.parameter(name).and_then(Setting::number) {
        Some(-1.0) | None => Ok(default_drive),
        Some(number) if (0.0..=f64::from(u32::MAX)).contains(&number) => Ok(number as u32),
        Some(number) => Err(Failure::refused(format!("{name} is {number}: give 0 or more, or -1"))),
    };
    geometry.conventional_zones = zones("conventional_zones", geometry.conventional_zones)?;
    geometry.sequential_zones = zones("sequential_zones", geometry.sequential_zones)?;
    let zone = point.text("zone");
    if !zone.is_empty() {
        let zone = zone.parse::<Size>().map_err(|error| Failure::refused(error.message))?.bytes();
        let block = u64::from(geometry.block_bytes);
        if !zone.is_multiple_of(block) {
            return Err(Failure::refused(format!("zone is not a whole number of blocks of {block} bytes")));
        }
        (geometry.zone_blocks, geometry.zone_capacity_blocks) = (zone / block, zone / block);
    }
    Ok(geometry)
}

/// The counts that are compared.
struct Counts {
    reads: f64,
    writes: f64,
    conventional_writes: f64,
    resets: f64,
}

impl Counts {
    fn of(counts: &PaperCounts) -> Self {
        Self {
            reads: counts.reads.total() as f64,
            writes: counts.writes() as f64,
            conventional_writes: counts.conventional_writes.total() as f64,
            resets: counts.resets as f64,
        }
    }
}

/// Common operations of both trees.
trait Tree: OrderedMap + Clone {
    fn search(&mut self, key: u64) -> Result<Option<u64>, Error>;
    fn insert(&mut self, key: u64, value: u64) -> Result<bool, Error>;
    fn remove(&mut self, key: u64) -> Result<bool, Error>;
    fn counts(&self) -> &PaperCounts;
    fn sequential_used(&self) -> (u64, u64);
    fn conventional_used(&self) -> (u64, u64);
    /// Simulated time since the start in seconds.
    fn seconds(&self) -> f64;
}

/// Implements the trait by the inherent methods of the same name. Only one of the trees has conventional slots.
macro_rules! tree {
    ($tree:ty, |$it:ident| $conventional_used:expr) => {
        impl Tree for $tree {
            fn search(&mut self, key: u64) -> Result<Option<u64>, Error> {
                self.search(key)
            }
            fn insert(&mut self, key: u64, value: u64) -> Result<bool, Error> {
                self.insert(key, value)
            }
            fn remove(&mut self, key: u64) -> Result<bool, Error> {
                self.remove(key)
            }
            fn counts(&self) -> &PaperCounts {
                self.counts()
            }
            fn sequential_used(&self) -> (u64, u64) {
                self.sequential_used()
            }
            fn conventional_used(&self) -> (u64, u64) {
                let $it = self;
                $conventional_used
            }
            fn seconds(&self) -> f64 {
                self.device().now().ps() as f64 / 1e12
            }
        }
    };
}

tree!(ZbTree<Device>, |tree| tree.conventional_used());
tree!(CowTree<Device>, |_tree| (0, 0));

/// Performs one operation. Keys are record numbers, scattered as in YCSB if `hashed`.
fn step(tree: &mut impl Tree, operation: Operation, hashed: bool) -> Result<(), Error> {
    let key = |record: u64| if hashed { scatter(record) } else { record };
    match operation {
        Operation::Read(record) => tree.search(key(record)).map(|_| ()),
        Operation::Insert(record) | Operation::Update(record) => tree.insert(key(record), record).map(|_| ()),
        Operation::Delete(record) => tree.remove(key(record)).map(|_| ()),
        Operation::ReadModifyWrite(record) => {
            tree.search(key(record))?;
            tree.insert(key(record), record).map(|_| ())
        }
        Operation::Scan(record, length) => {
            let mut left = length;
            let start = key(record).to_be_bytes();
            tree.scan(
                longma_zoned::KeyRange::from(&start),
                longma_zoned::Direction::Ascending,
                &mut |_, _| {
                    left -= 1;
                    if left == 0 {
                        std::ops::ControlFlow::Break(())
                    } else {
                        std::ops::ControlFlow::Continue(())
                    }
                },
            )
        }
    }
}

fn refused(error: Error) -> Failure {
    Failure::refused(error.to_string())
}

fn failed(error: Error) -> Failure {
    Failure::failed(error.to_string())
}
