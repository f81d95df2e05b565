//! Tests of the report of a synthetic experiment with every kind of chart. tests/browser.py renders it in a browser.

mod synthetic;

use longma_lab::*;

/// The chapter of the synthetic experiment, given to `show`.
fn with_chapter<T>(show: impl FnOnce(Chapter<'_>) -> T) -> T {
    let (registry, _) = synthetic::registry();
    let experiment = synthetic::experiment(include_str!("synthetic/every-chart.toml"), &registry);
    let campaign = Campaign::plan(&experiment, false, &registry, "test").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path());
    let outcome = campaign.run(&store, &registry, &Options::default(), &(), &Stop::default()).unwrap();
    let table = Table::of(&campaign, &outcome.results);
    show(Chapter { campaign, table, command: "longma experiment run every-chart".into() })
}

fn report() -> String {
    with_chapter(|chapter| page(&[chapter], "test"))
}

/// Set `LONGMA_FIGURES=FOLDER` to keep the figures for viewing.
#[test]
fn figures_are_documents_of_their_own() {
    let files = with_chapter(|chapter| figures(&chapter));
    let page = report();
    assert_eq!(files.len(), page.matches("<svg ").count());
    for FigureFile { name, svg } in files {
        if let Some(folder) = std::env::var_os("LONGMA_FIGURES") {
            std::fs::write(std::path::Path::new(&folder).join(&name), &svg).unwrap();
        }
        assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" width="), "{name}");
        for foreign in ["var(", "data-tip", "NaN", "height=\"0\"", "url("] {
            assert!(!svg.contains(foreign), "{name}: {foreign}");
        }
        assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count(), "{name}");
        // Each mark has its own colour or a class with a style rule.
        assert!(svg.contains("class=\"mark"), "{name}");
    }
}

/// Set `LONGMA_REPORT=FILE` to keep the page for viewing or for the browser test.
#[test]
fn a_page_has_every_chart_and_loads_nothing() {
    let page = report();
    if let Some(path) = std::env::var_os("LONGMA_REPORT") {
        std::fs::write(path, &page).unwrap();
    }
    for kind in ["line", "bar", "heat", "circles"] {
        assert!(page.contains(&format!("<figure class=\"chart {kind}\"")), "{kind}");
    }
    for fetched in ["src=", "@import", "url(", "<link", "<iframe", "fetch("] {
        assert!(!page.contains(fetched), "{fetched}");
    }
    assert!(page.contains("A. Nobody, On Made-up Figures") && page.contains("figure 3"));
    assert!(page.contains("&lt;lines&gt;") && !page.contains("<lines>"));
    assert!(page.contains("longma experiment run every-chart"));
}

#[test]
fn the_page_has_the_same_bytes_each_time() {
    assert_eq!(report(), report());
}

#[test]
fn every_measured_and_published_value_is_a_mark_of_its_chart() {
    let page = report();
    // 6 sizes x 5 numbers x 2 modes; published: 3 points of the first plot.
    let marks: Vec<usize> = page
        .match_indices("data-marks=\"")
        .map(|(at, found)| page[at + found.len()..].split('"').next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(marks[0], 60 + 3);
    // Throughput: one point of the plain mode, and one value that applies to both modes.
    assert_eq!(marks[1..3], [60 + 3, 60 + 3]);
    assert_eq!(marks.iter().sum::<usize>(), page.matches("class=\"mark ").count());
}

#[test]
fn characters_that_xml_does_not_allow_are_replaced() {
    let (registry, _) = synthetic::registry();
    let text = include_str!("synthetic/every-chart.toml");
    let at = text.find("[[plots]]\ntitle = \"").unwrap() + "[[plots]]\ntitle = \"".len();
    let text = format!("{}\\u0001\\u001b\\uFFFE\\uFFFF\\t\\u0085{}", &text[..at], &text[at..]);
    let experiment = synthetic::experiment(&text, &registry);
    let campaign = Campaign::plan(&experiment, false, &registry, "test").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path());
    let outcome = campaign.run(&store, &registry, &Options::default(), &(), &Stop::default()).unwrap();
    let table = Table::of(&campaign, &outcome.results);
    let chapters = [Chapter { campaign, table, command: String::new() }];
    let figure = figures(&chapters[0]).swap_remove(0).svg;
    for document in [page(&chapters, "test"), figure] {
        assert!(document.contains("\u{fffd}\u{fffd}\u{fffd}\u{fffd}\t\u{85}"));
        let forbidden = |letter: char| (letter < ' ' && !"\t\n\r".contains(letter)) || letter > '\u{fffd}';
        assert!(!document.contains(|letter| forbidden(letter) && letter < '\u{10000}'));
    }
}
