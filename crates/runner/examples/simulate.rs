//! Runs a program in simulated time, either with a trivial timing model (one nanosecond an instruction) or with the
//! model of a machine. The tests run guests with it, and it shows how to implement a [`TimingBackend`]. Use `longma run
//! --level timing` for a readable report.
//!
//! ```text
//! simulate [--cores N | --machine NAME [--level cache] [--region] [--warm MILLIONS]
//!     [--wire DEVICE:BYTES[:SEGMENT]]... [--statistics FILE] [--sample PLAN]
//!     [--max-instructions N]] [--set NAME=VALUE]... [--seed N] [--quantum N]
//!     [--log FILE] [--save-at NS --save-to FILE] PROGRAM [ARGUMENT]...
//! simulate --restore FILE
//! ```

use longma_locks::IgnorePoison;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use longma_core::{Core, Stop};
use longma_guest::host::locks::Mutex;
use longma_runner::checkpoint::{AfterSave, Checkpoint, Saver};
use longma_runner::devices::{TcpOptions, WireEnd};
use longma_runner::optimizations::Optimizations;
use longma_runner::schedule::{
    Scheduler, SchedulerConfig, SimulatedProcess, SimulatedProcessConfig, ThreadSlot, TimingBackend,
};
use longma_runner::simulation::{
    self, Level, Limits, Policy, SamplingPlan, SharedTimingSimulation, TimingSimulation, Warm,
};
use longma_runner::{
    Callbacks, ConfigurationWords, EarlyStop, Ending, Execution, Node, NodeConfig, ProcessConfig, Report,
};
use longma_sim::{Duration, Manifest, ManifestProgram, Region, Time};
use longma_topology::Machine;

/// A timing model in which an instruction takes one nanosecond.
struct NanosecondTiming {
    /// The length of a quantum in trace words.
    quantum: usize,
    /// The time and the file of a checkpoint that has not been requested yet.
    save: Mutex<Option<(Time, PathBuf)>>,
    saver: Arc<Saver>,
}

impl TimingBackend for NanosecondTiming {
    fn run(&self, slot: ThreadSlot, guest: &mut Core) -> (Stop, Time) {
        let mut save = self.save.lock().ignore_poison();
        let due = save.take_if(|(time, _)| slot.start >= *time);
        drop(save);
        if let Some((_, path)) = due {
            self.saver.request(path, |saved| match saved {
                Ok(()) => AfterSave::Exit(0),
                Err(error) => {
                    eprintln!("simulate: {error}");
                    AfterSave::Exit(1)
                }
            });
        }
        guest.set_quantum(self.quantum);
        let stop = guest.run();
        let executed = guest.trace().records().map(|record| u64::from(record.executed)).sum();
        guest.clear_trace();
        let spent = Duration::from_ns(executed).unwrap_or_default();
        (stop, slot.start.checked_add(spent).unwrap_or(slot.start))
    }
}

fn main() -> ExitCode {
    match start() {
        Ok(never) => match never {},
        Err(message) => {
            eprintln!("simulate: {message}");
            ExitCode::from(127)
        }
    }
}

/// Options of a machine's model.
#[derive(Default)]
struct ModelOptions {
    seed: u64,
    counts_only: bool,
    region: bool,
    /// The number of instructions that warm the models before the region of interest, in millions.
    warm: u64,
    wires: BTreeMap<String, WireEnd>,
    sampling: Option<SamplingPlan>,
    max_instructions: Option<u64>,
}

/// Parses a TCP sender at the remote end of a device's wire.
fn wire(text: &str) -> Result<(String, WireEnd), String> {
    let words = || "write --wire DEVICE:BYTES or DEVICE:BYTES:SEGMENT".to_string();
    let (device, rest) = text.split_once(':').ok_or_else(words)?;
    let (bytes, mss) = rest.split_once(':').unwrap_or((rest, "9000"));
    let total_bytes = bytes.parse().map_err(|_| words())?;
    let mss = mss.parse().map_err(|_| words())?;
    let tcp = TcpOptions { total_bytes, message_bytes: 1 << 17, mss, ..TcpOptions::default() };
    Ok((device.into(), WireEnd::Tcp(tcp)))
}

/// The NUMA nodes of a machine's cores, and its model.
fn model(
    machine: Arc<Machine>,
    model_options: ModelOptions,
    stop: &Arc<EarlyStop>,
) -> Result<(Vec<usize>, SharedTimingSimulation), String> {
    let nodes = TimingSimulation::core_nodes(&machine, 0);
    let config = simulation::TimingSimulationConfig {
        machine,
        host: 0,
        level: if model_options.counts_only { Level::Cache } else { Level::Timing(None) },
        region: if model_options.region { Region::OfInterest } else { Region::Whole },
        warm: Warm::Last(model_options.warm * 1_000_000),
        sampling: model_options.sampling,
        placement: Policy::default(),
        seed: model_options.seed,
        restored_at: None,
        save: None,
        timeline: None,
        limits: Limits { instructions: model_options.max_instructions, time: None, stop: Some(stop.clone()) },
        snapshots: None,
        wires: model_options.wires,
    };
    let simulation = TimingSimulation::new(config).map_err(|error| error.to_string())?;
    Ok((nodes, simulation.shared()))
}

enum Never {}

/// The parsed command line.
struct Options {
    cores: usize,
    quantum: usize,
    machine: Option<Machine>,
    model_options: ModelOptions,
    statistics: Option<PathBuf>,
    log: Option<Arc<Mutex<File>>>,
    /// The time and the file of a checkpoint.
    save: Option<(Time, PathBuf)>,
    restore: Option<PathBuf>,
    environment: Vec<OsString>,
    /// The program and its arguments.
    given: Vec<OsString>,
}

fn options() -> Result<Options, String> {
    let mut arguments = std::env::args_os().skip(1).peekable();
    let (mut cores, mut quantum, mut log, mut statistics) = (4, 4096, None, None);
    let (mut save_at, mut save_to, mut restore, mut machine) = (0, None, None, None);
    let (mut model_options, mut environment) =
        (ModelOptions { seed: 1, ..ModelOptions::default() }, vec!["HOME=/".into()]);
    while let Some(option) = arguments.next_if(|argument| argument.as_encoded_bytes().starts_with(b"--")) {
        if option.to_str() == Some("--region") {
            model_options.region = true;
            continue;
        }
        let value = arguments.next().ok_or("an option needs a value")?;
        let text = value.to_string_lossy();
        let number = || text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
        match option.to_str() {
            Some("--cores") => cores = number()? as usize,
            Some("--machine") => machine = Some(Machine::open(&text).map_err(|report| report.to_string())?),
            Some("--seed") => model_options.seed = number()?,
            Some("--level") => model_options.counts_only = text == "cache",
            Some("--warm") => model_options.warm = number()?,
            Some("--max-instructions") => model_options.max_instructions = Some(number()?),
            Some("--sample") => model_options.sampling = Some(text.parse()?),
            Some("--wire") => model_options.wires.extend([wire(&text)?]),
            Some("--set") => environment.push(value),
            Some("--statistics") => statistics = Some(PathBuf::from(&value)),
            Some("--save-at") => save_at = number()?,
            Some("--save-to") => save_to = Some(PathBuf::from(&value)),
            Some("--restore") => restore = Some(PathBuf::from(&value)),
            Some("--quantum") => quantum = number()? as usize,
            Some("--log") => {
                let file = File::create(&*text).map_err(|error| format!("{text}: {error}"))?;
                log = Some(Arc::new(Mutex::new(file)));
            }
            _ => return Err(format!("unknown option {}", option.display())),
        }
    }
    let save = save_to.map(|path| (Time::from_ps(save_at * 1000), path));
    let given = arguments.collect();
    Ok(Options { cores, quantum, machine, model_options, statistics, log, save, restore, environment, given })
}

/// A sink that writes lines to the log.
fn writer(log: &Arc<Mutex<File>>) -> longma_runner::Sink {
    let log = log.clone();
    Arc::new(move |line: &str| {
        // A failure only truncates the log.
        let _ = writeln!(log.lock().ignore_poison(), "{line}");
    })
}

fn start() -> Result<Never, String> {
    let options = options()?;
    let checkpoint = options.restore.map(|path| Checkpoint::open(&path)).transpose();
    let checkpoint = checkpoint.map_err(|error| error.to_string())?;
    let program = options.given.first().cloned().or_else(|| checkpoint.as_ref().map(|_| OsString::new()));
    let program = program.ok_or("name a program")?;
    let tracer = options.log.as_ref().map(writer);
    let (seed, magic) = (options.model_options.seed, options.model_options.region);
    let pausable = magic || options.model_options.sampling.is_some();
    let saver = Saver::new();
    let stop = EarlyStop::new(saver.clone());
    let model =
        options.machine.map(|machine| model(Arc::new(machine), options.model_options, &stop)).transpose()?;
    let (nodes, model) = model.unzip();
    let schedule = SchedulerConfig {
        nodes: nodes.unwrap_or_else(|| (0..options.cores).map(|core| core / 2).collect()),
        log: tracer.clone().map(|sink| -> longma_runner::schedule::Log {
            Arc::new(move |turn| sink(&format!("{} core {} thread {}", turn.at.ps(), turn.core, turn.thread)))
        }),
        allowed: None,
        diagnostics: Some(Arc::new(|line| eprintln!("simulate: {line}"))),
    };
    let scheduler = match &checkpoint {
        Some(checkpoint) => checkpoint.scheduler(schedule),
        None => Scheduler::new(schedule),
    }
    .map_err(|error| error.to_string())?;
    let process = ProcessConfig {
        program: program.into(),
        arguments: options.given,
        environment: options.environment,
        tracer,
        diagnostics: Some(Arc::new(|line| eprintln!("simulate: {line}"))),
        ..ProcessConfig::default()
    };
    let nanosecond_timing =
        NanosecondTiming { quantum: options.quantum, save: Mutex::new(options.save), saver };
    let timing_backend: Box<dyn TimingBackend> = match model.clone() {
        Some(model) => Box::new(model),
        None => Box::new(nanosecond_timing),
    };
    let config = NodeConfig {
        process,
        words: ConfigurationWords::default(),
        execution: Execution { tracing: true, magic, pausable, ..Execution::default() },
        optimizations: Optimizations::default(),
        translated_bytes: None,
        translation_cache: None,
        stack_period: None,
        simulated: Some(SimulatedProcess::new(SimulatedProcessConfig {
            scheduler,
            timing_backend,
            stop_the_world: Some(stop),
            seed,
            memory_bytes: 16 << 30,
        })),
    };
    let node = match &checkpoint {
        Some(checkpoint) => Node::restore(config, checkpoint),
        None => Node::load(config),
    }
    .map_err(|error| error.to_string())?;
    let executing = model.clone();
    let own = std::process::id();
    node.run_with(Callbacks {
        finish: Box::new(move |ending, report| {
            if let (Some(model), Some(path)) = (&model, &options.statistics)
                && let Err(error) = write_statistics(model, path, ending, report)
            {
                eprintln!("simulate: {error}");
            }
        }),
        executes: Box::new(move |report, _| {
            if let Some(model) = executing.as_ref().filter(|_| std::process::id() == own) {
                lock(model).begin_program(report);
            }
            None
        }),
    })
}

fn write_statistics(
    model: &SharedTimingSimulation,
    path: &Path,
    ending: Ending,
    report: &Report<'_>,
) -> Result<(), String> {
    lock(model).finish();
    let result = lock(model).result(manifest(), ending, report);
    let result = result.map_err(|error| format!("{error}; {}", error.advice()))?.to_json();
    let object = if result.get("sampling").is_some() { &result } else { &result["statistics"] };
    std::fs::write(path, object.to_string()).map_err(|error| format!("{}: {error}", path.display()))
}

/// An empty manifest.
fn manifest() -> Manifest {
    Manifest {
        format: Manifest::FORMAT,
        longma: String::new(),
        machine: None,
        program: ManifestProgram { path: String::new(), sha256: String::new(), arguments: Vec::new() },
        level: "timing".into(),
        core_model: None,
        seed: 0,
        translation: None,
        region: Region::Whole,
        sampling: None,
    }
}

fn lock(model: &SharedTimingSimulation) -> longma_guest::host::locks::MutexGuard<'_, TimingSimulation> {
    model.lock().ignore_poison()
}
