//! `longma shell`: prints shell completions and writes manual pages, both generated from the clap definition of the
//! command line.

use clap::{Command, Subcommand};
use clap_complete::Shell;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print shell completions.
    Completions {
        /// The shell to generate completions for.
        shell: Shell,
    },
    /// Write manual pages, one per command.
    Manual {
        /// The directory to write the pages to; created if it does not exist.
        folder: PathBuf,
    },
}

/// Runs `longma shell`; `command` is the clap definition of the whole command line.
///
/// # Errors
/// Fails if the directory or a page cannot be written, or if standard output is closed.
pub fn run(args: &Args, mut command: Command) -> Result<(), Box<dyn Error>> {
    match &args.action {
        Action::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut command, "longma", &mut script);
            std::io::stdout().write_all(&script)?;
        }
        Action::Manual { folder } => {
            let write_error = |error| format!("cannot write manual pages to {}: {error}", folder.display());
            write_pages(command, folder).map_err(write_error)?;
        }
    }
    Ok(())
}

fn write_pages(command: Command, folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(command.disable_help_subcommand(true), folder)
}
