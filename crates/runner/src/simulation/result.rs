//! The result of a simulated run: what was run, how it ended, and all that was counted.
//! Nothing of the host is in it: two runs of the same inputs give the same bytes.
//! Source: the book's page on levels explains the figures.

use longma_core::Executed;
use longma_memory::Traffic;
use longma_sim::{Duration, Manifest, Statistics, StatisticsError};
use longma_timing::{BranchCounts, Cause};
use serde_json::{Value, json};

use super::{FunctionTime, Simulation};
use crate::{Ending, Report};

/// The version of the format.
const FORMAT: u32 = 1;

/// What a reader asks first.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Instructions executed by all cores while counting.
    pub instructions: u64,
    /// Cycles of all cores that ran something, idle ones left out.
    pub busy_cycles: f64,
    /// Simulated time while counting.
    pub time: Duration,
    /// Cores that ran something.
    pub cores: usize,
    /// Cycles by cause, all cores together, in the order of [`Cause::ALL`]; `None` at level `cache`.
    pub stack: Option<[f64; Cause::ALL.len()]>,
    /// Branches of all cores; `None` at level `cache`.
    pub branches: Option<BranchCounts>,
}

impl Summary {
    pub(super) fn of(simulation: &Simulation) -> Self {
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
                counts.into_iter().fold(BranchCounts::default(), |sum, one| BranchCounts {
                    conditional: sum.conditional + one.conditional,
                    conditional_mispredicted: sum.conditional_mispredicted + one.conditional_mispredicted,
                    indirect: sum.indirect + one.indirect,
                    indirect_mispredicted: sum.indirect_mispredicted + one.indirect_mispredicted,
                    returns: sum.returns + one.returns,
                    returns_mispredicted: sum.returns_mispredicted + one.returns_mispredicted,
                    target_misses: sum.target_misses + one.target_misses,
                })
            }),
        }
    }
}

/// Adds what the run as a whole took.
pub(super) fn add_run(simulation: &Simulation, to: &mut Statistics) -> Result<(), StatisticsError> {
    let summary = Summary::of(simulation);
    let (instructions, cycles) = (summary.instructions, summary.busy_cycles);
    to.count("run.instructions", instructions, "instructions", "executed by all cores")?;
    to.count("run.time", summary.time.ps(), "ps", "simulated time that was counted")?;
    to.count("run.cores", summary.cores as u64, "cores", "that executed something")?;
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

/// What was executed while counting, as far as it takes whole runs of blocks.
pub(super) fn executed(simulation: &Simulation, report: &Report<'_>) -> Vec<Executed> {
    let blocks = simulation.cores.iter().flat_map(|core| core.model.blocks());
    blocks
        .map(|(number, counts)| {
            let block = report.code().traced_block(number);
            let instructions = block.instructions.len() as u32;
            let runs = counts.instructions / u64::from(instructions.max(1));
            Executed { start: block.start, instructions, runs }
        })
        .collect()
}

/// Adds what a translated program has executed of its own.
pub(super) fn add_source(
    source: Option<(&'static str, u64)>,
    to: &mut Statistics,
) -> Result<(), StatisticsError> {
    let Some((_, instructions)) = source else { return Ok(()) };
    to.count("run.source_instructions", instructions, "instructions", "of the program's own architecture")
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct RunResult {
    /// What was run, on what.
    pub manifest: Manifest,
    /// How the program ended.
    pub ending: Ending,
    /// The architecture of a program that was translated, and how many of its own instructions were executed while counting.
    pub source: Option<(&'static str, u64)>,
    /// What a reader asks first.
    pub summary: Summary,
    /// What went over controllers, crossbars and links.
    pub traffic: Vec<Traffic>,
    /// All that was counted.
    pub statistics: Statistics,
    /// What every function cost.
    pub functions: Vec<FunctionTime>,
}

impl RunResult {
    /// As one JSON object.
    pub fn to_json(&self) -> Value {
        let ending = match self.ending {
            Ending::Exit(status) => json!({ "exit": status }),
            Ending::Signal(signal) => json!({ "signal": signal }),
        };
        json!({
            "format": FORMAT,
            "manifest": self.manifest,
            "ending": ending,
            "statistics": self.statistics.to_json(),
            "functions": self.functions,
        })
    }
}
