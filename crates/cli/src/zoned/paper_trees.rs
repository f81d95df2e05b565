//! The workload `zoned` of experiments: a tree as published is loaded and put through a YCSB workload, its reads and writes counted.
//! Not the durable map: that one is measured by `bench/zoned`.
//! Source: Liu Yang, Jin Peiquan, "ZB+-tree: a ZNS-SSD-aware index", evaluation.

use longma_lab::{Failure, Kind, Metrics, Parameter, Point, Setting, Stop, Workload};
use longma_topology::units::Size;
use longma_zoned::device::{Geometry, MemoryDevice, ModelledDevice, Parameters};
use longma_zoned::paper::{CowTree, Fanout, PaperCounts, ZbTree};
use longma_zoned::ycsb::{self, Distribution, Operation, scatter};
use longma_zoned::{Error, OrderedMap};
use std::time::Instant;

/// How many operations pass between two looks at whether to stop.
const LOOK_EVERY: u64 = 4096;

const TREES: &[&str] = &["zb", "cow"];
const WORKLOADS: &[&str] = &["A", "B", "C", "D", "E", "F", "W1", "W2", "W3", "W4", "W5"];
const DISTRIBUTIONS: &[(&str, Distribution)] = &[
    ("zipfian", Distribution::Zipfian),
    ("uniform", Distribution::Uniform),
    ("latest", Distribution::Latest),
    ("hotspot", Distribution::Hotspot),
    ("exponential", Distribution::Exponential),
];
const DISTRIBUTION_NAMES: &[&str] = &["zipfian", "uniform", "latest", "hotspot", "exponential"];

/// The device that the trees run on: in memory, and timed as a ZN540.
type Device = ModelledDevice<MemoryDevice>;

/// The trees as published, under YCSB's workloads.
pub struct PaperTrees {
    parameters: Vec<Parameter>,
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
                "which records",
            ),
            parameter("pairs", Kind::Integer, None, "pairs that are loaded before"),
            integer("operations", -1, "operations after the load; -1: as many as pairs"),
            integer("conventional_zones", 1, "zones that are written in place"),
            integer("sequential_zones", 40, "zones that are written at their write pointer"),
            parameter("zone", Kind::Size, Some("2 GiB".into()), "a zone's size, all of which can be written"),
            parameter("block", Kind::Size, Some("4 KiB".into()), "a block's size; a node takes one"),
            integer("entries", 128, "the most entries a node may have"),
            integer("seed", 1, "chooses the operations"),
        ];
        Self { parameters }
    }
}

impl Workload for PaperTrees {
    fn name(&self) -> &str {
        "zoned"
    }

    fn description(&self) -> &str {
        "a tree for zoned flash as published, under a YCSB workload, on an emulated device in simulated time"
    }

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn run(&self, point: &Point, stop: &Stop) -> Result<Metrics, Failure> {
        let setup = Setup::of(point)?;
        let device =
            MemoryDevice::new(setup.geometry).map_err(|error| Failure::refused(error.to_string()))?;
        let device = ModelledDevice::new(device, Parameters::ZN540);
        let fanout = Fanout::of(&setup.geometry).at_most(setup.entries, setup.entries);
        match point.text("tree") {
            "zb" => setup.measure(ZbTree::new(device, fanout).map_err(refused)?, point, stop),
            _ => setup.measure(CowTree::new(device, fanout).map_err(refused)?, point, stop),
        }
    }
}

/// A point's parameters, checked.
struct Setup {
    geometry: Geometry,
    workload: ycsb::Workload,
    pairs: u64,
    operations: u64,
    entries: usize,
    seed: u64,
}

impl Setup {
    fn of(point: &Point) -> Result<Self, Failure> {
        let whole = |name: &str| {
            let number = point.parameter(name).and_then(Setting::number).unwrap_or(-1.0);
            if number < 0.0 {
                Err(Failure::refused(format!("{name} is {number}: give 0 or more")))
            } else {
                Ok(number as u64)
            }
        };
        let small = |name: &str| {
            u32::try_from(whole(name)?).map_err(|_| Failure::refused(format!("{name} is too large")))
        };
        let size = |name: &str| {
            point.text(name).parse::<Size>().map(Size::bytes).map_err(|error| Failure::refused(error.message))
        };
        let (block, zone) = (size("block")?, size("zone")?);
        if block == 0 || !zone.is_multiple_of(block) {
            return Err(Failure::refused("zone is not a whole number of blocks"));
        }
        let geometry = Geometry {
            block_bytes: u32::try_from(block).unwrap_or(u32::MAX),
            zone_blocks: zone / block,
            zone_capacity_blocks: zone / block,
            conventional_zones: small("conventional_zones")?,
            sequential_zones: small("sequential_zones")?,
            max_open_zones: 0,
            max_active_zones: 0,
        };
        let word = point.text("distribution");
        let distribution = DISTRIBUTIONS.iter().find(|known| known.0 == word).map(|known| known.1);
        let workload = ycsb::Workload::named(point.text("workload"));
        let (Some(workload), Some(distribution)) = (workload, distribution) else {
            return Err(Failure::refused("there is no such workload or distribution"));
        };
        let pairs = whole("pairs")?;
        let operations = match point.parameter("operations").and_then(Setting::number) {
            Some(-1.0) => pairs,
            _ => whole("operations")?,
        };
        let (entries, seed) = (whole("entries")? as usize, whole("seed")?);
        Ok(Self { geometry, workload: workload.with(distribution), pairs, operations, entries, seed })
    }

    fn measure<T: Tree>(&self, mut tree: T, point: &Point, stop: &Stop) -> Result<Metrics, Failure> {
        let begin = Instant::now();
        let mut look = 0;
        let mut check = || {
            look += 1;
            if look % LOOK_EVERY != 0 {
                return Ok(());
            }
            match point.time_limit {
                _ if stop.is_requested() => Err(Failure::stopped()),
                Some(limit) if begin.elapsed() > limit => Err(Failure::late(limit)),
                _ => Ok(()),
            }
        };
        for record in 0..self.pairs {
            check()?;
            step(&mut tree, Operation::Insert(record)).map_err(failed)?;
        }
        let (load, load_time) = (Seen::of(tree.counts()), tree.seconds());
        for operation in self.workload.stream(self.pairs, self.operations, self.seed) {
            check()?;
            step(&mut tree, operation).map_err(failed)?;
        }
        let all = Seen::of(tree.counts());
        let mut metrics = Metrics::default();
        let mut result = |name: &str, value: f64| metrics.result(name, value);
        result("reads", all.reads);
        result("writes", all.writes);
        result("workload_reads", all.reads - load.reads);
        result("workload_writes", all.writes - load.writes);
        result("conventional_writes", all.conventional_writes);
        result("resets", all.resets);
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

/// What is compared of the counts.
struct Seen {
    reads: f64,
    writes: f64,
    conventional_writes: f64,
    resets: f64,
}

impl Seen {
    fn of(counts: &PaperCounts) -> Self {
        Self {
            reads: counts.reads.total() as f64,
            writes: counts.writes() as f64,
            conventional_writes: counts.conventional_writes.total() as f64,
            resets: counts.resets as f64,
        }
    }
}

/// What both trees have beside the map.
trait Tree: OrderedMap {
    fn counts(&self) -> &PaperCounts;
    fn sequential_used(&self) -> (u64, u64);
    fn conventional_used(&self) -> (u64, u64);
    /// Simulated time since the start, seconds.
    fn seconds(&self) -> f64;
}

impl Tree for ZbTree<Device> {
    fn counts(&self) -> &PaperCounts {
        self.counts()
    }
    fn sequential_used(&self) -> (u64, u64) {
        self.sequential_used()
    }
    fn conventional_used(&self) -> (u64, u64) {
        self.conventional_used()
    }
    fn seconds(&self) -> f64 {
        self.device().now().ps() as f64 / 1e12
    }
}

impl Tree for CowTree<Device> {
    fn counts(&self) -> &PaperCounts {
        self.counts()
    }
    fn sequential_used(&self) -> (u64, u64) {
        self.sequential_used()
    }
    fn conventional_used(&self) -> (u64, u64) {
        (0, 0)
    }
    fn seconds(&self) -> f64 {
        self.device().now().ps() as f64 / 1e12
    }
}

/// Does one operation. Keys are record numbers scattered as YCSB does it.
fn step(tree: &mut impl Tree, operation: Operation) -> Result<(), Error> {
    let key = |record: u64| scatter(record).to_be_bytes();
    let value = |record: u64| record.to_be_bytes();
    match operation {
        Operation::Read(record) => tree.get(&key(record)).map(|_| ()),
        Operation::Insert(record) | Operation::Update(record) => {
            tree.put(&key(record), &value(record)).map(|_| ())
        }
        Operation::Delete(record) => tree.delete(&key(record)).map(|_| ()),
        Operation::ReadModifyWrite(record) => {
            tree.get(&key(record))?;
            tree.put(&key(record), &value(record)).map(|_| ())
        }
        Operation::Scan(record, length) => {
            let mut left = length;
            let start = key(record);
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
