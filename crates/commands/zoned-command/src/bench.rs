//! `longma zoned bench`: measures a map under a YCSB workload, run by `longma_zoned_lab::bench`.

use super::device::{Layout, LayoutOption, LoadOptions, NewDevice};
use super::map::runs_options;
use super::{Format, INTERRUPTED, Outcome, bar, interruption};
use clap::ValueEnum;
use longma_command_line::output::{print, print_json, table};
use longma_zoned::device::Counted;
use longma_zoned::{Store, ZonedDevice};
use longma_zoned_lab::bench::{BenchMap, BenchOptions, Phase, bench};
use longma_zoned_lab::ycsb::{Distribution, Workload};
use longma_zoned_runs as runs;
use serde_json::json;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// Arguments of `longma zoned bench`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    new: NewDevice,
    #[command(flatten)]
    load: LoadOptions,
    #[command(flatten)]
    layout: LayoutOption,
    /// The workload: A to F of YCSB, or W1 to W5 of the ZB+-tree paper.
    #[arg(long, value_name = "NAME", default_value = "A", value_parser = workload)]
    workload: Workload,
    /// Distribution of the accessed records [default: the workload's].
    #[arg(long, value_enum)]
    distribution: Option<Choice>,
    /// Number of records to load first.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    records: u64,
    /// Number of operations to run after loading.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    operations: u64,
    /// Number of changes per write batch.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batch: u32,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// The distributions by their option values.
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
    Workload::named(name).ok_or_else(|| format!("the workloads are {}", names.join(", ")))
}

/// Loads the records, runs the workload and prints the measurements.
pub fn run(arguments: &Arguments) -> Outcome {
    let device = Counted::new(arguments.new.format(arguments.layout.layout)?);
    let options = arguments.load.options();
    let interrupted = match arguments.layout.layout {
        Layout::Tree => {
            let map = Store::open(device, options)?;
            let interrupted = measure(arguments, &map, map.device(), || json!(map.statistics()))?;
            map.close()?;
            interrupted
        }
        Layout::Runs => {
            let map = runs::Store::open(device, runs_options(&options))?;
            let interrupted = measure(arguments, &map, map.device(), || json!(map.statistics()))?;
            map.close()?;
            interrupted
        }
    };
    Ok(if interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// Runs the phases on a map, and prints them. Returns whether they were interrupted.
fn measure<M: BenchMap>(
    arguments: &Arguments,
    map: &M,
    device: &impl ZonedDevice,
    statistics: impl FnOnce() -> serde_json::Value,
) -> Result<bool, Box<dyn std::error::Error>>
where
    M::Error: std::error::Error + 'static,
{
    let stop = interruption();
    let bar = bar(arguments.records + arguments.operations, "operations");
    let phases = bench(map, &arguments.options(), &|| stop.load(Ordering::Relaxed), &mut || bar.inc(1))?;
    bar.finish_and_clear();
    let block_bytes = device.geometry().block_bytes;
    match arguments.format {
        Format::Json => {
            let phases: Vec<_> = phases.iter().map(|phase| document(phase, block_bytes)).collect();
            print_json(&json!({ "device": device.name(), "phases": phases, "map": statistics() }))?;
        }
        Format::Table => {
            let mut rows = vec![HEADS.map(String::from).to_vec()];
            rows.extend(phases.iter().map(|phase| row(phase, block_bytes)));
            print(&table(&rows))?;
        }
    }
    Ok(stop.load(Ordering::Relaxed))
}

impl Arguments {
    fn options(&self) -> BenchOptions {
        BenchOptions {
            workload: match self.distribution {
                Some(choice) => self.workload.with(choice.distribution()),
                None => self.workload,
            },
            records: self.records,
            operations: self.operations,
            batch: self.batch as usize,
            value_bytes: self.load.value_bytes,
            seed: self.load.seed,
        }
    }
}

fn document(phase: &Phase, block_bytes: u32) -> serde_json::Value {
    json!({
        "phase": phase.name, "operations": phase.operations, "seconds": phase.seconds,
        "operations_per_s": phase.rate(), "device": phase.counts,
        "written_per_byte_put": phase.written_per_byte_put(block_bytes),
    })
}

const HEADS: [&str; 9] = [
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

fn row(phase: &Phase, block_bytes: u32) -> Vec<String> {
    let counts = phase.counts;
    let cells = [
        phase.name.to_string(),
        phase.operations.to_string(),
        format!("{:.3}", phase.seconds),
        format!("{:.0}", phase.rate()),
        counts.reads.to_string(),
        counts.writes().to_string(),
        counts.flushes.to_string(),
        counts.resets.to_string(),
        phase.written_per_byte_put(block_bytes).map_or("-".into(), |bytes| format!("{bytes:.2}")),
    ];
    cells.to_vec()
}
