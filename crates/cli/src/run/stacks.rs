//! Writes the call stacks of `--stacks-out`.

use std::{os::unix::ffi::OsStrExt, path::PathBuf};

use longma_run_results::{flame_graph, pprof};
use longma_runner::Report;
use longma_workloads::program::HOST_FAULT_STATUS;

use super::{arguments::Arguments, descriptors::Messages, simulated::NotWritten};

/// Where samples of call stacks are written, and how often they are taken.
pub struct Stacks {
    path: PathBuf,
    /// The instructions, or nanoseconds of simulated time, between two samples.
    pub period: u64,
    /// The process whose stacks are written; its forked children's are not.
    process: u32,
}

impl Stacks {
    /// The request on the command line.
    pub fn wanted(arguments: &Arguments) -> Option<Self> {
        let path = arguments.stacks_out.as_ref()?;
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let process = arguments.reporting_process.unwrap_or_else(std::process::id);
        Some(Self { path, period: arguments.stacks_every, process })
    }

    /// Writes the stacks of a program that has ended.
    ///
    /// # Errors
    /// The file cannot be written. The message has been printed.
    pub fn write(&self, report: &Report, is_simulated: bool, messages: &Messages) -> Result<(), NotWritten> {
        if std::process::id() != self.process {
            return Ok(());
        }
        let name = self.path.as_os_str().as_bytes();
        let bytes = if name.ends_with(b".svg") {
            let unit = if is_simulated { "ns" } else { "instructions" };
            flame_graph::svg(&report.stacks(), &report.program(), unit).into_bytes()
        } else if name.ends_with(b".pb.gz") {
            let unit = if is_simulated { ["time", "nanoseconds"] } else { ["instructions", "count"] };
            pprof::compressed(report, self.period, unit)
        } else {
            flame_graph::folded(&report.stacks()).into_bytes()
        };
        std::fs::write(&self.path, bytes).map_err(|error| {
            messages
                .line(&format!("longma: cannot write the call stacks to {}: {error}", self.path.display()));
            NotWritten(HOST_FAULT_STATUS)
        })
    }
}
