//! `longma experiment compare`: results beside published values, with a verdict and a reason for each.

use super::print::{plan, report_store_problems, row, show, table};
use super::{Format, Outcome, VERSION, Which, find, status};
use longma_command_line::output::print_json;
use longma_lab::{
    Campaign, Comparison, Experiment, Lacking, Registry, Relation, Results, Table, Verdict, Why,
    compare as compare_with_published, lacking, relations, whole_values,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Compares the results of the experiments with published values.
pub fn compare(which: &Which, registry: &Registry, within: Option<f64>, format: Format) -> Outcome {
    let experiments = find::open(which, registry)?;
    let campaigns = plan(&experiments, which, registry)?;
    // `whole_form` requires that the points include those of the whole form.
    let whole = match which.quick {
        true => experiments.iter().filter_map(|e| Campaign::plan(e, false, registry, VERSION).ok()).collect(),
        false => Vec::new(),
    };
    let results = which.store().results_of(campaigns.iter().chain(&whole).flat_map(Campaign::keys))?;
    report_store_problems(&results);
    let (mut text, mut objects, mut failed) = (String::new(), Vec::new(), false);
    let mut all: BTreeMap<Relation, usize> = BTreeMap::new();
    for campaign in &campaigns {
        let compared = Compared::of(campaign, &results, within);
        failed |= compared.has_failed();
        objects.push(comparison_json(campaign.experiment, &compared.comparisons, &compared.verdict));
        compared.describe(which, registry, &mut text);
        let counts = relations(&compared.comparisons);
        counts.into_iter().for_each(|(one, count)| *all.entry(one).or_default() += count);
    }
    if campaigns.len() > 1 {
        totals(&all, &mut text);
    }
    let printed = if format == Format::Json { print_json(&json!(objects)) } else { show(&text) };
    printed.map(|_| status::ended(false, false, failed))
}

/// The comparison of an experiment.
struct Compared<'a> {
    campaign: &'a Campaign<'a>,
    results: &'a Results,
    within: Option<f64>,
    comparisons: Vec<Comparison>,
    verdict: Verdict,
    /// The runs that each mean leaves out.
    left_out: Vec<Vec<Lacking>>,
}

impl<'a> Compared<'a> {
    fn of(campaign: &'a Campaign<'a>, results: &'a Results, within: Option<f64>) -> Self {
        let table = Table::of(campaign, results).summarized(campaign);
        let comparisons = compare_with_published(campaign.experiment, &table);
        let verdict = Verdict::of(&comparisons);
        let left_out = comparisons.iter().map(|c| lacking(campaign, results, c)).collect();
        Self { campaign, results, within, comparisons, verdict, left_out }
    }

    /// Whether a result is farther from its published value than allowed.
    fn is_far(&self, comparison: &Comparison) -> bool {
        let percent = comparison.deviation().map(|deviation| deviation * 100.0);
        self.within.zip(percent).is_some_and(|(within, percent)| percent > within)
    }

    /// Whether a mean leaves out runs that failed or are missing. A run without a value has not failed: a statistic of
    /// an event that did not occur is absent.
    fn is_incomplete(&self) -> bool {
        self.left_out.iter().flatten().any(|run| run.why != Why::Unmeasured)
    }

    fn has_failed(&self) -> bool {
        self.verdict.missing > 0
            || self.is_incomplete()
            || self.comparisons.iter().any(|comparison| self.is_far(comparison))
            || self.results.contradict(self.campaign)
    }

    fn describe(&self, which: &Which, registry: &Registry, text: &mut String) {
        let (experiment, comparisons) = (self.campaign.experiment, &*self.comparisons);
        let _ = writeln!(text, "{}", experiment.parts().title);
        if comparisons.is_empty() {
            let _ = writeln!(text, "{}\n", why_nothing_compared(experiment));
            return;
        }
        let whole = whole_form(experiment, comparisons, registry, self.results);
        text.push_str(&comparison_rows(comparisons, whole.as_deref(), &|one| self.is_far(one)));
        if whole.is_some() {
            text.push_str(
                "quick form: OURS is of shorter runs than the published values; WHOLE is of whole runs\n",
            );
        }
        notes(comparisons, text);
        reasons(comparisons, text);
        let _ = writeln!(text, "{}", self.verdict);
        for (key, source) in &experiment.parts().sources {
            let _ = writeln!(text, "{key}: {}", source.title);
        }
        let left_out = comparisons.iter().zip(&self.left_out);
        left_out.for_each(|(comparison, runs)| describe_left_out(comparison, runs, text));
        let command = which.command(experiment);
        if self.is_incomplete() {
            let _ = writeln!(
                text,
                "some means are of fewer runs than the experiment has: `{command}` runs what is missing, and with --retry-failed also what failed"
            );
        } else if self.verdict.missing > 0 {
            let _ = writeln!(text, "`{command}` runs what is missing");
        }
        text.push('\n');
    }
}

/// Describes which runs a mean leaves out.
fn describe_left_out(comparison: &Comparison, runs: &[Lacking], text: &mut String) {
    /// Maximum number of runs named. They often have the same reason.
    const NAMED: usize = 5;
    if runs.is_empty() {
        return;
    }
    let named: Vec<_> = runs.iter().take(NAMED).map(ToString::to_string).collect();
    let more = runs.len() - named.len();
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let at = if comparison.point.is_empty() { String::new() } else { format!(", {}", comparison.point) };
    let _ = writeln!(text, "{}{at}: the mean leaves out: {}{more}", comparison.metric, named.join("; "));
}

/// Why the report has no comparison.
fn why_nothing_compared(experiment: &Experiment) -> String {
    let published: usize = experiment.parts().published.iter().map(longma_lab::Published::count).sum();
    match published {
        0 => "nothing was published to compare with".into(),
        1 => "the one published value is of a point that the quick form leaves out".into(),
        all => format!("the {all} published values are of points that the quick form leaves out"),
    }
}

/// The value of the whole form beside each comparison, if any comparison is of a point that only the quick form has.
fn whole_form(
    experiment: &Experiment,
    comparisons: &[Comparison],
    registry: &Registry,
    results: &Results,
) -> Option<Vec<Option<String>>> {
    comparisons.iter().find(|one| one.shortened)?;
    let campaign = Campaign::plan(experiment, false, registry, VERSION).ok()?;
    let whole = compare_with_published(experiment, &Table::of(&campaign, results).summarized(&campaign));
    Some(whole_values(comparisons, &whole))
}

/// The rows of the comparison. `whole` has the values of the whole form beside those of the quick form.
fn comparison_rows(
    comparisons: &[Comparison],
    whole: Option<&[Option<String>]>,
    is_far: &dyn Fn(&Comparison) -> bool,
) -> String {
    let mut heading =
        row(["POINT", "METRIC", "UNIT", "SOURCE", "READ", "PUBLISHED", "OURS", "RATIO", "VERDICT"]);
    if whole.is_some() {
        heading.push("WHOLE".into());
    }
    let mut rows = vec![heading];
    for (index, c) in comparisons.iter().enumerate() {
        let ours = c.text().unwrap_or("-".into());
        let far = if is_far(c) { " !" } else { "" };
        let ratio = match c.holds() {
            Some(holds) => format!("{}{far}", if holds { "holds" } else { "fails" }),
            None => c.ratio().map_or("-".into(), |ratio| format!("{ratio:.3}{far}")),
        };
        let published = c.published.to_string();
        let mut cells = row([
            &c.point,
            &c.metric,
            &c.unit,
            &c.source,
            c.read,
            &published,
            &ours,
            &ratio,
            &c.relation().to_string(),
        ]);
        cells.extend(whole.map(|whole| whole[index].clone().unwrap_or("-".into())));
        rows.push(cells);
    }
    table(rows, if whole.is_some() { 5 } else { 4 })
}

/// Appends why ours differ, each published value once.
fn reasons(comparisons: &[Comparison], text: &mut String) {
    let mut last = None;
    for (c, why) in comparisons.iter().filter_map(|c| Some((c, c.why()?))) {
        if last != Some((c.entry, &c.metric)) {
            let at = if c.point.is_empty() { String::new() } else { format!(", {}", c.point) };
            let _ = writeln!(text, "{} {}{at}: why ours differs: {why}", c.metric, c.published);
        }
        last = Some((c.entry, &c.metric));
    }
}

/// Writes the number of published values by their relation to the results, summed over several experiments.
fn totals(totals: &BTreeMap<Relation, usize>, text: &mut String) {
    let of = |relation| totals.get(&relation).copied().unwrap_or(0);
    let _ = writeln!(
        text,
        "{} published values: {} within 10 % or their bounds, {} farther with the same sign or outside their bounds, {} with the opposite sign, {} without a result",
        totals.values().sum::<usize>(),
        of(Relation::Near),
        of(Relation::Far),
        of(Relation::Opposite),
        of(Relation::Absent)
    );
}

/// Appends the notes of the published values, each once.
fn notes(comparisons: &[Comparison], text: &mut String) {
    let mut last = None;
    for c in comparisons.iter().filter(|c| c.note.is_some()) {
        if last != Some(c.entry) {
            let _ = writeln!(text, "{} {}: {}", c.metric, c.published, c.note.as_deref().unwrap_or_default());
        }
        last = Some(c.entry);
    }
}

fn comparison_json(experiment: &Experiment, comparisons: &[Comparison], verdict: &Verdict) -> Value {
    let one = |c: &Comparison| {
        let (low, high) = c.published.bounds().unwrap_or_default();
        json!({ "key": c.key, "point": c.point, "metric": c.metric, "unit": c.unit, "published": c.published.value(),
            "at_least": low, "at_most": high, "holds": c.holds(), "ours": c.ours, "interval": c.interval, "runs": c.runs, "of": c.of, "ratio": c.ratio(), "source": c.source,
            "read": c.read, "note": c.note, "shortened": c.shortened, "verdict": c.relation().to_string(), "reason": c.why() })
    };
    json!({
        "experiment": experiment.parts().name,
        "values": comparisons.iter().map(one).collect::<Vec<_>>(),
        "compared": verdict.compared,
        "missing": verdict.missing,
        "partial": verdict.partial,
        "points": verdict.points,
        "near": verdict.near,
        "opposite": verdict.opposite,
        "mean_ratio": verdict.mean_ratio,
        "mean_deviation": verdict.mean_deviation,
        "largest_deviation": verdict.largest_deviation,
    })
}
