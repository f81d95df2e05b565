//! `longma affinity restore`: puts back what a killed sweep left changed.
//! Not how: that is `journal`.

use super::{Format, JournalOption, Outcome};
use crate::machine::{print, print_json};
use longma_affinity::host::Tree;
use longma_affinity::journal::{Fate, Journal, Restored};
use serde_json::json;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    journal: JournalOption,
    /// How to print.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let host = Tree::live();
    let restored = Journal::recover(&arguments.journal.path(), &host)?.unwrap_or_default();
    if restored.may_be_another && !restored.settings.is_empty() {
        eprintln!(
            "longma: only its inode number says that this is the network namespace of the journal: another has that number once its own is \
             gone (Linux 5.14 and later tell them apart)"
        );
    }
    if arguments.format == Format::Json {
        let rows = restored
            .settings
            .iter()
            .map(|(setting, fate)| json!({ "setting": setting.to_string(), "fate": fate }));
        print_json(&json!(rows.collect::<Vec<_>>()))?;
    } else {
        print(&text(&restored))?;
    }
    Ok(if restored.is_whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A line for each setting that is not as it was, and a sum.
pub fn text(restored: &Restored) -> String {
    let mut text = String::new();
    let mut put_back = 0;
    for (setting, fate) in &restored.settings {
        match fate {
            Fate::Restored => put_back += 1,
            Fate::Gone => text.push_str(&format!("{setting}: gone, nothing to put back\n")),
            Fate::Foreign { found } => {
                text.push_str(&format!("{setting}: somebody else made it `{found}`: left alone\n"));
            }
            Fate::Failed { why } => {
                text.push_str(&format!("{setting}: not put back: {why}; the journal keeps it\n"))
            }
        }
    }
    let plural = if put_back == 1 { "setting is" } else { "settings are" };
    match restored.settings.is_empty() {
        true => "There is nothing to put back.\n".into(),
        false => format!("{text}{put_back} {plural} as before.\n"),
    }
}
