//! ChampSim traces: records one of a core's instructions, and replays one on the models in place of a program.

use std::io;

use longma_champsim::{Output, Writer};
use longma_memory::placement::SpaceId;
use longma_sim::Manifest;
use longma_trace::{Blocks, Trace};

use super::{ResultError, RunResult, Summary, TimingSimulation};
use crate::Ending;

/// A ChampSim trace that is being written.
pub(super) struct Recording {
    writer: Writer<Output>,
    failed: Option<RecordingError>,
}

/// Why a ChampSim trace is not complete.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The program has several threads.
    #[error("a ChampSim trace has one thread, and the program started a second one")]
    Threads,
    /// The file cannot be written.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Recording {
    /// Appends a core's executed instructions. After an error, it ignores further ones.
    pub(super) fn append(&mut self, threads: usize, trace: &Trace, blocks: &impl Blocks) {
        if self.failed.is_some() {
            return;
        }
        let written = match threads {
            0 | 1 => self.writer.append(trace, blocks).map_err(RecordingError::from),
            _ => Err(RecordingError::Threads),
        };
        self.failed = written.err();
    }
}

impl TimingSimulation {
    /// Writes the counted instructions to `output` as a ChampSim trace. This changes no result.
    pub fn record_champsim(&mut self, output: Output) {
        self.recording = Some(Recording { writer: Writer::new(output), failed: None });
    }

    /// Completes the ChampSim trace, if one is written. Returns its number of instructions.
    ///
    /// # Errors
    /// The trace is not complete.
    pub fn finish_champsim(&mut self) -> Result<Option<u64>, RecordingError> {
        let Some(recording) = self.recording.take() else { return Ok(None) };
        if let Some(error) = recording.failed {
            return Err(error);
        }
        let instructions = recording.writer.instructions();
        recording.writer.finish()?.finish()?;
        Ok(Some(instructions))
    }

    /// Runs `trace` on the first core, in place of a program.
    pub fn replay(&mut self, trace: &Trace, blocks: &impl Blocks) {
        let start = self.time(0, self.end);
        self.memory.begin_turn(0, start);
        let mut port = self.memory.port(0);
        port.set_space(SpaceId(0));
        self.cores[0].model.drain(trace, blocks, &mut port);
        let time = self.time(0, start);
        self.memory.end_turn(0, time);
        self.end = self.end.max(time);
        self.keep_interval(time);
    }

    /// The result of a replayed trace. It has no functions.
    ///
    /// # Errors
    /// Two parts of the model use the same statistic name, which is a bug in the models.
    pub fn replayed_result(&self, manifest: Manifest) -> Result<RunResult, ResultError> {
        Ok(RunResult {
            manifest,
            ending: Ending::Exit(0),
            source: None,
            summary: Summary::of(self),
            traffic: self.memory.traffic(),
            statistics: self.statistics()?,
            functions: Vec::new(),
            programs: Vec::new(),
            intervals: self.intervals(),
            sampling: None,
            stopped: None,
        })
    }
}
