//! `longma zoned bench`: a map under a YCSB workload, on any device.
//! Not a comparison with others: `bench/zoned` is.
//! Source: YCSB's workloads; what a batch costs is measured by the host's clock.

use super::device::{Device, Load, NewDevice};
use super::{Format, INTERRUPTED, Outcome, bar, interruption};
use crate::machine::{print, print_json, table};
use clap::ValueEnum;
use longma_zoned::device::Counted;
use longma_zoned::{Batch, KeyRange, Store, ZonedDevice};
use longma_zoned_lab::ycsb::{Distribution, Operation, Workload, scatter};
use serde_json::json;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Arguments of `longma zoned bench`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    new: NewDevice,
    #[command(flatten)]
    load: Load,
    /// YCSB's A to F, or W1 to W5 of the ZB+-tree paper.
    #[arg(long, value_name = "NAME", default_value = "A", value_parser = workload)]
    workload: Workload,
    /// Which records [default: the workload's].
    #[arg(long, value_enum)]
    distribution: Option<Choice>,
    /// Records that are loaded first.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    records: u64,
    /// Operations that follow.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    operations: u64,
    /// Changes that are written together.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batch: u32,
    /// How to print.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// The distributions, as clap names them.
#[derive(Clone, Copy, ValueEnum)]
enum Choice {
    Zipfian,
    Uniform,
    Latest,
    Hotspot,
    Exponential,
}

impl Choice {
    const fn distribution(self) -> Distribution {
        match self {
            Self::Zipfian => Distribution::Zipfian,
            Self::Uniform => Distribution::Uniform,
            Self::Latest => Distribution::Latest,
            Self::Hotspot => Distribution::Hotspot,
            Self::Exponential => Distribution::Exponential,
        }
    }
}

fn workload(name: &str) -> Result<Workload, String> {
    let names: Vec<_> = Workload::ALL.iter().map(|workload| workload.name).collect();
    Workload::named(name).ok_or_else(|| format!("there are {}", names.join(", ")))
}

/// Loads, runs the workload and prints what it took.
pub fn run(arguments: &Arguments) -> Outcome {
    let device = Counted::new(arguments.new.format()?);
    let map = Store::open(device, arguments.load.options())?;
    let workload = match arguments.distribution {
        Some(choice) => arguments.workload.with(choice.distribution()),
        None => arguments.workload,
    };
    let stop = interruption();
    let bar = bar(arguments.records + arguments.operations, "operations");
    let mut phases = Vec::new();
    let load: Box<dyn Iterator<Item = Operation>> = Box::new((0..arguments.records).map(Operation::Insert));
    let stream = Box::new(workload.stream(arguments.records, arguments.operations, arguments.load.seed));
    for (name, operations) in [("load", load), (workload.name, stream)] {
        let mut run = Run { map: &map, batch: Batch::new(), arguments, done: 0, changed_bytes: 0 };
        let (begin, before) = (Instant::now(), map.device().counts());
        for operation in operations {
            run.step(operation)?;
            bar.inc(1);
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        run.apply()?;
        map.sync()?;
        let seconds = begin.elapsed().as_secs_f64();
        let counts = map.device().counts().since(&before);
        phases.push(Phase { name, operations: run.done, seconds, counts, changed_bytes: run.changed_bytes });
    }
    bar.finish_and_clear();
    let interrupted = stop.load(Ordering::Relaxed);
    report(arguments, &map, &phases)?;
    map.close()?;
    Ok(if interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// What a phase took.
struct Phase {
    name: &'static str,
    operations: u64,
    seconds: f64,
    counts: longma_zoned::device::Counts,
    /// Bytes of keys and values that were put.
    changed_bytes: u64,
}

/// A phase under way. Changes wait for their batch; a read of a record sees those before it.
struct Run<'a> {
    map: &'a Store<Counted<Device>>,
    batch: Batch,
    arguments: &'a Arguments,
    done: u64,
    changed_bytes: u64,
}

impl Run<'_> {
    fn step(&mut self, operation: Operation) -> longma_zoned::Result<()> {
        self.done += 1;
        match operation {
            Operation::Read(record) => {
                self.apply()?;
                self.map.get(&key(record)).map(|_| ())
            }
            Operation::Scan(record, length) => {
                self.apply()?;
                let mut rows = self.map.range(KeyRange::from(&key(record)));
                let mut left = length;
                while left > 0 && rows.next_row()?.is_some() {
                    left -= 1;
                }
                Ok(())
            }
            Operation::Insert(record) | Operation::Update(record) => self.put(record),
            Operation::ReadModifyWrite(record) => {
                self.apply()?;
                self.map.get(&key(record))?;
                self.put(record)
            }
            Operation::Delete(record) => {
                self.batch.delete(&key(record));
                self.apply_if_full()
            }
        }
    }

    fn put(&mut self, record: u64) -> longma_zoned::Result<()> {
        let value: Vec<u8> = (0..self.arguments.load.value_bytes)
            .map(|n| (record ^ self.done).wrapping_add(n.into()) as u8)
            .collect();
        self.batch.put(&key(record), &value);
        self.changed_bytes += 8 + value.len() as u64;
        self.apply_if_full()
    }

    fn apply_if_full(&mut self) -> longma_zoned::Result<()> {
        if self.batch.len() < self.arguments.batch as usize { Ok(()) } else { self.apply() }
    }

    fn apply(&mut self) -> longma_zoned::Result<()> {
        if !self.batch.is_empty() {
            self.map.apply(&self.batch)?;
            self.batch.clear();
        }
        Ok(())
    }
}

fn key(record: u64) -> [u8; 8] {
    scatter(record).to_be_bytes()
}

fn report(arguments: &Arguments, map: &Store<Counted<Device>>, phases: &[Phase]) -> Outcome {
    let block = f64::from(map.device().geometry().block_bytes);
    let amplification =
        |phase: &Phase| phase.counts.blocks_written() as f64 * block / phase.changed_bytes.max(1) as f64;
    let rate = |phase: &Phase| phase.operations as f64 / phase.seconds;
    if arguments.format == Format::Json {
        let phases: Vec<_> = phases
            .iter()
            .map(|phase| {
                json!({
                    "phase": phase.name, "operations": phase.operations, "seconds": phase.seconds,
                    "operations_per_s": rate(phase), "device": phase.counts,
                    "written_per_byte_put": amplification(phase),
                })
            })
            .collect();
        return print_json(
            &json!({ "device": map.device().name(), "phases": phases, "map": map.statistics() }),
        );
    }
    let heads = [
        "PHASE",
        "OPERATIONS",
        "SECONDS",
        "PER SECOND",
        "READS",
        "WRITES",
        "FLUSHES",
        "RESETS",
        "WRITTEN PER BYTE PUT",
    ];
    let mut rows = vec![heads.map(String::from).to_vec()];
    for phase in phases {
        let counts = phase.counts;
        let cells = [
            phase.name.to_string(),
            phase.operations.to_string(),
            format!("{:.3}", phase.seconds),
            format!("{:.0}", rate(phase)),
            counts.reads.to_string(),
            counts.writes().to_string(),
            counts.flushes.to_string(),
            counts.resets.to_string(),
            if phase.changed_bytes == 0 { "-".into() } else { format!("{:.2}", amplification(phase)) },
        ];
        rows.push(cells.to_vec());
    }
    print(&table(&rows))
}
