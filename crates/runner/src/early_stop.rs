//! Ends a simulated run before its program ends.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use longma_linux::{Outcome, Process};
use serde::Serialize;

use crate::checkpoint::Saver;
use crate::schedule::{SimulatedProcess, StopTheWorld};

/// Why a run ended before its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum StopReason {
    /// The instructions to count are executed.
    MaxInstructions = 1,
    /// The simulated time to count has passed.
    MaxTime,
    /// The program cannot be sampled.
    NotSampled,
    /// A plug-in has failed, so that there will be no result.
    PluginFailed,
}

impl StopReason {
    const ALL: [Self; 4] = [Self::MaxInstructions, Self::MaxTime, Self::NotSampled, Self::PluginFailed];
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MaxInstructions => "the instructions of --max-instructions are executed",
            Self::MaxTime => "the time of --max-time has passed",
            Self::NotSampled => "the program cannot be sampled",
            Self::PluginFailed => "a plug-in has failed",
        })
    }
}

/// Ends the process with exit status 0, after the turn in which the end is requested. Passes on requests for
/// checkpoints.
pub struct EarlyStop {
    reason: AtomicU8,
    saver: Arc<Saver>,
}

impl EarlyStop {
    /// Creates an early stop without a request.
    pub fn new(saver: Arc<Saver>) -> Arc<Self> {
        Arc::new(Self { reason: AtomicU8::new(0), saver })
    }

    /// Requests the end of the process. The first request counts.
    pub fn request(&self, reason: StopReason) {
        // A failure means that the end was requested before.
        let _ = self.reason.compare_exchange(0, reason as u8, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The reason of the request, if there was one.
    pub fn reason(&self) -> Option<StopReason> {
        let reason = self.reason.load(Ordering::Relaxed);
        StopReason::ALL.into_iter().find(|known| *known as u8 == reason)
    }
}

impl StopTheWorld for EarlyStop {
    fn is_requested(&self) -> bool {
        self.reason.load(Ordering::Relaxed) != 0 || self.saver.is_requested()
    }

    fn serve(&self, simulated: &SimulatedProcess, process: &Process) -> Option<Outcome> {
        match self.reason() {
            Some(_) => Some(Outcome::ExitProcess(0)),
            None => self.saver.serve(simulated, process),
        }
    }
}
