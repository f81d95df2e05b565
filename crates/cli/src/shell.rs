//! What a shell and `man` want to know of the command: completions, manual pages.
//! Not installed by it: packages and users put them where their system looks.
//! Source: clap_complete and clap_mangen, clap's own generators, so that both say what `--help` says.

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
    /// Print completions of the command line for a shell.
    Completions {
        /// The shell they are for.
        shell: Shell,
    },
    /// Write manual pages, one for each command.
    Manual {
        /// The folder they go to; made if it is not there.
        folder: PathBuf,
    },
}

/// Carries out `longma shell`; `command` is the whole command line's description.
///
/// # Errors
/// If the folder or a page cannot be written, or the reader of the completions went away.
pub fn run(args: &Args, mut command: Command) -> Result<(), Box<dyn Error>> {
    match &args.action {
        Action::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut command, "longma", &mut script);
            std::io::stdout().write_all(&script)?;
        }
        Action::Manual { folder } => {
            let said = |error| format!("cannot write manual pages to {}: {error}", folder.display());
            write_pages(command, folder).map_err(said)?;
        }
    }
    Ok(())
}

fn write_pages(command: Command, folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(command.disable_help_subcommand(true), folder)
}
