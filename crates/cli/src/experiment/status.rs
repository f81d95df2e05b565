//! The exit statuses of `longma experiment` and `longma explain`.
//! Not those of `longma run`: see `run::failure`.
//! Source: 2 as clap and the shells use it for wrong words, 130 after Ctrl-C as the shells do.

use longma_lab::{ExportError, RunError, StoreError};
use std::error::Error;
use std::process::ExitCode;

/// What the statuses mean, for `--help`.
pub const HELP: &str = "Exit statuses:
  0    all was done
  1    a point failed, results contradict each other, or a published value has nothing near enough beside it
  2    wrong input: an option, a name, an experiment file, a machine, a program, a metric that nothing measures
  3    the host was at fault: a full disk, a limit on memory or time, a run killed from outside; nothing of it is kept, and the same
       command runs what is left again
  130  stopped by Ctrl-C; the same command goes on";

/// A point failed, or results are not as they should be.
pub const FAILED: u8 = 1;
/// The input is wrong.
const INPUT: u8 = 2;
/// The host is at fault.
pub const HOST: u8 = 3;
/// After Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// The host cannot do what it is asked for.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct HostError(pub String);

impl HostError {
    /// Another error for which the host is responsible.
    pub fn of(error: impl Error) -> Self {
        Self(error.to_string())
    }
}

/// The status of a command that ended with this error.
pub fn of(error: &(dyn Error + 'static)) -> u8 {
    let of_host = error.is::<StoreError>()
        || error.is::<ExportError>()
        || error.is::<HostError>()
        || matches!(error.downcast_ref::<RunError>(), Some(RunError::Store(_)));
    if of_host { HOST } else { INPUT }
}

/// The status of a command that came to an end: the host's fault comes first, for then the rest may change.
pub fn ended(host: bool, wrong_input: bool, failed: bool) -> ExitCode {
    match (host, wrong_input, failed) {
        (true, _, _) => ExitCode::from(HOST),
        (_, true, _) => ExitCode::from(INPUT),
        (_, _, true) => ExitCode::from(FAILED),
        _ => ExitCode::SUCCESS,
    }
}
