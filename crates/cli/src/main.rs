//! The `longma` command.
//! Not where the work is done: each subcommand's file turns arguments into calls of the libraries, and results into text.
//! Source: our own.

mod run;

use clap::{Parser, Subcommand};

/// Models the path that data takes through a server, and shortens it.
#[derive(Parser)]
#[command(name = "longma", version, about, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a LoongArch64 Linux program.
    Run(run::Arguments),
}

fn main() -> miette::Result<()> {
    match Arguments::parse().command {
        Command::Run(arguments) => run::run(arguments),
    }
}
