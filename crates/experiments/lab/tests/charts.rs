//! Tests of stacked bars, of drawings for each value of a parameter, and of conditions between parameters.

mod synthetic;

use longma_lab::*;
use std::path::Path;

const TEXT: &str = r#"
format = 1
name = "charts"
title = "Charts"
workload = "synthetic"
require = ["n < 3", "size <= 16 KiB"]

[sweep]
mode = ["plain", "fast"]
n = [1, 2, 3]
size = ["4 KiB", "16 KiB", "64 KiB"]

[metrics.rate]
unit = "1/s"
[metrics.half]
unit = "1/s"
formula = "rate / 2"

[[plots]]
title = "Parts"
kind = "stacked"
x = "n"
by = "metric"
panels = "mode"

[[plots]]
title = "Rates"
kind = "line"
x = "n"
by = "size"
panels = "mode"
metrics = ["rate"]
"#;

fn with_chapter(text: &str, check: impl FnOnce(&Chapter<'_>)) {
    let (registry, _) = synthetic::registry();
    let experiment = synthetic::experiment(text, &registry);
    let folder = tempfile::tempdir().unwrap();
    let campaign = Campaign::plan(&experiment, false, &registry, "1").unwrap();
    let store = Store::new(folder.path());
    let outcome = campaign.run(&store, &registry, &Options::default(), &(), &Stop::default()).unwrap();
    let table = Table::of(&campaign, &outcome.results);
    check(&Chapter { campaign, table, command: String::new() });
}

/// The labels of the vertical axis.
fn ticks(figure: &FigureFile) -> Vec<String> {
    let labels = figure.svg.split("class=\"tick end\"").skip(1);
    labels.filter_map(|rest| Some(rest.split_once('>')?.1.split_once('<')?.0.to_string())).collect()
}

#[test]
fn combinations_that_do_not_meet_a_condition_are_no_points() {
    with_chapter(TEXT, |chapter| {
        let labels: Vec<_> = chapter.campaign.points.iter().map(Point::label).collect();
        assert_eq!(labels.len(), 8, "{labels:?}");
        assert!(!labels.iter().any(|label| label.contains("n 3") || label.contains("64 KiB")), "{labels:?}");
    });
    let (registry, _) = synthetic::registry();
    let unknown = TEXT.replace("n < 3", "m < 3");
    let checked = Experiment::check(Path::new("test.toml"), Path::new(""), &unknown, &registry);
    let report = checked.report.render(200, false);
    assert!(checked.experiment.is_none() && report.contains("`m` is no parameter of this file"), "{report}");
}

#[test]
fn a_parameter_has_a_drawing_for_each_value_with_the_same_axis() {
    with_chapter(TEXT, |chapter| {
        let figures = figures(chapter);
        let names: Vec<_> = figures.iter().map(|figure| &*figure.name).collect();
        assert_eq!(names, ["charts-1-1.svg", "charts-1-2.svg", "charts-2-1.svg", "charts-2-2.svg"]);
        assert!(figures[2].svg.contains("Rates: mode plain") && figures[3].svg.contains("Rates: mode fast"));
        for pair in figures.chunks(2) {
            assert!(ticks(&pair[0]).len() > 2);
            assert_eq!(ticks(&pair[0]), ticks(&pair[1]));
        }
        // Two sizes at two points each.
        assert_eq!(figures[2].svg.matches("class=\"mark dot").count(), 4);
    });
}

#[test]
fn the_parts_of_a_stacked_bar_add_up() {
    let one_size = TEXT.replace("size <= 16 KiB", "size == 4 KiB");
    with_chapter(&one_size, |chapter| {
        let svg = &figures(chapter)[0].svg;
        let number = |rest: &str, name: &str| -> f64 {
            let after = rest.split_once(&format!(" {name}=\"")).unwrap().1;
            after.split_once('"').unwrap().0.parse().unwrap()
        };
        let bars: Vec<(f64, f64, f64)> = svg
            .split("<rect class=\"mark bar")
            .skip(1)
            .map(|rest| (number(rest, "x"), number(rest, "y"), number(rest, "height")))
            .collect();
        assert_eq!(bars.len(), 4, "two parts of two bars");
        // The second part is on top of the first and half as high.
        assert_eq!(bars[0].0, bars[1].0);
        assert!((bars[1].1 + bars[1].2 - bars[0].1).abs() < 0.11, "{bars:?}");
        assert!((bars[1].2 * 2.0 - bars[0].2).abs() < 0.2, "{bars:?}");
    });
    let (registry, _) = synthetic::registry();
    let log = TEXT.replace("by = \"metric\"", "by = \"metric\"\nlog = [\"y\"]");
    let checked = Experiment::check(Path::new("test.toml"), Path::new(""), &log, &registry);
    assert!(checked.report.render(200, false).contains("do not add up"));
}
