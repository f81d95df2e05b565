//! Longma's map for zoned flash beside other embedded ordered maps: same machine, same records, same durability.
//! Not a profiler. Each engine runs in a process of its own, so that what it writes can be told from /proc/self/io.
//! Source: none.

mod engine;
mod measure;
mod records;
mod table;

use clap::{Parser, ValueEnum};
use measure::{Figures, Task};
use records::Shape;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

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
    /// How to print.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    /// Run this one engine in this process, and print its figures: what the command starts for each.
    #[arg(long, hide = true, requires = "folder")]
    one: Option<String>,
}

/// When a batch outlasts a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
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

type Outcome = Result<(), String>;

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

/// Measures one engine and prints its figures as JSON.
fn run_one(options: &Options, name: &str) -> Outcome {
    let (Some(&shape), Some(durability), Some(folder)) =
        (options.shapes.first(), options.durability, options.folder.as_deref())
    else {
        return Err("--one needs --shape, --durability and --folder".into());
    };
    let task = Task { shape, durability, records: options.records, batch: options.batch };
    let figures = measure::measure(name, &task, folder)?;
    println!("{}", serde_json::to_string(&figures).map_err(|error| error.to_string())?);
    Ok(())
}

/// Measures every engine with every shape and durability asked for, each in a process of its own.
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
    let mut all = Vec::new();
    for &shape in &shapes {
        for &durability in &durabilities {
            for engine in &engines {
                eprintln!("{engine}, {}, {}", shape.name(), durability.name());
                match child(options, engine, shape, durability) {
                    Ok(figures) => all.push(figures),
                    Err(error) => eprintln!("bench/zoned: {engine}: {error}"),
                }
            }
        }
    }
    match options.format {
        Format::Json => {
            println!("{}", serde_json::to_string_pretty(&all).map_err(|error| error.to_string())?);
        }
        Format::Table => print!("{}", table::markdown(&all)),
    }
    Ok(())
}

fn child(options: &Options, engine: &str, shape: Shape, durability: Durability) -> Result<Figures, String> {
    let here = match &options.folder {
        Some(folder) => tempfile::tempdir_in(folder),
        None => tempfile::tempdir(),
    };
    let folder = here.map_err(|error| format!("cannot make a folder: {error}"))?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["--one", engine, "--shape", shape.name(), "--durability", durability.name()]);
    command.args(["--records", &options.records.to_string(), "--batch", &options.batch.to_string()]);
    command.arg("--folder").arg(folder.path()).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("ended with {}", output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("its figures cannot be read: {error}"))
}
