//! The chapter of changes from another run.

use std::fmt::Write as _;

use longma_lab::number;

use super::{RunPage, name, put};
use crate::{
    Figures,
    compare::{Difference, StackChange, changed_inputs, differences, stack_changes},
};

/// Maximum number of figures.
const MAX_FIGURES: usize = 30;
/// Figures that changed by less are left out, in percent.
const THRESHOLD: f64 = 1.0;

pub(super) fn write(run: &RunPage<'_>, out: &mut String) {
    let Some((other, before)) = &run.against else { return };
    let after = match Figures::of(&run.result.to_json(), Some(run.machine.clone())) {
        Ok(after) => after,
        // The result of this run always has statistics.
        Err(_) => return,
    };
    put!(out, "<p class=\"about\">Before: <code>{}</code>. After: this run.</p>\n", name(other));
    let inputs = changed_inputs(before, &after);
    if inputs.is_empty() {
        out.push_str("<p class=\"about\">Program, machine and options are the same.</p>\n");
    } else {
        out.push_str("<div class=\"wide\"><table><thead><tr><th>input<th>before<th>after</tr></thead>\n");
        for (key, before, after) in &inputs {
            put!(
                out,
                "<tr><td>{}<td><code>{}</code><td><code>{}</code></tr>\n",
                name(key),
                name(before),
                name(after)
            );
        }
        out.push_str("</table></div>\n");
    }
    stack(&stack_changes(before, &after), out);
    figures(&differences(before, &after), out);
}

/// The change in cycles per instruction, by cause.
fn stack(changes: &[StackChange], out: &mut String) {
    if changes.is_empty() {
        return;
    }
    let most =
        changes.iter().skip(1).map(|change| (change.after - change.before).abs()).fold(1e-12, f64::max);
    out.push_str("<div class=\"wide\"><table class=\"deltas\"><thead><tr><th>cycles per instruction<th class=n>before<th class=n>after<th class=n>change<th></tr></thead>\n");
    for (index, StackChange { cause, before, after }) in changes.iter().enumerate() {
        let change = after - before;
        let width = 50.0 * (change.abs() / most).min(1.0);
        let (side, class) = if change > 0.0 { ("left", "far") } else { ("right", "near") };
        let bar = match index {
            0 => String::new(),
            _ => format!(
                "<span class=\"delta\"><i class=\"{class}\" style=\"{side}:50%;width:{width:.1}%\"></i></span>"
            ),
        };
        let total = if index == 0 { " class=\"total\"" } else { "" };
        put!(
            out,
            "<tr{total}><td>{}<td class=n>{before:.4}<td class=n>{after:.4}<td class=n>{change:+.4}<td>{bar}</tr>\n",
            name(cause)
        );
    }
    out.push_str("</table></div>\n");
}

fn figures(differences: &[Difference], out: &mut String) {
    let changed: Vec<&Difference> = differences
        .iter()
        .filter(|d| !d.name.contains(".cpi."))
        .filter(|d| d.is_headline() || d.percent().is_none_or(|percent| percent.abs() >= THRESHOLD))
        .filter(|d| d.before != d.after)
        .collect();
    out.push_str("<details><summary>Figures of the whole run, and others that changed by 1 % or more</summary><div class=\"wide\"><table><thead><tr><th>figure<th class=n>before<th class=n>after<th class=n>change<th>unit</tr></thead>\n");
    for difference in changed.iter().take(MAX_FIGURES) {
        let value = |figure: &Option<crate::compare::Figure>| {
            figure.as_ref().and_then(|figure| figure.value).map_or("–".into(), number)
        };
        let change = difference.percent().map_or("–".into(), |percent| format!("{percent:+.1} %"));
        put!(
            out,
            "<tr><td>{}<td class=n>{}<td class=n>{}<td class=n>{change}<td>{}</tr>\n",
            name(&difference.name),
            value(&difference.before),
            value(&difference.after),
            name(difference.unit()),
        );
    }
    out.push_str("</table></div></details>\n");
    if changed.len() > MAX_FIGURES {
        put!(
            out,
            "<p class=\"about\">{} more; <code>longma compare</code> prints them.</p>\n",
            changed.len() - MAX_FIGURES
        );
    }
}
