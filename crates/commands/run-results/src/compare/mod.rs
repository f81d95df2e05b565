//! `longma compare`: prints the differences between two results of `longma run --stats-out`.

mod difference;
mod reading;

use std::{path::PathBuf, process::ExitCode};

use longma_command_line::{Format, output};

pub use difference::{Difference, StackChange, changed_inputs, differences, stack_changes};
pub use reading::{Figure, Figures};

/// Arguments of `longma compare`.
#[derive(clap::Args)]
pub struct Arguments {
    /// A result written by `longma run --stats-out`.
    before: PathBuf,

    /// The result to compare it with.
    after: PathBuf,

    /// Hide figures that changed by less than this, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    threshold: f64,

    /// Print at most this many figures.
    #[arg(long, value_name = "N", default_value_t = 40)]
    top: usize,

    /// Print every figure, changed or not.
    #[arg(long, conflicts_with_all = ["threshold", "top"])]
    all: bool,

    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Prints the differences. The exit status is success if both files could be read, even if they differ.
///
/// # Errors
/// Fails if a file cannot be read or is not a result.
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
    let text = match arguments.format {
        Format::Json => {
            let object = difference::object(&before, &after, &shown).to_string();
            format!("{}\n", longma_text::escape_json(&object))
        }
        Format::Table => difference::table(&before, &after, &shown, all.len()),
    };
    output::print(&text).map_err(|error| error.to_string())
}
