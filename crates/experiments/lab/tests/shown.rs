//! Tests that tables and labels use the display names of the experiment file.

mod synthetic;

use longma_lab::*;
use std::path::Path;

const TEXT: &str = r#"
format = 1
name = "named"
title = "Named"
workload = "synthetic"

[[zip]]
n = [1, 2]
mode = ["plain", "fast"]
[[zip]]
size = ["4 KiB", "8 KiB"]
"notes.size" = ["4 KiB", "8 KiB"]

[shown.n]
title = "path"
values = { "1" = "the long one", "2" = "the short one" }

[metrics.rate]
unit = "1/s"
[metrics.share]
of = "rate"
per = "latency"
scale = 2
unit = "1/s/ns"

[sources.book]
kind = "paper"
title = "A book"
[[published]]
at = { n = 1, size = "4 KiB" }
values = { rate = 1000 }
read = "printed"
source = "book"
[[published]]
at = { n = 2, size = "8 KiB" }
values = { rate = 2000 }
read = "printed"
source = "book"

[[plots]]
title = "By size"
kind = "line"
metrics = ["rate"]
x = "size"
by = "n"

[[quick.zip]]
n = [1, 2]
mode = ["plain", "fast"]
[[quick.zip]]
size = ["4 KiB"]
"notes.size" = ["4 KiB"]
"#;

fn with_results<T>(quick: bool, look: impl FnOnce(&Experiment, Table, String) -> T) -> T {
    let (registry, _) = synthetic::registry();
    let experiment = synthetic::experiment(TEXT, &registry);
    let plan = || Campaign::plan(&experiment, quick, &registry, "test").unwrap();
    let campaign = plan();
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path());
    let outcome = campaign.run(&store, &registry, &Options::default(), &(), &Stop::default()).unwrap();
    let table = Table::of(&campaign, &outcome.results);
    let chapter = Chapter { campaign: plan(), table: table.clone(), command: "run".into() };
    let page = page(&[chapter], "test");
    look(&experiment, table, page)
}

#[test]
fn a_display_name_also_represents_parameters_that_vary_together() {
    with_results(false, |_, table, page| {
        let labels: Vec<_> = table.rows.iter().map(|row| table.label(row)).collect();
        assert_eq!(labels[..2], ["the long one, notes.size 4 KiB", "the long one, notes.size 8 KiB"]);
        assert!(
            table.names.is_represented("mode")
                && table.names.is_represented("size")
                && !table.names.is_represented("n")
        );
        assert!(page.contains("</i>the long one</span>") && page.contains("</i>the short one</span>"));
        assert!(page.contains("<th>path<th>notes.size<th class=n>rate"), "{page}");
        // Result files use the original names and values.
        let first = &table.objects()[0];
        assert_eq!((&first["n"], &first["mode"]), (&1.into(), &"plain".into()));
    });
}

#[test]
fn a_metric_may_be_divided_by_another() {
    with_results(false, |_, table, _| {
        let of = |name| table.rows[0].values[table.metric(name).unwrap()].unwrap();
        // The synthetic latency: the square root of 4 KiB in KiB, plus a third of n = 1.
        assert!((of("share") - 2.0 * of("rate") / (2.0 + 1.0 / 3.0)).abs() < 1e-9);
    });
}

#[test]
fn the_quick_form_is_compared_with_published_values_of_its_own_points() {
    let values = |quick| with_results(quick, |experiment, table, _| compare(experiment, &table).len());
    assert_eq!((values(false), values(true)), (2, 1));
}

#[test]
fn names_and_values_that_do_not_vary_are_rejected_with_the_possible_ones() {
    let (registry, _) = synthetic::registry();
    let problems = |from: &str, to: &str| {
        let text = TEXT.replacen(from, to, 1);
        let report = Experiment::check(Path::new("test.toml"), Path::new(""), &text, &registry).report;
        report.located().iter().map(|p| format!("{}; {}", p.message, p.help)).collect::<Vec<_>>()
    };
    assert_eq!(
        problems("[shown.n]", "[shown.colour]"),
        ["`colour` does not vary; varying parameters are: mode, n, notes.size, size"]
    );
    assert_eq!(
        problems("\"2\" = \"the short", "\"300\" = \"the short"),
        ["`n` is never 300; values are: 1, 2"]
    );
}
