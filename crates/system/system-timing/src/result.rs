//! The result of the modelled part of a machine's run: the fields of a result of `longma run`, and the shares of user
//! programs and kernel.

use longma_memory::Source;
use longma_runner::Ending;
use longma_runner::simulation::{Level, RunResult, Summary};
use longma_runner::timing::{BranchCounts, Cause};
use longma_sim::{Manifest, ManifestMachine, ManifestProgram, Region, Statistics, StatisticsError};
use longma_system::Machine;
use longma_timing::ModelKind;
use serde_json::{Value, json};

use crate::models::SystemModels;
use crate::profile;
use crate::split::{Privilege, Share};
use crate::symbols::KernelSymbols;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct SystemResult {
    /// The totals of user programs and kernel, in the form of a program's run. Its functions are the kernel's; all user
    /// programs together are one function.
    pub run: RunResult,
    /// The shares of user programs and of the kernel, in the order of [`Privilege::ALL`].
    pub shares: [Share; 2],
    /// Exceptions and interrupts by name, in alphabetical order.
    pub exceptions: Vec<(&'static str, u64)>,
}

impl SystemResult {
    /// The result of `models`, which counted parts of the run of `machine`. `program` describes the kernel.
    ///
    /// # Errors
    /// Two parts of the model use the same statistic name, which is a bug in the models.
    pub fn new(
        models: &SystemModels,
        machine: &Machine,
        program: ManifestProgram,
        region: Region,
        symbols: &KernelSymbols,
    ) -> Result<Self, StatisticsError> {
        let mut shares = [Share::default(), Share::default()];
        for (model, split) in models.cores() {
            let width = model.stack().map_or(1, |stack| stack.width());
            for privilege in Privilege::ALL {
                split.add_to(&mut shares[privilege as usize], privilege, width);
            }
            for (number, counts) in model.blocks() {
                let is_user = machine.observed_code().is_some_and(|code| code.is_user(number));
                shares[Privilege::of(is_user) as usize].add_block(counts);
            }
        }
        let summary = summary(models, &shares);
        let functions =
            machine.observed_code().map_or_else(Vec::new, |code| profile::by_function(models, code, symbols));
        let run = RunResult {
            manifest: manifest(models, program, region),
            ending: Ending::Exit(machine.exit_status().into()),
            source: None,
            statistics: statistics(models, &summary, &shares)?,
            traffic: models.memory().traffic(),
            summary,
            functions,
            programs: Vec::new(),
            sampling: None,
            intervals: Vec::new(),
            stopped: None,
        };
        let exceptions = models.exceptions.iter().map(|(name, count)| (*name, *count)).collect();
        Ok(Self { run, shares, exceptions })
    }

    /// The result as a JSON object, like that of a program's run, with the shares among its statistics.
    pub fn to_json(&self) -> Value {
        let mut object = self.run.to_json();
        object["exceptions"] =
            self.exceptions.iter().map(|(name, count)| ((*name).to_string(), json!(count))).collect();
        object
    }
}

fn manifest(models: &SystemModels, program: ManifestProgram, region: Region) -> Manifest {
    let kind = models.cores().next().map(|(model, _)| model.kind());
    Manifest {
        format: Manifest::FORMAT,
        longma: env!("CARGO_PKG_VERSION").into(),
        machine: Some(ManifestMachine::new(&models.description().name, &models.description().to_toml())),
        program,
        level: if models.level() == Level::Cache { "cache" } else { "timing" }.into(),
        core_model: kind.and_then(|kind| match kind {
            ModelKind::Counting => None,
            ModelKind::InOrder => Some("in-order".into()),
            ModelKind::OutOfOrder => Some("out-of-order".into()),
        }),
        seed: models.seed(),
        translation: None,
        region,
        sampling: None,
    }
}

fn summary(models: &SystemModels, shares: &[Share; 2]) -> Summary {
    let is_timed = models.level() != Level::Cache;
    let instructions = models.cores().map(|(model, _)| model.instructions()).sum();
    let sum = |cause: &Cause| shares.iter().map(|share| share.stack[*cause as usize]).sum::<f64>();
    let mut branches = BranchCounts::default();
    shares.iter().for_each(|share| branches += share.branches);
    Summary {
        instructions,
        busy_cycles: match is_timed {
            true => shares.iter().map(Share::busy_cycles).sum(),
            false => instructions as f64,
        },
        time: models.counted(),
        cores: models.cores().filter(|(model, _)| model.instructions() > 0).count(),
        stack: is_timed.then(|| Cause::ALL.map(|cause| sum(&cause))),
        branches: is_timed.then_some(branches),
    }
}

fn statistics(
    models: &SystemModels,
    summary: &Summary,
    shares: &[Share; 2],
) -> Result<Statistics, StatisticsError> {
    let mut to = Statistics::default();
    to.count("run.instructions", summary.instructions, "instructions", "executed by all cores")?;
    to.count("run.time", summary.time.ps(), "ps", "simulated time covered by the statistics")?;
    to.count("run.cores", summary.cores as u64, "cores", "that executed instructions")?;
    if summary.stack.is_some() {
        let cycles = summary.busy_cycles;
        to.count("run.cycles", cycles.round() as u64, "cycles", "of all cores, while not idle")?;
        let description = "of the cores, while not idle";
        to.rate("run.ipc", summary.instructions as f64, cycles, "instructions/cycle", description)?;
    }
    for privilege in Privilege::ALL {
        add_share(privilege, &shares[privilege as usize], summary.stack.is_some(), &mut to)?;
    }
    for (name, count) in &models.exceptions {
        to.count(&format!("exceptions.{name}"), *count, "exceptions", "taken by the cores")?;
    }
    let description = "instructions that accessed device registers";
    to.count("device_accesses", models.device_accesses, "instructions", description)?;
    for (number, (model, _)) in models.cores().enumerate() {
        if to.wants(model.instructions()) {
            model.statistics(&mut to, &format!("core{number}"))?;
        }
    }
    models.memory().report(&mut to, models.counted())?;
    Ok(to)
}

fn add_share(
    privilege: Privilege,
    share: &Share,
    is_timed: bool,
    to: &mut Statistics,
) -> Result<(), StatisticsError> {
    let name = |rest: &str| format!("{}.{rest}", privilege.name());
    to.count(&name("instructions"), share.instructions, "instructions", "executed by all cores")?;
    for source in &Source::ALL[1..] {
        let figure = format!("{source:?}").to_ascii_lowercase();
        let misses = share.misses[*source as usize];
        let description = "data accesses served by this source";
        to.count(&name(&format!("data.{figure}")), misses, "accesses", description)?;
    }
    let description = "instruction lines that missed in the first-level cache";
    to.count(&name("fetch.misses"), share.fetch_misses, "lines", description)?;
    if !is_timed {
        return Ok(());
    }
    let (instructions, cycles) = (share.instructions as f64, share.busy_cycles());
    to.count(&name("cycles"), cycles.round() as u64, "cycles", "of all cores, while not idle")?;
    to.rate(&name("ipc"), instructions, cycles, "instructions/cycle", "while not idle")?;
    for cause in Cause::ALL {
        let cycles = share.stack[cause as usize];
        to.rate(
            &name(&format!("cpi.{}", cause.name())),
            cycles,
            instructions,
            "cycles/instruction",
            cause.description(),
        )?;
    }
    to.count(&name("mispredicted"), share.mispredicted(), "branches", "mispredicted branches of all kinds")
}
