//! `longma translate`: runs a program of another architecture and prints its translation with execution counts, using
//! `run/listing.rs`.

use std::process::ExitCode;

use clap::Parser;
use longma_runner::optimizations::Optimizations;

use crate::guest;
use crate::run;
use crate::run::listing::Options;

/// Arguments of `longma translate`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The requested output.
    #[command(flatten)]
    pub options: Options,

    /// Which optimizations the translator uses, as for `longma run`.
    #[arg(long, value_name = "PARTS", default_value_t, hide_default_value = true)]
    translation: Optimizations,

    /// The program and its arguments; `--` may precede it. `guests:ARCHITECTURE/NAME` is a shipped program.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_names = ["PROGRAM", "ARGS"])]
    program: Vec<std::ffi::OsString>,
}

/// Parser for the arguments of `longma run`.
#[derive(Parser)]
struct Run {
    #[command(flatten)]
    arguments: run::Arguments,
}

/// Runs the program; the exit status is the program's.
pub fn run(arguments: Arguments) -> ExitCode {
    let words = [std::ffi::OsString::from("longma"), "--".into()].into_iter().chain(arguments.program);
    let mut run = Run::parse_from(words).arguments;
    if let Err(status) = guest::resolve(run.named_program(), false) {
        return status;
    }
    run.translation = arguments.translation;
    run.listing = Some(arguments.options);
    run::run(run)
}
