//! `longma affinity restore`: restores, from the journal, the settings that a killed sweep or `tune` left changed.

use super::terminal::{self, print, print_json};
use super::{Format, JournalOption, Outcome};
use longma_affinity::host::Tree;
use longma_affinity::journal::{Journal, RestoreOutcome, Restored};
use longma_affinity::setting::Setting;
use longma_text::display_path;
use serde_json::json;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    journal: JournalOption,
    /// Remove the settings of interfaces that do not exist in this network namespace from the journal.
    ///
    /// Use this for interfaces that were removed, not for those that moved to another namespace.
    #[arg(long)]
    forget_gone: bool,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let (host, path) = (Tree::live(), arguments.journal.path());
    let restored = Journal::recover(&path, &host, arguments.forget_gone)?.unwrap_or_default();
    if restored.may_be_another && !restored.settings.is_empty() {
        terminal::warn(
            "this network namespace matches the journal by inode number only, which a new namespace may reuse after the old one is \
             gone (Linux 5.14 and later tell them apart)",
        );
    }
    if arguments.format == Format::Json {
        let rows = restored
            .settings
            .iter()
            .map(|(setting, fate)| json!({ "setting": setting.to_string(), "fate": fate }));
        print_json(&json!(rows.collect::<Vec<_>>()))?;
    } else if !path.exists() {
        // Name the file, so that a mistyped path is not taken for a restored host.
        print(&format!("Nothing to restore: there is no journal {}.\n", display_path(&path)))?;
    } else {
        print(&text(&restored))?;
    }
    Ok(if restored.is_whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One line per setting that was not restored, and a total.
pub fn text(restored: &Restored) -> String {
    let mut text = String::new();
    let (mut restored_count, mut unchanged_count, mut ended_count) = (0, 0, 0);
    for (setting, fate) in &restored.settings {
        match fate {
            RestoreOutcome::Restored => restored_count += 1,
            RestoreOutcome::AsBefore => unchanged_count += 1,
            RestoreOutcome::Ended => ended_count += 1,
            RestoreOutcome::Gone { was } => text.push_str(&format!(
                "{setting}: not restored: it no longer exists here, and was `{was}`; the journal keeps it. If its interface moved to another \
                 network namespace, first restore the setting there by hand. `longma affinity restore --forget-gone` removes it from the journal\n"
            )),
            RestoreOutcome::LeftBehind { found, of, was } => text.push_str(&format!(
                "{setting}: left unchanged: it has the CPUs `{found}`, which process {of} was given before it ended; if that \
                 process started it: {}\n",
                match setting {
                    Setting::Thread { process, .. } => format!("`taskset --all-tasks --cpu-list --pid {was} {process}`"),
                    _ => format!("bind it to CPUs {was}"),
                }
            )),
            RestoreOutcome::Foreign { found } => {
                text.push_str(&format!("{setting}: another program changed it to `{found}`: left unchanged\n"));
            }
            RestoreOutcome::Failed { why } => {
                text.push_str(&format!("{setting}: not restored: {why}; the journal keeps it\n"))
            }
        }
    }
    if restored.settings.is_empty() {
        return "Nothing to restore.\n".into();
    }
    let plural =
        |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { " is" } else { "s are" });
    let mut counts = vec![format!("{} restored", plural(restored_count, "setting"))];
    counts.extend((unchanged_count > 0).then(|| format!("{unchanged_count} had their original values")));
    counts.extend((ended_count > 0).then(|| format!("{ended_count} no longer exist")));
    format!("{text}{}.\n", counts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_left_behind_is_named_with_the_command_that_binds_it() {
        let thread = Setting::Thread { process: 24900, thread: 24900, started: 1 };
        let outcome = RestoreOutcome::LeftBehind { found: "0".into(), of: 24793, was: "0-1".into() };
        let text = text(&Restored { settings: vec![(thread, outcome)], may_be_another: false });
        assert!(text.contains("started it: `taskset --all-tasks --cpu-list --pid 0-1 24900`"), "{text}");
    }
}
