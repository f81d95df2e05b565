//! `longma via list`.

use crate::{FolderOptions, Format, State, type_name};
use longma_command_line::output::{Outcome, print, print_json, table};
use longma_pubsub::{Error, Overflow};
use serde_json::{Value, json};

/// Options of `longma via list`.
#[derive(clap::Args)]
pub struct ListArguments {
    #[command(flatten)]
    folder: FolderOptions,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// Prints the topics of this user.
///
/// # Errors
/// If the folder of the topics cannot be used.
pub fn run(arguments: &ListArguments) -> Outcome {
    let topics = arguments.folder.topics()?;
    if arguments.format == Format::Json {
        return print_json(&json!({ "topics": topics.iter().map(as_json).collect::<Vec<_>>() }));
    }
    let heads = ["topic", "type", "depth", "history", "overflow", "publisher", "subscribers"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(topics.iter().map(row));
    print(&table(&rows))
}

fn overflow(overflow: Overflow) -> &'static str {
    match overflow {
        Overflow::Overwrite => "overwrite",
        Overflow::Block => "block",
    }
}

fn row((name, state): &State) -> Vec<String> {
    match state {
        Ok(report) => {
            let subscribers = report.subscribers.iter().map(|subscriber| subscriber.process.to_string());
            let (depth, history) = (report.depth.to_string(), report.history.to_string());
            let processes = (report.process.to_string(), subscribers.collect::<Vec<_>>().join(" "));
            let overflow = overflow(report.overflow).into();
            vec![name.clone(), type_name(report), depth, history, overflow, processes.0, processes.1]
        }
        Err(error) => vec![name.clone(), problem(error)],
    }
}

/// Why the state of a listed topic is unknown.
fn problem(error: &Error) -> String {
    match error {
        Error::NoPublisher(_) => "its publisher was killed; the next one replaces it".into(),
        Error::TimedOut => "its publisher does not answer; is it stopped?".into(),
        other => other.to_string(),
    }
}

fn as_json((name, state): &State) -> Value {
    let report = match state {
        Ok(report) => report,
        Err(error) => return json!({ "topic": name, "error": problem(error) }),
    };
    let subscribers = report
        .subscribers
        .iter()
        .map(|one| json!({ "process": one.process, "lag": one.lag, "lost": one.lost, "held": one.held }));
    json!({
        "topic": name,
        "type": type_name(report),
        "element_bytes": report.message.element_bytes,
        "alignment_bytes": report.message.alignment,
        "depth": report.depth,
        "history": report.history,
        "overflow": overflow(report.overflow),
        "process": report.process,
        "published": report.published,
        "bytes": report.bytes,
        "subscribers": subscribers.collect::<Vec<_>>(),
    })
}
