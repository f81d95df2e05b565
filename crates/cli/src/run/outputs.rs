//! The files that a run or a boot writes. An output must not overwrite another output or an input.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::{arguments::Arguments, failure::Failure};

/// Refuses an output file that is also another output or an input.
///
/// # Errors
/// Names both options.
pub(super) fn refuse_shared(arguments: &Arguments) -> Result<(), Failure> {
    let stats = arguments.stats_out.as_ref();
    let beside = |extension: &str| stats.map(|path| path.with_extension(extension));
    let outputs = [
        ("--stats-out", stats.cloned()),
        ("--stats-every", beside("jsonl").filter(|_| arguments.stats_every.is_some())),
        ("--report", arguments.report.clone()),
        ("--profile-out", arguments.profile_out.clone()),
        ("--stacks-out", arguments.stacks_out.clone()),
        ("--trace", arguments.trace.clone()),
        ("--champsim", arguments.champsim.clone()),
        ("--checkpoint", arguments.checkpoint.clone()),
        ("--strace-out", arguments.strace_out.clone()),
    ];
    let inputs = [
        ("the program", arguments.program.first().map(PathBuf::from)),
        ("--machine", arguments.machine.as_ref().map(PathBuf::from)),
        ("--report-against", arguments.report_against.clone()),
        ("--restore", arguments.restore.clone()),
    ];
    // `--machine` may name this file: it is read before it is written.
    let machine = [("the machine next to --stats-out", beside("machine.toml"))];
    let machine_inputs = inputs.iter().filter(|(name, _)| *name != "--machine").cloned();
    let shared = shared(outputs.iter().cloned(), inputs.iter().cloned())
        .or_else(|| shared(machine.into_iter().chain(outputs), machine_inputs));
    match shared {
        Some([one, other]) => {
            Err(Failure::own(&format!("{one} and {other} name the same file"), "give them different files"))
        }
        None => Ok(()),
    }
}

/// The option names of an output and of another option that name the same file. Ignores files without a path, pipes,
/// devices, and inputs that do not exist.
pub fn shared(
    outputs: impl IntoIterator<Item = (&'static str, Option<PathBuf>)>,
    inputs: impl IntoIterator<Item = (&'static str, Option<PathBuf>)>,
) -> Option<[&'static str; 2]> {
    let mut files: Vec<(&str, Identity)> = inputs
        .into_iter()
        .filter_map(|(name, path)| Some((name, Identity::of(&path?)?)))
        .filter(|(_, file)| matches!(file, Identity::Existing(..)))
        .collect();
    for (name, path) in outputs {
        let Some(file) = path.and_then(|path| Identity::of(&path)) else { continue };
        if let Some((other, _)) = files.iter().find(|(_, other)| *other == file) {
            return Some([other, name]);
        }
        files.push((name, file));
    }
    None
}

#[derive(Debug, PartialEq, Eq)]
enum Identity {
    /// Device and inode of an existing file.
    Existing(u64, u64),
    New(PathBuf),
}

impl Identity {
    /// `None` for a pipe or a device, which may get several outputs.
    fn of(path: &Path) -> Option<Self> {
        match fs::metadata(path) {
            Ok(metadata) => metadata.is_file().then(|| Self::Existing(metadata.dev(), metadata.ino())),
            Err(_) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
                let folder = path.parent().and_then(|folder| fs::canonicalize(folder).ok());
                Some(Self::New(match (folder, path.file_name()) {
                    (Some(folder), Some(name)) => folder.join(name),
                    _ => path,
                }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_must_differ_from_other_outputs_and_existing_inputs() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| Some(folder.path().join(name));
        let outputs = || [("--report", path("page")), ("--trace", None)];
        assert_eq!(shared(outputs(), [("the program", path("page"))]), None);
        assert_eq!(
            shared(outputs().into_iter().chain([("--checkpoint", path("./page"))]), []),
            Some(["--report", "--checkpoint"])
        );
        fs::write(folder.path().join("page"), "").unwrap();
        assert_eq!(
            shared(outputs(), [("--machine", None), ("the program", path("page"))]),
            Some(["the program", "--report"])
        );
        assert_eq!(shared([], [("the program", path("page")), ("--machine", path("page"))]), None);
    }

    #[test]
    fn paths_of_one_file_are_recognized_before_and_after_it_exists() {
        let folder = tempfile::tempdir().unwrap();
        let [file, other] = ["a", "./a"].map(|name| folder.path().join(name));
        assert_eq!(Identity::of(&file), Identity::of(&other));
        assert_ne!(Identity::of(&file), Identity::of(&folder.path().join("b")));
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink("a", folder.path().join("b")).unwrap();
        assert_eq!(Identity::of(&file), Identity::of(&folder.path().join("b")));
        assert_eq!(Identity::of(Path::new("/dev/null")), None);
    }
}
