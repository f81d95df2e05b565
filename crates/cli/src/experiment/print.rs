//! Formats experiments, results and comparisons as text and JSON.

use super::find::{Experiments, Origin};
use super::{Format, Outcome, VERSION, Which, figures, find, status};
use longma_command_line::output::{self, columns, has_colour, print_json, table as lay_out};
use longma_lab::{
    Campaign, Chapter, Experiment, Registry, Results, Table, Verdict, compare as compare_with_published,
    page, write_atomically,
};
use longma_text::{is_control_or_invisible, sanitize, sanitize_lines};
use serde_json::{Value, json};
use std::fmt::{Display, Write as _};
use std::path::Path;

/// Prints to standard output. Names and titles in experiment files may contain control sequences for terminals.
pub fn show(text: &str) -> Outcome {
    output::print(&sanitize_lines(text))
}

/// Prints a message to standard error.
pub fn warn(message: &dyn Display) {
    eprintln!("longma: {}", sanitize_lines(&message.to_string()));
}

/// Indents all lines except the first. A program's message cannot look like lines of this command.
fn indent(text: &str) -> String {
    text.replace('\n', "\n  ")
}

/// Formats rows as a table whose last `right` columns are right-aligned.
pub fn table(mut rows: Vec<Vec<String>>, right: usize) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    for column in count.saturating_sub(right)..count {
        let width =
            rows.iter().filter_map(|r| r.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0);
        for cell in rows.iter_mut().filter_map(|row| row.get_mut(column)) {
            *cell = format!("{cell:>width$}");
        }
    }
    lay_out(&rows)
}

pub fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(String::from).to_vec()
}

/// `longma experiment list`
pub fn list(folder: Option<&Path>, built_in: bool, registry: &Registry, format: Format) -> Outcome {
    let Experiments { origin, files } = Experiments::of(folder, built_in)?;
    let built_in = matches!(origin, Origin::BuiltIn);
    let (mut rows, mut objects, mut broken) =
        (vec![row(["NAME", "POINTS", "QUICK", "PUBLISHED", "WHAT IS MEASURED"])], Vec::new(), false);
    for path in files {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        // A built-in experiment may be extracted to a temporary directory, and its name is enough to run it.
        let file = (!built_in).then_some(&path);
        let opened = Experiment::open(&path, registry).map_err(|error| error.to_string());
        let counted = opened.and_then(|experiment| {
            let count = |quick| experiment.count_points(quick, registry, VERSION);
            let counts =
                count(false).and_then(|all| Ok((all, count(true)?))).map_err(|error| error.to_string())?;
            Ok((counts, experiment))
        });
        match counted {
            Ok(((all, quick), experiment)) => {
                let parts = experiment.parts();
                let published: usize = parts.published.iter().map(longma_lab::Published::count).sum();
                let published_text = if published == 0 { "-".into() } else { published.to_string() };
                rows.push(row([&name, &all.to_string(), &quick.to_string(), &published_text, &parts.title]));
                objects.push(json!({ "name": name, "file": file, "built_in": built_in, "title": parts.title, "points": all, "quick_points": quick, "published": published }));
            }
            Err(error) => {
                broken = true;
                rows.push(row([&name, "-", "-", "-", &format!("cannot be run: {error}")]));
                objects.push(json!({ "name": name, "file": file, "built_in": built_in, "error": error }));
            }
        }
    }
    let printed = if format == Format::Json { print_json(&json!(objects)) } else { show(&lay_out(&rows)) };
    eprintln!("{}", sanitize_lines(&describe_origin(&origin)));
    printed.map(|_| status::ended(false, broken, false))
}

/// Describes where the listed experiments come from, and how to list others.
fn describe_origin(origin: &Origin) -> String {
    match origin {
        Origin::Given(folder) => format!("These experiments are in {}.", folder.display()),
        Origin::Nearest(folder) => format!(
            "These experiments are in {}, which comes before those built into longma (--built-in lists them).",
            folder.display()
        ),
        Origin::BuiltIn => {
            "These experiments are built into longma. A folder `experiments` here or above comes before them."
                .into()
        }
    }
}

/// `longma experiment check`
pub fn check(which: &Which, file_only: bool, registry: &Registry, format: Format) -> Outcome {
    let (mut text, mut objects, mut failed) = (String::new(), Vec::new(), false);
    for path in find::requested_files(which)? {
        let content = std::fs::read_to_string(&path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let folder =
            which.paths_from.clone().unwrap_or_else(|| path.parent().unwrap_or(Path::new("")).into());
        let checked = if file_only {
            Experiment::check(&path, &folder, &content, registry)
        } else {
            Experiment::check_thoroughly(&path, &folder, &content, registry, VERSION)
        };
        failed |= checked.experiment.is_none();
        objects.extend(checked.report.located().iter().map(|problem| json!(problem)));
        // Colours are control sequences too, so a file that contains control sequences is shown without colours.
        let colour = has_colour() && !content.chars().any(|c| c != '\n' && is_control_or_invisible(c));
        let (rendered, summary) = (checked.report.render(columns(), colour), checked.report.to_string());
        text.push_str(&if colour { rendered } else { sanitize_lines(&rendered) });
        let _ = writeln!(text, "{}", sanitize_lines(&summary));
    }
    let printed = if format == Format::Json { print_json(&json!(objects)) } else { output::print(&text) };
    printed.map(|_| status::ended(false, failed, false))
}

/// Reports damage and contradictions in a store on standard error.
pub fn report_store_problems(results: &Results) {
    results.damage.iter().for_each(|damage| warn(damage));
    for contradiction in &results.contradictions {
        // Names of metrics come from the store, which others may have written.
        warn(&sanitize(&format!("{contradiction}; the first of each is used")));
    }
}

/// Reports points that failed because of the host on standard error.
pub fn report_faults(outcome: &longma_lab::Outcome) {
    /// Maximum number of faults shown. Points often fail for the same reason.
    const SHOWN: usize = 5;
    for fault in outcome.faults.iter().take(SHOWN) {
        let text = format!("a point failed because of the host ({}): {}", fault.point, fault.failure);
        warn(&indent(&text));
    }
    if !outcome.faults.is_empty() {
        let count = outcome.faults.len();
        let (points, them, count_as) = if count == 1 {
            ("1 point".into(), "it", "counts")
        } else {
            (format!("{count} points"), "them", "count")
        };
        eprintln!(
            "longma: {points} failed because of the host and {count_as} as not run; the same command runs {them} again"
        );
    }
    if let Some(why) = &outcome.unclaimed {
        eprintln!(
            "longma: points cannot be claimed ({why}): another run on this store at the same time may run the same ones"
        );
    }
}

/// The table of an experiment with the number of points run, and the comparison with published values.
pub fn results(campaign: &Campaign<'_>, table_of: &Table, outcome: &longma_lab::Outcome) -> String {
    let experiment = campaign.experiment;
    let parts = experiment.parts();
    let mut out = format!("{}\n", sanitize(&parts.title));
    let summarized = table_of.summarized(campaign);
    if !table_of.rows.is_empty() {
        out.push_str(&result_rows(&summarized, table_of));
    }
    if table_of.repeats_itself(campaign) == Some(true) {
        let names: Vec<_> =
            experiment.parts().replicates.iter().map(|name| format!("`{}`", &**name)).collect();
        let _ = writeln!(
            out,
            "The values of {} change nothing: all runs of every mean gave the same values, so the intervals mean nothing.",
            names.join(" and ")
        );
    }
    for names in campaign.idle_parameters(&outcome.results) {
        let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
        let changes = if names.len() == 1 { "changes" } else { "change" };
        let _ = writeln!(
            out,
            "{} {changes} nothing: points that differ only there have the same results. The values may be too close, or the workload does not use it.",
            names.join(" and ")
        );
    }
    let mut parts = vec![format!("{} points run, {} reused", outcome.ran, outcome.reused)];
    let counts =
        [(outcome.failed, "failed (--retry-failed runs them again)"), (table_of.missing, "not run yet")];
    parts
        .extend(counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
    let _ = writeln!(out, "{}", parts.join(", "));
    let comparisons = compare_with_published(experiment, &summarized);
    if !comparisons.is_empty() {
        let _ = writeln!(out, "{}", Verdict::of(&comparisons));
    }
    out.push('\n');
    out
}

/// Maximum number of rows shown; the exported files have all of them.
const SHOWN_ROWS: usize = 60;

/// The rows of a table, and the failures of its points.
fn result_rows(table_of: &Table, points: &Table) -> String {
    let mut out = super::columns::lay_out(table_of, SHOWN_ROWS, columns());
    if table_of.rows.len() > SHOWN_ROWS {
        let _ = writeln!(out, "... and {} more rows", table_of.rows.len() - SHOWN_ROWS);
    }
    // Points often fail for the same reason, so show only a few failures.
    let failures = points.rows.iter().filter_map(|row| Some((points.label(row), row.failure.as_ref()?)));
    for (label, failure) in failures.take(5) {
        let _ = writeln!(out, "{}", indent(&format!("failed: {}: {failure}", sanitize(&label))));
    }
    out
}

/// The table of an experiment as JSON.
pub fn results_json(
    experiment: &Experiment,
    table_of: &Table,
    summary: Value,
    table: Option<&Path>,
) -> Value {
    json!({ "experiment": experiment.parts().name, "summary": summary, "missing": table_of.missing, "rows": table_of.objects(),
        "table": table })
}

/// Plans the campaigns of the experiments.
pub(super) fn plan<'a>(
    experiments: &'a [Experiment],
    which: &Which,
    registry: &Registry,
) -> Result<Vec<Campaign<'a>>, longma_lab::PointError> {
    experiments.iter().map(|experiment| Campaign::plan(experiment, which.quick, registry, VERSION)).collect()
}

/// `longma experiment report`
pub fn report(which: &Which, registry: &Registry, output: &Path, folder: Option<&Path>) -> Outcome {
    let experiments = find::open(which, registry)?;
    let campaigns = plan(&experiments, which, registry)?;
    let results = which.store().results_of(campaigns.iter().flat_map(Campaign::keys))?;
    report_store_problems(&results);
    let (mut chapters, mut contradict) = (Vec::new(), false);
    for campaign in campaigns {
        let table = Table::of(&campaign, &results).summarized(&campaign);
        contradict |= results.contradict(&campaign);
        let command = which.command(campaign.experiment);
        chapters.push(Chapter { campaign, table, command });
    }
    let page = page(&chapters, VERSION);
    write_atomically(output, page.as_bytes())
        .map_err(|error| status::io_error(format!("cannot write {}: {error}", output.display()), &error))?;
    if let Some(folder) = folder {
        figures::write(folder, figures::files(&chapters)?)?;
    }
    Ok(status::ended(false, false, contradict))
}

/// `longma experiment points`
pub fn points(which: &Which, registry: &Registry, format: Format) -> Outcome {
    let experiments = find::open(which, registry)?;
    let campaigns = plan(&experiments, which, registry)?;
    let results = which.store().results_of(campaigns.iter().flat_map(Campaign::keys))?;
    let mut objects = Vec::new();
    // There may be a million points. Keys and states have fixed widths, so that the rows can be printed in parts.
    const PART: usize = 1 << 20;
    let mut text = format!("{:32}  {:7}  POINT\n", "KEY", "STATE");
    for campaign in &campaigns {
        let experiment = campaign.experiment;
        for point in &campaign.points {
            let state = format!("{:?}", Campaign::state(point, &results)).to_lowercase();
            if format == Format::Table {
                let line = format!("{}  {state:7}  {}", point.key, sanitize(&point.label()));
                let _ = writeln!(text, "{}", line.trim_end());
                if text.len() > PART {
                    show(&std::mem::take(&mut text))?;
                }
                continue;
            }
            let machine = point.machine.as_ref().map(|m| &m.name);
            objects.push(json!({ "experiment": experiment.parts().name, "key": point.key, "state": state, "machine": machine,
                "parameters": point.parameters }));
        }
    }
    if format == Format::Json { print_json(&json!(objects)) } else { show(&text) }
}

/// `longma experiment metrics`
pub fn metrics(which: &Which, registry: &Registry, format: Format) -> Outcome {
    let (mut text, mut objects, mut wrong, mut host) = (String::new(), Vec::new(), false, false);
    for experiment in find::open(which, registry)? {
        let name = &experiment.parts().name;
        let rehearsed = experiment.rehearse(which.quick, registry, VERSION)?;
        for (point, failure) in &rehearsed.failures {
            let of_host = failure.kind == longma_lab::FailureKind::Host;
            (host, wrong) = (host || of_host, wrong || !of_host);
            warn(&format_args!("{name}: {point}: {failure}"));
        }
        let used: std::collections::BTreeMap<_, _> =
            experiment.metrics().iter().map(|(name, metric)| (metric.source(name), &metric.unit)).collect();
        let mut rows = vec![row(["METRIC", "UNIT", "IN FILE", "MEANING"])];
        for measure in rehearsed.measures.values() {
            let (is_used, description) = (used.contains_key(&*measure.name), &measure.description);
            // Only the file knows the unit of a number that a program prints.
            let unit = if measure.unit.is_empty() {
                used.get(&*measure.name).map_or("", |u| u)
            } else {
                &measure.unit
            };
            rows.push(row([&measure.name, unit, if is_used { "yes" } else { "" }, description]));
            let object = json!({ "experiment": name, "name": measure.name, "unit": unit, "in_file": is_used, "description": description });
            objects.push(object);
        }
        let _ = writeln!(text, "{}", experiment.parts().title);
        text.push_str(&lay_out(&rows));
        text.push('\n');
    }
    if format == Format::Json { print_json(&json!(objects)) } else { show(&text) }?;
    Ok(status::ended(host, wrong, false))
}

/// `longma experiment workloads`
pub fn workloads(registry: &Registry, format: Format) -> Outcome {
    let (mut text, mut objects) = (String::new(), Vec::new());
    for workload in registry.iter() {
        let _ = writeln!(text, "{}: {}", workload.name(), workload.description());
        let mut rows = vec![row(["  PARAMETER", "DEFAULT", "HOLDS", "MEANING"])];
        for p in workload.parameters() {
            let default = p.default.as_ref().map_or("needed".into(), |d| format!("\"{d}\""));
            rows.push(row([&format!("  {}", p.name), &default, &p.kind.to_string(), p.description]));
        }
        text.push_str(&lay_out(&rows));
        let parameter = |p: &longma_lab::Parameter| json!({ "name": p.name, "kind": p.kind.to_string(), "default": p.default, "description": p.description });
        let parameters: Vec<_> = workload.parameters().iter().map(parameter).collect();
        objects.push(json!({ "name": workload.name(), "description": workload.description(), "parameters": parameters }));
    }
    if format == Format::Json { print_json(&json!(objects)) } else { show(&text) }
}
