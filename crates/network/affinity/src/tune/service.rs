//! A systemd unit that runs the tuner, and restores all settings however it ends.
//!
//! Source: systemd.service(5) (`ExecStopPost=`: also after an unexpected exit), systemd.syntax(7) (quoting).

use longma_text::{display_path, is_control_or_invisible};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Name of the unit.
pub const NAME: &str = "longma-affinity.service";
/// Folder of the host's own units.
pub const FOLDER: &str = "/etc/systemd/system";
/// First line of the unit, by which a later installation recognizes it.
const MARK: &str = "# Written by `longma affinity tune --install`.";

/// Why the unit is not installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A word cannot be written in a unit.
    #[error("`{}` has characters that a systemd unit cannot have", longma_text::sanitize(.0))]
    Word(String),
    /// The path holds a file that this command did not write.
    #[error("{} was not written by this command: move it away, or edit it by hand", display_path(.0))]
    Other(PathBuf),
    /// The unit runs `tune` with other options.
    #[error(
        "{} runs `tune` with other options: {}; name all interfaces in one command, or remove the file first",
        display_path(path),
        longma_text::sanitize(options)
    )]
    Differs {
        /// Path of the unit.
        path: PathBuf,
        /// Its command.
        options: String,
    },
    /// The file cannot be written.
    #[error("{}: {error}", display_path(path))]
    File {
        /// Path of the unit.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
}

/// Writes the unit to `folder`, and returns its path. `options` are those of `tune`, without the journal. The same unit
/// may be written again.
///
/// # Errors
/// A word cannot be quoted, a different file or a unit with other options exists at the path, or the unit cannot be
/// written.
pub fn install(
    folder: &Path,
    program: &Path,
    options: &[String],
    journal: &Path,
) -> Result<PathBuf, InstallError> {
    let text = unit(program, options, journal)?;
    let path = folder.join(NAME);
    let failed = |error| InstallError::File { path: path.clone(), error };
    match std::fs::read_to_string(&path) {
        Ok(found) if !found.starts_with(MARK) => return Err(InstallError::Other(path)),
        Ok(found) if start(&found) != start(&text) => {
            return Err(InstallError::Differs { path, options: start(&found).into() });
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut file = std::fs::File::create(&path).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    Ok(path)
}

/// Options whose values are paths. systemd starts a unit in the root folder, so they must be absolute.
const PATHS: [&str; 2] = ["--state", "--metrics-file"];

/// The options of `tune` for its unit, from the words of a command line after `tune`: without the installation and the
/// journal, and with absolute paths.
pub fn options(words: impl IntoIterator<Item = String>) -> Vec<String> {
    let (mut kept, mut is_value, mut is_path) = (Vec::new(), false, false);
    for word in words {
        let is_option = |name: &str| word == name || word.starts_with(&format!("{name}="));
        if std::mem::take(&mut is_value) {
            continue;
        }
        if std::mem::take(&mut is_path) {
            kept.push(absolute(&word));
            continue;
        }
        if let Some((name, path)) = word.split_once('=').filter(|(name, _)| PATHS.contains(name)) {
            kept.push(format!("{name}={}", absolute(path)));
            continue;
        }
        is_path = PATHS.contains(&word.as_str());
        is_value = word == "--journal";
        if !is_option("--journal") && !is_option("--install") {
            kept.push(word);
        }
    }
    kept
}

fn absolute(path: &str) -> String {
    std::path::absolute(path).map_or_else(|_| path.into(), |path| path.to_string_lossy().into_owned())
}

/// The command of a unit.
fn start(unit: &str) -> &str {
    unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap_or_default()
}

/// The lines that create the journal's folder in /run, which is empty after a boot, and keep it between restarts, since
/// it may hold the journal of a failed `restore`. Source: systemd.exec(5) (`RuntimeDirectory=`).
fn runtime_directory(journal: &Path) -> String {
    let folder = journal.parent().and_then(|folder| folder.strip_prefix("/run").ok());
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./".contains(letter);
    let folder = folder.and_then(Path::to_str).filter(|name| {
        !name.is_empty() && name.chars().all(is_plain) && name.split('/').all(|part| part != "..")
    });
    folder.map_or(String::new(), |name| format!("RuntimeDirectory={name}\nRuntimeDirectoryPreserve=yes\n"))
}

/// The text of the unit.
fn unit(program: &Path, options: &[String], journal: &Path) -> Result<String, InstallError> {
    let program = quoted(&program.to_string_lossy())?;
    let directory = runtime_directory(journal);
    let journal = quoted(&journal.to_string_lossy())?;
    let options: Vec<String> = options.iter().map(|word| quoted(word)).collect::<Result<_, _>>()?;
    let options = options.iter().map(|word| format!(" {word}")).collect::<String>();
    Ok(format!(
        "{MARK}\n[Unit]\nDescription=Keeps network flows and their applications on nearby CPUs\nAfter=network.target\n\n\
         [Service]\n{directory}ExecStart={program} affinity tune --journal {journal}{options}\n\
         ExecStopPost={program} affinity restore --journal {journal}\nRestart=on-failure\nRestartSec=5\n\n\
         [Install]\nWantedBy=multi-user.target\n"
    ))
}

/// Quotes a word so that systemd expands nothing in it.
fn quoted(word: &str) -> Result<String, InstallError> {
    if word.chars().any(|letter| is_control_or_invisible(letter) || letter == char::REPLACEMENT_CHARACTER) {
        return Err(InstallError::Word(word.into()));
    }
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./,:=@+".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return Ok(word.into());
    }
    let escaped = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    Ok(format!("\"{escaped}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_restores_settings_after_any_end_with_the_same_journal() {
        let words =
            ["--interface", "eth0", "--install=/x", "--journal", "/tmp/j", "--exclude-process", "a b%$\""];
        let options = options(words.map(String::from));
        let text = unit(Path::new("/usr/bin/longma"), &options, Path::new("/run/my journal")).unwrap();
        let line = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        assert_eq!(
            line("ExecStart="),
            r#"/usr/bin/longma affinity tune --journal "/run/my journal" --interface eth0 --exclude-process "a b%%$$\"""#
        );
        assert_eq!(line("ExecStopPost="), r#"/usr/bin/longma affinity restore --journal "/run/my journal""#);
        assert!(unit(Path::new("/x"), &["a\nExecStart=/bin/evil".into()], Path::new("/j")).is_err());
    }

    #[test]
    fn paths_in_a_unit_are_absolute() {
        let words = ["--state", "log", "--metrics-file=/x/m.prom", "--metrics-file=m.prom"];
        let here = std::env::current_dir().unwrap().to_string_lossy().into_owned();
        let expected = [
            "--state".to_string(),
            format!("{here}/log"),
            "--metrics-file=/x/m.prom".into(),
            format!("--metrics-file={here}/m.prom"),
        ];
        assert_eq!(options(words.map(String::from)), expected);
    }

    /// /run is empty after a boot, and `tune` creates no folder for a journal that is named.
    #[test]
    fn a_unit_makes_the_folder_of_its_journal_in_run_and_keeps_it() {
        let folders = |journal: &str| {
            let text = unit(Path::new("/l"), &[], Path::new(journal)).unwrap();
            text.lines().filter(|line| line.starts_with("RuntimeDirectory")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            folders("/run/longma/affinity.journal"),
            "RuntimeDirectory=longma RuntimeDirectoryPreserve=yes"
        );
        assert_eq!(folders("/run/a/b/j"), "RuntimeDirectory=a/b RuntimeDirectoryPreserve=yes");
        for journal in
            ["/run/j", "/var/lib/x/j", "j", "/run/a/../b/j", "/run/a b/j", "/run/%t/j", "/run/a:b/j"]
        {
            assert_eq!(folders(journal), "", "{journal}");
        }
    }

    #[test]
    fn a_unit_replaces_only_its_own_kind() {
        let folder = tempfile::tempdir().unwrap();
        let with = |options: &[String]| install(folder.path(), Path::new("/l"), options, Path::new("/j"));
        let install = || with(&[]);
        let path = install().unwrap();
        assert_eq!(install().unwrap(), path);
        // The installed service is from an earlier version, with the same options.
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("RestartSec=5\n", "")).unwrap();
        assert_eq!(install().unwrap(), path);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        // Another interface would silently end the tuning of the first.
        let refused = with(&["--interface".into(), "eth1".into()]).unwrap_err().to_string();
        assert!(refused.contains("other options: /l affinity tune --journal /j;"), "{refused}");
        assert!(!std::fs::read_to_string(&path).unwrap().contains("eth1"));
        std::fs::write(&path, "[Unit]").unwrap();
        assert!(matches!(install(), Err(InstallError::Other(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "[Unit]");
    }
}
