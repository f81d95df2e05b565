//! Draws the sensitivity of a metric as a tornado chart: a bar per parameter from the value at its low end to the value
//! at its high end, the longest at the top.
//!
//! Source: Eschenbach 1992, "Spiderplots versus tornado diagrams for sensitivity analysis".

use super::draw::{Frame, LETTER, svg, text};
use super::standalone::{framed, key};
use super::{put, scale::Scale};
use crate::number::number;
use crate::sensitivity::{Effect, Effects};
use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const ROW: f64 = 24.0;
/// Height of a bar.
const BAR: f64 = 14.0;
/// Maximum number of bars. The table has all.
const MAX_BARS: usize = 25;
/// Maximum number of letters of a parameter's name.
const MAX_NAME: usize = 46;
/// The series that provide the colours of the low and the high end.
const ENDS: [usize; 2] = [0, 1];

/// The chart as an SVG document. Parameters without an effect are left out.
pub fn tornado(title: &str, metric: &str, unit: &str, effects: &Effects) -> String {
    let base = effects.base;
    let shown: Vec<&Effect> =
        effects.effects.iter().filter(|effect| effect.span(base) > 0.0).take(MAX_BARS).collect();
    let names: Vec<String> = shown.iter().map(|effect| name(&effect.parameter)).collect();
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let settings = shown.iter().flat_map(|effect| &effect.ends).map(|(setting, _)| setting.to_string());
    // The settings are written beside the ends of the bars.
    let beside = settings.map(|text| text.chars().count()).max().unwrap_or(0) as f64 * LETTER + 8.0;
    let left = longest as f64 * LETTER + 14.0;
    let frame = Frame { left, right: WIDTH - 8.0, top: 46.0, bottom: 50.0 + ROW * shown.len().max(1) as f64 };
    let values = shown.iter().flat_map(|effect| &effect.ends).filter_map(|(_, value)| value.as_ref().ok());
    let values: Vec<f64> = values.copied().chain([base]).collect();
    let page = (frame.left + beside, frame.right - beside);
    let scale = Scale::of(values.into_iter(), page, false, false);
    let mut out = String::new();
    text(&mut out, "axis", 2.0, 13.0, &format!("{metric} ({unit})"));
    for (value, label) in scale.ticks(5) {
        let x = scale.place(value);
        let (top, bottom) = (frame.top, frame.bottom);
        put!(out, "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top:.1}\" y2=\"{bottom:.1}\"/>\n");
        text(&mut out, "tick middle", x, frame.bottom + 16.0, &label);
    }
    for (row, (effect, name)) in shown.iter().zip(&names).enumerate() {
        let middle = frame.top + 4.0 + ROW * (row as f64 + 0.5);
        text(&mut out, "tick end", frame.left - 8.0, middle + 4.0, name);
        bar(effect, base, middle, &scale, &mut out);
    }
    let x = scale.place(base);
    let (top, bottom) = (frame.top - 4.0, frame.bottom);
    put!(out, "<line class=\"base\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top:.1}\" y2=\"{bottom:.1}\"/>\n");
    text(&mut out, "tick middle", x, frame.top - 8.0, &number(base));
    if shown.is_empty() {
        text(&mut out, "tick", frame.left, frame.top + ROW, "no parameter has an effect");
    }
    let drawing = svg(WIDTH, frame.bottom + 26.0, title, &out);
    framed(title, &[(key(ENDS[0]), "low value".into()), (key(ENDS[1]), "high value".into())], &drawing)
}

/// The bar of a parameter: a part for each end, with the parameter's value beside it.
fn bar(effect: &Effect, base: f64, middle: f64, scale: &Scale, out: &mut String) {
    let ends = effect.ends.iter().enumerate().filter_map(|(end, (setting, value))| {
        let series = ENDS[end.min(1)];
        value.as_ref().ok().map(|value| (series, setting, *value))
    });
    let mut ends: Vec<_> = ends.collect();
    // If both ends are on one side, the shorter part is drawn over the longer one.
    ends.sort_by(|a, b| (b.2 - base).abs().total_cmp(&(a.2 - base).abs()));
    let same_side = matches!(&*ends, [a, b] if (a.2 - base) * (b.2 - base) > 0.0);
    for (index, (series, setting, value)) in ends.into_iter().enumerate() {
        let (from, to) = (scale.place(base), scale.place(value));
        let (x, width) = (from.min(to), (from - to).abs());
        put!(
            out,
            "<rect class=\"mark bar s{series}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{BAR:.1}\"/>\n",
            middle - BAR / 2.0,
            width.max(0.8)
        );
        // The second label on one side would be hidden by the first bar.
        if value != base && !(same_side && index == 1) {
            let (class, x) = if to < from { ("tick end", to - 4.0) } else { ("tick", to + 4.0) };
            text(out, class, x, middle + 4.0, &setting.to_string());
        }
    }
}

/// The name of a parameter, shortened at its beginning.
fn name(parameter: &str) -> String {
    let name = parameter.strip_prefix("machine.").unwrap_or(parameter);
    let letters = name.chars().count();
    match letters > MAX_NAME {
        true => format!("…{}", name.chars().skip(letters - MAX_NAME + 1).collect::<String>()),
        false => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_effect_is_at_the_top_and_failed_ends_have_no_bar() {
        let effect = |name: &str, low: Result<f64, String>, high: Result<f64, String>| Effect {
            parameter: format!("machine.{name}"),
            value: Some("2 ns".into()),
            source: None,
            ends: vec![("1 ns".into(), low), ("4 ns".into(), high)],
        };
        let effects = vec![
            effect("large<", Ok(5.0), Ok(20.0)),
            effect("one_sided", Ok(11.0), Ok(12.0)),
            effect("failed", Err("no".into()), Ok(10.5)),
            effect("none", Ok(10.0), Ok(10.0)),
        ];
        let svg = tornado("Title", "latency", "ns", &Effects { base: 10.0, effects });
        assert_eq!(svg.matches("class=\"mark bar").count(), 5);
        assert!(!svg.contains(">none<"), "{svg}");
        assert!(svg.find("large&lt;").unwrap() < svg.find("one_sided").unwrap());
        let empty = tornado("Title", "latency", "ns", &Effects { base: 1.0, effects: Vec::new() });
        assert!(empty.contains("no parameter has an effect"));
    }
}
