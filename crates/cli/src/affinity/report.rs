//! `longma affinity report`: prints the results of a sweep as text or JSON, or writes an HTML page.

use super::check::{listed, wrapped};
use super::terminal::{self, print as put, print_json};
use super::{Format, Outcome, matrix, modelled, page, variants, width};
use crate::experiment::columns::rows as fitted;
use longma_affinity::analysis::{Analysis, ClassResult};
use longma_affinity::load::Load;
use longma_affinity::sweep::{Header, Results};
use longma_affinity::vary::Variant;
use longma_text::{display_path, sanitize_lines};
use serde_json::json;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Arguments {
    /// The results file.
    #[arg(value_name = "FILE", default_value = "affinity.jsonl")]
    file: PathBuf,
    /// Also write an HTML page with the matrix, a heat map per cost, and effects and classes with their intervals.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let (file, html) = (&arguments.file, arguments.html.as_deref());
    if let Some(code) = modelled::report(file, html, arguments.format)? {
        return Ok(code);
    }
    let results = Results::read(file)?;
    terminal::warn_truncated(file, results.is_cut);
    // Print the report before the page: if there is no result to draw, the report states the reason.
    let code = print(&results, arguments.format)?;
    if let Some(path) = html {
        write_page(path, Some(file), &page::page(&results, file)?)?;
    }
    Ok(code)
}

/// Writes an HTML page to `path`, unless that is the results file.
pub fn write_page(path: &Path, results: Option<&Path>, page: &str) -> Result<(), String> {
    check_page(path, results)?;
    longma_lab::write_atomically(path, sanitize_lines(page).as_bytes())
        .map_err(|error| format!("cannot write {}: {error}", display_path(path)))
}

/// Rejects a page that would overwrite the results file, or whose folder does not exist.
pub fn check_page(path: &Path, results: Option<&Path>) -> Result<(), String> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return Err(format!("--html {}: there is no folder {}", display_path(path), display_path(folder)));
    }
    match results.is_some_and(|results| path == results || is_one_file(path, results)) {
        false => Ok(()),
        true => Err(format!(
            "--html: {} is the results file, which the page would overwrite: name another file",
            display_path(path)
        )),
    }
}

/// Whether both paths name the same existing file, after following links.
fn is_one_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| std::fs::metadata(path).map(|facts| (facts.dev(), facts.ino()));
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}

/// Prints the results of a sweep.
pub fn print(results: &Results, format: Format) -> Outcome {
    if let Some(nothing) = results.nothing() {
        terminal::warn(&format!(
            "{nothing}; fix the cause and repeat the sweep's command, which runs the missing pairs"
        ));
    }
    let by_variant: Vec<(Variant, Analysis)> = results
        .variants()
        .into_iter()
        .map(|variant| (variant.clone(), Analysis::of(&results.of(&variant))))
        .collect();
    if by_variant.len() > 1 {
        return variants::print(results, &by_variant, format);
    }
    let analysis = Analysis::of(results);
    match format {
        Format::Json => print_json(&json!({ "sweep": results.header, "analysis": analysis })),
        Format::Table => put(&text(&results.header, &analysis, width())),
    }?;
    Ok(if analysis.pairs.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Describes the swept host and the load in two lines.
pub fn setting(header: &Header) -> [String; 2] {
    let load = match &header.load {
        Load::Command(words) => words.join(" "),
        Load::Iperf(iperf) => {
            let mut words = vec![if iperf.udp { "iperf3 UDP" } else { "iperf3 TCP" }.to_string()];
            words.extend(iperf.zero_copy.then(|| "zero-copy".into()));
            words.push(if iperf.reverse { "received here" } else { "sent here" }.into());
            words.push(format!("{} flow{}", iperf.flows, if iperf.flows == 1 { "" } else { "s" }));
            words.join(", ")
        }
    };
    let sender = header.sender.as_ref().map_or(String::new(), |cpus| format!("; sender on CPU {cpus}"));
    let mtu = header.nic.mtu.map_or(String::new(), |mtu| format!(", MTU {mtu}"));
    [
        format!("{} CPUs, {}, Linux {}", header.places.len(), header.processor, header.kernel),
        format!("{load}, {} s a run{mtu}; flows steered by {}{sender}", header.seconds, header.steering),
    ]
}

/// The report, wrapped to `width` columns where words allow it.
pub fn text(header: &Header, analysis: &Analysis, width: usize) -> String {
    let mut text = String::new();
    for line in setting(header) {
        text.push_str(&wrapped("", &line, width));
    }
    let Some(best) = analysis.best() else {
        return text + "\nNo run has a result.\n" + &notes(analysis, width);
    };
    let (pair, runs) = (best.pair, best.gbps.len());
    let plural = if runs == 1 { "" } else { "s" };
    let words = format!(
        "Throughput by pair, medians of {runs} run{plural}; best: flow on CPU {}, application on CPU {}: {:.2} Gb/s, {} lost",
        pair.flow,
        pair.application,
        best.median_gbps,
        percent(best.loss)
    );
    text.push_str(&format!("\n{}\n", wrapped("", &words, width)));
    text.push_str(&matrix::text(&analysis.pairs, width));
    text.push_str("\nClasses\n");
    text.push_str(&listed(&classes(&analysis.classes), width));
    text.push_str("\nBottlenecks\n");
    for class in &analysis.classes {
        let words = format!("{}: {}", class.bottleneck.limit.words(), class.bottleneck.evidence);
        text.push_str(&wrapped(&format!("{:14}", class.class), &words, width));
    }
    text.push('\n');
    text.push_str(&wrapped(
        "",
        "Costs, medians: of the CPUs of the pair; squeezes and backlog drops of the host",
        width,
    ));
    text.push_str(&costs(analysis, width));
    text + &notes(analysis, width)
}

fn notes(analysis: &Analysis, width: usize) -> String {
    analysis.remarks.iter().map(|remark| wrapped("note: ", remark, width)).collect()
}

/// A lost fraction in percent.
pub fn percent(loss: f64) -> String {
    match loss * 100.0 {
        none if none <= 0.0 => "0 %".into(),
        little if little < 0.01 => "<0.01 %".into(),
        some => format!("{some:.2} %"),
    }
}

fn classes(classes: &[ClassResult]) -> Vec<Vec<String>> {
    let row = |class: &ClassResult| {
        let half = class.gbps.half.map_or("-".into(), |half| format!("{half:.2}"));
        let over = if class.over_pairs { "pairs" } else { "runs" };
        vec![
            class.class.word().into(),
            format!("{:>5}", class.pairs),
            format!("{:>4}", class.runs),
            format!("{:>7.2}", class.gbps.mean),
            format!("{half:>6}"),
            format!("{:>7}", percent(class.loss)),
            over.into(),
            class.class.meaning().into(),
        ]
    };
    let head = ["CLASS", "PAIRS", "RUNS", "   Gb/s", "± 95 %", "   LOST", "OVER", "WHAT IT IS"]
        .map(String::from)
        .to_vec();
    std::iter::once(head).chain(classes.iter().map(row)).collect()
}

fn costs(analysis: &Analysis, width: usize) -> String {
    let counted = analysis.counted_costs();
    let mut headings = vec![("COST", ""), ("UNIT", "")];
    headings.extend(analysis.classes.iter().map(|class| (class.class.word(), "")));
    let row = |cost: &longma_affinity::analysis::Cost| {
        let mut row = vec![cost.0.to_string(), cost.1.into()];
        let value = |class: &ClassResult| (cost.2)(&class.costs).map_or("-".into(), longma_lab::number);
        row.extend(analysis.classes.iter().map(value));
        row
    };
    fitted(&headings, 2, &counted.iter().map(row).collect::<Vec<_>>(), width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::matrix::tests::{made_up, pairs};
    use longma_affinity::pairs::Class;

    /// All five classes, as on hosts with hardware threads and several last-level caches.
    #[test]
    fn a_report_of_every_class_fits_too() {
        let mut results = made_up(&pairs(12));
        for (index, sample) in results.samples.iter_mut().enumerate() {
            sample.class = Class::ALL[index % Class::ALL.len()];
        }
        let text = text(&results.header, &Analysis::of(&results), 80);
        let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "{long:#?}");
        assert!(Class::ALL.iter().all(|class| text.contains(class.word())), "{text}");
    }

    #[test]
    fn a_report_fits_into_forty_columns() {
        let results = made_up(&pairs(2));
        let text = text(&results.header, &Analysis::of(&results), 40);
        let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 40).collect();
        assert!(long.is_empty(), "{long:#?}");
        // The text may be wrapped between any two words.
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("same-cpu") && words.contains("one CPU for both"), "{text}");
    }

    #[test]
    fn a_report_of_144_pairs_fits_into_eighty_columns() {
        let results = made_up(&pairs(12));
        let text = text(&results.header, &Analysis::of(&results), 80);
        let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "{long:#?}");
        assert!(text.contains("shared-cache") && text.contains("same-cpu"), "{text}");
    }
}
