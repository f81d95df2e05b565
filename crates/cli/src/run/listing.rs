//! Prints translated code next to its source instructions, with execution counts.

use std::collections::HashMap;
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::PathBuf;

use longma_runner::listing::{Line, ListedUnit, Word};

use longma_run_results::grouped;

/// Options of the listing of translated code.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Number of translation units to print, most executed first.
    #[arg(long, value_name = "N", default_value_t = 1)]
    units: usize,

    /// Omit lines that ran less often than this percentage of the most frequent line of their unit.
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    threshold: f64,

    /// Print the kinds of instructions with the largest overhead, instead of units.
    #[arg(long)]
    kinds: bool,

    /// Print to this file instead of standard error.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Options {
    /// The output file, if given.
    pub fn file(&self) -> Option<&PathBuf> {
        self.out.as_ref()
    }

    /// The listing; `None` without translated code.
    pub fn text(&self, units: &[ListedUnit]) -> Option<String> {
        if units.is_empty() {
            return None;
        }
        let colours = self.out.is_none()
            && std::io::stderr().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let mut text = String::new();
        if self.kinds {
            kinds(units, &mut text);
        } else {
            for unit in units.iter().take(self.units) {
                self.unit(unit, colours, &mut text);
            }
        }
        text.truncate(text.trim_end().len());
        Some(text)
    }

    fn unit(&self, unit: &ListedUnit, colours: bool, text: &mut String) {
        let source: u64 = unit.lines.iter().map(|line| line.runs).sum();
        let _ = writeln!(
            text,
            "{} LoongArch instructions for {} source instructions: ratio {:.3}",
            grouped(unit.executed),
            grouped(source),
            unit.executed as f64 / source.max(1) as f64
        );
        let runs = |line: &Line| line.words.iter().map(|word| word.runs).fold(line.runs, u64::max);
        let hottest = unit.lines.iter().map(runs).max().unwrap_or(0);
        let paint = |code: &str, part: String| {
            if colours { format!("\x1b[{code}m{part}\x1b[0m") } else { part }
        };
        let mut omitted = false;
        for line in &unit.lines {
            if runs(line) == 0 || (runs(line) as f64) < hottest as f64 * self.threshold / 100.0 {
                omitted = true;
                continue;
            }
            if std::mem::take(&mut omitted) {
                let _ = writeln!(text, "{:>14}", "...");
            }
            let source = format!("{:>14} {:>10x}  {:<44}", grouped(line.runs), line.pc, line.text);
            let source = paint("36", source);
            let mut words = line.words.iter();
            let shown = |word: &Word| {
                let text = format!("{:>14}  {}", grouped(word.runs), word.text);
                if word.runs == 0 { paint("2", text) } else { text }
            };
            let first = words.next().map(shown).unwrap_or_default();
            let _ = writeln!(text, "{}", format!("{source} {first}").trim_end());
            for word in words {
                let _ = writeln!(text, "{:70} {}", "", shown(word));
            }
        }
        text.push('\n');
    }
}

/// Maximum number of kinds printed.
const KINDS: usize = 60;

fn kinds(units: &[ListedUnit], text: &mut String) {
    let mut sums: HashMap<&str, (u64, u64)> = HashMap::new();
    for line in units.iter().flat_map(|unit| &unit.lines) {
        let sum = sums.entry(&line.kind).or_default();
        sum.0 += line.runs;
        sum.1 += line.executed();
    }
    let source: u64 = sums.values().map(|sum| sum.0).sum();
    let mut sums: Vec<_> = sums.into_iter().filter(|(_, sum)| sum.0 + sum.1 > 0).collect();
    let excess = |sum: &(u64, u64)| sum.1 as i64 - sum.0 as i64;
    sums.sort_by(|a, b| excess(&b.1).cmp(&excess(&a.1)).then(a.0.cmp(b.0)));
    let executed: u64 = units.iter().map(|unit| unit.executed).sum();
    let _ = writeln!(
        text,
        "{} LoongArch instructions for {} source instructions: ratio {:.3}\n",
        grouped(executed),
        grouped(source),
        executed as f64 / source.max(1) as f64
    );
    let _ = writeln!(text, "{:>16} {:>16} {:>8} {:>8}  kind", "executed", "LoongArch", "ratio", "excess");
    for (kind, sum) in sums.iter().take(KINDS) {
        let _ = writeln!(
            text,
            "{:>16} {:>16} {:>8.2} {:>6.1} %  {kind}",
            grouped(sum.0),
            grouped(sum.1),
            sum.1 as f64 / sum.0.max(1) as f64,
            100.0 * excess(sum) as f64 / source.max(1) as f64
        );
    }
}
