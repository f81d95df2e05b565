//! Tests of points that repeat a measurement: means, intervals, error bars, and files that cannot have them.

mod synthetic;

use longma_lab::*;
use std::path::Path;

const TEXT: &str = r#"
format = 1
name = "repeated"
title = "Repeated"
workload = "synthetic"
replicates = ["n"]

[parameters]
fails_at = 4

[sweep]
mode = ["plain", "fast"]
n = [1, 2, 3, 4]

[metrics.rate]
unit = "1/s"
[metrics.speed_up]
unit = "times"
formula = "rate / at(rate, mode = 'plain')"

[sources.book]
kind = "paper"
title = "A book"

[[published]]
at = { mode = "plain" }
values = { rate = 1500 }
read = "printed"
source = "book"

[[plots]]
title = "Rates"
kind = "bar"
x = "mode"
metrics = ["rate"]
"#;

/// The campaign's table of `text`, whose points are all run.
fn with_table(text: &str, check: impl FnOnce(Campaign<'_>, Table)) {
    with_table_of(text, &Options::default(), check);
}

/// The campaign's table of `text`, run with `options`.
fn with_table_of(text: &str, options: &Options, check: impl FnOnce(Campaign<'_>, Table)) {
    let (registry, _) = synthetic::registry();
    let experiment = synthetic::experiment(text, &registry);
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path());
    let campaign = Campaign::plan(&experiment, false, &registry, "1").unwrap();
    let outcome = campaign.run(&store, &registry, options, &(), &Stop::default()).unwrap();
    let table = Table::of(&campaign, &outcome.results);
    check(campaign, table);
}

#[test]
fn replicates_become_one_row_with_the_interval_of_their_mean() {
    with_table(TEXT, |campaign, table| {
        assert_eq!(table.rows.len(), 8);
        let summarized = table.summarized(&campaign);
        assert_eq!((summarized.rows.len(), summarized.parameters.as_slice()), (2, &["mode".to_string()][..]));
        // 1000 n / (1 + n / 8) for n of 1 to 3; 4 fails.
        let rates = [1000.0 / 1.125, 2000.0 / 1.25, 3000.0 / 1.375];
        let mean = rates.iter().sum::<f64>() / 3.0;
        let deviation = (rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / 2.0).sqrt();
        let interval = summarized.rows[0].interval(0).unwrap();
        assert_eq!(interval.count, 3);
        assert!((interval.mean - mean).abs() < 1e-9);
        assert!((interval.half.unwrap() - 4.303 * deviation / 3f64.sqrt()).abs() < 1e-9);
        assert_eq!(summarized.rows[0].failure, None);
        // The speed-up of each run is exact, so its interval has no length.
        let speed_up = summarized.rows[1].interval(1).unwrap();
        assert_eq!((speed_up.mean, speed_up.count), (3.0, 3));
        assert_eq!(summarized.rows[1].text(1), "3 ± 0 (3 of 4)");
        assert!(summarized.rows[0].text(0).contains(" ± "), "{}", summarized.rows[0].text(0));

        let comparisons = compare(campaign.experiment, &summarized);
        assert_eq!(comparisons.len(), 1);
        assert_eq!(comparisons[0].interval.unwrap().count, 3);
        assert_eq!((comparisons[0].runs, comparisons[0].of), (3, Some(4)));
        assert_eq!((Verdict::of(&comparisons).partial, Verdict::of(&comparisons).missing), (1, 0));

        let csv = summarized.to_csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines[0], "mode,rate,rate.half,rate.runs,speed_up,speed_up.half,speed_up.runs,failure");
        assert!(lines[1].starts_with(&format!("plain,{mean},")) && lines[1].contains(",3,"), "{csv}");
        assert_eq!(lines.len(), 3);

        let chapters = [Chapter { campaign, table: summarized, command: String::new() }];
        let figures = figures(&chapters[0]);
        assert_eq!(figures.len(), 1);
        assert_eq!(figures[0].name, "repeated-1.svg");
        let page = page(&chapters, "1");
        assert_eq!(page.matches("class=\"error s0\"").count(), 2);
        assert!(page.contains("data-marks=\"3\""), "two measured values and a published one");
        assert!(page.contains("mean of 3"));
    });
}

#[test]
fn replicates_that_change_nothing_are_noticed() {
    with_table(TEXT, |campaign, table| assert_eq!(table.repeats_itself(&campaign), Some(false)));
    let same = TEXT.replace("n = [1, 2, 3, 4]", "takes_ms = [0, 1]").replace("[\"n\"]", "[\"takes_ms\"]");
    with_table(&same, |campaign, table| assert_eq!(table.repeats_itself(&campaign), Some(true)));
    with_table(&TEXT.replace("replicates = [\"n\"]", ""), |campaign, table| {
        assert_eq!(table.repeats_itself(&campaign), None);
    });
}

#[test]
fn without_replicates_a_table_stays_as_it_is() {
    with_table(&TEXT.replace("replicates = [\"n\"]", ""), |campaign, table| {
        assert_eq!(table.summarized(&campaign), table);
    });
}

#[test]
fn replicates_that_cannot_be_averaged_are_refused() {
    let (registry, _) = synthetic::registry();
    for (from, to, message) in [
        ("replicates = [\"n\"]", "replicates = [\"m\"]", "`m` is not in [sweep]"),
        ("x = \"mode\"", "x = \"n\"", "a plot shows the mean over `n`"),
        ("at = { mode = \"plain\" }", "at = { n = 1 }", "`n` is one of the `replicates`"),
    ] {
        let text = TEXT.replace(from, to);
        let checked = Experiment::check(Path::new("test.toml"), Path::new(""), &text, &registry);
        let report = checked.report.render(100, false);
        assert!(checked.experiment.is_none() && report.contains(message), "{report}");
    }
}

#[test]
fn means_of_fewer_runs_than_the_point_has_say_so() {
    with_table(TEXT, |campaign, table| {
        let summarized = table.summarized(&campaign);
        let text = summarized.rows[0].text(0);
        assert!(text.contains(" ± ") && text.ends_with(" (3 of 4)"), "{text}");
        let chapters = [Chapter { campaign, table: summarized, command: String::new() }];
        let page = page(&chapters, "1");
        // Two means of rates, two of speed-ups, and the one beside the published value.
        assert_eq!(page.matches(" (3 of 4)<").count(), 5);
        assert_eq!(page.matches("mean of 3 of 4)").count(), 2);
    });
    with_table(&TEXT.replace("fails_at = 4", "fails_at = 9"), |campaign, table| {
        let summarized = table.summarized(&campaign);
        assert!(!summarized.rows[0].text(0).contains(" of "), "{}", summarized.rows[0].text(0));
        assert_eq!(Verdict::of(&compare(campaign.experiment, &summarized)).partial, 0);
    });
}

#[test]
fn the_overview_counts_points_and_their_failed_runs() {
    with_table(TEXT, |campaign, table| {
        let summarized = table.summarized(&campaign);
        let page = page(&[Chapter { campaign, table: summarized, command: String::new() }], "1");
        assert!(
            page.contains("<td class=n>2 of 2<td class=n>2<td class=n>1 of 1"),
            "2 points, 2 failed runs"
        );
    });
    let third = Options { shard: "1/3".parse().unwrap(), ..Options::default() };
    with_table_of(TEXT, &third, |campaign, table| {
        let summarized = table.summarized(&campaign);
        let page = page(&[Chapter { campaign, table: summarized, command: String::new() }], "1");
        assert!(page.contains("<td class=n>2 of 2 (3 of 8 runs)<td class=n>1<td class=n>1 of 1"));
        assert!(page.contains("5 of 8 runs are not run yet"));
    });
}

#[test]
fn an_interval_that_reaches_zero_has_no_lower_cap_on_a_logarithmic_axis() {
    // The mean of the plain rates is 1557 ± 1608.
    for (log, caps) in [("", 2), ("log = [\"y\"]\n", 1)] {
        for kind in ["bar", "line"] {
            let text = TEXT.replace("kind = \"bar\"\n", &format!("kind = \"{kind}\"\n{log}"));
            with_table(&text, |campaign, table| {
                let table = table.summarized(&campaign);
                let figures = figures(&Chapter { campaign, table, command: String::new() });
                let bars = figures[0].svg.split("<path class=\"error s0\" d=\"").skip(1);
                let drawn: Vec<_> =
                    bars.map(|bar| bar.split('"').next().unwrap().matches('H').count()).collect();
                assert_eq!(drawn, [caps, caps], "{kind} {log}");
            });
        }
    }
}
