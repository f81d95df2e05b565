//! Compares Longma's map for zoned flash with other embedded ordered maps: same machine, records and durability. Each
//! piece of a measurement runs in its own process, so that a measurement can be interrupted and continued.

mod campaign;
mod engine;
mod figures;
mod measure;
mod memory;
mod records;
mod table;

use campaign::Campaign;
use clap::{Parser, ValueEnum};
use measure::{Phase, Task};
use records::Shape;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::ExitCode;

/// Compares embedded ordered maps.
#[derive(Parser, Clone)]
#[command(version)]
pub struct Options {
    /// Number of records.
    #[arg(long, default_value_t = 10_000_000)]
    records: u64,
    /// Quick measurement with 200 000 records.
    #[arg(long, conflicts_with = "records")]
    small: bool,
    /// Number of records per write batch.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
    /// Size of an engine's cache, in MiB.
    ///
    /// Engines that map their file use the page cache, limited by --memory-mib.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    cache_mib: u64,
    /// Memory limit of an engine's process, including its page cache, in MiB [default: twice --cache-mib].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 20), conflicts_with = "no_memory_limit")]
    memory_mib: Option<u64>,
    /// Do not limit memory, for systems without usable control groups. LMDB then has a larger cache than the other
    /// engines.
    #[arg(long)]
    no_memory_limit: bool,
    /// Measure only this engine; may be repeated.
    #[arg(long = "engine", value_name = "NAME")]
    engines: Vec<String>,
    /// Measure only this size of key and value; may be repeated.
    #[arg(long = "shape", value_enum)]
    shapes: Vec<Shape>,
    /// Measure only this durability.
    #[arg(long, value_enum)]
    durability: Option<Durability>,
    /// Folder for the engines' files [default: a temporary folder].
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Store results in this file, one JSON line per piece, and measure only missing pieces.
    #[arg(long, value_name = "FILE", requires = "folder")]
    results: Option<PathBuf>,
    /// End a piece of loading, inserting or mixing after this many seconds; the next piece continues there.
    #[arg(long, value_name = "SECONDS", default_value_t = f64::INFINITY)]
    piece_seconds: f64,
    /// Measure this many pieces and exit; the same command continues.
    #[arg(long, value_name = "N", requires = "results")]
    pieces: Option<usize>,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    /// Measure one piece in this process and print it; the command starts itself this way for each piece.
    #[arg(long, hide = true, requires = "folder")]
    one: Option<String>,
    /// The phase of that piece.
    #[arg(long, hide = true, value_enum, default_value = "load")]
    phase: Phase,
    /// The first operation of that piece.
    #[arg(long, hide = true, default_value_t = 0)]
    from: u64,
}

impl Options {
    /// Memory limit of an engine's process in MiB.
    fn memory_limit_mib(&self) -> Option<u64> {
        (!self.no_memory_limit).then(|| self.memory_mib.unwrap_or(2 * self.cache_mib))
    }
}

/// Durability of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Each batch, before the next begins.
    Synced,
    /// All at the end.
    Unsynced,
}

impl Durability {
    const fn name(self) -> &'static str {
        match self {
            Self::Synced => "synced",
            Self::Unsynced => "unsynced",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A Markdown table.
    Table,
    /// JSON.
    Json,
}

type Outcome<T = ()> = Result<T, String>;

fn main() -> ExitCode {
    let mut options = Options::parse();
    if options.small {
        options.records = 200_000;
    }
    let outcome = match options.one.clone() {
        Some(name) => run_one(&options, &name),
        None => run_all(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench/zoned: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures one piece and prints it as JSON.
fn run_one(options: &Options, name: &str) -> Outcome {
    let (Some(&shape), Some(durability), Some(folder)) =
        (options.shapes.first(), options.durability, options.folder.as_deref())
    else {
        return Err("--one needs --shape, --durability and --folder".into());
    };
    let Options { records, batch, cache_mib, .. } = *options;
    let memory_mib = options.memory_limit_mib();
    let task = Task { engine: name.into(), shape, durability, records, batch, cache_mib, memory_mib };
    let piece = measure::measure(&task, options.phase, options.from, options.piece_seconds, folder)?;
    println!("{}", serde_json::to_string(&piece).map_err(|error| error.to_string())?);
    Ok(())
}

/// Measures every engine with every requested shape and durability, and prints complete results.
fn run_all(options: &Options) -> Outcome {
    let engines: Vec<String> = match options.engines.is_empty() {
        true => engine::NAMES.iter().map(ToString::to_string).collect(),
        false => options.engines.clone(),
    };
    if let Some(unknown) = engines.iter().find(|name| !engine::NAMES.contains(&name.as_str())) {
        return Err(format!("there is no engine {unknown}; there are: {}", engine::NAMES.join(", ")));
    }
    let shapes = if options.shapes.is_empty() { Shape::ALL.to_vec() } else { options.shapes.clone() };
    let durabilities = match options.durability {
        Some(one) => vec![one],
        None => vec![Durability::Synced, Durability::Unsynced],
    };
    if let Some(mib) = options.memory_limit_mib() {
        // Report a missing memory limit once, before the first measurement.
        memory::Limit::new(mib << 20)?;
    }
    let mut campaign = Campaign::open(options)?;
    let mut complete = Vec::new();
    for &shape in &shapes {
        for &durability in &durabilities {
            for engine in &engines {
                let Options { records, batch, cache_mib, .. } = *options;
                let (engine, memory_mib) = (engine.clone(), options.memory_limit_mib());
                let task = Task { engine, shape, durability, records, batch, cache_mib, memory_mib };
                match campaign.complete(&task) {
                    Ok(Some(figures)) => complete.push(figures),
                    Ok(None) => {}
                    Err(error) => eprintln!("bench/zoned: {}: {error}", task.engine),
                }
            }
        }
    }
    match options.format {
        Format::Json => {
            println!("{}", serde_json::to_string_pretty(&complete).map_err(|error| error.to_string())?);
        }
        Format::Table => print!("{}", table::markdown(&complete)),
    }
    Ok(())
}
