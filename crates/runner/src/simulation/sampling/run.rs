//! Runs the parts of a trace through the models, each as its stage requires.

use longma_core::Core;
use longma_memory::{Detail, placement::SpaceId};
use longma_sim::{Statistics, StatisticsError};
use longma_timing::Cause;

use super::{
    SamplingError, Stage,
    sampler::{Sampler, Unit},
};
use crate::simulation::{KernelCounts, Phase, TimingSimulation};

/// The instructions of a turn without a trace if timers or devices may act.
const SHORT_TURN: u64 = 4096;

impl TimingSimulation {
    /// Enters the first stage of a sampled run.
    pub(in crate::simulation) fn begin_sampling(&mut self, sampler: &mut Sampler) {
        self.phase = Phase::Passed;
        let first = sampler.stage;
        self.change_stage(0, sampler, first);
    }

    /// Sets how `guest` executes its next turn of a sampled run: without a trace, up to the next stage, or with one. If
    /// other threads or events may act during the run (not `is_alone`), turns are short.
    pub(in crate::simulation) fn prepare_sampled(&self, guest: &mut Core, is_alone: bool) {
        let Some(sampler) = &self.sampler else { return };
        let left = self.config.limits.instructions.map(|limit| limit.saturating_sub(sampler.executed));
        let skip = sampler.to_skip().map(|skip| skip.min(left.unwrap_or(u64::MAX)));
        let skip = skip.filter(|skip| *skip >= Core::MAX_BLOCK);
        guest.set_tracing(skip.is_none());
        if let Some(skip) = skip {
            guest.set_budget(if is_alone { skip } else { skip.min(SHORT_TURN) });
        }
    }

    /// Processes the trace of core `number` and the instructions that it executed without a trace.
    pub(in crate::simulation) fn account_sampled(
        &mut self,
        number: usize,
        guest: &mut Core,
        sampler: &mut Sampler,
    ) {
        let untraced = guest.take_untraced_instructions();
        if untraced > 0 {
            let core = &mut self.cores[number];
            core.passed = sampler.pass(core.passed, untraced);
            if let Some(stage) = sampler.advance(untraced) {
                self.change_stage(number, sampler, stage);
            }
        }
        let mut at = 0;
        while at < guest.trace().words() {
            let (end, executed) = guest.trace().first_instructions(at, sampler.left());
            let mut part = std::mem::take(&mut sampler.part);
            if sampler.stage != Stage::Skip {
                part.copy_part(guest.trace(), at..end);
            }
            let core = &mut self.cores[number];
            let mut port = self.memory.port(number);
            port.set_space(SpaceId(0));
            match sampler.stage {
                Stage::Skip => core.passed = sampler.pass(core.passed, executed),
                Stage::Warm => {
                    core.model.warm(&part, core.passed, &*guest, &mut port);
                    core.passed = sampler.pass(core.passed, executed);
                }
                Stage::Detail | Stage::Measure => core.model.drain(&part, &*guest, &mut port),
            }
            sampler.part = part;
            at = end;
            if let Some(stage) = sampler.advance(executed) {
                self.change_stage(number, sampler, stage);
            }
        }
    }

    /// Leaves the current stage and enters `stage`.
    fn change_stage(&mut self, number: usize, sampler: &mut Sampler, stage: Stage) {
        if sampler.stage == Stage::Measure && sampler.executed > 0 {
            self.end_unit(number, sampler);
        }
        let core = &mut self.cores[number];
        match (self.phase, stage.is_timed()) {
            (Phase::Passed, true) => {
                core.model.pass_to(core.passed);
                self.phase = Phase::Counted;
            }
            (Phase::Counted, false) => {
                core.passed = core.model.now();
                self.phase = Phase::Passed;
            }
            _ => {}
        }
        self.memory.set_detail(if stage == Stage::Warm { Detail::Counts } else { Detail::Timing });
        sampler.enter(stage);
        if stage == Stage::Measure {
            self.begin_unit(number, sampler);
        }
    }

    fn begin_unit(&mut self, number: usize, sampler: &mut Sampler) {
        self.memory.clear_statistics();
        for core in &mut self.cores {
            core.model.reset();
            core.kernel = KernelCounts::default();
        }
        sampler.began = self.time(number, sampler.began);
    }

    fn end_unit(&mut self, number: usize, sampler: &mut Sampler) {
        let measured = self.measured(number, sampler);
        match measured {
            Ok(unit) => sampler.sums.add(&unit, self.cores[number].model.blocks()),
            Err(error) => sampler.error = Some(SamplingError::Statistics(error)),
        }
    }

    /// The measurements of the unit that ends.
    fn measured(&self, number: usize, sampler: &Sampler) -> Result<Unit, StatisticsError> {
        let core = &self.cores[number];
        let mut statistics = Statistics::default();
        core.model.statistics(&mut statistics, &format!("core{number}"))?;
        core.kernel.report(&mut statistics, &format!("core{number}.kernel"))?;
        let elapsed = self.time(number, sampler.began).checked_since(sampler.began).unwrap_or_default();
        self.memory.report(&mut statistics, elapsed)?;
        let stack = core.model.stack();
        let stack = Cause::ALL.map(|cause| stack.as_ref().map_or(0.0, |stack| stack.cycles(cause)));
        Ok(Unit {
            instructions: core.model.instructions(),
            cycles: stack.iter().sum::<f64>() - stack[Cause::Idle as usize],
            statistics,
            stack,
            branches: core.model.branches().unwrap_or_default(),
            traffic: self.memory.traffic(),
        })
    }
}
