//! Guest programs by name: `guests:hello`, `guests:hello-lasx`, `guests:aarch64/sort`.

use crate::cache::{ExtractError, Places, extract};
use crate::{ENTRIES, Entry, GUESTS};
use std::path::PathBuf;

/// What a program's name begins with if it is a guest that ships inside the command.
pub const PREFIX: &str = "guests:";
/// The architecture of names without one.
const NATIVE: &str = "loongarch64";

/// Why a guest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// No guest has this name.
    #[error("there is no guest `{name}`; {help}")]
    Unknown {
        /// The name, without `guests:`.
        name: String,
        /// What to write instead.
        help: String,
    },
    /// Its file cannot be written.
    #[error(transparent)]
    Extract(#[from] ExtractError),
}

/// The program that a name without `guests:` means.
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

/// The file of the program that `spelled` means, extracted; `None` if it does not begin with `guests:`.
pub fn guest_file(spelled: &str) -> Option<Result<PathBuf, GuestError>> {
    let name = spelled.strip_prefix(PREFIX)?;
    Some(guest(name).and_then(|entry| {
        let folder = extract([entry], &Places::of_process())?;
        Ok(folder.join(entry.path))
    }))
}

/// The file of a guest if `spelled` begins with `guests:`, else what `other` gives.
///
/// # Errors
/// If it is a guest that cannot be used.
pub fn guest_or(spelled: &str, other: impl FnOnce() -> PathBuf) -> Result<PathBuf, GuestError> {
    guest_file(spelled).unwrap_or_else(|| Ok(other()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_an_architecture_are_loongarchs() {
        assert_eq!(guest("hello").unwrap().path, "guests/prebuilt/loongarch64/hello");
        assert_eq!(guest("fft-lasx").unwrap().path, "guests/prebuilt/loongarch64/fft-lasx");
        assert_eq!(guest("aarch64/hello").unwrap().path, "guests/prebuilt/aarch64/hello");
    }

    #[test]
    fn a_name_with_a_typing_error_gets_the_nearest_one() {
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
