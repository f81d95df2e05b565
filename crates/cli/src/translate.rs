//! `longma translate`: runs a program for another architecture and prints what its code became, with counts.
//! Not the text, which is a run's own (`run/listing.rs`).

use std::process::ExitCode;

use clap::Parser;
use longma_runner::parts::Parts;

use crate::guest;
use crate::run;
use crate::run::listing::Options;

/// Arguments of `longma translate`.
#[derive(clap::Args)]
pub struct Arguments {
    /// What is printed.
    #[command(flatten)]
    pub options: Options,

    /// Which parts translation has, as for `longma run`.
    #[arg(long, value_name = "PARTS", default_value_t, hide_default_value = true)]
    translation: Parts,

    /// The program, then its arguments; `--` may stand between. guests:ARCHITECTURE/NAME is one that comes with longma.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_names = ["PROGRAM", "ARGS"])]
    program: Vec<std::ffi::OsString>,
}

/// The words of `longma run`.
#[derive(Parser)]
struct Run {
    #[command(flatten)]
    arguments: run::Arguments,
}

/// Runs the program and ends as it ends.
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
