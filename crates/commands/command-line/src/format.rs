//! The value of `--format`.

use clap::ValueEnum;

/// Output format of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table or text.
    #[default]
    Table,
    /// One JSON object on one line.
    Json,
}
