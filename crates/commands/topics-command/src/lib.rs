//! `longma via list` and `longma via top`: the topics of `longma-pubsub`.

mod list;
mod top;

use clap::ValueEnum;
use longma_pubsub::Report;
use std::path::PathBuf;

pub use list::{ListArguments, run as list};
pub use top::{TopArguments, run as top};

/// Output format.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table.
    Table,
    /// JSON.
    Json,
}

/// Where the topics are.
#[derive(clap::Args)]
struct FolderOptions {
    /// Folder of the topics [default: longma-topics in $XDG_RUNTIME_DIR or /run/user/UID, or /tmp/longma-topics-UID].
    #[arg(long, value_name = "DIRECTORY")]
    folder: Option<PathBuf>,
}

/// The state of a topic, or why it is unknown.
type State = (String, Result<Report, longma_pubsub::Error>);

impl FolderOptions {
    /// The topics, in order.
    fn topics(&self) -> Result<Vec<State>, longma_pubsub::Error> {
        longma_pubsub::topics(self.folder.as_deref())
    }
}

/// The type of a topic, as its publisher calls it.
fn type_name(report: &Report) -> String {
    let name = longma_text::sanitize(&report.message.name);
    if report.message.is_slice { format!("[{name}]") } else { name }
}
