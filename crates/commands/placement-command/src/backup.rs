//! `longma placement backup` and `restore`.

use super::Outcome;
use super::print::print_line;
use longma_placement::SqlStore;
use longma_placement_service::{DATABASE, default_data_dir};
use std::path::PathBuf;

/// Arguments of `longma placement backup` and `restore`.
#[derive(clap::Args)]
pub struct Arguments {
    /// File of the backup.
    file: PathBuf,
    /// State directory of the service [default: /var/lib/longma/placement for root, else
    /// ~/.local/state/longma/placement].
    #[arg(long, value_name = "FOLDER", env = "LONGMA_PLACEMENT_STATE")]
    state: Option<PathBuf>,
}

impl Arguments {
    fn folder(&self) -> PathBuf {
        self.state.clone().unwrap_or_else(default_data_dir)
    }
}

/// Runs `longma placement backup`.
pub fn backup(arguments: &Arguments) -> Outcome {
    SqlStore::backup(&arguments.folder().join(DATABASE), &arguments.file)?;
    print_line(&format!("{} is a checked copy of the database", arguments.file.display()))
}

/// Runs `longma placement restore`.
pub fn restore(arguments: &Arguments) -> Outcome {
    let database = longma_placement_service::restore(&arguments.folder(), &arguments.file)?;
    print_line(&format!(
        "{} is restored; start the service, then compare with: longma placement audit",
        database.display()
    ))
}
