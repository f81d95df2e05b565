//! Draws means with their 95 % intervals, and tables, for the pages of sweeps.

use longma_affinity::analysis::Interval;
use longma_lab::number;
use longma_lab::report::draw::{COLOURS, Frame, LETTER, svg, text, tip, x_labels};
use longma_lab::report::escape;
use longma_lab::report::scale::Scale;
use std::fmt::Write as _;

/// Width of the axis.
const WIDTH: f64 = 320.0;
/// Labels with more characters are truncated.
pub const MAX_LABEL: usize = 60;
const ROW_HEIGHT: f64 = 26.0;
const TOP: f64 = 26.0;

/// A mean to draw.
pub struct Mean {
    /// The measured quantity.
    pub label: String,
    /// Its group, which determines its colour.
    pub group: usize,
    /// The mean and its interval.
    pub interval: Interval,
}

/// A figure of means over one axis. `groups` are named in a legend if there are several. The axis includes 0.
pub fn figure(title: &str, unit: &str, groups: &[&str], means: &[Mean]) -> String {
    let ends = |mean: &Mean| {
        let half = mean.interval.half.unwrap_or(0.0);
        [mean.interval.mean - half, mean.interval.mean + half]
    };
    let values: Vec<f64> = means.iter().flat_map(ends).collect();
    let longest = means.iter().map(|mean| mean.label.chars().count().min(MAX_LABEL)).max().unwrap_or(0);
    let left = longest as f64 * LETTER + 16.0;
    let bottom = TOP + ROW_HEIGHT * means.len() as f64;
    let frame = Frame { left, right: left + WIDTH, top: TOP, bottom };
    let scale = Scale::of(values.into_iter(), (frame.left, frame.right), false, true).padded(0.03, 0.03);
    let mut content = String::new();
    text(&mut content, "axis", 2.0, 13.0, unit);
    let ticks: Vec<(f64, String)> =
        scale.ticks(5).into_iter().map(|(value, label)| (scale.place(value), label)).collect();
    let vertical = |out: &mut String, class: &str, x: f64| {
        let _ = writeln!(
            out,
            "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP:.1}\" y2=\"{bottom:.1}\"/>"
        );
    };
    ticks.iter().for_each(|(x, _)| vertical(&mut content, "grid", *x));
    vertical(&mut content, "base", scale.place(0.0));
    for (index, mean) in means.iter().enumerate() {
        let y = TOP + ROW_HEIGHT * (index as f64 + 0.5);
        let label: String = mean.label.chars().take(MAX_LABEL).collect();
        text(&mut content, "tick end", left - 8.0, y + 4.0, &label);
        let (colour, x) = (mean.group % COLOURS, scale.place(mean.interval.mean));
        if mean.interval.half.is_some() {
            let [from, to] = ends(mean).map(|end| scale.place(end));
            let _ = writeln!(
                content,
                "<path class=\"line s{colour}\" d=\"M{from:.1} {y:.1}L{to:.1} {y:.1}M{from:.1} {:.1}v8M{to:.1} {:.1}v8\"/>",
                y - 4.0,
                y - 4.0
            );
        }
        let words = format!("{}\n{} {unit}", mean.label, with_half(&mean.interval));
        let _ = writeln!(
            content,
            "<circle class=\"mark dot s{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.2\" {}/>",
            tip(&words)
        );
    }
    x_labels(&mut content, frame, &ticks);
    let drawing = svg(frame.right + 24.0, bottom + 30.0, title, &content);
    let names: String = match groups.len() {
        0 | 1 => String::new(),
        _ => {
            let key = |(index, name): (usize, &&str)| {
                format!("<span><i class=\"key s{}\"></i>{}</span>", index % COLOURS, escape(name))
            };
            format!(
                "<div class=\"legend\">{}</div>\n",
                groups.iter().enumerate().map(key).collect::<String>()
            )
        }
    };
    format!(
        "<figure class=\"chart interval\" data-marks=\"{}\"><figcaption>{}</figcaption>\n{names}{drawing}</figure>\n",
        means.len(),
        escape(title)
    )
}

/// A mean with half of its interval: `3.50 ± 0.25`.
pub fn with_half(interval: &Interval) -> String {
    let largest = interval.mean.abs().max(interval.half.unwrap_or(0.0));
    let shown = |value: f64| match largest {
        large if large >= 1000.0 => format!("{value:.0}"),
        small if small > 0.0 && small < 0.1 => number(value),
        _ => format!("{value:.2}"),
    };
    match interval.half {
        Some(half) => format!("{} ± {}", shown(interval.mean), shown(half)),
        None => shown(interval.mean),
    }
}

/// A table. The first `named` columns are text, the others numbers.
pub fn table(named: usize, head: &[&str], rows: &[Vec<String>]) -> String {
    let class = |index: usize| if index < named { "" } else { " class=n" };
    let cells = |kind: &str, row: &mut dyn Iterator<Item = &str>| -> String {
        row.enumerate().map(|(index, cell)| format!("<{kind}{}>{}", class(index), escape(cell))).collect()
    };
    let mut html = format!(
        "<div class=\"wide\"><table><thead><tr>{}</tr></thead>\n",
        cells("th", &mut head.iter().copied())
    );
    for row in rows {
        let _ = writeln!(html, "<tr>{}</tr>", cells("td", &mut row.iter().map(String::as_str)));
    }
    html + "</table></div>\n"
}

/// A paragraph.
pub fn paragraph(words: &str) -> String {
    format!("<p class=\"about\">{}</p>\n", escape(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_has_a_mark_and_its_interval_a_line() {
        let mean = |label: &str, mean, half| Mean {
            label: label.into(),
            group: 0,
            interval: Interval { mean, half, count: 2 },
        };
        let html = figure(
            "Effects <of>",
            "Gb/s",
            &["one", "two"],
            &[mean("gro 0 -> 1", 3.5, Some(0.25)), mean("b", -1.0, None)],
        );
        assert_eq!((html.matches("mark dot").count(), html.matches("class=\"line").count()), (2, 1));
        assert!(html.contains("3.50 ± 0.25 Gb/s") && html.contains("Effects &lt;of&gt;"), "{html}");
        assert_eq!(html.matches("class=\"key").count(), 2);
        assert!(!html.contains("NaN"), "{html}");
        assert!(!figure("Nothing", "Gb/s", &[], &[]).contains("NaN"));
    }

    #[test]
    fn names_in_tables_are_escaped() {
        let html = table(1, &["A", "B"], &[vec!["<i>".into(), "1".into()]]);
        assert!(html.contains("<th>A<th class=n>B") && html.contains("<td>&lt;i&gt;<td class=n>1"), "{html}");
    }
}
