//! Limits of a run, and statistics while it runs.

use std::io::{self, Write};
use std::sync::Arc;

use longma_sim::{Duration, Time};
use serde_json::json;

use super::{Phase, SamplingError, TimingSimulation};
use crate::{EarlyStop, StopReason};

/// The largest number of instructions that one trace word represents: those of a block without memory accesses.
const INSTRUCTIONS_A_WORD: u64 = 64;

/// The conditions under which a run ends before its program does.
#[derive(Clone, Default)]
pub struct Limits {
    /// The number of counted instructions, up to the end of a basic block; `None` for all.
    pub instructions: Option<u64>,
    /// The counted simulated time, up to the end of a turn; `None` for all.
    pub time: Option<Duration>,
    /// Ends the process.
    pub stop: Option<Arc<EarlyStop>>,
}

/// Writes the statistics so far, as one JSON object a line, at regular numbers of instructions.
pub struct Snapshots {
    every: u64,
    next: u64,
    output: Box<dyn Write + Send>,
    error: Option<io::Error>,
}

impl Snapshots {
    /// Writes to `output` after each `every` counted instructions, at the end of the turn. `every` is at least 1.
    pub fn new(every: u64, output: Box<dyn Write + Send>) -> Self {
        Self { every: every.max(1), next: every.max(1), output, error: None }
    }
}

impl TimingSimulation {
    /// The instructions counted so far. In a sampled run, these are all executed instructions.
    pub(super) fn counted_instructions(&self) -> u64 {
        match &self.sampler {
            Some(sampler) => sampler.executed,
            None => self.cores.iter().map(|core| core.model.instructions()).sum(),
        }
    }

    /// Shortens a quantum of `words` trace words so that it ends at the limit of instructions.
    pub(super) fn words_to_limit(&self, words: usize) -> usize {
        let Some(limit) = self.config.limits.instructions else { return words };
        let left = limit.saturating_sub(self.counted_instructions()) / INSTRUCTIONS_A_WORD;
        words.min(usize::try_from(left).unwrap_or(usize::MAX)).max(1)
    }

    /// At the end of a turn at `time`: requests the end of the run at a limit, and writes the statistics that are due.
    pub(super) fn check_limits(&mut self, time: Time) {
        let limits = &self.config.limits;
        let Some(stop) = &limits.stop else { return };
        if limits.instructions.is_some_and(|limit| self.counted_instructions() >= limit) {
            stop.request(StopReason::MaxInstructions);
        }
        if limits.time.is_some_and(|limit| self.counted_time(time) >= limit) {
            stop.request(StopReason::MaxTime);
        }
        self.write_snapshot(time);
        self.keep_interval(time);
    }

    /// Ends the run if a plug-in of the memory system or of core `number` has failed.
    pub(super) fn check_plugins(&self, number: usize) {
        let has_failed = self.memory.plugin_failed() || self.cores[number].model.plugin_failed();
        if let Some(stop) = self.config.limits.stop.as_ref().filter(|_| has_failed) {
            stop.request(StopReason::PluginFailed);
        }
    }

    /// Why the run ended before its program, if it did.
    pub fn stopped(&self) -> Option<StopReason> {
        self.config.limits.stop.as_ref()?.reason()
    }

    /// Records why the program cannot be sampled, if it is sampled, and ends the run. The first reason counts.
    pub(super) fn refuse_sampling(&mut self, error: SamplingError) {
        let Some(sampler) = &mut self.sampler else { return };
        sampler.error.get_or_insert(error);
        if let Some(stop) = &self.config.limits.stop {
            stop.request(StopReason::NotSampled);
        }
    }

    fn write_snapshot(&mut self, time: Time) {
        let Some(mut snapshots) = self.config.snapshots.take() else { return };
        let instructions = self.counted_instructions();
        if self.phase == Phase::Counted && instructions >= snapshots.next {
            snapshots.next = (instructions / snapshots.every + 1) * snapshots.every;
            let written = self.statistics().map_err(io::Error::other).and_then(|statistics| {
                let time_ps = self.counted_time(time).ps();
                let line = json!({
                    "instructions": instructions,
                    "time_ps": time_ps,
                    "statistics": statistics.to_json(),
                });
                writeln!(snapshots.output, "{line}")
            });
            if let Err(error) = written {
                snapshots.error.get_or_insert(error);
            }
        }
        self.config.snapshots = Some(snapshots);
    }

    /// Completes the statistics that were written while the program ran.
    ///
    /// # Errors
    /// They could not be written.
    pub fn finish_snapshots(&mut self) -> io::Result<()> {
        let Some(mut snapshots) = self.config.snapshots.take() else { return Ok(()) };
        match snapshots.error.take() {
            Some(error) => Err(error),
            None => snapshots.output.flush(),
        }
    }
}
