//! The files that a run writes. Two outputs in one file would overwrite each other.

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
pub fn refuse_shared(arguments: &Arguments) -> Result<(), Failure> {
    let stats = arguments.stats_out.as_ref();
    let beside = |extension: &str| stats.map(|path| path.with_extension(extension));
    let snapshots = beside("jsonl").filter(|_| arguments.stats_every.is_some());
    let files = [
        ("--stats-out", stats.cloned()),
        ("the machine next to --stats-out", beside("machine.toml")),
        ("--stats-every", snapshots),
        ("--report", arguments.report.clone()),
        ("--profile-out", arguments.profile_out.clone()),
        ("--trace", arguments.trace.clone()),
        ("--champsim", arguments.champsim.clone()),
        ("--checkpoint", arguments.checkpoint.clone()),
        ("--strace-out", arguments.strace_out.clone()),
        // Inputs, which no output may replace.
        ("--report-against", arguments.report_against.clone()),
        ("--restore", arguments.restore.clone()),
    ];
    let files: Vec<(&str, Identity)> =
        files.into_iter().filter_map(|(option, path)| Some((option, Identity::of(&path?)?))).collect();
    for (index, (option, file)) in files.iter().enumerate() {
        if let Some((other, _)) = files[..index].iter().find(|(_, other)| other == file) {
            return Err(Failure::own(
                &format!("{other} and {option} name the same file"),
                "give each its own file",
            ));
        }
    }
    Ok(())
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
