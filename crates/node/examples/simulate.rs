//! Runs a program in simulated time, with the simplest clock there is, in which an instruction takes a nanosecond, or with the model of
//! a machine. The tests run their programs with it.
//! Not a report of what was counted: `longma run --level timing` makes one.
//! Source: none; it shows how a [`Clockwork`] is written.
//!
//! `simulate [--cores N | --machine NAME] [--seed N] [--quantum N] [--log FILE] [--save-at NS --save-to FILE] PROGRAM [ARGUMENT]...`,
//! or `simulate --restore FILE`

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use longma_core::{Core, Stop};
use longma_guest::host::locks::Mutex;
use longma_linux::simulated::SimulationConfig;
use longma_node::checkpoint::{AfterSave, Checkpoint, Saver};
use longma_node::schedule::{Clockwork, Place, Scheduler, SchedulerConfig, Simulated};
use longma_node::simulation::{self, Level, Policy, SharedSimulation, Simulation};
use longma_node::{ConfigurationWords, Execution, Node, NodeConfig, ProcessConfig};
use longma_sim::{Duration, Region, Time};
use longma_topology::Machine;

/// An instruction takes a nanosecond.
struct Toy {
    /// Words of a core's trace.
    quantum: usize,
    /// When and where to the process is saved.
    save: Option<(Time, PathBuf)>,
    saver: Arc<Saver>,
}

impl Clockwork for Toy {
    fn run(&mut self, place: Place, guest: &mut Core) -> (Stop, Time) {
        if let Some((_, path)) = self.save.take_if(|(time, _)| place.start >= *time) {
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
        (stop, place.start.checked_add(spent).unwrap_or(place.start))
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

/// The NUMA nodes of a machine's cores, and its model.
fn model(machine: Arc<Machine>, seed: u64) -> Result<(Vec<usize>, SharedSimulation), String> {
    let nodes = Simulation::core_nodes(&machine, 0);
    let config = simulation::SimulationConfig {
        machine,
        host: 0,
        level: Level::Timing(None),
        region: Region::Whole,
        warm_instructions: 0,
        placement: Policy::default(),
        seed,
        restored_at: None,
        save: None,
        timeline: None,
        wires: BTreeMap::new(),
    };
    let simulation = Simulation::new(config).map_err(|error| error.to_string())?;
    Ok((nodes, simulation.shared()))
}

enum Never {}

fn start() -> Result<Never, String> {
    let mut arguments = std::env::args_os().skip(1).peekable();
    let (mut cores, mut seed, mut quantum, mut log) = (4, 1, 4096, None);
    let (mut save_at, mut save_to, mut restore, mut machine) = (0, None, None, None);
    while let Some(option) = arguments.next_if(|argument| argument.as_encoded_bytes().starts_with(b"--")) {
        let value = arguments.next().ok_or("an option needs a value")?;
        let text = value.to_string_lossy();
        let number = || text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
        match option.to_str() {
            Some("--cores") => cores = number()? as usize,
            Some("--machine") => machine = Some(Machine::open(&text).map_err(|report| report.to_string())?),
            Some("--seed") => seed = number()?,
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
    let given: Vec<_> = arguments.collect();
    let checkpoint =
        restore.map(|path| Checkpoint::open(&path)).transpose().map_err(|error| error.to_string())?;
    let program = given.first().cloned().or_else(|| checkpoint.as_ref().map(|_| OsString::new()));
    let program = program.ok_or("name a program")?;
    let write = |log: &Arc<Mutex<File>>| {
        let log = log.clone();
        move |line: &str| {
            // Only the log gets shorter if it cannot be written.
            let _ = writeln!(log.lock().unwrap_or_else(std::sync::PoisonError::into_inner), "{line}");
        }
    };
    let tracer = log.as_ref().map(|log| Arc::new(write(log)) as longma_node::Sink);
    let turns = tracer.clone();
    let model = machine.map(|machine| model(Arc::new(machine), seed)).transpose()?;
    let (nodes, model) = model.unzip();
    let schedule = SchedulerConfig {
        nodes: nodes.unwrap_or_else(|| (0..cores).map(|core| core / 2).collect()),
        log: turns.map(|sink| -> longma_node::schedule::Log {
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
        arguments: given,
        environment: vec!["HOME=/".into()],
        tracer,
        diagnostics: Some(Arc::new(|line| eprintln!("simulate: {line}"))),
        simulation: Some(SimulationConfig { scheduler: scheduler.clone(), seed, memory_bytes: 16 << 30 }),
        ..ProcessConfig::default()
    };
    let saver = Saver::new();
    let save = save_to.map(|path| (Time::from_ps(save_at * 1000), path));
    let toy = || Box::new(Toy { quantum, save, saver: saver.clone() }) as Box<dyn Clockwork>;
    let clockwork = model.map_or_else(toy, |model| Box::new(model));
    let config = NodeConfig {
        process,
        words: ConfigurationWords::default(),
        execution: Execution { tracing: true, ..Execution::default() },
        simulated: Some(Simulated::new(scheduler, clockwork, Some(saver))),
    };
    let node = match &checkpoint {
        Some(checkpoint) => Node::restore(config, checkpoint),
        None => Node::load(config),
    }
    .map_err(|error| error.to_string())?;
    node.run(|_, _| {})
}
