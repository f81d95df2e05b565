//! Tests of experiment files: all errors are reported together, each with its position and a suggestion.

mod synthetic;

use longma_lab::*;
use std::path::Path;

const SOUND: &str = include_str!("synthetic/every-chart.toml");

/// The problems of `text`: line, message and help.
fn problems(text: &str) -> Vec<String> {
    let (registry, _) = synthetic::registry();
    let checked = Experiment::check(Path::new("test.toml"), Path::new(""), text, &registry);
    checked.report.located().iter().map(|p| format!("{}: {}; {}", p.line, p.message, p.help)).collect()
}

#[test]
fn a_valid_file_has_no_problems() {
    assert_eq!(problems(SOUND), [""; 0]);
}

#[test]
fn every_error_is_reported_with_position_and_suggestion() {
    let cases = [
        (
            "workload = \"synthetic\"",
            "workload = \"sinthetic\"",
            "5: there is no workload `sinthetic`; did you mean `synthetic`?",
        ),
        (
            "[\"plain\", \"fast\"]",
            "[\"plain\", \"fats\"]",
            "16: `mode`: there is no choice \"fats\"; did you mean `fast`?",
        ),
        ("n = [1, 2, 4, 8, 16]", "n = [1, 2, 4, 8, 16.5]", "15: `n`: expected a whole number; "),
        (
            "to = \"4 MiB\"",
            "to = \"4MiB\"",
            "14: the ends of a range are numbers or quantities of one kind; write { from = 1, to = 8 }",
        ),
        (
            "factor = 4",
            "factor = 1",
            "14: this range never reaches its end; give from <= to, and a step above 0 or a factor above 1",
        ),
        ("better = \"more\"", "better = \"mor\"", "21: \"mor\" is not a direction; did you mean `more`?"),
        (
            "source = \"nobody\"",
            "source = \"nobdy\"",
            "31: there is no source `nobdy`; did you mean `nobody`?",
        ),
        (
            "values = { rate = 2600,",
            "values = { rat = 2600,",
            "29: there is no metric `rat`; did you mean `rate`?",
        ),
        (
            "at = { mode = \"plain\", n = 4, size = \"4 KiB\" }",
            "at = { mod = \"plain\" }",
            "28: `mod` does not vary; did you mean `mode`?",
        ),
        ("x = \"size\"", "x = \"sise\"", "55: `sise` does not vary; did you mean `size`?"),
        (
            "machines = [\"loongson-3a5000\"]",
            "machines = [\"loongson-3a500\"]",
            "6: there is no machine or file called `loongson-3a500`; did you mean `loongson-3a5000`?; run `longma machine check` on the machine file for details",
        ),
        ("unit = \"ns\"", "unti = \"ns\"", "24: metric has no key `unti`; did you mean `unit`?"),
        (
            "note = \"from the sum\"",
            "",
            "48: the method of computation is missing; add a `note` that describes the computation",
        ),
        (
            "name = \"every-chart\"",
            "name = \"Every Chart\"",
            "2: `Every Chart` is not a valid name; use lower-case letters, digits and hyphens",
        ),
    ];
    for (old, new, expected) in cases {
        assert!(SOUND.contains(old), "{old}");
        let found = problems(&SOUND.replacen(old, new, 1));
        assert!(found.iter().any(|p| p == expected), "{new}: {found:#?}");
    }
}

#[test]
fn an_invalid_machine_change_is_reported_before_any_run() {
    let wrong =
        SOUND.replace("n = [1, 2, 4, 8, 16]", "\"machine.caches.l3.size\" = [\"16 MiB\", \"3 parsecs\"]");
    assert!(
        problems(&wrong)
            .iter()
            .any(|p| p.contains("with caches.l3.size = 3 parsecs: \"parsecs\" is not a unit of size")),
        "{:#?}",
        problems(&wrong)
    );
    let wrong = SOUND.replace("n = [1, 2, 4, 8, 16]", "\"machine.caches.l9.size\" = [\"16 MiB\"]");
    assert!(
        problems(&wrong).iter().any(|p| p.contains("the machine has no `l9`")),
        "{:#?}",
        problems(&wrong)
    );
}

/// An experiment on one machine, with additional text.
fn on_a_machine(more: &str) -> String {
    format!(
        "format = 1\nname = \"m\"\ntitle = \"t\"\nworkload = \"synthetic\"\nmachines = [\"loongson-3a4000\"]\n{more}\n[metrics.rate]\nunit = \"x\"\n"
    )
}

fn machine_of(point: &Point) -> longma_topology::Machine {
    longma_topology::Machine::parse("machine", &point.machine.as_ref().unwrap().text).unwrap()
}

#[test]
fn a_key_of_the_machine_among_the_parameters_changes_the_machine_of_every_point() {
    let (registry, _) = synthetic::registry();
    let text = on_a_machine("[parameters]\n\"machine.caches.l3.size\" = \"4 MiB\"\n[sweep]\nn = [1, 2]");
    let experiment = synthetic::experiment(&text, &registry);
    for point in experiment.points(false, &registry, "1").unwrap() {
        let machine = machine_of(&point);
        assert_eq!(machine.caches["l3"].size.to_string(), "4 MiB");
        assert!(machine.name.starts_with("loongson-3a4000-"), "{}", machine.name);
        assert!(
            point.parameters.iter().all(|(name, _)| !name.starts_with("machine.")),
            "{:?}",
            point.parameters
        );
    }
    let wrong = problems(&text.replace("l3.size", "l3.sise"));
    assert!(wrong.iter().any(|p| p.contains("cache has no key `sise`")), "{wrong:#?}");
}

#[test]
fn only_the_combination_of_machine_changes_must_be_consistent() {
    let (registry, _) = synthetic::registry();
    // With 16 ways, 6 MiB gives a number of sets that is not a power of two; with 12 ways, 8 MiB does not divide
    // evenly.
    let together =
        "[[zip]]\n\"machine.caches.l3.size\" = [\"6 MiB\", \"8 MiB\"]\n\"machine.caches.l3.ways\" = [12, 16]";
    let experiment = synthetic::experiment(&on_a_machine(together), &registry);
    let points = experiment.points(false, &registry, "1").unwrap();
    assert!(points.iter().all(|point| point.refused.is_none()));
    assert_eq!(machine_of(&points[0]).caches["l3"].ways(), 12);
    assert_ne!(machine_of(&points[0]).name, machine_of(&points[1]).name);
}

#[test]
fn an_inconsistent_combination_of_machine_changes_fails_only_its_point() {
    let (registry, runs) = synthetic::registry();
    let crossed =
        "[sweep]\n\"machine.caches.l3.size\" = [\"6 MiB\", \"8 MiB\"]\n\"machine.caches.l3.ways\" = [12, 16]";
    let experiment = synthetic::experiment(&on_a_machine(crossed), &registry);
    let campaign = Campaign::plan(&experiment, false, &registry, "1").unwrap();
    let keys: std::collections::BTreeSet<_> = campaign.points.iter().map(|point| &point.key).collect();
    assert_eq!(keys.len(), 4);
    let folder = tempfile::tempdir().unwrap();
    let outcome = campaign
        .run(&Store::new(folder.path()), &registry, &Options::default(), &(), &Stop::default())
        .unwrap();
    assert_eq!((outcome.ran, outcome.failed, runs.load(std::sync::atomic::Ordering::Relaxed)), (4, 2, 2));
    let failure = outcome.results.get(&campaign.points[1].key).unwrap().failure.as_ref().unwrap();
    assert_eq!(failure.kind, FailureKind::Refused);
    assert!(failure.message.contains("caches.l3.size = 6 MiB, caches.l3.ways = 16"), "{failure}");
    // A value that is invalid in every combination is reported before anything runs.
    let wrong = problems(&on_a_machine(&crossed.replace("\"6 MiB\"", "\"7 MiB\"")));
    assert!(wrong.iter().any(|p| p.contains("7 MiB")), "{wrong:#?}");
}

#[test]
fn mechanisms_that_cannot_be_switched_are_reported() {
    let explain = "[explain]\nmetrics = [\"rate\"]\nat = { n = 2 }\n[explain.mechanisms.fast]\noff = { mode = \"plain\" }\non = { mode = \"fast\" }\n";
    let with = |from: &str, to: &str| {
        assert!(explain.contains(from));
        problems(&format!("{SOUND}\n{}", explain.replacen(from, to, 1))).join("\n")
    };
    assert_eq!(with("fast", "fast"), "");
    let twice = "on = { mode = \"fast\" }\n[explain.mechanisms.other]\noff = { mode = \"fast\" }\non = { mode = \"plain\" }\n";
    let cases = [
        ("rate", "rat", "there is no metric `rat`; did you mean `rate`?"),
        ("n = 2", "m = 2", "`m` does not vary"),
        ("on = { mode", "on = { n = 1, mode", "do not set the same parameters"),
        ("\"fast\" }", "\"fats\" }", "there is no choice \"fats\""),
        ("on = { mode = \"fast\" }\n", twice, "`mode` is set by `fast` and by `other`"),
        (
            "off = { mode = \"plain\" }\non = {",
            "off = { machine = \"nobody\", mode = \"plain\" }\non = { machine = \"godson3\",",
            "`nobody`",
        ),
    ];
    for (from, to, wanted) in cases {
        assert!(with(from, to).contains(wanted), "{to}: {}", with(from, to));
    }
}

#[test]
fn points_are_all_combinations_with_columns_that_vary_together() {
    let (registry, _) = synthetic::registry();
    let text = "format = 1\nname = \"p\"\ntitle = \"t\"\nworkload = \"synthetic\"\n[sweep]\nmode = [\"plain\", \"fast\"]\n[[zip]]\nn = [1, 2]\nsize = [\"1 KiB\", \"2 KiB\"]\n[metrics.rate]\nunit = \"x\"\n[quick.sweep]\nmode = [\"fast\"]\n";
    let experiment = synthetic::experiment(text, &registry);
    let labels = |quick| -> Vec<_> {
        experiment.points(quick, &registry, "1").unwrap().iter().map(Point::label).collect()
    };
    assert_eq!(
        labels(false),
        [
            "mode plain, n 1, size 1 KiB",
            "mode plain, n 2, size 2 KiB",
            "mode fast, n 1, size 1 KiB",
            "mode fast, n 2, size 2 KiB"
        ]
    );
    assert_eq!(labels(true), ["mode fast, n 1, size 1 KiB", "mode fast, n 2, size 2 KiB"]);
}

#[test]
fn no_text_makes_the_reader_panic() {
    let config = proptest::test_runner::Config::with_cases(64);
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let changed = proptest::collection::vec((0..SOUND.len(), proptest::char::any()), 1..6);
    let run = runner.run(&changed, |changes| {
        let mut letters: Vec<char> = SOUND.chars().collect();
        let count = letters.len();
        changes.iter().for_each(|(at, letter)| letters[at % count] = *letter);
        problems(&letters.into_iter().collect::<String>());
        Ok(())
    });
    run.unwrap();
}

#[test]
fn every_published_value_is_compared_once_with_its_point() {
    let (registry, _) = synthetic::registry();
    let experiment = synthetic::experiment(SOUND, &registry);
    let campaign = Campaign::plan(&experiment, false, &registry, "1").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let none = Table::of(&campaign, &Store::new(folder.path()).results().unwrap());
    let verdict = Verdict::of(&compare(&experiment, &none));
    assert_eq!((verdict.compared, verdict.missing, verdict.mean_ratio), (0, 5, None));
    let outcome = campaign
        .run(&Store::new(folder.path()), &registry, &Options::default(), &(), &Stop::default())
        .unwrap();
    let comparisons = compare(&experiment, &Table::of(&campaign, &outcome.results));
    // The last value was published for both modes.
    assert_eq!(comparisons.len(), 6);
    assert_eq!(comparisons[0].ratio().map(|r| (r * 1000.0).round()), Some(1026.0));
    assert_eq!(comparisons[5].point, "size 4 KiB, n 16, mode fast");
}
