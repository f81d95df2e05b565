//! `longma compare`: two results of `longma run --stats-out`, figure by figure.
//! Not a judgement which is better: some figures should grow, others should not.

mod difference;
mod reading;

use std::{path::PathBuf, process::ExitCode};

use clap::ValueEnum;

use difference::{Difference, differences};
use reading::Figures;

/// Arguments of `longma compare`.
#[derive(clap::Args)]
pub struct Arguments {
    /// A result that `longma run --stats-out` wrote.
    before: PathBuf,

    /// The result to hold against it.
    after: PathBuf,

    /// Leave out figures that changed by less than this, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    threshold: f64,

    /// The most figures to print.
    #[arg(long, value_name = "N", default_value_t = 40)]
    top: usize,

    /// Print every figure, changed or not.
    #[arg(long, conflicts_with_all = ["threshold", "top"])]
    all: bool,

    /// How to print.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs: one object.
    Json,
}

/// Prints what differs. The exit status says only whether both files could be read.
///
/// # Errors
/// A file that cannot be read or is not a result.
pub fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    if arguments.threshold.is_nan() || arguments.threshold < 0.0 {
        return Err(format!("--threshold is {}: give a percentage of 0 or more", arguments.threshold));
    }
    let before = Figures::read(&arguments.before)?;
    let after = Figures::read(&arguments.after)?;
    let all = differences(&before, &after);
    let shown: Vec<&Difference> = if arguments.all {
        all.iter().collect()
    } else {
        all.iter()
            .filter(|d| d.is_headline() || d.percent().is_none_or(|p| p.abs() >= arguments.threshold))
            .filter(|d| d.is_headline() || d.before != d.after)
            .take(arguments.top)
            .collect()
    };
    match arguments.format {
        Format::Json => println!("{}", difference::object(&before, &after, &shown)),
        Format::Table => print!("{}", difference::table(&before, &after, &shown, all.len())),
    }
    Ok(ExitCode::SUCCESS)
}
