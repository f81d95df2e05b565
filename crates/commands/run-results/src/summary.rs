//! The summary of a simulated run. `--stats-out` writes all statistics.

use std::fmt::Write;

use longma_runner::{
    Ending,
    simulation::{Estimate, FunctionTime, INTERVAL, RunResult, SamplingReport, Traffic},
    timing::Cause,
};

use crate::{caches::caches, function_name::abbreviate, grouped};

/// Maximum number of functions shown.
const FUNCTIONS: usize = 10;
/// Maximum number of memory controllers, crossbar ports and links shown.
const PARTS: usize = 8;
/// Maximum number of characters of a function's name.
const NAME: usize = 60;
/// Width of the longest bar, in characters.
const BAR: usize = 40;

/// Formats the summary.
pub fn text(result: &RunResult) -> String {
    let mut text = String::new();
    head(result, &mut text);
    stack(result, &mut text);
    memory(result, &mut text);
    functions(result, &mut text);
    text.truncate(text.trim_end().len());
    text
}

/// Appends a line; writing to a String cannot fail.
macro_rules! line {
    ($to:expr, $($format:tt)*) => {{
        let _ = writeln!($to, $($format)*);
    }};
}

fn head(result: &RunResult, to: &mut String) {
    let manifest = &result.manifest;
    let machine = manifest.machine.as_ref().map_or("", |machine| &machine.name);
    let model = manifest.core_model.as_ref().map(|model| format!(", {model}")).unwrap_or_default();
    line!(to, "{:<14}{machine}, level {}{model}", "machine", manifest.level);
    match (result.stopped, result.ending) {
        (Some(reason), _) => line!(to, "{:<14}before its end: {reason}", "stopped"),
        (None, Ending::Signal(signal)) => line!(to, "{:<14}by signal {signal}", "stopped"),
        (None, Ending::Exit(_)) => {}
    }
    if !result.programs.is_empty() {
        line!(to, "{:<14}{}", "programs", longma_text::sanitize(&result.programs.join(", ")));
    }
    let summary = &result.summary;
    let cores = if summary.cores == 1 { "1 core".into() } else { format!("{} cores", summary.cores) };
    line!(to, "{:<14}{} on {cores}{}", "instructions", grouped(summary.instructions), source(result));
    if summary.stack.is_some() {
        line!(to, "{:<14}{}", "time", summary.time);
        line!(to, "{:<14}{}", "cycles", grouped(summary.busy_cycles.round() as u64));
        line!(to, "{:<14}{:.3}", "IPC", summary.instructions as f64 / summary.busy_cycles.max(1.0));
    }
    if let Some(sampling) = &result.sampling {
        sampled(sampling, to);
    }
    if let Some(branches) = &summary.branches {
        let all = branches.conditional + branches.indirect + branches.returns;
        let missed = branches.conditional_mispredicted
            + branches.indirect_mispredicted
            + branches.returns_mispredicted;
        line!(
            to,
            "{:<14}{}, {:.2} % mispredicted, {:.2} per thousand instructions",
            "branches",
            grouped(all),
            percent(missed as f64, all as f64),
            1000.0 * missed as f64 / summary.instructions.max(1) as f64,
        );
    }
}

/// The method of the estimate, and the confidence intervals of the main figures.
fn sampled(sampling: &SamplingReport, to: &mut String) {
    let SamplingReport { units, measured_instructions, instructions, cpi, cycles, .. } = sampling;
    let half = |estimate: &Estimate| (estimate.high - estimate.low) / 2.0;
    let share = percent(*measured_instructions as f64, *instructions as f64);
    line!(to, "{:<14}estimated from {} units, {share:.2} % of the instructions", "sample", grouped(*units));
    line!(
        to,
        "{:<14}{:.4} ± {:.4} ({:.2} %), {INTERVAL}",
        "CPI",
        cpi.value,
        half(cpi),
        100.0 * cpi.relative_error()
    );
    line!(to, "{:<14}{} to {}", "cycles", grouped(cycles.low as u64), grouped(cycles.high as u64));
}

/// The number of source instructions, if the program was translated.
fn source(result: &RunResult) -> String {
    result.source.map_or_else(String::new, |(name, instructions)| {
        let expansion = result.summary.instructions as f64 / instructions.max(1) as f64;
        format!(", for {} of {name} (ratio {expansion:.3})", grouped(instructions))
    })
}

fn percent(part: f64, total: f64) -> f64 {
    if total > 0.0 { 100.0 * part / total } else { 0.0 }
}

/// The CPI stack; causes below 0.1 % are omitted.
fn stack(result: &RunResult, to: &mut String) {
    let summary = &result.summary;
    let Some(stack) = &summary.stack else { return };
    let total: f64 = stack.iter().sum();
    let largest = stack.iter().copied().fold(0.0, f64::max);
    line!(to, "\n{:<16}{:>8}{:>9}", "cycles went to", "share", "CPI");
    for cause in Cause::ALL {
        let cycles = stack[cause as usize];
        if percent(cycles, total) < 0.1 {
            continue;
        }
        let bar = "█".repeat((BAR as f64 * cycles / largest).round() as usize);
        let cpi = cycles / summary.instructions.max(1) as f64;
        line!(to, "{:<16}{:>6.1} %{cpi:>9.3}  {bar}", cause.name(), percent(cycles, total));
    }
}

fn memory(result: &RunResult, to: &mut String) {
    let thousands = result.summary.instructions.max(1) as f64 / 1000.0;
    line!(
        to,
        "\n{:<10}{:>16}{:>14}{:>9}{:>8}{:>13}{:>13}{:>13}",
        "cache",
        "accesses",
        "misses",
        "rate",
        "MPKI",
        "by loads",
        "by stores",
        "by fetches",
    );
    for (name, cache) in caches(&result.statistics) {
        let [loads, stores, fetches] = cache.missed_by_kind.map(grouped);
        line!(
            to,
            "{:<10}{:>16}{:>14}{:>7.2} %{:>8.2}{loads:>13}{stores:>13}{fetches:>13}",
            name.to_uppercase(),
            grouped(cache.all),
            grouped(cache.missed),
            percent(cache.missed as f64, cache.all as f64),
            cache.missed as f64 / thousands,
        );
    }
    bandwidth(result, to);
}

/// The busiest memory controllers, crossbar ports and links.
fn bandwidth(result: &RunResult, to: &mut String) {
    let seconds = result.summary.time.seconds();
    if result.summary.stack.is_none() || seconds <= 0.0 {
        return;
    }
    let share = |part: &Traffic| part.bytes as f64 / seconds / part.peak_bytes_per_second.max(1) as f64;
    let mut busy: Vec<&Traffic> = result.traffic.iter().filter(|part| part.bytes > 0).collect();
    busy.sort_by(|a, b| share(b).total_cmp(&share(a)).then_with(|| a.name.cmp(&b.name)));
    if busy.is_empty() {
        return;
    }
    line!(to, "\n{:<28}{:>12}{:>12}{:>10}", "bandwidth", "bytes", "GB/s", "of peak");
    for part in busy.iter().take(PARTS) {
        line!(
            to,
            "{:<28}{:>12}{:>12.3}{:>8.1} %",
            part.name,
            in_bytes(part.bytes),
            part.bytes as f64 / seconds / 1e9,
            100.0 * share(part),
        );
    }
}

/// Formats a number of bytes with a decimal unit.
fn in_bytes(bytes: u64) -> String {
    let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    match units.iter().find(|(_, size)| bytes as f64 >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", bytes as f64 / size),
        None => format!("{bytes} B"),
    }
}

fn functions(result: &RunResult, to: &mut String) {
    if result.functions.is_empty() {
        return;
    }
    let timed = result.summary.stack.is_some();
    let cost = |function: &FunctionTime| if timed { function.cycles } else { function.instructions as f64 };
    let total: f64 = result.functions.iter().map(cost).sum();
    line!(
        to,
        "\n{:>7} {:>14} {:>6} {:>10} {:>10} {:>10} {:>9}  hottest functions",
        "share",
        if timed { "cycles" } else { "instructions" },
        if timed { "IPC" } else { "" },
        "L2 hits",
        "L3 hits",
        "memory",
        "branches",
    );
    for function in result.functions.iter().take(FUNCTIONS) {
        let [level2, level3, peer, local, remote] = function.misses;
        let ipc = if timed {
            format!("{:.2}", function.instructions as f64 / function.cycles.max(1.0))
        } else {
            String::new()
        };
        line!(
            to,
            "{:>6.1}% {:>14} {ipc:>6} {:>10} {:>10} {:>10} {:>9}  {}",
            percent(cost(function), total),
            grouped(cost(function).round() as u64),
            grouped(level2),
            grouped(level3 + peer),
            grouped(local + remote),
            grouped(function.mispredicts),
            longma_text::sanitize(&abbreviate(&function.function, NAME)),
        );
    }
    let rest = result.functions.len().saturating_sub(FUNCTIONS);
    if rest > 0 {
        let cost: f64 = result.functions[FUNCTIONS..].iter().map(cost).sum();
        line!(to, "{:>6.1}% in {rest} others", percent(cost, total));
    }
}
