//! `longma affinity history`: prints what `tune` changed, by run and setting, from its log of decisions.

use super::check::wrapped;
use super::terminal::{self, print, print_json};
use super::{Format, Outcome, StateOption, width};
use longma_affinity::tune::history::{Changed, Run, runs};
use longma_affinity::tune::log;
use longma_command_line::utc_time;
use longma_text::display_path;
use serde_json::json;

#[derive(clap::Args)]
pub struct Arguments {
    /// Print only settings whose name contains this word: an interrupt, a queue or a program.
    #[arg(value_name = "WORD")]
    word: Option<String>,
    /// Print this many of the latest runs of `tune`.
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    last: u32,
    #[command(flatten)]
    state: StateOption,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let path = arguments.state.path();
    let (decisions, lost) =
        log::read(&path).map_err(|error| format!("the log of decisions {}: {error}", display_path(&path)))?;
    if lost > 0 {
        terminal::warn(&format!("{lost} damaged lines are ignored in {}", display_path(&path)));
    }
    let mut runs = runs(&decisions);
    runs.drain(..runs.len().saturating_sub(arguments.last as usize));
    let has_runs = !runs.is_empty();
    if let Some(word) = &arguments.word {
        for run in &mut runs {
            run.changed.retain(|changed| changed.subject.contains(word));
        }
        runs.retain(|run| !run.changed.is_empty());
    }
    if arguments.format == Format::Json {
        return print_json(&json!(runs));
    }
    if let (true, Some(word)) = (runs.is_empty() && has_runs, &arguments.word) {
        return print(&format!(
            "No changes of settings with `{word}` in their names in the latest {} runs: --last COUNT shows more.\n",
            arguments.last
        ));
    }
    if runs.is_empty() {
        return print(&format!(
            "No changes: `longma affinity tune` writes {} when it makes one.\n",
            display_path(&path)
        ));
    }
    print(&runs.iter().map(|run| text(run, width())).collect::<String>())
}

/// A run with its changes.
fn text(run: &Run, width: usize) -> String {
    let begun = run.begun.map_or("before the log's beginning".into(), utc_time);
    let ended = match (run.ended, &run.end) {
        (Some(at), Some(end)) => format!("until {}: {end}", utc_time(at)),
        _ => "still runs, or was killed: `longma affinity restore` restores the settings".into(),
    };
    let count: usize = run.changed.iter().map(|changed| changed.changes.len()).sum();
    let mut text = wrapped("", &format!("From {begun}, {ended}; {count} changes"), width);
    for changed in &run.changed {
        text += &wrapped("  ", &words(changed), width);
    }
    text
}

/// The steps of a setting, and the reason of the last one.
fn words(changed: &Changed) -> String {
    let first = changed.changes.first().map(|change| change.from.as_str());
    let steps = first.into_iter().chain(changed.changes.iter().map(|change| change.to.as_str()));
    let why = changed.changes.last().map_or("", |change| &change.why);
    format!("{}: CPUs {}: {why}", changed.subject, steps.collect::<Vec<_>>().join(" → "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_affinity::tune::log::{Decision, DecisionKind};

    #[test]
    fn a_run_shows_each_setting_once_with_all_its_steps() {
        let moved = |from: &str, to: &str, why: &str| Decision {
            from: Some(from.into()),
            to: Some(to.into()),
            ..Decision::new(DecisionKind::Moved, "interrupt 40", why)
        };
        let log = [
            Decision::new(DecisionKind::Begun, "longma", "watching eth0"),
            moved("0", "3", "nearer"),
            moved("3", "2", "word ".repeat(30).as_str()),
            Decision::new(DecisionKind::Ended, "longma", "1 setting is restored"),
        ];
        let text = text(&runs(&log)[0], 80);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words.contains("interrupt 40: CPUs 0 → 3 → 2: word") && words.contains("2 changes"),
            "{text}"
        );
        assert!(words.contains("1 setting is restored") && !words.contains("nearer"), "{text}");
    }
}
