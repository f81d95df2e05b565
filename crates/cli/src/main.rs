//! The `longma` command: parses the command line, calls the libraries and prints their results.

mod affinity;
mod binfmt;
mod boot;
mod doctor;
mod experiment;
mod guest;
mod machine;
mod replay;
mod run;
mod shell;
mod translate;
mod usage_error;
mod via;

use clap::{CommandFactory, Parser, Subcommand};
use std::io::Write as _;
use std::process::ExitCode;

/// Runs real Linux programs for LoongArch64, x86-64, AArch64 and MIPS64 on a modelled server, and reports where time and bytes go.
#[derive(Parser)]
#[command(name = "longma", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a Linux program for LoongArch64, x86-64, AArch64 or MIPS64.
    Run(Box<run::Arguments>),
    /// Boot a Linux kernel for LoongArch64, with its console on the terminal.
    Boot(Box<boot::Arguments>),
    /// Run a program for MIPS64, x86-64 or AArch64, and print its translation to LoongArch with execution counts.
    Translate(translate::Arguments),
    /// List, draw, check, discover and measure machines.
    Machine(machine::Args),
    /// List and copy the built-in guest programs; `longma run guests:NAME` runs one.
    Guest(guest::Args),
    /// Run a ChampSim trace on a modelled machine.
    Replay(replay::Arguments),
    /// Compare the results of two simulated runs.
    Compare(longma_run_results::compare::Arguments),
    /// Run experiments, and compare their results with published values.
    Experiment(experiment::Args),
    /// Compute how much each mechanism of an experiment contributes to its result.
    Explain(experiment::explain::Arguments),
    /// Format, check, read, write and measure key-value maps on zoned flash.
    Zoned(longma_zoned_command::Args),
    /// Measure user-level messaging (VIA) over shared memory, UDP, AF_XDP, or a modelled Myrinet.
    Via(via::Args),
    /// Place virtual machines on NUMA hosts: the service, its agents, and its client.
    #[cfg(feature = "placement")]
    Placement(Box<longma_placement_command::Args>),
    /// Place virtual machines on NUMA hosts (not in this build).
    #[cfg(not(feature = "placement"))]
    Placement {
        #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Find and apply the best cores for network flows and their applications on this host.
    Affinity(affinity::Args),
    /// Register longma with the kernel, so that programs of other architectures run like native ones.
    Binfmt(binfmt::Args),
    /// Check which features of this host longma can use, and how to get the missing ones.
    Doctor(doctor::Args),
    /// Print shell completions, and write manual pages.
    Shell(shell::Args),
}

fn main() -> ExitCode {
    longma_runner::main_stack::with_stack(run_command)
}

fn run_command() -> ExitCode {
    let arguments = binfmt::command_line();
    let is_run = arguments.get(1).is_some_and(|name| name == "run");
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && is_run => {
            // clap's usual status, 2, could be mistaken for the program's own.
            usage_error::print(&error);
            return ExitCode::from(run::OWN_FAILURE);
        }
        Err(error) => {
            usage_error::print(&error);
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1));
        }
    };
    let outcome = match cli.command {
        Command::Run(mut arguments) => {
            let has_root = arguments.has_root();
            return match guest::resolve(arguments.named_program(), has_root) {
                Ok(()) => run::run(*arguments),
                Err(status) => status,
            };
        }
        Command::Boot(arguments) => boot::run(&arguments),
        Command::Translate(arguments) => return translate::run(arguments),
        Command::Machine(args) => machine::run(args),
        Command::Guest(args) => guest::run(args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Replay(arguments) => replay::run(&arguments).map_err(Into::into),
        Command::Compare(arguments) => longma_run_results::compare::run(&arguments).map_err(Into::into),
        Command::Experiment(args) => return experiment::ended(experiment::run(args)),
        Command::Explain(arguments) => return experiment::ended(experiment::explain::run(&arguments)),
        Command::Zoned(args) => longma_zoned_command::run(args),
        Command::Via(args) => via::run(args),
        #[cfg(feature = "placement")]
        Command::Placement(args) => longma_placement_command::run(*args),
        #[cfg(not(feature = "placement"))]
        Command::Placement { .. } => {
            Err("this build has no `placement`: build longma-cli with its default features".into())
        }
        Command::Affinity(args) => affinity::run(args),
        Command::Binfmt(args) => binfmt::run(args),
        Command::Shell(args) => shell::run(&args, Cli::command()).map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        // Ignore errors: standard error may be closed.
        let _ = writeln!(std::io::stderr(), "longma: {error}");
        ExitCode::FAILURE
    })
}
