//! `longma replay`: runs a ChampSim trace on a modelled machine.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use longma_command_line::{Format, output};
use longma_lab::{MachineEdit, open_machine, write_atomically};
use longma_run_results::{
    page::{RunPage, page},
    summary,
};
use longma_runner::{
    champsim::{Code, Reader, Replay},
    simulation::{Level, Limits, Policy, RunResult, TimingSimulation, TimingSimulationConfig, Warm},
};
use longma_sim::{Manifest, ManifestMachine, ManifestProgram, Region};
use longma_topology::Machine;
use longma_trace::Trace;

use crate::run::{CoreModel, write_result};

/// Number of trace words that are replayed at a time.
const PART_WORDS: usize = 4096;

/// Arguments of `longma replay`.
#[derive(clap::Args)]
pub struct Arguments {
    /// A ChampSim trace, uncompressed or compressed with zstd.
    trace: PathBuf,

    /// Machine name (see `longma machine list`) or machine file. The trace runs on its first core.
    #[arg(long, value_name = "NAME|FILE", default_value = "loongson-3a5000")]
    machine: String,

    /// Give a key of the machine another value, such as caches.l2.size=512KiB. May be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<MachineEdit>,

    /// Timing model of the core [default: as in the machine file].
    #[arg(long, value_enum)]
    core: Option<CoreModel>,

    /// Replay at most this many instructions.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_instructions: Option<u64>,

    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Write all statistics to this file, as JSON, and the machine with all defaults to a file next to it.
    #[arg(long, value_name = "FILE")]
    stats_out: Option<PathBuf>,

    /// Write a page about the run to this file, as HTML.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Runs the trace and prints the result.
///
/// # Errors
/// The trace or the machine cannot be read or modelled, or a file cannot be written.
pub fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    let machine =
        Arc::new(open_machine(&arguments.machine, &arguments.set).map_err(|error| error.to_string())?);
    let result = replay(arguments, &machine)?;
    let text = match arguments.format {
        Format::Table => summary::text(&result),
        Format::Json => result.to_json().to_string(),
    };
    output::print(&format!("{text}\n")).map_err(|error| error.to_string())?;
    let failed = |path: &Path, error| format!("cannot write {}: {error}", path.display());
    if let Some(path) = &arguments.stats_out {
        write_result(path, &result, &machine).map_err(|error| failed(path, error))?;
    }
    if let Some(path) = &arguments.report {
        let command =
            format!("longma replay {}", longma_text::quote_for_shell(&arguments.trace.to_string_lossy()));
        let run = RunPage {
            result: &result,
            machine: &machine,
            command: &command,
            annotation: None,
            against: None,
        };
        write_atomically(path, page(&run).as_bytes()).map_err(|error| failed(path, error))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn replay(arguments: &Arguments, machine: &Arc<Machine>) -> Result<RunResult, String> {
    let path = arguments.trace.display();
    let open = || Reader::open(&arguments.trace).map_err(|error| format!("cannot read {path}: {error}"));
    let max_instructions =
        arguments.max_instructions.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX);
    // The trace is read twice: to find the code, and to replay it.
    let code = Code::of(open()?.take(max_instructions)).map_err(|error| format!("{path}: {error}"))?;
    let mut simulation = simulation(arguments, machine)?;
    let mut replay = Replay::new(code, open()?.take(max_instructions));
    let mut trace = Trace::default();
    while replay.fill(&mut trace, PART_WORDS).map_err(|error| format!("{path}: {error}"))? {
        simulation.replay(&trace, &replay);
    }
    simulation.finish();
    let file =
        File::open(&arguments.trace).and_then(|file| ManifestProgram::read(&path.to_string(), file, &[]));
    let manifest = Manifest {
        format: Manifest::FORMAT,
        longma: env!("CARGO_PKG_VERSION").into(),
        machine: Some(ManifestMachine::new(&machine.name, &machine.to_toml())),
        program: file.map_err(|error| format!("cannot read {path}: {error}"))?,
        level: "timing".into(),
        core_model: simulation.core_model().map(Into::into),
        seed: arguments.seed,
        translation: None,
        region: Region::Whole,
        sampling: None,
    };
    simulation.replayed_result(manifest).map_err(|error| error.to_string())
}

fn simulation(arguments: &Arguments, machine: &Arc<Machine>) -> Result<TimingSimulation, String> {
    let kind = arguments.core.map(CoreModel::kind);
    let simulation = TimingSimulation::new(TimingSimulationConfig {
        machine: machine.clone(),
        host: 0,
        level: Level::Timing(kind),
        region: Region::Whole,
        warm: Warm::Last(0),
        sampling: None,
        placement: Policy::default(),
        seed: arguments.seed,
        restored_at: None,
        save: None,
        timeline: None,
        limits: Limits::default(),
        snapshots: None,
        wires: Default::default(),
    });
    let mut simulation = simulation.map_err(|error| error.to_string())?;
    if arguments.report.is_some() {
        simulation.keep_intervals();
    }
    Ok(simulation)
}
