//! Simulated runs: from the command-line options to the printed and written results. The models are in `longma-runner`.

use longma_locks::IgnorePoison;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use longma_command_line::Format;
use longma_lab::write_atomically;
use longma_run_results::summary;
use longma_runner::champsim::Output;
use longma_runner::optimizations::Optimizations;
use longma_runner::{
    EarlyStop, Ending, ProcessConfig, Report, Sink,
    checkpoint::{AfterSave, Checkpoint, Saver},
    descriptors,
    devices::WireEnd,
    schedule::{CoreSet, Scheduler, SchedulerConfig, SimulatedProcess, SimulatedProcessConfig},
    simulation::{
        self, Annotation, Limits, Policy, RecordingError, RunResult, SamplingPlan, Save,
        SharedTimingSimulation, Snapshots, Timeline, TimingSimulation, TimingSimulationConfig, Warm,
    },
};
use longma_sim::{Duration, Manifest, ManifestMachine, ManifestProgram, Region, Statistics};
use longma_topology::Machine;
use longma_workloads::program::{HOST_FAULT_MESSAGE, HOST_FAULT_STATUS};

use super::{
    arguments::{Arguments, CoreModel, Level},
    descriptors::Messages,
    failure::{Failure, OWN_FAILURE},
    placement,
    results::Views,
    wires,
};

/// Umask of programs in simulated time, independent of the user's: the common default.
pub const UMASK: u32 = 0o022;

/// Maximum size of a trace, in bytes.
const TRACE_BYTES: u64 = 2 << 30;

/// Opens the checkpoint of `--restore`.
///
/// # Errors
/// Fails if the run is not simulated or the file is not a checkpoint.
pub fn restored(arguments: &mut Arguments) -> Result<Option<Checkpoint>, Failure> {
    let Some(path) = &arguments.restore else { return Ok(None) };
    if arguments.level == Level::Functional {
        return Err(Failure::own("--restore is for simulated runs", "add --level cache or --level timing"));
    }
    let checkpoint = Checkpoint::open(path)
        .map_err(|error| Failure::own(&error.to_string(), "give a file that --checkpoint wrote"))?;
    arguments.program = vec![checkpoint.program().into()];
    Ok(Some(checkpoint))
}

/// What to print and write when the program has ended.
pub struct Outcome {
    simulation: SharedTimingSimulation,
    manifest: Manifest,
    machine: Arc<Machine>,
    stats_out: Option<PathBuf>,
    views: Views,
    /// The file of `--checkpoint`, and whether a save was requested.
    checkpoint: Option<(PathBuf, Arc<AtomicBool>)>,
    /// The ChampSim trace.
    champsim: Mutex<Option<Incomplete>>,
    /// The other files that are written while the program runs.
    _unfinished: Vec<Incomplete>,
    quiet: bool,
    format: Format,
    region: Region,
    process: u32,
}

/// A run on a modelled machine, as requested.
pub struct SimulatedRun {
    machine: Arc<Machine>,
    level: simulation::Level,
    region: Region,
    warm: Warm,
    sampling: Option<SamplingPlan>,
    max_instructions: Option<u64>,
    max_time: Option<Duration>,
    stats_every: Option<u64>,
    placement: Policy,
    wires: BTreeMap<String, WireEnd>,
    /// The cores that the program may use; `None` for all.
    allowed: Option<CoreSet>,
    seed: u64,
    /// The optimizations of translated programs, which the result states.
    translation: Optimizations,
    /// The file of `--checkpoint`.
    checkpoint: Option<PathBuf>,
    /// The file of `--trace`.
    trace: Option<PathBuf>,
    /// The file of `--champsim`.
    champsim: Option<PathBuf>,
    stats_out: Option<PathBuf>,
    views: Views,
    quiet: bool,
    format: Format,
}

impl SimulatedRun {
    /// Validates the options of a simulated run.
    ///
    /// # Errors
    /// An option is for another level, is malformed, or does not fit the machine.
    pub fn of(arguments: &Arguments, machine: Machine) -> Result<Self, Failure> {
        refuse_other_levels_options(arguments)?;
        let cores = TimingSimulation::core_nodes(&machine, 0).len();
        let cpu = arguments.cpu.as_deref();
        Ok(Self {
            level: level(arguments),
            region: if arguments.roi { Region::OfInterest } else { Region::Whole },
            warm: arguments.warm.0,
            sampling: arguments.sample,
            max_instructions: arguments.max_instructions,
            max_time: arguments.max_time,
            stats_every: arguments.stats_every,
            placement: placement::policy(arguments.numa.as_deref())?,
            wires: wires::parse(&arguments.wire)?,
            allowed: cpu.map(|list| allowed_cores(list, &machine, cores)).transpose()?,
            machine: Arc::new(machine),
            seed: arguments.seed,
            translation: arguments.translation,
            checkpoint: arguments.checkpoint.clone(),
            trace: arguments.trace.clone(),
            champsim: arguments.champsim.clone(),
            stats_out: arguments.stats_out.clone(),
            views: Views::of(arguments)?,
            quiet: arguments.quiet,
            format: arguments.format,
        })
    }

    /// Sets up the simulation of `process`.
    ///
    /// # Errors
    /// The machine cannot be modelled, the program cannot be read, or a file cannot be written.
    pub fn prepare(
        self,
        process: &ProcessConfig,
        checkpoint: Option<&Checkpoint>,
        report: &Sink,
    ) -> Result<(SimulatedProcess, Outcome), Failure> {
        let mut unfinished = Vec::new();
        let saver = Saver::new();
        let stop = EarlyStop::new(saver.clone());
        let is_requested = Arc::new(AtomicBool::new(false));
        let mut simulation = modelled(TimingSimulationConfig {
            machine: self.machine.clone(),
            host: 0,
            level: self.level,
            region: self.region,
            warm: self.warm,
            sampling: self.sampling,
            placement: self.placement.clone(),
            seed: self.seed,
            restored_at: checkpoint.map(Checkpoint::time),
            save: self.checkpoint.as_deref().map(|path| save_to(path, &saver, &is_requested, report)),
            timeline: self.trace.as_deref().map(|path| open_trace(path, &mut unfinished)).transpose()?,
            limits: Limits {
                instructions: self.max_instructions,
                time: self.max_time,
                stop: Some(stop.clone()),
            },
            snapshots: self.snapshots(&mut unfinished)?,
            wires: self.wires.clone(),
        })?;
        let manifest = self.manifest(process, &simulation)?;
        let scheduler = scheduler(&self.machine, self.allowed, checkpoint, report)?;
        for path in self.stats_out.iter().chain(self.views.file()) {
            writable(path)?;
        }
        self.views.request(&mut simulation);
        let mut champsim = None;
        if let Some(path) = &self.champsim {
            let incomplete = Incomplete::of(path);
            let output = open_champsim(path)?;
            champsim = Some(incomplete);
            simulation.record_champsim(output);
        }
        let memory_bytes = simulation.memory_bytes();
        let simulation = simulation.shared();
        let simulated = SimulatedProcess::new(SimulatedProcessConfig {
            scheduler,
            timing_backend: Box::new(simulation.clone()),
            stop_the_world: Some(stop),
            seed: self.seed,
            memory_bytes,
        });
        let outcome = Outcome {
            simulation,
            manifest,
            machine: self.machine,
            stats_out: self.stats_out.map(|path| std::path::absolute(&path).unwrap_or(path)),
            views: self.views,
            checkpoint: self.checkpoint.map(|path| (path, is_requested)),
            champsim: Mutex::new(champsim),
            _unfinished: unfinished,
            quiet: self.quiet,
            format: self.format,
            region: self.region,
            process: std::process::id(),
        };
        Ok((simulated, outcome))
    }

    /// The file of `--stats-every`, opened.
    fn snapshots(&self, unfinished: &mut Vec<Incomplete>) -> Result<Option<Snapshots>, Failure> {
        let (Some(every), Some(path)) = (self.stats_every, &self.stats_out) else { return Ok(None) };
        let path = path.with_extension("jsonl");
        let incomplete = Incomplete::of(&path);
        let file = File::create(&path).and_then(|file| descriptors::move_to_reserved(file.into()));
        let file = file.map_err(|error| Failure::host(&format!("write to {}", path.display()), &error))?;
        unfinished.push(incomplete);
        Ok(Some(Snapshots::new(every, Box::new(io::BufWriter::new(File::from(file))))))
    }

    /// The result's description of the run of `process`.
    fn manifest(&self, process: &ProcessConfig, simulation: &TimingSimulation) -> Result<Manifest, Failure> {
        let path = &process.program;
        let arguments = process.arguments.iter().skip(1);
        let arguments: Vec<String> = arguments.map(|a| a.to_string_lossy().into_owned()).collect();
        let place = process
            .root
            .as_ref()
            .map_or_else(|| path.clone(), |root| root.join(path.strip_prefix("/").unwrap_or(path)));
        let name = path.to_string_lossy();
        let file = File::open(&place).and_then(|file| ManifestProgram::read(&name, file, &arguments));
        let program = file.map_err(|error| Failure::not_readable(&place, &error, process.root.is_some()))?;
        Ok(Manifest {
            format: Manifest::FORMAT,
            longma: env!("CARGO_PKG_VERSION").into(),
            machine: Some(ManifestMachine::new(&self.machine.name, &self.machine.to_toml())),
            program,
            level: if self.level == simulation::Level::Cache { "cache" } else { "timing" }.into(),
            core_model: simulation.core_model().map(Into::into),
            seed: self.seed,
            translation: (self.translation != Optimizations::default()).then(|| self.translation.to_string()),
            region: self.region,
            sampling: self.sampling.map(|plan| plan.to_string()),
        })
    }
}

/// A run at level `functional` on a machine with devices. Devices act in simulated time, so the program runs in
/// simulated time too, though only the devices are modelled.
pub struct DeviceRun {
    machine: Arc<Machine>,
    wires: BTreeMap<String, WireEnd>,
    seed: u64,
}

impl DeviceRun {
    /// Validates the options of the devices.
    ///
    /// # Errors
    /// An option is malformed.
    pub fn of(arguments: &Arguments, machine: Machine) -> Result<Self, Failure> {
        let machine = Arc::new(machine);
        Ok(Self { machine, wires: wires::parse(&arguments.wire)?, seed: arguments.seed })
    }

    /// Sets up the devices.
    ///
    /// # Errors
    /// The machine cannot be modelled.
    pub fn prepare(self, report: &Sink) -> Result<(SimulatedProcess, SharedTimingSimulation), Failure> {
        let Self { machine, wires, seed } = self;
        let scheduler = scheduler(&machine, None, None, report)?;
        let simulation = modelled(TimingSimulationConfig {
            machine,
            host: 0,
            level: simulation::Level::Functional,
            region: Region::Whole,
            warm: Warm::Last(0),
            sampling: None,
            placement: Policy::default(),
            seed,
            restored_at: None,
            save: None,
            timeline: None,
            limits: Limits::default(),
            snapshots: None,
            wires,
        })?;
        let memory_bytes = simulation.memory_bytes();
        let simulation = simulation.shared();
        let simulated = SimulatedProcess::new(SimulatedProcessConfig {
            scheduler,
            memory_bytes,
            timing_backend: Box::new(simulation.clone()),
            stop_the_world: None,
            seed,
        });
        Ok((simulated, simulation))
    }
}

fn level(arguments: &Arguments) -> simulation::Level {
    match arguments.level {
        Level::Functional => simulation::Level::Functional,
        Level::Cache => simulation::Level::Cache,
        Level::Timing => simulation::Level::Timing(arguments.core.map(CoreModel::kind)),
    }
}

fn modelled(config: TimingSimulationConfig) -> Result<TimingSimulation, Failure> {
    TimingSimulation::new(config).map_err(|error| {
        Failure::own(&error.to_string(), "`longma machine check FILE` shows all errors of a machine file")
    })
}

fn refuse_other_levels_options(arguments: &Arguments) -> Result<(), Failure> {
    let refused = [
        ("--stats", arguments.stats),
        ("--profile", arguments.profile),
        ("--profile-out", arguments.profile_out.is_some()),
        ("--gdb", arguments.gdb.is_some()),
    ];
    if let Some((option, _)) = refused.iter().find(|(_, given)| *given) {
        return Err(Failure::own(
            &format!("{option} is for level `functional` only"),
            "leave it out: the summary and --stats-out have the figures of a simulated run",
        ));
    }
    let of_timing = [("--core", arguments.core.is_some()), ("--sample", arguments.sample.is_some())];
    if let Some((option, _)) = of_timing.iter().find(|(_, given)| *given && arguments.level == Level::Cache) {
        return Err(Failure::own(
            &format!("{option} is for level `timing` only: level `cache` times no core"),
            "leave it out, or give --level timing",
        ));
    }
    Ok(())
}

/// Saves the process to `path` on request and records the request in `is_requested`.
fn save_to(path: &Path, saver: &Arc<Saver>, is_requested: &Arc<AtomicBool>, report: &Sink) -> Save {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let (saver, is_requested, report) = (saver.clone(), is_requested.clone(), report.clone());
    Box::new(move || {
        is_requested.store(true, Ordering::Relaxed);
        let (report, name) = (report.clone(), path.display().to_string());
        saver.request(path.clone(), move |saved| {
            match saved {
                Ok(()) => report(&format!("longma: the process is saved in {name}")),
                Err(error) => report(&format!("longma: the process could not be saved: {error}")),
            }
            AfterSave::Continue
        });
    })
}

fn scheduler(
    machine: &Machine,
    allowed: Option<CoreSet>,
    checkpoint: Option<&Checkpoint>,
    report: &Sink,
) -> Result<Arc<Scheduler>, Failure> {
    let nodes = TimingSimulation::core_nodes(machine, 0);
    let config =
        SchedulerConfig { nodes, allowed, diagnostics: Some(report.clone()), ..SchedulerConfig::default() };
    let made = match checkpoint {
        Some(checkpoint) => checkpoint.scheduler(config),
        None => Scheduler::new(config),
    };
    made.map_err(|error| Failure::host("set up the schedule", &error))
}

fn allowed_cores(list: &str, machine: &Machine, cores: usize) -> Result<CoreSet, Failure> {
    let allowed = placement::numbers("--cpu", list)?;
    if allowed.iter().any(|core| *core >= cores) {
        return Err(Failure::own(
            &format!("--cpu names cores that {} does not have: {list}", machine.name),
            &format!("it has {cores}, numbered from 0"),
        ));
    }
    Ok(CoreSet::of(allowed))
}

fn open_trace(path: &Path, unfinished: &mut Vec<Incomplete>) -> Result<Timeline, Failure> {
    let incomplete = Incomplete::of(path);
    File::create(path)
        .inspect(|_| unfinished.push(incomplete))
        .and_then(|file| descriptors::move_to_reserved(file.into()))
        .and_then(|file| Timeline::new(Box::new(File::from(file)), TRACE_BYTES))
        .map_err(|error| Failure::host(&format!("write the trace to {}", path.display()), &error))
}

fn open_champsim(path: &Path) -> Result<Output, Failure> {
    File::create(path)
        .and_then(|file| descriptors::move_to_reserved(file.into()))
        .and_then(|file| Output::new(File::from(file), path))
        .map_err(|error| Failure::host(&format!("write the trace to {}", path.display()), &error))
}

/// Checks before the run that a result can be written after it. Removes a file created here if the run fails.
fn writable(path: &Path) -> Result<(), Failure> {
    let is_new = !path.exists();
    let opened = fs::OpenOptions::new().create(true).append(true).open(path).map(drop);
    if opened.is_ok() && is_new {
        remove_created_file(path);
    }
    opened.map_err(|error| Failure::host(&format!("write the result to {}", path.display()), &error))
}

/// A file that is written while the program runs. If it is new, it is removed when the run is refused or the file is not
/// complete.
pub(super) struct Incomplete(Option<PathBuf>);

impl Incomplete {
    /// Must be called before the file is created.
    fn of(path: &Path) -> Self {
        let is_new = !path.exists();
        Self(is_new.then(|| std::path::absolute(path).unwrap_or_else(|_| path.into())))
    }
}

impl Drop for Incomplete {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            remove_created_file(path);
        }
    }
}

/// Removes a file created here; if the path is a link, removes its target and keeps the link.
fn remove_created_file(path: &Path) {
    // If this fails, an empty file remains.
    let _ = fs::canonicalize(path).and_then(fs::remove_file);
}

/// Writes a result and, in the same directory, the machine with all defaults. The machine is skipped for paths in /proc and
/// /dev.
///
/// # Errors
/// A file cannot be written.
pub fn write_result(path: &Path, result: &RunResult, machine: &Machine) -> io::Result<()> {
    write_atomically(path, format!("{}\n", result.to_json()).as_bytes())?;
    if path.starts_with("/proc") || path.starts_with("/dev") {
        return Ok(());
    }
    write_atomically(&path.with_extension("machine.toml"), machine.to_toml().as_bytes())
}

/// A requested result does not exist or could not be written. Contains the exit status.
#[derive(Debug)]
pub struct NotWritten(pub u8);

impl Outcome {
    /// The models of the run.
    pub fn simulation(&self) -> SharedTimingSimulation {
        self.simulation.clone()
    }

    /// The statistics of the run with all counts zero.
    ///
    /// # Errors
    /// Fails if two components use the same name, which is a bug in the models.
    pub fn measurable(&self) -> Result<Statistics, Failure> {
        let simulation = self.simulation.lock().ignore_poison();
        simulation
            .measurable()
            .map_err(|error| Failure::own(&format!("the statistics are inconsistent: {error}"), ""))
    }

    /// Prints the summary and writes the files. Errors are printed.
    ///
    /// # Errors
    /// Fails if a sampled run has no result, or if the file of `--trace` or `--stats-out` could not be written
    /// completely.
    pub fn finish(&self, ending: Ending, report: &Report, messages: &Messages) -> Result<(), NotWritten> {
        if std::process::id() != self.process {
            return Ok(());
        }
        let mut written = Ok(());
        let mut simulation = self.simulation.lock().ignore_poison();
        simulation.finish();
        if let Err(error) = simulation.finish_timeline() {
            messages.line(&format!("longma: cannot write the trace: {error}; {HOST_FAULT_MESSAGE}"));
            written = Err(NotWritten(HOST_FAULT_STATUS));
        }
        match simulation.finish_champsim() {
            Ok(_) => {}
            Err(RecordingError::Threads) => {
                messages.line(
                    "longma: no ChampSim trace is written: it can have one thread, and the program started a second one",
                );
                // Removes the file.
                drop(self.champsim.lock().ignore_poison().take());
                written = Err(NotWritten(OWN_FAILURE));
            }
            Err(RecordingError::Io(error)) => {
                messages
                    .line(&format!("longma: cannot write the ChampSim trace: {error}; {HOST_FAULT_MESSAGE}"));
                drop(self.champsim.lock().ignore_poison().take());
                written = Err(NotWritten(HOST_FAULT_STATUS));
            }
        }
        if let Err(error) = simulation.finish_snapshots() {
            messages.line(&format!(
                "longma: cannot write the file of --stats-every: {error}; {HOST_FAULT_MESSAGE}"
            ));
            written = Err(NotWritten(HOST_FAULT_STATUS));
        }
        if self.region == Region::OfInterest && simulation.regions() == 0 {
            messages.line(
                "longma: the program marked no region of interest, so nothing was counted; include guests/include/longma.h and call longma_roi_begin(), or leave --roi out",
            );
        }
        if let Some((path, is_requested)) = &self.checkpoint
            && !is_requested.load(Ordering::Relaxed)
        {
            messages.line(&format!(
                "longma: no checkpoint was written to {}: the program neither began a region of interest nor requested a checkpoint; include guests/include/longma.h and call longma_roi_begin() or longma_checkpoint()",
                path.display()
            ));
        }
        let result = match simulation.result(self.manifest.clone(), ending, report) {
            Ok(result) => result,
            Err(error) => {
                let advice = error.advice();
                let separator = if advice.is_empty() { "" } else { "; " };
                messages.line(&format!("longma: no result: {error}{separator}{advice}"));
                return Err(NotWritten(OWN_FAILURE));
            }
        };
        let annotation = self.views.annotation(&simulation, report);
        self.print(&result, annotation.as_ref(), messages);
        let mut failed = |what: &str, path: &Path, error: io::Error| {
            let path = path.display();
            messages
                .line(&format!("longma: cannot write the {what} to {path}: {error}; {HOST_FAULT_MESSAGE}"));
            written = Err(NotWritten(HOST_FAULT_STATUS));
        };
        if let Some(path) = self.views.file()
            && let Err(error) = write_atomically(
                path,
                self.views.page(&result, &self.machine, annotation.as_ref()).as_bytes(),
            )
        {
            failed("report", path, error);
        }
        if let Some(path) = &self.stats_out
            && let Err(error) = write_result(path, &result, &self.machine)
        {
            failed("result", path, error);
        }
        written
    }

    /// Prints the summary, and the assembly if it is requested.
    fn print(&self, result: &RunResult, annotation: Option<&Annotation>, messages: &Messages) {
        match (self.quiet, self.format) {
            (true, _) => {}
            (false, Format::Table) => messages.line(&summary::text(result)),
            (false, Format::Json) => messages.line(&self.views.object(result, annotation).to_string()),
        }
        if self.format == Format::Table
            && let Some(text) = self.views.text(result, annotation)
        {
            messages.line(&text);
        }
    }
}
