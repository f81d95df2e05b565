//! Longma's map for zoned flash beside other embedded ordered maps: same machine, same records, same durability.
//! Not a profiler. Each piece of a measurement is a process of its own, so that it can be stopped and taken up again.

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
    /// Records.
    #[arg(long, default_value_t = 10_000_000)]
    records: u64,
    /// A first look: 200 000 records.
    #[arg(long, conflicts_with = "records")]
    small: bool,
    /// Records that are written together.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
    /// How much memory an engine may use to keep what it read, MiB; those that map their file have the page cache, as far as
    /// --memory-mib allows.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    cache_mib: u64,
    /// How much memory an engine's process may have in all, the page cache that it fills included, MiB [default: twice --cache-mib].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 20), conflicts_with = "no_memory_limit")]
    memory_mib: Option<u64>,
    /// Let engines have all memory that there is: where control groups cannot be used. LMDB then has a larger cache than the others.
    #[arg(long)]
    no_memory_limit: bool,
    /// Only these engines; may be repeated.
    #[arg(long = "engine", value_name = "NAME")]
    engines: Vec<String>,
    /// Only these sizes of key and value; may be repeated.
    #[arg(long = "shape", value_enum)]
    shapes: Vec<Shape>,
    /// Only this durability.
    #[arg(long, value_enum)]
    durability: Option<Durability>,
    /// Where the engines keep their files [default: a temporary folder].
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Keep what was measured in this file, a line of JSON for each piece, and measure only what it does not have.
    #[arg(long, value_name = "FILE", requires = "folder")]
    results: Option<PathBuf>,
    /// End a piece of loading, inserting or mixing after so many seconds; the next piece goes on there.
    #[arg(long, value_name = "SECONDS", default_value_t = f64::INFINITY)]
    piece_seconds: f64,
    /// Measure so many pieces and end; the same command goes on there.
    #[arg(long, value_name = "N", requires = "results")]
    pieces: Option<usize>,
    /// How to print.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    /// Measure one piece in this process, and print it: what the command starts for each.
    #[arg(long, hide = true, requires = "folder")]
    one: Option<String>,
    /// The phase of that piece.
    #[arg(long, hide = true, value_enum, default_value = "load")]
    phase: Phase,
    /// The operation of the phase that it begins with.
    #[arg(long, hide = true, default_value_t = 0)]
    from: u64,
}

impl Options {
    /// How much memory an engine's process may have, MiB.
    fn memory_limit_mib(&self) -> Option<u64> {
        (!self.no_memory_limit).then(|| self.memory_mib.unwrap_or(2 * self.cache_mib))
    }
}

/// When a batch outlasts a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Each, before the next begins.
    Synced,
    /// All, at the end.
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
    /// For people, as Markdown.
    Table,
    /// For programs.
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

/// Measures every engine with every shape and durability asked for, and prints what is complete.
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
        // Said once, before anything is measured.
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
