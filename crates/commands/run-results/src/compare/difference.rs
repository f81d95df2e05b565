//! Computes and formats the differences between two results.

use std::{collections::BTreeMap, fmt::Write};

use longma_text::sanitize;
use serde_json::{Value, json};

use super::reading::{Figure, Figures};

/// Prefix of the figures that are listed first and shown even if unchanged.
const HEADLINE: &str = "run.";

/// One figure in both results.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Its hierarchical name.
    pub name: String,
    /// Value in the first result, if present.
    pub before: Option<Figure>,
    /// Value in the second result, if present.
    pub after: Option<Figure>,
}

impl Difference {
    /// Whether the figure is shown even if it did not change.
    pub fn is_headline(&self) -> bool {
        self.name.starts_with(HEADLINE)
    }

    fn value(figure: &Option<Figure>) -> Option<f64> {
        figure.as_ref().and_then(|figure| figure.value)
    }

    /// The change in percent of the first value. `None` if a value is missing, or if the first is zero and the second
    /// is not.
    pub fn percent(&self) -> Option<f64> {
        match (Self::value(&self.before)?, Self::value(&self.after)?) {
            (before, after) if before == after => Some(0.0),
            (0.0, _) => None,
            (before, after) => Some(100.0 * (after - before) / before.abs()),
        }
    }

    /// The unit of the figure.
    pub fn unit(&self) -> &str {
        self.after.as_ref().or(self.before.as_ref()).map_or("", |figure| &figure.unit)
    }

    /// Sort key: headlines first, then figures that only one result has, then by size of the change.
    fn rank(&self) -> (u8, f64) {
        match (self.is_headline(), self.percent()) {
            (true, _) => (0, 0.0),
            (false, None) if self.before != self.after => (1, 0.0),
            (false, percent) => (2, -percent.unwrap_or(0.0).abs()),
        }
    }
}

/// All figures of either result, sorted by rank.
pub fn differences(before: &Figures, after: &Figures) -> Vec<Difference> {
    let mut names: Vec<&String> = before.figures.keys().chain(after.figures.keys()).collect();
    names.sort();
    names.dedup();
    let mut all: Vec<Difference> = names
        .into_iter()
        .map(|name| Difference {
            name: name.clone(),
            before: before.figures.get(name).cloned(),
            after: after.figures.get(name).cloned(),
        })
        .collect();
    all.sort_by(|a, b| {
        a.rank().partial_cmp(&b.rank()).expect("a change is a number").then(a.name.cmp(&b.name))
    });
    all
}

/// Differences in the inputs: manifest entries, and machine keys if both machines are known. `(key, before, after)`.
pub fn changed_inputs(before: &Figures, after: &Figures) -> Vec<(String, String, String)> {
    let mut keys: Vec<&String> = before.manifest.keys().chain(after.manifest.keys()).collect();
    keys.sort();
    keys.dedup();
    let text =
        |figures: &Figures, key: &str| figures.manifest.get(key).cloned().unwrap_or_else(|| "-".into());
    let mut changed: Vec<_> = keys
        .into_iter()
        .map(|key| (key.clone(), text(before, key), text(after, key)))
        .filter(|(_, before, after)| before != after)
        .collect();
    if let (Some(first), Some(second)) = (&before.machine, &after.machine) {
        let keys = longma_topology::differences(first, second);
        if !keys.is_empty() {
            // The differing keys are more precise than the differing digests.
            changed.retain(|(key, ..)| key != "machine");
            if first.name != second.name {
                changed.push(("machine".into(), first.name.clone(), second.name.clone()));
            }
        }
        let value = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        changed.extend(keys.into_iter().map(|key| (key.key, value(key.first), value(key.second))));
    }
    changed
}

/// The CPI of a cause, in two results.
#[derive(Clone, Debug, PartialEq)]
pub struct StackChange {
    /// The cause, or `CPI` for the sum without idle cycles.
    pub cause: String,
    /// Cycles per instruction over all cores in the first result.
    pub before: f64,
    /// Cycles per instruction over all cores in the second result.
    pub after: f64,
}

/// The CPI over all cores by cause; empty at level `cache`.
fn stack(figures: &Figures) -> BTreeMap<&str, f64> {
    let value = |name: &str| figures.figures.get(name).and_then(|figure| figure.value);
    let mut cycles: BTreeMap<&str, f64> = BTreeMap::new();
    let mut all = 0.0;
    for (name, figure) in &figures.figures {
        let Some((core, rest)) = name.split_once('.').filter(|(core, _)| is_core(core)) else { continue };
        let Some(instructions) = value(&format!("{core}.instructions")) else { continue };
        if rest == "instructions" {
            all += instructions;
        } else if let Some(cause) = rest.strip_prefix("cpi.") {
            *cycles.entry(cause).or_default() += figure.value.unwrap_or(0.0) * instructions;
        }
    }
    cycles.values_mut().for_each(|cycles| *cycles /= f64::max(all, 1.0));
    cycles
}

fn is_core(name: &str) -> bool {
    name.strip_prefix("core")
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// The minimum change of CPI that is shown.
const MIN_CPI: f64 = 0.0005;

/// The CPI stacks of two results, the largest changes first; empty unless both have one.
pub fn stack_changes(before: &Figures, after: &Figures) -> Vec<StackChange> {
    let (first, second) = (stack(before), stack(after));
    if first.is_empty() || second.is_empty() {
        return Vec::new();
    }
    let busy = |stack: &BTreeMap<&str, f64>| {
        stack.iter().filter(|(cause, _)| **cause != "idle").map(|(_, cycles)| cycles).sum::<f64>()
    };
    let mut causes: Vec<&str> = first.keys().chain(second.keys()).copied().collect();
    causes.sort_unstable();
    causes.dedup();
    let of = |stack: &BTreeMap<&str, f64>, cause: &str| stack.get(cause).copied().unwrap_or(0.0);
    let mut changes: Vec<StackChange> = causes
        .into_iter()
        .map(|cause| StackChange {
            cause: cause.into(),
            before: of(&first, cause),
            after: of(&second, cause),
        })
        .filter(|change| (change.after - change.before).abs() >= MIN_CPI)
        .collect();
    changes.sort_by(|a, b| {
        let size = |change: &StackChange| (change.after - change.before).abs();
        size(b).total_cmp(&size(a)).then_with(|| a.cause.cmp(&b.cause))
    });
    changes.insert(0, StackChange { cause: "CPI".into(), before: busy(&first), after: busy(&second) });
    changes
}

/// The differences as a table, with control characters escaped: result files are untrusted. `total` is the number of
/// figures before filtering.
pub fn table(before: &Figures, after: &Figures, shown: &[&Difference], total: usize) -> String {
    let mut text = String::new();
    for (key, before, after) in changed_inputs(before, after) {
        let [key, before, after] = [key, before, after].map(|part| sanitize(&part));
        let _ = writeln!(text, "{key}: {before} -> {after}");
    }
    let changes = stack_changes(before, after);
    if !changes.is_empty() {
        let _ = writeln!(text, "{:<16}{:>9}{:>9}{:>9}", "cycles/instr.", "before", "after", "change");
    }
    for StackChange { cause, before, after } in &changes {
        let cause = sanitize(cause);
        let _ = writeln!(text, "{cause:<16}{before:>9.4}{after:>9.4}{:>+9.4}", after - before);
    }
    if !changes.is_empty() {
        text.push('\n');
    }
    let width = shown.iter().map(|d| d.name.chars().count()).max().unwrap_or(0).max(6);
    let _ = writeln!(text, "{:width$}  {:>16}  {:>16}  {:>9}  unit", "figure", "before", "after", "change");
    for difference in shown {
        let _ = writeln!(
            text,
            "{:width$}  {:>16}  {:>16}  {:>9}  {}",
            sanitize(&difference.name),
            number(&difference.before),
            number(&difference.after),
            change(difference),
            sanitize(difference.unit()),
        );
    }
    if shown.len() < total {
        let _ = writeln!(text, "{} of {total} figures; --all prints all of them", shown.len());
    }
    text
}

fn change(difference: &Difference) -> String {
    match (&difference.before, &difference.after, difference.percent()) {
        (None, _, _) => "new".into(),
        (_, None, _) => "gone".into(),
        (_, _, Some(0.0)) => "=".into(),
        (_, _, Some(percent)) => format!("{percent:+.1} %"),
        (_, _, None) => "-".into(),
    }
}

fn number(figure: &Option<Figure>) -> String {
    match Difference::value(figure) {
        None => "-".into(),
        Some(value) if value.fract() == 0.0 && value.abs() < 1e15 => format!("{value:.0}"),
        Some(value) => format!("{value:.4}"),
    }
}

/// The differences as JSON.
pub fn object(before: &Figures, after: &Figures, shown: &[&Difference]) -> Value {
    let inputs: Vec<Value> = changed_inputs(before, after)
        .into_iter()
        .map(|(key, before, after)| json!({ "key": key, "before": before, "after": after }))
        .collect();
    let figures: Vec<Value> = shown
        .iter()
        .map(|d| {
            json!({
                "name": d.name,
                "unit": d.unit(),
                "before": Difference::value(&d.before),
                "after": Difference::value(&d.after),
                "change_percent": d.percent(),
            })
        })
        .collect();
    let cpi: Vec<Value> = stack_changes(before, after)
        .iter()
        .map(|change| json!({ "cause": change.cause, "before": change.before, "after": change.after }))
        .collect();
    json!({ "inputs": inputs, "cpi": cpi, "figures": figures })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn figures(of: &[(&str, f64)], machine: &str) -> Figures {
        let figure = |value| Figure { value: Some(value), unit: "u".into() };
        Figures {
            figures: of.iter().map(|(name, value)| (name.to_string(), figure(*value))).collect(),
            manifest: [("machine".to_string(), machine.to_string())].into(),
            machine: None,
        }
    }

    #[test]
    fn headlines_come_first_then_what_is_new_then_the_largest_change() {
        let before =
            figures(&[("run.cycles", 100.0), ("a", 10.0), ("b", 10.0), ("same", 3.0), ("gone", 1.0)], "x");
        let after = figures(&[("run.cycles", 100.0), ("a", 11.0), ("b", 5.0), ("same", 3.0)], "y");
        let all = differences(&before, &after);
        let names: Vec<_> = all.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["run.cycles", "gone", "b", "a", "same"]);
        assert_eq!(all[2].percent(), Some(-50.0));
        let shown: Vec<_> = all.iter().collect();
        insta::assert_snapshot!(table(&before, &after, &shown[..4], all.len()));
    }

    proptest! {
        #[test]
        fn a_result_of_others_does_not_control_the_terminal(
            name: String, unit: String, key: String, value: String, cause: String, number: f64,
        ) {
            let result = |value: &str, number: f64| {
                let hostile = json!({ "value": number, "unit": unit });
                let cpi = json!({ "value": number, "unit": "cycles" });
                let core = json!({ "instructions": { "value": 1, "unit": "1" }, "cpi": { cause.clone(): cpi } });
                let statistics = json!({ name.clone(): hostile, "core0": core });
                let result = json!({ "manifest": { key.clone(): value }, "statistics": statistics });
                Figures::of(&result, None).unwrap()
            };
            let (before, after) = (result(&value, 1.0), result("other", number));
            let all = differences(&before, &after);
            let text = table(&before, &after, &all.iter().collect::<Vec<_>>(), all.len());
            prop_assert_eq!(longma_text::sanitize_lines(&text), text);
        }
    }

    #[test]
    fn a_figure_that_was_zero_has_no_percentage() {
        let all = differences(&figures(&[("a", 0.0)], "x"), &figures(&[("a", 2.0)], "x"));
        assert_eq!(all[0].percent(), None);
        assert_eq!(change(&all[0]), "-");
    }
}
