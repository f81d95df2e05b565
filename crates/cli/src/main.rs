//! The `longma` command: reads the command line, calls the libraries, prints.
//! Not a model: everything it says comes from the crates below.
//! Source: none.

mod machine;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Runs real LoongArch64 Linux programs on a modelled server, and says where the time and the bytes went.
#[derive(Parser)]
#[command(name = "longma", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Machines: what they are made of.
    Machine(machine::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Machine(args) => machine::run(args),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("longma: {error}");
        ExitCode::FAILURE
    })
}
