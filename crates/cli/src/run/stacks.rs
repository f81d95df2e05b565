//! Writes the call stacks of `--stacks-out`.

use std::path::PathBuf;

use longma_run_results::flame_graph;
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
        let stacks = report.stacks();
        let unit = if is_simulated { "ns" } else { "instructions" };
        let is_image = self.path.extension().is_some_and(|extension| extension == "svg");
        let text = if is_image {
            flame_graph::svg(&stacks, &report.program(), unit)
        } else {
            flame_graph::folded(&stacks)
        };
        std::fs::write(&self.path, text).map_err(|error| {
            messages
                .line(&format!("longma: cannot write the call stacks to {}: {error}", self.path.display()));
            NotWritten(HOST_FAULT_STATUS)
        })
    }
}
