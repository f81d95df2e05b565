//! `longma affinity check`: prints conditions that would disturb a sweep, with advice, from
//! `longma_affinity::preflight`.

use super::record::TreeOption;
use super::terminal::{print, print_json};
use super::{Format, Outcome, chosen, interface, width};
use crate::experiment::columns::rows as fitted;
use longma_affinity::counters::Reading;
use longma_affinity::host::{Host, Tree};
use longma_affinity::preflight::{Finding, Severity, check};
use longma_affinity::setting::Interface;
use longma_text::display_path;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Arguments {
    /// The interface [default: the only one that is up and has a device].
    #[arg(long, value_name = "NAME", value_parser = interface)]
    interface: Option<Interface>,
    /// Check a recorded tree of another host, with its proc and sys directories.
    #[arg(long, value_name = "FOLDER", conflicts_with = "tree")]
    root: Option<PathBuf>,
    #[command(flatten)]
    tree: TreeOption,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// How long to observe the load of other processes.
const LOAD_INTERVAL: Duration = Duration::from_millis(500);

pub fn run(arguments: &Arguments) -> Outcome {
    let recording = arguments.tree.open()?;
    if let Some(folder) = arguments.root.as_ref().filter(|folder| !folder.is_dir()) {
        return Err(format!("--root {}: there is no such folder", display_path(folder)).into());
    }
    if let Some(folder) = arguments.root.as_ref().filter(|folder| folder.join("recording.json").exists()) {
        return Err(format!(
            "--root {}: it is an unpacked recording: give its tar file to --tree",
            display_path(folder)
        )
        .into());
    }
    let tree = arguments.root.as_ref().map_or_else(Tree::live, Tree::recorded);
    let host: &dyn Host = recording.as_ref().map_or(&tree as &dyn Host, |recording| recording);
    let chosen = chosen(host, arguments.interface.as_ref());
    let name = chosen.as_ref().ok();
    let findings = if let Some(recording) = &recording {
        recording.check(name)
    } else if arguments.root.is_some() {
        check(host, name, None)
    } else {
        let before = Reading::now(host);
        std::thread::sleep(LOAD_INTERVAL);
        check(host, name, Some((&before, &Reading::now(host))))
    };
    if let Some(file) = tree.unreadable() {
        return Err(format!("{}: {}", display_path(&file.path), file.why).into());
    }
    if arguments.format == Format::Json {
        print_json(&json!(findings))?;
    } else {
        let mut text = text(&findings, width());
        if let Err(why) = &chosen {
            text.push_str(&wrapped("", &format!("No interface was checked: {why}."), width()));
        }
        print(&text)?;
    }
    let prevented = findings.iter().any(|finding| finding.weight == Severity::Prevents);
    Ok(if prevented { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// One line per finding, and one for the advice.
fn text(findings: &[Finding], width: usize) -> String {
    let mut text = String::new();
    for finding in findings {
        let label = format!("{:10}{:14}", word(finding.weight), finding.subject);
        text.push_str(&wrapped(&label, &finding.found, width));
        if let Some(advice) = &finding.advice {
            text.push_str(&wrapped(&" ".repeat(24), &format!("→ {advice}"), width));
        }
    }
    let count = |weight| findings.iter().filter(|finding| finding.weight == weight).count();
    let (prevents, disturbs) = (count(Severity::Prevents), count(Severity::Disturbs));
    text.push_str(&match (prevents, disturbs) {
        (0, 0) => "No setting of this host would disturb a sweep.\n".to_string(),
        (0, some) => format!("A sweep is possible; {some} of these would disturb it.\n"),
        (some, _) => format!("No sweep is possible here: {some} of these prevent it.\n"),
    });
    text
}

fn word(weight: Severity) -> &'static str {
    match weight {
        Severity::Good => "good",
        Severity::Note => "note",
        Severity::Disturbs => "disturbs",
        Severity::Prevents => "PREVENTS",
    }
}

/// Smallest width for text to the right of a label, in characters.
const MIN_TEXT_WIDTH: usize = 20;
/// Indentation of text that is printed below its label.
const INDENT: &str = "  ";

/// Prints text to the right of a label, wrapped to `width` columns and aligned; below the label if the space is too
/// narrow.
pub fn wrapped(label: &str, words: &str, width: usize) -> String {
    if label.len() > INDENT.len() && label.chars().count() + MIN_TEXT_WIDTH > width {
        let above = label.split_whitespace().collect::<Vec<_>>().join(" ");
        let above = if above.is_empty() { String::new() } else { above + "\n" };
        return above + &wrapped(INDENT, words, width);
    }
    let indent = label.chars().count();
    let mut text = String::new();
    let mut line = label.to_string();
    let mut has_words = false;
    for word in words.split_whitespace() {
        if has_words && line.chars().count() + 1 + word.chars().count() > width {
            text.push_str(line.trim_end());
            text.push('\n');
            line = " ".repeat(indent);
            has_words = false;
        }
        if has_words {
            line.push(' ');
        }
        line.push_str(word);
        has_words = true;
    }
    text + line.trim_end() + "\n"
}

/// Prints rows as aligned columns; the last column is wrapped to `width`.
pub fn listed(rows: &[Vec<String>], width: usize) -> String {
    let mut heads: Vec<Vec<String>> = rows.to_vec();
    let last: Vec<String> = heads.iter_mut().map(|row| row.pop().unwrap_or_default()).collect();
    let wide =
        |column: usize| heads.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let columns = heads.first().map_or(0, Vec::len);
    let label_width: usize = (0..columns).map(|column| wide(column).unwrap_or(0) + 2).sum();
    if label_width + MIN_TEXT_WIDTH > width {
        return stacked(&heads, &last, width);
    }
    let line = |(head, last): (&Vec<String>, &String)| {
        let cells = head
            .iter()
            .enumerate()
            .map(|(column, cell)| format!("{cell:w$}  ", w = wide(column).unwrap_or(0)));
        wrapped(&cells.collect::<String>(), last, width)
    };
    heads.iter().zip(&last).map(line).collect()
}

/// The layout for narrow terminals: the columns without the last, followed by one line of text per row.
fn stacked(heads: &[Vec<String>], last: &[String], width: usize) -> String {
    let ([names, rows @ ..], [what, words @ ..]) = (heads, last) else { return String::new() };
    let headings: Vec<(&str, &str)> = names.iter().map(|name| (name.trim(), "")).collect();
    let cells: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| cell.trim().into()).collect()).collect();
    let first = names.first().map_or("", |name| name.trim());
    let line = |(row, words): (&Vec<String>, &String)| {
        let of = row.first().map_or("", |cell| cell.trim());
        wrapped("", &format!("{first} {of}, {what}: {words}"), width)
    };
    fitted(&headings, 1, &cells, width) + &rows.iter().zip(words).map(line).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_fits_into_eighty_columns() {
        let long = "word ".repeat(60);
        let finding = Finding {
            subject: "offline CPUs",
            weight: Severity::Disturbs,
            found: long.clone(),
            advice: Some(long),
        };
        let text = text(&[finding], 80);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("1 of these would disturb it"));
    }

    #[test]
    fn columns_and_text_fit_forty_columns_completely() {
        let row = |words: [&str; 6]| words.map(String::from).to_vec();
        let rows = [
            row(["CPU", "SOCKET", "SHARES CACHE WITH", "BUSY", "NET_RX/s", "TAKES FROM"]),
            row(["0", "0", "0-11", " 12 %", "   80000", "irq 38, irq 39, rps rx-0"]),
            row(["1", "0", "0-11", "100 %", "       0", "-"]),
        ];
        let narrow = listed(&rows, 40);
        assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
        for cell in rows[1..].iter().flatten().flat_map(|cell| cell.split_whitespace()) {
            assert!(narrow.contains(cell), "{cell} in {narrow}");
        }
        let label = format!("{:10}{:14}", "disturbs", "offline CPUs");
        assert_eq!(
            wrapped(&label, "CPUs 2-3 are offline", 40),
            "disturbs offline CPUs\n  CPUs 2-3 are offline\n"
        );
        assert_eq!(wrapped(&" ".repeat(24), "→ online", 40), "  → online\n");
    }
}
