//! `longma affinity why`: prints the log of decisions that `tune` writes.

use super::check::wrapped;
use super::terminal::{self, print, print_json};
use super::{Format, Outcome, StateOption, width};
use longma_affinity::tune::log::{self, Decision};
use longma_command_line::utc_time;
use longma_text::display_path;
use serde_json::json;

#[derive(clap::Args)]
pub struct Arguments {
    /// Print only decisions whose text contains this word: an interrupt, a queue, a program or an address.
    #[arg(value_name = "WORD")]
    word: Option<String>,
    /// Print this many of the latest decisions.
    #[arg(long, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    last: u32,
    #[command(flatten)]
    state: StateOption,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let path = arguments.state.path();
    let (mut decisions, lost) =
        log::read(&path).map_err(|error| format!("the log of decisions {}: {error}", display_path(&path)))?;
    if lost > 0 && decisions.is_empty() {
        return Err(
            format!("{} is not a log of decisions: none of its lines is one", display_path(&path)).into()
        );
    } else if lost > 0 {
        let lines =
            if lost == 1 { "line is not a decision and is" } else { "lines are not decisions and are" };
        terminal::warn(&format!("{lost} {lines} ignored in {}: the file is damaged", display_path(&path)));
    }
    if let Some(word) = &arguments.word {
        decisions.retain(|decision| decision.subject.contains(word) || decision.why.contains(word));
    }
    let newest = &decisions[decisions.len().saturating_sub(arguments.last as usize)..];
    if arguments.format == Format::Json {
        return print_json(&json!(newest));
    }
    if newest.is_empty() {
        return print(&format!(
            "No decisions{}: `longma affinity tune` writes {}.\n",
            if arguments.word.is_some() { " about that" } else { "" },
            display_path(&path)
        ));
    }
    print(&newest.iter().map(|decision| line(decision, width())).collect::<String>())
}

/// Formats a decision for the table.
pub fn line(decision: &Decision, width: usize) -> String {
    let moved = match (&decision.from, &decision.to) {
        (Some(from), Some(to)) => format!(" from {from} to {to}"),
        _ => String::new(),
    };
    let words = format!("{}{moved}: {}", decision.subject, decision.why);
    wrapped(&format!("{}  {:11}", utc_time(decision.at), decision.act.word()), &words, width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_affinity::tune::log::DecisionKind;

    #[test]
    fn a_decision_fits_into_eighty_columns() {
        let mut decision =
            Decision::new(DecisionKind::WouldMove, "interrupt 38 (virtio2-input.0)", "word ".repeat(40));
        (decision.from, decision.to) = (Some("0".into()), Some("4-7".into()));
        let text = line(&decision, 80);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("from 0 to 4-7"));
    }
}
