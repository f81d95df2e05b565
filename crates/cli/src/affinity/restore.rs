//! `longma affinity restore`: restores settings that a killed sweep or `tune` left changed, from the journal.

use super::terminal::{self, print, print_json};
use super::{Format, JournalOption, Outcome};
use longma_affinity::host::Tree;
use longma_affinity::journal::{Journal, RestoreOutcome, Restored};
use longma_text::display_path;
use serde_json::json;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    journal: JournalOption,
    /// Drop settings of interfaces that no longer exist in this network namespace.
    ///
    /// Use this for interfaces that were removed, not for ones that were moved to another namespace.
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
    let (mut put_back, mut as_before, mut ended) = (0, 0, 0);
    for (setting, fate) in &restored.settings {
        match fate {
            RestoreOutcome::Restored => put_back += 1,
            RestoreOutcome::AsBefore => as_before += 1,
            RestoreOutcome::Ended => ended += 1,
            RestoreOutcome::Gone { was } => text.push_str(&format!(
                "{setting}: not restored: it no longer exists here, and was `{was}`; the journal keeps it. If its interface was moved to another \
                 network namespace, restore the setting there manually; then, or if it was removed, `longma affinity restore --forget-gone` drops it\n"
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
    let mut sums = vec![format!("{} restored", plural(put_back, "setting"))];
    sums.extend((as_before > 0).then(|| format!("{as_before} had their original values")));
    sums.extend((ended > 0).then(|| format!("{ended} no longer exist")));
    format!("{text}{}.\n", sums.join(", "))
}
