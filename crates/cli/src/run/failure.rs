//! Why a program could not be started: what, where, what to do, and the exit status that says so.
//! Not the program's own failures: those are its exit status or its signal.
//! Source: our own; POSIX shell exit statuses 126 and 127, timeout(1) for 125.

use std::{fmt, io, path::Path};

use longma_node::{ElfError, LoadError, NodeError};

/// longma itself failed.
pub const OWN_FAILURE: u8 = 125;
/// The program was found and cannot be run.
const CANNOT_EXECUTE: u8 = 126;
/// There is no such program.
const NOT_FOUND: u8 = 127;

/// Why the program could not be started.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    message: String,
    advice: String,
    /// The exit status.
    pub status: u8,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl miette::Diagnostic for Failure {
    fn help(&self) -> Option<Box<dyn fmt::Display + '_>> {
        (!self.advice.is_empty()).then(|| Box::new(&self.advice) as Box<dyn fmt::Display>)
    }
}

impl Failure {
    /// longma cannot do its own part.
    pub fn own(message: &str, advice: &str) -> Self {
        Self { message: message.into(), advice: advice.into(), status: OWN_FAILURE }
    }

    /// The host refused something.
    pub fn host(action: &str, error: &io::Error) -> Self {
        Self::own(&format!("cannot {action}: {error}"), "")
    }

    /// The program's file could not be read; `confined` if it has a root of its own.
    pub fn not_readable(path: &Path, error: &io::Error, confined: bool) -> Self {
        let (advice, status) = of_host(error.kind(), confined);
        Self { message: format!("cannot open {}: {error}", path.display()), advice: advice.into(), status }
    }

    /// The program could not be loaded; `confined` if it has a root of its own.
    pub fn of_loading(error: NodeError, confined: bool) -> Self {
        let text = error.to_string();
        // Messages of the libraries say what is wrong and, behind the last semicolon, what to do.
        let (message, advice) = text.rsplit_once("; ").unwrap_or((&text, ""));
        let (message, advice, status) = match &error {
            NodeError::Load(LoadError::Host { action: "use as the root", .. }) => {
                (message, "give --root a directory that exists", OWN_FAILURE)
            }
            NodeError::Load(LoadError::Host { source, .. }) => {
                let (advice, status) = of_host(source.kind(), confined);
                (&*text, advice, status)
            }
            NodeError::Load(LoadError::Program { path, source: ElfError::Class { class: 1, .. } }) => {
                return Self {
                    message: format!("cannot run {}: it is a 32-bit program", path.display()),
                    advice: "build it for loongarch64-linux, which is 64-bit".into(),
                    status: CANNOT_EXECUTE,
                };
            }
            NodeError::Load(LoadError::Interpreter { .. }) => (
                message,
                "give the directory that holds a LoongArch64 system's files: -L DIR if only the libraries come from there, --root DIR if it shall be the program's whole file system; or link the program statically",
                NOT_FOUND,
            ),
            NodeError::Load(LoadError::Map { .. }) | NodeError::Host(_) => (message, advice, OWN_FAILURE),
            NodeError::Load(_) => (message, advice, CANNOT_EXECUTE),
        };
        Self { message: message.into(), advice: advice.into(), status }
    }
}

fn of_host(kind: io::ErrorKind, confined: bool) -> (&'static str, u8) {
    match kind {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory if confined => {
            ("the path is looked up inside --root; check that the program is there", NOT_FOUND)
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            ("check the path; longma does not search PATH", NOT_FOUND)
        }
        io::ErrorKind::PermissionDenied => {
            ("check the permissions of the file and of the directories above it", CANNOT_EXECUTE)
        }
        _ => ("give the path of a LoongArch64 program", CANNOT_EXECUTE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(kind: io::ErrorKind, confined: bool) -> Failure {
        let error = LoadError::Host { action: "open", path: "/x".into(), source: kind.into() };
        Failure::of_loading(error.into(), confined)
    }

    #[test]
    fn the_exit_status_tells_a_missing_program_from_one_that_cannot_be_run() {
        assert_eq!(host(io::ErrorKind::NotFound, false).status, 127);
        assert_eq!(host(io::ErrorKind::PermissionDenied, false).status, 126);
        assert!(host(io::ErrorKind::NotFound, true).advice.contains("--root"));
    }

    #[test]
    fn what_to_do_is_told_apart_from_what_is_wrong() {
        let error = LoadError::Program { path: "/x".into(), source: ElfError::Machine(62) };
        let failure = Failure::of_loading(error.into(), false);
        assert!(failure.message.contains("x86-64") && !failure.message.contains("build it"));
        assert!(failure.advice.contains("build it"));
    }
}
