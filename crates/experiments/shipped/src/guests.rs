//! Guest programs by name: `guests:hello`, `guests:hello-lasx`, `guests:aarch64/sort`.

use crate::cache::{CacheFolders, ExtractError, extract};
use crate::{ENTRIES, Entry, GUESTS};
use std::path::PathBuf;

/// Prefix of the names of guest programs that ship inside the command.
pub const PREFIX: &str = "guests:";
/// The architecture of a name that does not state one.
const NATIVE: &str = "loongarch64";

/// Why a guest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// There is no guest with this name.
    #[error("there is no guest `{name}`; {help}")]
    Unknown {
        /// The name without `guests:`.
        name: String,
        /// How to find the correct name.
        help: String,
    },
    /// The program could not be extracted.
    #[error(transparent)]
    Extract(#[from] ExtractError),
}

/// The guest program `name`, which has no `guests:` prefix.
///
/// # Errors
/// If there is no such guest.
pub fn guest(name: &str) -> Result<&'static Entry, GuestError> {
    let build = if name.contains('/') { name.into() } else { format!("{NATIVE}/{name}") };
    let found = ENTRIES.iter().find(|entry| entry.path.strip_prefix("guests/prebuilt/") == Some(&build));
    found.ok_or_else(|| {
        let builds = GUESTS.iter().flat_map(|guest| guest.builds);
        let names = builds.map(|build| build.strip_prefix("loongarch64/").unwrap_or(build));
        let nearest = longma_topology::read::nearest(name, names);
        let nearest = nearest.map(|name| format!("did you mean `{PREFIX}{name}`? ")).unwrap_or_default();
        GuestError::Unknown { name: name.into(), help: format!("{nearest}`longma guest list` lists them") }
    })
}

/// Extracts the guest program `program` and returns its path; `None` if the name does not begin with `guests:`.
pub fn guest_file(program: &str) -> Option<Result<PathBuf, GuestError>> {
    let name = program.strip_prefix(PREFIX)?;
    Some(guest(name).and_then(|entry| {
        let folder = extract([entry], &CacheFolders::of_process())?;
        Ok(folder.join(entry.path))
    }))
}

/// Extracts the guest program `program` and returns its path. If the name does not begin with `guests:`, returns the
/// result of `other`.
///
/// # Errors
/// If there is no such guest, or if it cannot be extracted.
pub fn guest_or(program: &str, other: impl FnOnce() -> PathBuf) -> Result<PathBuf, GuestError> {
    guest_file(program).unwrap_or_else(|| Ok(other()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_an_architecture_are_loongarch64_programs() {
        assert_eq!(guest("hello").unwrap().path, "guests/prebuilt/loongarch64/hello");
        assert_eq!(guest("fft-lasx").unwrap().path, "guests/prebuilt/loongarch64/fft-lasx");
        assert_eq!(guest("aarch64/hello").unwrap().path, "guests/prebuilt/aarch64/hello");
    }

    #[test]
    fn a_mistyped_name_gets_a_suggestion() {
        let error = guest("helo").unwrap_err().to_string();
        assert!(error.contains("`guests:hello`") && error.contains("longma guest list"), "{error}");
        for wrong in ["", "../experiments", "x86_64", "/etc/passwd", "aarch64/signals"] {
            assert!(guest(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_program_belongs_to_a_guest() {
        let programs = ENTRIES.iter().filter_map(|entry| entry.path.strip_prefix("guests/prebuilt/"));
        for program in programs {
            assert!(GUESTS.iter().any(|guest| guest.builds.contains(&program)), "{program}");
        }
        assert!(GUESTS.iter().all(|guest| !guest.description.is_empty() && !guest.kind.is_empty()));
    }
}
