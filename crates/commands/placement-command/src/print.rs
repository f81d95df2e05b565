//! Output of the placement commands: lines and tables that fit the terminal, with control characters removed.

use super::Outcome;
use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use longma_command_line::output::{columns, print};
use longma_placement::placement::Placement;
use longma_placement::store::Vm;
use longma_text::{escape_json, sanitize};
use serde::Serialize;
use std::error::Error;
use std::io::IsTerminal;
use textwrap::{Options, WordSeparator, WordSplitter};

/// Columns between two table columns.
const GAP: u16 = 2;

/// The output of a command. Names and reasons may come from other tenants, agents and hypervisors, so every text is
/// stripped of control characters. Output to a pipe is not wrapped.
#[derive(Debug)]
pub struct Page {
    text: String,
    width: usize,
}

impl Page {
    /// An empty page as wide as the terminal.
    pub fn new() -> Self {
        Self::of_width(if std::io::stdout().is_terminal() { columns().max(1) } else { usize::MAX })
    }

    fn of_width(width: usize) -> Self {
        Self { text: String::new(), width }
    }

    /// Adds a line. Wrapped lines are indented by two more columns.
    pub fn line(&mut self, text: &str) {
        let text = sanitize(text);
        if self.width == usize::MAX {
            return self.put(&text);
        }
        let (indent, words) = text.split_at(text.len() - text.trim_start().len());
        let below = format!("{indent}  ");
        let options = Options::new(self.width)
            .initial_indent(indent)
            .subsequent_indent(&below)
            .word_separator(WordSeparator::AsciiSpace)
            .word_splitter(WordSplitter::NoHyphenation);
        for line in textwrap::wrap(words, options) {
            self.put(&line);
        }
    }

    /// Adds a command for the user to copy; it is never wrapped.
    pub fn command(&mut self, text: &str) {
        let text = sanitize(text);
        self.put(&text);
    }

    /// Adds a table whose first row holds the headings. Cells that are too wide are wrapped within their column.
    pub fn table(&mut self, rows: &[Vec<String>]) {
        let mut table = Table::new();
        table.load_style(NOTHING);
        if let Ok(width) = u16::try_from(self.width) {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
        for row in rows {
            table.add_row(row.iter().map(|text| sanitize(text)));
        }
        let last = table.column_count().saturating_sub(1);
        for (at, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, if at == last { 0 } else { GAP }));
        }
        for line in table.lines() {
            self.put(&line);
        }
    }

    fn put(&mut self, line: &str) {
        self.text += line.trim_end();
        self.text.push('\n');
    }

    /// The text so far.
    #[cfg(test)]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Prints the page to standard output.
    pub fn print(&self) -> Outcome {
        print(&self.text)
    }
}

/// Prints one line.
pub fn print_line(line: &str) -> Outcome {
    let mut page = Page::new();
    page.line(line);
    page.print()
}

/// Prints a line for the user to copy; it is never wrapped.
pub fn command(line: &str) -> Outcome {
    let mut page = Page::new();
    page.command(line);
    page.print()
}

/// Prints a table.
pub fn table(rows: &[Vec<String>]) -> Outcome {
    let mut page = Page::new();
    page.table(rows);
    page.print()
}

/// Makes a row of headings.
pub fn heading<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(String::from).to_vec()
}

/// Prints the service's answer as indented JSON.
pub fn json(value: &impl Serialize) -> super::Outcome {
    let value = serde_json::to_value(value).map_err(Box::<dyn Error>::from)?;
    print(&format!("{}\n", escape_json(&format!("{value:#}"))))
}

/// Prints JSON on one line.
pub fn json_line(value: &impl Serialize) -> Outcome {
    let text = serde_json::to_string(value).map_err(Box::<dyn Error>::from)?;
    print(&format!("{}\n", escape_json(&text)))
}

/// Formats an amount of memory given in MiB.
pub fn mib(mib: u64) -> String {
    match mib {
        0..1024 => format!("{mib} MiB"),
        _ if mib.is_multiple_of(1024) => format!("{} GiB", mib / 1024),
        _ => format!("{:.1} GiB", mib as f64 / 1024.0),
    }
}

/// Formats a fraction as a percentage.
pub fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// Formats items as a comma-separated list; an empty list is `-`.
pub fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|i| i.to_string()).collect();
    if items.is_empty() { "-".into() } else { items.join(",") }
}

/// The name of an enum variant as in the API.
pub fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(serde_json::Value::Object(object)) => object.keys().next().cloned().unwrap_or_default(),
        _ => String::new(),
    }
}

/// Formats the nodes of a placement.
pub fn nodes(placement: &Placement) -> String {
    list(placement.cells.iter().map(|c| c.node))
}

/// Formats the host and the nodes of a virtual machine.
pub fn location(vm: &Vm) -> (String, String) {
    let Some(placement) = &vm.placement else { return ("-".into(), "-".into()) };
    let nodes = match &vm.target {
        Some(target) if target.host != placement.host => {
            format!("{} to {}, {}", nodes(placement), target.host, self::nodes(target))
        }
        Some(target) => format!("{} to {}", nodes(placement), self::nodes(target)),
        None => nodes(placement),
    };
    (placement.host.clone(), nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn width(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
    }

    #[test]
    fn long_cells_and_lines_are_wrapped_completely() {
        let why = "a very long text that has no room beside the other columns";
        let rows = vec![heading(["ID", "WHAT"]), vec!["1".into(), why.into()], vec!["2".into(), "b".into()]];
        let mut page = Page::of_width(20);
        page.table(&rows);
        page.line("  h1: a problem that is longer than the terminal is wide");
        assert!(width(&page.text) <= 20, "{}", page.text);
        let words = page.text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(why) && words.contains("longer than the terminal is wide"), "{words}");
        let mut wide = Page::of_width(usize::MAX);
        wide.table(&rows);
        assert_eq!(wide.text, format!("ID  WHAT\n1   {why}\n2   b\n"));
    }

    #[test]
    fn names_cannot_control_the_terminal() {
        let name = "x\u{1b}[2J\u{9b}31m\u{202e}\u{7}\nh1: all is well";
        let mut page = Page::of_width(80);
        page.table(&[heading(["NAME"]), vec![name.into()]]);
        page.line(name);
        page.command(name);
        assert!(!page.text.contains(['\u{1b}', '\u{9b}', '\u{202e}', '\u{7}']), "{:?}", page.text);
        assert_eq!(page.text.lines().count(), 4, "no line of its own: {}", page.text);
        let json = escape_json(&serde_json::to_string_pretty(&[name]).unwrap());
        assert!(!json.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{json:?}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&json).unwrap(), [name]);
    }

    #[test]
    fn memory_is_printed_in_mib_or_gib() {
        assert_eq!([mib(512), mib(2048), mib(1536)], ["512 MiB", "2 GiB", "1.5 GiB"]);
    }
}
