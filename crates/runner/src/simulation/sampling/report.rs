//! The result of a sampled run: the figures of a full run, estimated.

use longma_sim::{Duration, Manifest, Statistics, StatisticsError};
use serde::Serialize;

use super::{Estimate, INTERVAL, MIN_UNITS, SamplingError, sampler::Sampler};
use crate::{
    Ending, Report,
    simulation::{EarlierPrograms, FunctionTime, RunResult, Summary, TimingSimulation, functions, result},
};
use longma_core::Executed;

/// The measured units of a sampled run, and the estimates for the whole program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SamplingReport {
    /// The plan, as `--sample` reads it.
    pub plan: String,
    /// The measured units.
    pub units: u64,
    /// The instructions in the units.
    pub measured_instructions: u64,
    /// The instructions of the whole program: exact.
    pub instructions: u64,
    /// The meaning of all intervals of the result: [`INTERVAL`].
    pub interval: &'static str,
    /// Cycles per instruction.
    pub cpi: Estimate,
    /// Cycles of the whole program, without idle cycles.
    pub cycles: Estimate,
    /// Simulated time of the whole program in seconds, without idle time.
    pub time_s: Estimate,
}

impl SamplingReport {
    fn of(sampler: &Sampler, cycles_per_second: f64) -> Result<Self, SamplingError> {
        if let Some(error) = &sampler.error {
            return Err(error.clone());
        }
        let (units, instructions) = (sampler.sums.units, sampler.executed);
        let cpi = sampler.sums.cycles.estimate(units).filter(|_| units >= MIN_UNITS);
        let every = sampler.plan.sufficient_every(instructions);
        let cpi = cpi.ok_or(SamplingError::TooFewUnits { units, instructions, every })?;
        let cycles = cpi.times(instructions as f64);
        Ok(Self {
            plan: sampler.plan.to_string(),
            units,
            measured_instructions: sampler.sums.cycles.denominator() as u64,
            instructions,
            interval: INTERVAL,
            cpi,
            cycles,
            time_s: cycles.times(1.0 / cycles_per_second),
        })
    }
}

impl TimingSimulation {
    /// The result of a sampled run that has ended.
    ///
    /// # Errors
    /// There are too few units, or the program cannot be sampled.
    pub(in crate::simulation) fn sampled_result(
        &self,
        sampler: &Sampler,
        manifest: Manifest,
        ending: Ending,
        report: &Report<'_>,
    ) -> Result<RunResult, SamplingError> {
        const SECOND_CYCLES: u64 = 1 << 30;
        // A plug-in that fails between the measured units leaves no result either.
        self.statistics()?;
        let long = self.cores[0].clock.cycles(SECOND_CYCLES).unwrap_or_default();
        let sampling = SamplingReport::of(sampler, SECOND_CYCLES as f64 / long.seconds())?;
        let factor = sampling.instructions as f64 / sampling.measured_instructions as f64;
        let current = sampler.executed_blocks(factor, report, &self.earlier);
        let source = self.earlier.source(report, &current, factor);
        let mut statistics = estimated_run(&sampling)?;
        result::add_source(source, &mut statistics)?;
        sampler.sums.report(sampling.instructions, &mut statistics)?;
        Ok(RunResult {
            manifest,
            ending,
            source,
            summary: summary(&sampling, sampler, factor),
            traffic: sampler
                .sums
                .traffic
                .iter()
                .cloned()
                .map(|mut part| {
                    part.bytes = scaled(part.bytes, factor);
                    part
                })
                .collect(),
            statistics,
            functions: self.sampled_functions(sampler, factor, report),
            programs: self.programs(report),
            intervals: Vec::new(),
            sampling: Some(sampling),
            stopped: self.stopped(),
        })
    }

    fn sampled_functions(&self, sampler: &Sampler, factor: f64, report: &Report<'_>) -> Vec<FunctionTime> {
        let width = self.cores[0].model.stack().map_or(1, |stack| stack.width());
        let symbols = report.symbols();
        let blocks = sampler.sums.blocks.iter().map(|(number, counts)| (*number, counts, width));
        let mut functions =
            functions::by_function(blocks, |number| self.location_of(report, &symbols, number));
        for function in &mut functions {
            function.cycles *= factor;
            let counts = [&mut function.instructions, &mut function.fetch_misses, &mut function.mispredicts];
            counts.into_iter().chain(&mut function.misses).for_each(|count| *count = scaled(*count, factor));
        }
        functions
    }
}

fn scaled(count: u64, factor: f64) -> u64 {
    (count as f64 * factor).round() as u64
}

impl Sampler {
    /// The executions of the current program's blocks, scaled by `factor`.
    pub(in crate::simulation) fn executed_blocks(
        &self,
        factor: f64,
        report: &Report<'_>,
        earlier: &EarlierPrograms,
    ) -> Vec<Executed> {
        let blocks = self.sums.blocks.iter().filter(|(number, _)| earlier.is_current(**number));
        blocks
            .map(|(number, counts)| {
                let block = report.code().traced_block(*number);
                let instructions = block.instructions.len() as u32;
                let runs = scaled(counts.instructions, factor) / u64::from(instructions.max(1));
                Executed { start: block.start, instructions, runs }
            })
            .collect()
    }
}

/// The main figures, estimated.
fn summary(sampling: &SamplingReport, sampler: &Sampler, factor: f64) -> Summary {
    let mut branches = sampler.sums.branches;
    for count in branches.counts_mut() {
        *count = scaled(*count, factor);
    }
    Summary {
        instructions: sampling.instructions,
        busy_cycles: sampling.cycles.value,
        time: Duration::from_ps((sampling.time_s.value * 1e12).round() as u64),
        cores: 1,
        stack: Some(sampler.sums.stack.map(|cycles| cycles * factor)),
        branches: Some(branches),
    }
}

/// The statistics of the run as a whole.
fn estimated_run(sampling: &SamplingReport) -> Result<Statistics, StatisticsError> {
    let SamplingReport { instructions, cycles, time_s, cpi, .. } = sampling;
    let mut to = Statistics::default();
    to.count("run.instructions", *instructions, "instructions", "executed by all cores")?;
    let time_ps = time_s.times(1e12);
    let ps = time_ps.value.round() as u64;
    to.count("run.time", ps, "ps", "simulated time covered by the statistics")?;
    to.mark_estimate("run.time", time_ps.around_count(ps));
    to.count("run.cores", 1, "cores", "that executed instructions")?;
    let count = cycles.value.round() as u64;
    to.count("run.cycles", count, "cycles", "of all cores, while not idle")?;
    to.mark_estimate("run.cycles", cycles.around_count(count));
    let about = "of the cores, while not idle";
    to.rate("run.ipc", *instructions as f64, cycles.value, "instructions/cycle", about)?;
    let inverse = |cpi: f64| if cpi > 0.0 { 1.0 / cpi } else { 0.0 };
    to.mark_estimate("run.ipc", [inverse(cpi.high), inverse(cpi.low)]);
    Ok(to)
}
