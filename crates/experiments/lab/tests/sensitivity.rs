//! Tests of the sensitivity to estimates: which parameters are varied, their effects, and files that are refused.

mod synthetic;

use longma_lab::*;
use std::path::Path;

const TEXT: &str = r#"
format = 1
name = "sensitive"
title = "Sensitive"
workload = "synthetic"
machines = ["loongson-3a5000"]
replicates = ["size"]

[parameters]
n = 2
fails_at = 8

[sweep]
mode = ["plain", "fast"]
size = ["4 KiB", "16 KiB"]

[metrics.rate]
unit = "1/s"
[metrics.speed_up]
unit = "times"
formula = "rate / at(rate, mode = 'plain')"

[sensitivity]
at = { mode = "plain" }
estimates = ["machine.cores.la464.r*_entries"]
ranges = { n = [1, 8] }
"#;

#[test]
fn each_estimate_is_varied_alone_and_the_largest_effect_is_first() {
    let (registry, _) = synthetic::registry();
    let experiment = synthetic::experiment(TEXT, &registry);
    let folder = tempfile::tempdir().unwrap();
    let plan = Sensitivity::plan(&experiment, false, &Variations::default(), &registry, "1").unwrap();
    assert_eq!(plan.metrics().collect::<Vec<_>>(), ["rate"], "a formula over several points has no value");
    assert_eq!(plan.combinations.len(), 1);
    let run =
        plan.campaign.run(&Store::new(folder.path()), &registry, &Options::default(), &(), &Stop::default());
    let effects = plan.effects(&plan.combinations[0], "rate", &run.unwrap().results).unwrap();
    assert!((effects.base - 2000.0 / 1.25).abs() < 1e-9);
    let names: Vec<_> = effects.effects.iter().map(|effect| &*effect.parameter).collect();
    assert_eq!(names, ["n", "machine.cores.la464.rob_entries"]);
    let n = &effects.effects[0];
    assert_eq!((n.value.clone(), n.ends.len()), (Some(Setting::Integer(2)), 2));
    assert!((n.ends[0].1.as_ref().unwrap() - 1000.0 / 1.125).abs() < 1e-9);
    assert_eq!(n.ends[1].1, Err("told to fail".into()));
    let rob = &effects.effects[1];
    assert_eq!((rob.source.as_deref(), rob.span(effects.base)), (Some("depth"), 0.0));
    // Half and twice the machine file's 128 entries.
    let ends: Vec<_> = rob.ends.iter().map(|(setting, _)| setting.to_string()).collect();
    assert_eq!(ends, ["64", "256"]);
}

#[test]
fn options_take_precedence_over_the_file() {
    let (registry, _) = synthetic::registry();
    let experiment = synthetic::experiment(TEXT, &registry);
    let variations = Variations {
        at: [("mode".to_string(), "fast".to_string())].into(),
        estimates: vec!["machine.cores.la464.rob_entries".into()],
        factors: [Some(0.75), Some(1.25)],
        ..Variations::default()
    };
    let plan = Sensitivity::plan(&experiment, false, &variations, &registry, "1").unwrap();
    let points: Vec<_> = plan.campaign.points.iter().map(Point::label).collect();
    assert!(points[0].contains("mode fast"), "{points:?}");
    assert!(points.iter().any(|label| label.ends_with("rob_entries 96")), "{points:?}");
    for factors in [[Some(2.0), Some(0.5)], [Some(3.0), None], [None, Some(0.7)], [Some(1.0), Some(1.0)]] {
        let variations = Variations { factors, ..Variations::default() };
        let error =
            Sensitivity::plan(&experiment, false, &variations, &registry, "1").err().unwrap().to_string();
        assert!(error.contains("do not enclose 1"), "{factors:?}: {error}");
    }
    let unknown = Variations { metrics: vec!["rats".into()], ..Variations::default() };
    let error = Sensitivity::plan(&experiment, false, &unknown, &registry, "1").err().unwrap().to_string();
    assert!(error.contains("did you mean `rate`"), "{error}");
}

#[test]
fn a_table_that_does_not_fit_the_file_is_refused() {
    let (registry, _) = synthetic::registry();
    for (from, to, message) in [
        ("ranges = { n = [1, 8] }", "ranges = { n = [1] }", "the range of `n` has 1 values"),
        ("ranges = { n = [1, 8] }", "ranges = { m = [1, 8] }", "no parameter `m`"),
        ("ranges = { n = [1, 8] }", "low = 2", "do not enclose 1"),
        ("ranges = { n = [1, 8] }", "low = 1\nhigh = 1", "do not enclose 1"),
        (
            "ranges = { n = [1, 8] }",
            "ranges = { n = [8, 1] }",
            "the low value of `n`, 8, is above the high one, 1",
        ),
        ("ranges = { n = [1, 8] }", "ranges = { n = [8, 8] }", "twice the same value"),
        ("ranges = { n = [1, 8] }", "ranges = { n = [\"1\", \"8\"] }", "expected a whole number"),
        ("ranges = { n = [1, 8] }", "ranges = { machine = [\"a\", \"b\"] }", "no low and high value"),
        ("ranges = { n = [1, 8] }", "ranges = { \"machine.cores.la464.rob_entry\" = [1, 8] }", "rob_entries"),
        (
            "ranges = { n = [1, 8] }",
            "ranges = { \"machine.caches.l2.latency\" = [\"20 cycles\", \"9 cycles\"] }",
            "is above the high one",
        ),
        (
            "ranges = { n = [1, 8] }",
            "ranges = { \"machine.caches.l2.latency\" = [\"1 KiB\", \"2 KiB\"] }",
            "1 KiB",
        ),
        (
            "ranges = { n = [1, 8] }",
            "ranges = { \"machine.caches.l2.size\" = [\"128 KiB\", true] }",
            "machine.caches.l2.size",
        ),
        (
            "estimates = [\"machine.cores.la464.r*_entries\"]\nranges = { n = [1, 8] }",
            "estimates = []",
            "nothing is to be varied",
        ),
        ("at = { mode = \"plain\" }", "at = { n = 1 }", "`n` does not vary"),
        ("at = { mode = \"plain\" }", "at = { mode = \"slow\" }", "no point has `mode` = slow"),
        ("at = { mode = \"plain\" }", "metrics = [\"rats\"]", "there is no metric `rats`"),
    ] {
        let text = TEXT.replace(from, to);
        let checked = Experiment::check(Path::new("test.toml"), Path::new(""), &text, &registry);
        assert!(checked.experiment.is_none(), "{to}");
        let report = checked.report.render(200, false);
        assert!(report.contains(message), "{to}: {report}");
    }
}

#[test]
fn an_empty_list_of_estimates_varies_none() {
    let (registry, _) = synthetic::registry();
    let only_ranges = TEXT.replace("[\"machine.cores.la464.r*_entries\"]", "[]");
    let experiment = synthetic::experiment(&only_ranges, &registry);
    let plan = Sensitivity::plan(&experiment, false, &Variations::default(), &registry, "1").unwrap();
    assert_eq!(plan.campaign.points.len(), 3, "the unchanged point and two values of `n`");
}

#[test]
fn failed_runs_are_counted_and_machines_that_a_factor_makes_invalid_are_not() {
    let (registry, _) = synthetic::registry();
    let failed = |text: &str| {
        let experiment = synthetic::experiment(text, &registry);
        let folder = tempfile::tempdir().unwrap();
        let plan = Sensitivity::plan(&experiment, false, &Variations::default(), &registry, "1").unwrap();
        let store = Store::new(folder.path());
        let run = plan.campaign.run(&store, &registry, &Options::default(), &(), &Stop::default());
        let refused = plan.campaign.points.iter().filter(|point| point.refused.is_some()).count();
        (plan.failed(&run.unwrap().results), refused)
    };
    assert_eq!(failed(TEXT), (1, 0));
    let every = TEXT
        .replace("estimates = [\"machine.cores.la464.r*_entries\"]\nranges = { n = [1, 8] }", "low = 0.001");
    let (failed, refused) = failed(&every);
    assert!(failed == 0 && refused > 0, "{failed} {refused}");
}

#[test]
fn a_pattern_that_no_estimate_matches_is_refused() {
    let (registry, _) = synthetic::registry();
    let text = TEXT.replace(
        "[\"machine.cores.la464.r*_entries\"]",
        "[\"machine.cores.*.rob_entries\", \"machine.kores.*\"]",
    );
    let checked = Experiment::check_thoroughly(Path::new("test.toml"), Path::new(""), &text, &registry, "1");
    let report = checked.report.render(200, false);
    assert!(report.contains("nothing to vary as `machine.kores.*`"), "{report}");
}

#[test]
fn swept_parameters_that_change_nothing_are_found() {
    let (registry, _) = synthetic::registry();
    let idle = |sweep: &str| {
        let text = TEXT.replace("mode = [\"plain\", \"fast\"]", sweep);
        let text = if sweep.starts_with("n ") { text.replace("\nn = 2", "") } else { text };
        let text =
            text.split("[sensitivity]").next().unwrap().replace("[metrics.speed_up]", "[metrics.latency]");
        let text = text.lines().filter(|line| !line.starts_with("formula")).collect::<Vec<_>>().join("\n");
        let experiment = synthetic::experiment(&text.replace("\"times\"", "\"us\""), &registry);
        let folder = tempfile::tempdir().unwrap();
        let campaign = Campaign::plan(&experiment, false, &registry, "1").unwrap();
        let (store, options) = (Store::new(folder.path()), Options::default());
        let outcome = campaign.run(&store, &registry, &options, &(), &Stop::default()).unwrap();
        campaign.idle_parameters(&outcome.results)
    };
    let key = "machine.caches.l2.size";
    assert_eq!(idle("mode = [\"plain\", \"fast\"]"), Vec::<Vec<String>>::new());
    assert_eq!(
        idle(&format!("mode = [\"plain\", \"fast\"]\n\"{key}\" = [\"128 KiB\", \"256 KiB\"]")),
        [[key]]
    );
    assert_eq!(idle(&format!("\"{key}\" = [\"128 KiB\"]")), Vec::<Vec<String>>::new(), "a single value");
    // The workload fails at 8: points without results are no evidence.
    assert_eq!(idle("n = [2, 8]"), Vec::<Vec<String>>::new());
}
