//! Errors that keep a program from starting, with advice and exit status. The program's own failures appear as its exit
//! status or signal.
//! Source: POSIX shell exit statuses 126 and 127; timeout(1) for 124 and 125.

use std::{fmt, io, path::Path};

use longma_runner::{ElfError, HostOperation, LoadError, NodeError, SUPPORTED_ARCHITECTURES};
use longma_workloads::program::{HOST_FAULT_MESSAGE, HOST_FAULT_STATUS};

/// Exit status if longma itself failed.
pub const OWN_FAILURE: u8 = 125;
/// Exit status if the program was found but cannot be executed.
const CANNOT_EXECUTE: u8 = 126;
/// Exit status if the program was not found.
pub const NOT_FOUND: u8 = 127;

/// An error that keeps the program from starting.
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
    /// A failure of longma itself, with status 125.
    pub fn own(message: &str, advice: &str) -> Self {
        Self { message: message.into(), advice: advice.into(), status: OWN_FAILURE }
    }

    /// A failure with a given exit status.
    pub fn with_status(message: &str, advice: &str, status: u8) -> Self {
        Self { message: message.into(), advice: advice.into(), status }
    }

    /// A failure because the host returned an error.
    pub fn host(action: &str, error: &io::Error) -> Self {
        let message = format!("cannot {action}: {error}");
        match shortage(error) {
            Some(what) => Self::short(&message, &format!("the host is short of {what}")),
            None => Self::own(&message, ""),
        }
    }

    /// A failure because the host lacks a resource or limits it too much.
    pub fn short(message: &str, advice: &str) -> Self {
        let advice = format!("{advice}; {HOST_FAULT_MESSAGE}");
        Self { message: message.into(), advice, status: HOST_FAULT_STATUS }
    }

    /// A failure to read the program's file; `confined` if --root is given.
    pub fn not_readable(path: &Path, error: &io::Error, confined: bool) -> Self {
        if shortage(error).is_some() {
            return Self::host(&format!("open {}", path.display()), error);
        }
        let (advice, status) = of_host(error.kind(), confined);
        Self { message: format!("cannot open {}: {error}", path.display()), advice: advice.into(), status }
    }

    /// A failure to load the program; `confined` if --root is given.
    pub fn of_loading(error: NodeError, confined: bool) -> Self {
        let text = error.to_string();
        let advice = error.advice().unwrap_or_default();
        // The text of an error ends with its advice.
        let message = text.strip_suffix(advice).and_then(|text| text.strip_suffix("; ")).unwrap_or(&text);
        match error {
            NodeError::Load(error) => Self::of_program(&error, message, advice, confined),
            NodeError::Host(_) => Self::short(message, advice),
            NodeError::Checkpoint(_) => Self::own(message, advice),
        }
    }

    /// The failure for `error`, printed as `message` followed by `advice`.
    fn of_program(error: &LoadError, message: &str, advice: &str, confined: bool) -> Self {
        let (message, advice, status) = match error {
            LoadError::Host { operation: HostOperation::UseRoot, .. } => {
                (message, "give --root a directory that exists", OWN_FAILURE)
            }
            LoadError::Host { operation, source, .. } => match (operation, shortage(source)) {
                (HostOperation::ReserveAddressSpace, Some(_)) => return Self::short(message, ADDRESSES),
                (_, Some(what)) => {
                    return Self::short(message, &format!("the host is short of {what}"));
                }
                (_, None) => {
                    let (advice, status) = of_host(source.kind(), confined);
                    (message, advice, status)
                }
            },
            LoadError::Map { source, .. } if source.0 == libc::ENOMEM => {
                return Self::short(message, "check `ulimit -v` and the free memory");
            }
            LoadError::Map { .. } => (message, advice, OWN_FAILURE),
            LoadError::NotRegular(_) => (message, GIVE_A_PROGRAM, CANNOT_EXECUTE),
            LoadError::Program { path, source: ElfError::Class { class: 1, .. } } => {
                let message = format!("cannot run {}: it is a 32-bit program", path.display());
                let advice = format!("build it for a 64-bit system: {SUPPORTED_ARCHITECTURES}");
                return Self::with_status(&message, &advice, CANNOT_EXECUTE);
            }
            LoadError::Interpreter { .. } => (
                message,
                "give the directory with the files of its system: -L DIR to take only libraries from it, --root DIR to make it the program's root directory; or link the program statically",
                NOT_FOUND,
            ),
            LoadError::Program { .. } | LoadError::Script { .. } | LoadError::Arguments { .. } => {
                (message, advice, CANNOT_EXECUTE)
            }
        };
        Self::with_status(message, advice, status)
    }
}

const GIVE_A_PROGRAM: &str = "give the path of a program for LoongArch64, x86-64, AArch64 or MIPS64";

/// Advice for a limit on address space.
const ADDRESSES: &str = "longma reserves at least 512 GiB of address space, which uses no memory: raise the limit on virtual memory with `ulimit -v \
                         unlimited` does";

/// The resource that the host lacks, if the error says so.
fn shortage(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::ENOMEM => Some("memory, or a limit on it is low (`ulimit -a` shows them)"),
        libc::EMFILE | libc::ENFILE => Some("descriptors (`ulimit -n` shows the limit)"),
        libc::EAGAIN => Some("processes (`ulimit -u` shows the limit)"),
        libc::ENOSPC | libc::EDQUOT => Some("disk space"),
        libc::EFBIG => Some("allowed file size (`ulimit -f` shows the limit)"),
        _ => None,
    }
}

fn of_host(kind: io::ErrorKind, confined: bool) -> (&'static str, u8) {
    match kind {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory if confined => {
            ("the path is relative to --root; check that the program exists there", NOT_FOUND)
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            ("check the path; longma does not search PATH", NOT_FOUND)
        }
        io::ErrorKind::PermissionDenied => {
            ("check the permissions of the file and of the directories above it", CANNOT_EXECUTE)
        }
        _ => (GIVE_A_PROGRAM, CANNOT_EXECUTE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(kind: io::ErrorKind, confined: bool) -> Failure {
        let error =
            LoadError::Host { operation: HostOperation::Open, path: "/x".into(), source: kind.into() };
        Failure::of_loading(error.into(), confined)
    }

    #[test]
    fn the_exit_status_distinguishes_a_missing_program_from_an_invalid_one() {
        assert_eq!(host(io::ErrorKind::NotFound, false).status, 127);
        assert_eq!(host(io::ErrorKind::PermissionDenied, false).status, 126);
        assert!(host(io::ErrorKind::NotFound, true).advice.contains("--root"));
    }

    #[test]
    fn host_shortages_are_distinguished_from_invalid_programs() {
        let source = || io::Error::from_raw_os_error(libc::ENOMEM);
        let operation = HostOperation::ReserveAddressSpace;
        let reserve = LoadError::Host { operation, path: "/x".into(), source: source() };
        for failure in [
            Failure::of_loading(reserve.into(), false),
            Failure::of_loading(NodeError::Host(source()), false),
            Failure::host("write the trace", &io::Error::from_raw_os_error(libc::ENOSPC)),
            Failure::not_readable(Path::new("/x"), &io::Error::from_raw_os_error(libc::EMFILE), false),
        ] {
            assert_eq!(failure.status, HOST_FAULT_STATUS, "{failure}");
            assert!(failure.advice.ends_with(HOST_FAULT_MESSAGE), "{failure:?}");
            assert!(!failure.advice.contains("LoongArch64"), "{failure:?}");
        }
        let missing = Failure::host("write the trace", &io::ErrorKind::NotFound.into());
        assert_eq!(missing.status, OWN_FAILURE);
    }

    #[test]
    fn advice_is_separated_from_the_message() {
        let error = LoadError::Program { path: "/x".into(), source: ElfError::Machine(243) };
        let failure = Failure::of_loading(error.into(), false);
        assert!(failure.message.contains("RISC-V") && !failure.message.contains("build it"));
        assert!(failure.advice.contains("build it"));
    }

    #[test]
    fn a_semicolon_in_a_path_starts_no_advice() {
        let error = LoadError::Program { path: "/a; b".into(), source: ElfError::Empty };
        let failure = Failure::of_loading(error.into(), false);
        assert_eq!(failure.message, "cannot run /a; b: it has no loadable segment");
        assert_eq!(failure.advice, "");
    }

    #[test]
    fn advice_names_every_architecture() {
        for name in SUPPORTED_ARCHITECTURES.split([',', ' ']).filter(|word| word.len() > 2) {
            assert!(GIVE_A_PROGRAM.contains(name), "{name}");
        }
    }
}
