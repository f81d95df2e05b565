//! The result of a simulated run: its inputs, its ending and all statistics. It contains nothing that depends on the
//! host, so equal inputs produce equal bytes. The book's chapter on simulated time explains the figures.

use longma_core::Executed;
use longma_memory::Traffic;
use longma_sim::{Duration, Manifest, Statistics, StatisticsError};
use longma_timing::{BranchCounts, Cause};
use serde_json::{Value, json};

use super::{FunctionTime, SamplingError, SamplingReport, TimingSimulation};
use crate::{Ending, Report, StopReason};

/// The main figures of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Instructions executed by all cores while counting.
    pub instructions: u64,
    /// Cycles of all cores that executed instructions, without idle cycles.
    pub busy_cycles: f64,
    /// Simulated time while counting.
    pub time: Duration,
    /// The number of cores that executed instructions.
    pub cores: usize,
    /// Cycles of all cores by cause, in the order of [`Cause::ALL`]; `None` at level `cache`.
    pub stack: Option<[f64; Cause::ALL.len()]>,
    /// Branches of all cores; `None` at level `cache`.
    pub branches: Option<BranchCounts>,
}

impl Summary {
    pub(super) fn of(simulation: &TimingSimulation) -> Self {
        let ran: Vec<_> = simulation.cores.iter().filter(|core| core.model.instructions() > 0).collect();
        let stacks: Option<Vec<_>> = ran.iter().map(|core| core.model.stack()).collect();
        let stack = stacks.map(|stacks| {
            Cause::ALL.map(|cause| stacks.iter().map(|stack| stack.cycles(cause)).sum::<f64>())
        });
        let instructions = ran.iter().map(|core| core.model.instructions()).sum();
        let busy = |stack: &[f64; Cause::ALL.len()]| -> f64 {
            stack.iter().sum::<f64>() - stack[Cause::Idle as usize]
        };
        let branches: Option<Vec<_>> = ran.iter().map(|core| core.model.branches()).collect();
        Self {
            instructions,
            busy_cycles: stack.as_ref().map_or(instructions as f64, busy),
            time: simulation.counted_time(simulation.end),
            cores: ran.len(),
            stack,
            branches: branches.map(|counts| {
                counts.into_iter().fold(BranchCounts::default(), |mut sum, one| {
                    sum += one;
                    sum
                })
            }),
        }
    }
}

/// Adds the statistics of the run as a whole.
pub(super) fn add_run(simulation: &TimingSimulation, to: &mut Statistics) -> Result<(), StatisticsError> {
    let summary = Summary::of(simulation);
    let (instructions, cycles) = (summary.instructions, summary.busy_cycles);
    to.count("run.instructions", instructions, "instructions", "executed by all cores")?;
    to.count("run.time", summary.time.ps(), "ps", "simulated time covered by the statistics")?;
    to.count("run.cores", summary.cores as u64, "cores", "that executed instructions")?;
    if summary.stack.is_some() {
        to.count("run.cycles", cycles.round() as u64, "cycles", "of all cores, while not idle")?;
        to.rate(
            "run.ipc",
            instructions as f64,
            cycles,
            "instructions/cycle",
            "of the cores, while not idle",
        )?;
    }
    Ok(())
}

/// The blocks of the current program executed while counting. Partial executions of a block are rounded down.
pub(super) fn executed(simulation: &TimingSimulation, report: &Report<'_>) -> Vec<Executed> {
    let blocks = simulation.cores.iter().flat_map(|core| core.model.blocks());
    blocks
        .filter(|(number, _)| simulation.earlier.is_current(*number))
        .map(|(number, counts)| {
            let block = report.code().traced_block(number);
            let instructions = block.instructions.len() as u32;
            let runs = counts.instructions / u64::from(instructions.max(1));
            Executed { start: block.start, instructions, runs }
        })
        .collect()
}

/// Adds the number of source instructions of a translated program.
pub(super) fn add_source(
    source: Option<(&'static str, u64)>,
    to: &mut Statistics,
) -> Result<(), StatisticsError> {
    let Some((_, instructions)) = source else { return Ok(()) };
    to.count("run.source_instructions", instructions, "instructions", "of the program's instruction set")
}

/// Why a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    /// A plug-in has failed; or two parts of the model use the same statistic name, which is a bug in the models.
    #[error("the statistics cannot be computed: {0}")]
    Statistics(#[from] StatisticsError),
    /// A sampled run cannot be estimated.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}

impl ResultError {
    /// Advice for the user; may be empty.
    pub fn advice(&self) -> String {
        match self {
            Self::Statistics(_) => String::new(),
            Self::Sampling(error) => error.advice(),
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct RunResult {
    /// The inputs of the run.
    pub manifest: Manifest,
    /// How the program ended.
    pub ending: Ending,
    /// For a translated program, its architecture and the number of its own instructions executed while counting.
    pub source: Option<(&'static str, u64)>,
    /// The main figures.
    pub summary: Summary,
    /// The traffic over controllers, crossbars and links.
    pub traffic: Vec<Traffic>,
    /// All statistics.
    pub statistics: Statistics,
    /// The cost of each function.
    pub functions: Vec<FunctionTime>,
    /// The programs in the order of their execution, if the process has executed others than the first one.
    pub programs: Vec<String>,
    /// Summaries of the run from its beginning to regular numbers of instructions, if they were requested. They are not
    /// part of the JSON object.
    pub intervals: Vec<Summary>,
    /// How the other figures were estimated, if the run was sampled.
    pub sampling: Option<SamplingReport>,
    /// Why the run ended before its program, if it did.
    pub stopped: Option<StopReason>,
}

impl RunResult {
    /// The version of the JSON object.
    pub const FORMAT: u32 = 1;

    /// The result as a JSON object.
    pub fn to_json(&self) -> Value {
        let ending = match self.ending {
            Ending::Exit(status) => json!({ "exit": status }),
            Ending::Signal(signal) => json!({ "signal": signal }),
        };
        let mut object = json!({
            "format": Self::FORMAT,
            "manifest": self.manifest,
            "ending": ending,
            "statistics": self.statistics.to_json(),
            "functions": self.functions,
        });
        if let Some(sampling) = &self.sampling {
            object["sampling"] = json!(sampling);
        }
        if !self.programs.is_empty() {
            object["programs"] = json!(self.programs);
        }
        if let Some(reason) = self.stopped {
            object["stopped"] = json!(reason);
        }
        object
    }
}
