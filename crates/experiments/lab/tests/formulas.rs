//! Tests of formulas over metrics and points, of bounds, and of quick forms.

mod synthetic;

use longma_lab::*;
use std::path::Path;

const TEXT: &str = r#"
format = 1
name = "derived"
title = "Derived"
workload = "synthetic"

[sweep]
n = [1, 2]
[[zip]]
mode = ["plain", "fast", "fast"]
size = ["4 KiB", "4 KiB", "16 KiB"]

[metrics.rate]
unit = "1/s"
[metrics.latency]
unit = "ns"
[metrics.speed_up]
unit = "times"
formula = "rate / at(rate, mode = 'plain')"
[metrics.doubled]
unit = "times"
formula = "2 * speed_up"
[metrics.mean_rate]
unit = "1/s"
formula = "mean_over(rate, n)"

[sources.book]
kind = "paper"
title = "A book"

[[published]]
at = { n = 1, size = "16 KiB" }
at_least = { speed_up = 2.5 }
read = "printed"
source = "book"
note = "<table> 3"

[[published]]
at_least = { latency = 4 }
at_most = { latency = 5 }
read = "printed"
source = "book"

[[published]]
at = { n = 1, mode = "plain" }
values = { rate = 1000, latency = 2.0 }
read = "printed"
source = "book"

[[plots]]
title = "Rates"
kind = "bar"
x = "mode"
by = "n"
metrics = ["rate"]

[quick.sweep]
n = [1]
"#;

fn results(text: &str, quick: bool) -> (Table, Vec<Comparison>, String) {
    let (registry, _) = synthetic::registry();
    let experiment = synthetic::experiment(text, &registry);
    let folder = tempfile::tempdir().unwrap();
    let campaign = Campaign::plan(&experiment, quick, &registry, "test").unwrap();
    let store = Store::new(folder.path());
    let outcome = campaign.run(&store, &registry, &Options::default(), &(), &Stop::default()).unwrap();
    let table = Table::of(&campaign, &outcome.results);
    let comparisons = compare(&experiment, &table);
    let page = page(&[Chapter { campaign, table: table.clone(), command: "run".into() }], "test");
    (table, comparisons, page)
}

#[test]
fn a_metric_may_be_a_formula_over_metrics_and_points() {
    let (table, ..) = results(TEXT, false);
    let column = |name: &str| -> Vec<f64> {
        let index = table.metric(name).unwrap();
        table.rows.iter().map(|row| (row.values[index].unwrap() * 1e6).round() / 1e6).collect()
    };
    // The points of n = 1, then those of n = 2: plain, fast with 4 KiB, fast with 16 KiB.
    assert_eq!(column("speed_up"), [1.0, 3.0, 3.0, 1.0, 3.0, 3.0]);
    assert_eq!(column("doubled"), [2.0, 6.0, 6.0, 2.0, 6.0, 6.0]);
    let rates = column("rate");
    let means = column("mean_rate");
    assert!((0..3).all(|row| (means[row] - (rates[row] + rates[row + 3]) / 2.0).abs() < 1e-5), "{means:?}");
    assert!(table.unknown.is_empty(), "{:?}", table.unknown);
}

#[test]
fn bounds_hold_or_fail_and_have_no_ratio() {
    let (_, comparisons, page) = results(TEXT, false);
    let of = |metric: &'static str| comparisons.iter().filter(move |one| one.metric == metric);
    let faster = of("speed_up").next().unwrap();
    assert_eq!(
        (faster.published, faster.holds(), faster.ratio()),
        (Expected::AtLeast(2.5), Some(true), None)
    );
    // Latencies of 2.3 and 4.3 ns for n = 1, and 2.7 and 4.7 ns for n = 2.
    let holds: Vec<_> = of("latency").filter_map(Comparison::holds).collect();
    assert_eq!(holds, [false, false, true, false, false, true]);
    assert!(page.contains("&gt;= 2.500") && page.contains("holds") && page.contains("fails"), "{page}");
    assert!(page.contains("<td>&lt;table&gt; 3"), "the note");
}

#[test]
fn a_summary_counts_each_published_value_once_and_averages_only_one_quantity() {
    let (_, comparisons, _) = results(TEXT, false);
    let verdict = Verdict::of(&comparisons);
    // Four values are published. The range of latencies applies to six points. One rate is near its published value.
    assert_eq!((verdict.compared, verdict.points, verdict.missing), (4, 9, 0));
    assert_eq!((verdict.near, verdict.opposite), (1, 0));
    assert_eq!((verdict.mean_ratio, verdict.mean_deviation), (None, None));
    assert!(verdict.farthest.unwrap().starts_with("latency, "));
    let rates: Vec<_> = comparisons.into_iter().filter(|one| one.metric == "rate").collect();
    assert_eq!(Verdict::of(&rates).mean_ratio.map(|ratio| (ratio * 1000.0).round()), Some(889.0));
}

#[test]
fn points_with_shorter_runs_in_the_quick_form_are_marked() {
    let (table, comparisons, page) = results(TEXT, true);
    assert!(table.rows.iter().all(|row| !row.shortened) && !page.contains("shorter than those"));
    assert!(comparisons.iter().all(|one| !one.shortened));
    let shorter = format!("{TEXT}\n[quick.parameters]\ntakes_ms = 1\n");
    let (table, comparisons, page) = results(&shorter, true);
    assert!(table.rows.iter().all(|row| row.shortened));
    assert!(comparisons.iter().all(|one| one.shortened));
    assert!(page.contains("shorter than those of the published values") && page.contains("quick</i>"));
    let (table, ..) = results(&shorter, false);
    assert!(table.rows.iter().all(|row| !row.shortened));
}

#[test]
fn a_chart_keeps_all_points_of_parameters_that_vary_together_with_its_axis() {
    let (_, _, page) = results(TEXT, false);
    assert!(page.contains("data-marks=\"7\""), "six rates and a published one");
    // Two bars of the fast mode have the same position on the axis, so they are two series.
    for name in ["n 1, size 4 KiB", "n 1, size 16 KiB", "n 2, size 4 KiB", "n 2, size 16 KiB"] {
        assert!(page.contains(&format!("</i>{name}</span>")), "{name}: {page}");
    }
    let plain = TEXT.replace("\"4 KiB\", \"4 KiB\", \"16 KiB\"", "\"1 KiB\", \"2 KiB\", \"2 KiB\"");
    let text = plain.replace("16 KiB", "2 KiB").replace("\"fast\", \"fast\"]", "\"fast\"]");
    let (_, _, page) = results(&text.replace("\"2 KiB\", \"2 KiB\"]", "\"2 KiB\"]"), false);
    assert!(page.contains("</i>n 1</span>"), "the size follows from the mode: {page}");
}

#[test]
fn errors_in_formulas_and_bounds_are_reported() {
    let (registry, _) = synthetic::registry();
    let problems = |from: &str, to: &str| {
        assert!(TEXT.contains(from), "{from}");
        let text = TEXT.replacen(from, to, 1);
        let checked = Experiment::check(Path::new("test.toml"), Path::new(""), &text, &registry);
        messages(&checked)
    };
    for (from, to, wanted) in [
        ("'plain')\"", "'plain'\"", "`)` is missing at the end"),
        ("'plain')\"", "'plan')\"", "no point has `mode` = plan; did you mean `plain`?"),
        ("mode = 'plain'", "mod = 'plain'", "`mod` does not vary; did you mean `mode`?"),
        ("(rate, n)", "(rate, m)", "`m` does not vary"),
        ("rate / at(", "doubled / at(", "`speed_up` is computed from itself"),
        ("formula = \"2", "scale = 2\nformula = \"2", "a formula has no `of`, `per` or `scale`"),
        ("at_least = { latency = 4 }", "at_least = { latency = 6 }", "the lower bound of `latency` is above"),
        ("at_least = { speed_up = 2.5 }", "", "nothing is published here"),
        ("at_least = { speed_up", "at_least = { speedup", "there is no metric `speedup`"),
    ] {
        let found = problems(from, to);
        assert!(found.contains(wanted), "{to}: {found}");
    }
}

/// The problems of a file, a line each.
fn messages(checked: &CheckedExperiment) -> String {
    let located = checked.report.located();
    located.iter().map(|problem| format!("{}; {}\n", problem.message, problem.help)).collect()
}

/// A workload that states the units of its metrics.
struct Timed;

impl Workload for Timed {
    fn name(&self) -> &str {
        "timed"
    }
    fn description(&self) -> &str {
        "a time"
    }
    fn parameters(&self) -> &[Parameter] {
        &[]
    }
    fn rehearse(&self, _: &Point) -> Result<Rehearsal, Failure> {
        let measure = |name, unit| Measure::new(name, unit, "");
        let measures =
            vec![measure("took", "ps"), measure("moved", "bytes"), measure("sent", "B"), measure("odd", "")];
        Ok(Rehearsal { measures: Some(measures), ..Rehearsal::default() })
    }
    fn run(&self, _: &Point, _: &Stop) -> Result<Metrics, Failure> {
        Ok(Metrics::default())
    }
}

#[test]
fn units_are_checked_against_those_of_the_workload() {
    let mut registry = Registry::default();
    registry.add(Timed);
    let problems = |metric: &str| {
        let text =
            format!("format = 1\nname = \"u\"\ntitle = \"t\"\nworkload = \"timed\"\n[metrics.x]\n{metric}\n");
        let checked =
            Experiment::check_thoroughly(Path::new("u.toml"), Path::new(""), &text, &registry, "test");
        messages(&checked)
    };
    for (metric, wanted) in [
        ("of = \"took\"\nunit = \"s\"", "the scale of `x` does not give s; write `scale = 1e-12`"),
        ("of = \"took\"\nunit = \"ns\"\nscale = 1e3", "write `scale = 1e-3`"),
        ("of = \"took\"\nunit = \"MB\"", "`took` is not measured in MB"),
        ("of = \"moved\"\nper = \"took\"\nunit = \"s\"", "`moved` is not measured in s"),
        ("of = \"sent\"\nper = \"took\"\nunit = \"GB/s\"\nscale = 1e9", "write `scale = 1e3`"),
        ("formula = \"sent + took\"\nunit = \"B\"", "both sides of `+` need the same unit"),
        ("formula = \"sent / took\"\nunit = \"s\"", "the formula of `x` does not give s"),
        ("formula = \"sent / took\"\nunit = \"GB/s\"", "multiply it by 1e3"),
    ] {
        let found = problems(metric);
        assert!(found.contains(wanted), "{metric}: {found}");
    }
    for metric in [
        "of = \"took\"\nunit = \"us\"\nscale = 1e-6",
        "of = \"moved\"\nunit = \"10^6\"\nscale = 1e-6",
        "of = \"odd\"\nunit = \"s\"",
        "of = \"sent\"\nper = \"took\"\nunit = \"GB/s\"\nscale = 1e3",
        "formula = \"sent / took * 1000\"\nunit = \"GB/s\"",
        "formula = \"moved / odd\"\nunit = \"anything\"",
    ] {
        assert_eq!(problems(metric), "", "{metric}");
    }
}

#[test]
fn only_metrics_of_one_point_are_explained() {
    let (registry, _) = synthetic::registry();
    let text = TEXT.replacen(
        "[metrics.latency]",
        "[metrics.sum]\nunit = \"x\"\nformula = \"sum('rat*')\"\n[metrics.latency]",
        1,
    );
    let experiment = synthetic::experiment(&text, &registry);
    let selection = Selection { mechanisms: vec!["n".into()], ..Selection::default() };
    let explanation = Explanation::plan(&experiment, false, &selection, &registry, "test").unwrap();
    assert_eq!(explanation.metrics(), ["rate", "sum", "latency"]);
}
