//! The hottest functions, source lines and instructions.

use std::fmt::Write as _;

use longma_lab::number;
use longma_runner::simulation::{AnnotatedFunction, Annotation, Cost, FunctionTime};

use super::{RunPage, code, memory::bar, name, percent, put, share};
use crate::annotate::{Shown, hottest};

/// Shares below this are left out of the tables, in percent.
const MIN_PERCENT: f64 = 0.05;
/// Maximum number of functions in the table.
const MAX_FUNCTIONS: usize = 30;
/// Maximum number of source lines in the table.
const MAX_LINES: usize = super::SOURCE_LINES;
/// Number of functions whose assembly is shown.
const ANNOTATED: usize = super::ANNOTATED_FUNCTIONS;
/// Maximum number of instructions of a function; the hottest are shown.
const MAX_INSTRUCTIONS: usize = 400;

pub(super) fn write(run: &RunPage<'_>, out: &mut String) {
    functions(run, out);
    let Some(annotation) = run.annotation else { return };
    let is_timed = run.result.summary.stack.is_some();
    lines(annotation, is_timed, out);
    for function in annotation.functions.iter().take(ANNOTATED) {
        assembly(function, annotation, is_timed, out);
    }
}

fn functions(run: &RunPage<'_>, out: &mut String) {
    let is_timed = run.result.summary.stack.is_some();
    let cost =
        |function: &FunctionTime| if is_timed { function.cycles } else { function.instructions as f64 };
    let total: f64 = run.result.functions.iter().map(cost).sum();
    put!(
        out,
        "<div class=\"wide\"><table class=\"functions\"><thead><tr><th>function<th class=n>share<th><th class=n>{}<th class=n>IPC<th class=n>L2 hits<th class=n>L3 hits<th class=n>memory<th class=n>mispredicted</tr></thead>\n",
        if is_timed { "cycles" } else { "instructions" },
    );
    let is_hot = |function: &&FunctionTime| percent(cost(function), total) >= MIN_PERCENT;
    let shown = run.result.functions.iter().take(MAX_FUNCTIONS).filter(is_hot).count();
    for function in &run.result.functions[..shown] {
        let [level2, level3, peer, local, remote] = function.misses;
        let ipc = match is_timed {
            true => format!("{:.2}", function.instructions as f64 / function.cycles.max(1.0)),
            false => "–".into(),
        };
        put!(
            out,
            "<tr><td>{} <small>{}</small><td class=n>{}<td>{}<td class=n>{}<td class=n>{ipc}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}</tr>\n",
            code(&function.function),
            name(&function.object),
            share(cost(function), total),
            bar(percent(cost(function), total) / 100.0),
            number(cost(function).round()),
            number(level2 as f64),
            number((level3 + peer) as f64),
            number((local + remote) as f64),
            number(function.mispredicts as f64),
        );
    }
    out.push_str("</table></div>\n");
    if run.result.functions.len() > shown {
        let rest: f64 = run.result.functions[shown..].iter().map(cost).sum();
        let others = run.result.functions.len() - shown;
        put!(out, "<p class=\"about\">{} in {} others.</p>\n", share(rest, total), number(others as f64));
    }
}

/// The cost that shares refer to: cycles, or executions at level `cache`.
fn heat(cost: &Cost, is_timed: bool) -> f64 {
    if is_timed { cost.cycles } else { cost.runs as f64 }
}

fn lines(annotation: &Annotation, is_timed: bool, out: &mut String) {
    if annotation.lines.is_empty() {
        out.push_str("<p class=\"about\">The program has no line numbers (DWARF, uncompressed); compile it with <code>-g</code> to see its hottest source lines here.</p>\n");
        return;
    }
    let total = heat(&annotation.total, is_timed);
    out.push_str("<h3>Source lines</h3><div class=\"wide\"><table class=\"lines\"><thead><tr><th>line<th class=n>share<th><th class=n>instructions<th class=n>misses<th class=n>mispredicted<th>waits for</tr></thead>\n");
    for (line, cost) in annotation.lines.iter().take(MAX_LINES) {
        let cycles = heat(cost, is_timed);
        if percent(cycles, total) < MIN_PERCENT {
            break;
        }
        put!(
            out,
            "<tr><td><code>{}:{}</code><td class=n>{}<td>{}<td class=n>{}<td class=n>{}<td class=n>{}<td>{}</tr>\n",
            name(&end_of_path(&line.file)),
            line.line,
            share(cycles, total),
            bar(percent(cycles, total) / 100.0),
            number(cost.runs as f64),
            number(cost.all_misses() as f64),
            number(cost.mispredicts as f64),
            cost.main_stall().map_or("", |stall| stall.name()),
        );
    }
    out.push_str("</table></div>\n");
}

/// The last two parts of a path.
fn end_of_path(path: &str) -> String {
    let mut parts = path.rsplit('/');
    match (parts.next(), parts.next()) {
        (Some(file), Some(folder)) if !folder.is_empty() => format!("{folder}/{file}"),
        (Some(file), _) => file.into(),
        _ => path.into(),
    }
}

fn assembly(function: &AnnotatedFunction, annotation: &Annotation, is_timed: bool, out: &mut String) {
    let total = heat(&annotation.total, is_timed);
    let own = heat(&function.cost, is_timed);
    put!(
        out,
        "<details><summary>{}, instruction by instruction: {} of all</summary>\n",
        code(&function.place.function),
        share(own, total),
    );
    out.push_str("<div class=\"wide\"><table class=\"assembly\"><thead><tr><th class=n>share<th><th class=n>cycles each<th class=n>executed<th class=n>misses<th class=n>mispredicted<th>waits for<th>instruction<th>line</tr></thead>\n");
    let hottest = hottest(function, MAX_INSTRUCTIONS);
    let most =
        hottest.iter().filter_map(Shown::instruction).map(|i| heat(&i.cost, is_timed)).fold(0.0, f64::max);
    for shown in &hottest {
        let Some(instruction) = shown.instruction() else {
            out.push_str("<tr class=\"gap\"><td colspan=9>…</tr>\n");
            continue;
        };
        let cost = &instruction.cost;
        let cycles = heat(cost, is_timed);
        let each = match is_timed {
            true => format!("{:.2}", cost.cycles / cost.runs.max(1) as f64),
            false => "–".into(),
        };
        let count = |count: u64| if count == 0 { String::new() } else { number(count as f64) };
        put!(
            out,
            "<tr><td class=n>{}<td>{}<td class=n>{each}<td class=n>{}<td class=n>{}<td class=n>{}<td>{}<td><code>{:x}: {}</code><td>{}</tr>\n",
            share(cycles, own),
            bar(cycles / most.max(1e-9)),
            number(cost.runs as f64),
            count(cost.all_misses()),
            count(cost.mispredicts),
            cost.main_stall().map_or("", |stall| stall.name()),
            instruction.address,
            name(&instruction.text),
            instruction.line.as_ref().map_or(String::new(), |line| {
                let file = line.file.rsplit('/').next().unwrap_or(&line.file);
                format!("{}:{}", name(file), line.line)
            }),
        );
    }
    out.push_str("</table></div></details>\n");
}
