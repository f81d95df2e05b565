//! Exit statuses of `longma experiment` and `longma explain`. `run::failure` has those of `longma run`.
//! Source: clap and shells use 2 for usage errors, and shells 130 after Ctrl-C.

use longma_lab::{ExportError, RunError, StoreError};
use std::error::Error;
use std::io;
use std::process::ExitCode;

/// Exit statuses, for `--help`.
pub const HELP: &str = "Exit statuses:
  0    all was done
  1    a point failed, results contradict each other, or a published value has nothing near enough beside it or
       only the mean of a part of its runs
  2    wrong input: an option, a name, an experiment file, a machine, a program, a metric that nothing measures, a
       path that is missing or may not be read or written
  3    the host was at fault: a full disk, a limit on memory or time, a run killed from outside; nothing of it is kept, and the same
       command runs what is left again
  130  stopped by Ctrl-C; the same command continues";

/// A point failed, results contradict each other, or a comparison failed.
pub const FAILED: u8 = 1;
/// Invalid input.
const INPUT: u8 = 2;
/// An error of the host, such as a full disk.
pub const HOST: u8 = 3;
/// Stopped by Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// An error of the host.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct HostError(pub String);

/// Converts an error of the operating system, described by `text`: to an error of the input if a repetition of the
/// command would have the same error, otherwise to an error of the host.
pub fn io_error(text: String, error: &io::Error) -> Box<dyn Error> {
    if is_permanent(error) { text.into() } else { HostError(text).into() }
}

/// Whether a repetition of the command would have the same error.
fn is_permanent(error: &io::Error) -> bool {
    use io::ErrorKind::*;
    matches!(
        error.kind(),
        NotFound
            | PermissionDenied
            | AlreadyExists
            | NotADirectory
            | IsADirectory
            | DirectoryNotEmpty
            | ReadOnlyFilesystem
            | InvalidFilename
            | InvalidInput
            | Unsupported
    )
}

/// Exit status for an error.
pub fn of(error: &(dyn Error + 'static)) -> u8 {
    let of_store = |error: &StoreError| {
        let (StoreError::Read { error, .. }
        | StoreError::Write { error, .. }
        | StoreError::Append { error, .. }) = error;
        !is_permanent(error)
    };
    let of_export = |error: &ExportError| !error.error.as_ref().is_some_and(is_permanent);
    let of_host = error.is::<HostError>()
        || error.downcast_ref().is_some_and(of_store)
        || error.downcast_ref().is_some_and(of_export)
        || matches!(error.downcast_ref(), Some(RunError::Store(error)) if of_store(error));
    if of_host { HOST } else { INPUT }
}

/// Exit status of a command that completed. A host error takes precedence, because running again may then change the
/// other results.
pub fn ended(host: bool, wrong_input: bool, failed: bool) -> ExitCode {
    match (host, wrong_input, failed) {
        (true, _, _) => ExitCode::from(HOST),
        (_, true, _) => ExitCode::from(INPUT),
        (_, _, true) => ExitCode::from(FAILED),
        _ => ExitCode::SUCCESS,
    }
}
