//! `longma affinity record`: saves the system files that the other commands read to a tar file, which their option
//! `--tree` reads. The format is in `longma_affinity::recording`.

use super::terminal::{print, print_json};
use super::{Format, Outcome, own_sys};
use longma_affinity::host::Tree;
use longma_affinity::recording::{LEFT_OUT, Recording, record};
use longma_text::display_path;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(clap::Args)]
pub struct Arguments {
    /// Write this tar file. It must not exist.
    #[arg(value_name = "FILE", default_value = "affinity.tar")]
    file: PathBuf,
    /// Observe the flows for this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = |text: &str| super::seconds(text, 60))]
    seconds: u32,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// The option that selects a recorded host.
#[derive(clap::Args)]
pub struct TreeOption {
    /// Read the host from this file of `longma affinity record` instead of this host.
    #[arg(long, value_name = "FILE")]
    tree: Option<PathBuf>,
}

impl TreeOption {
    /// Whether the option is given.
    pub fn is_given(&self) -> bool {
        self.tree.is_some()
    }

    /// The recorded host, if the option is given.
    pub fn open(&self) -> Result<Option<Recording>, longma_affinity::recording::RecordingError> {
        self.tree.as_deref().map(Recording::open).transpose()
    }
}

pub fn run(arguments: &Arguments) -> Outcome {
    let host = Tree::live();
    own_sys(&host)?;
    let mut pause = || std::thread::sleep(Duration::from_secs(arguments.seconds.into()));
    let path = &arguments.file;
    record(&host, &mut pause, path).map_err(|error| failure(path, &error))?;
    if arguments.format == Format::Json {
        return print_json(&json!({ "file": path, "left_out": LEFT_OUT }));
    }
    print(&format!("{} is written. Of this host, it has {LEFT_OUT}.\n", display_path(path)))
}

fn failure(path: &Path, error: &std::io::Error) -> String {
    let advice = match error.kind() {
        std::io::ErrorKind::AlreadyExists => ": remove it, or name another file",
        _ => "",
    };
    format!("{}: {error}{advice}", display_path(path))
}
