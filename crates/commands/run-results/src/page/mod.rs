//! The page of a run: the machine with the use of its parts, the CPI stack, the hottest code, misses, bandwidth, and
//! the changes from another run. Self-contained HTML.
//!
//! Names of functions, files and programs are untrusted: they are clipped, made safe and escaped, and every table has a
//! limit, so that the page's size does not depend on the program.

mod changes;
mod code;
mod machine;
mod memory;
mod stack;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use longma_lab::number;
use longma_lab::report::{Document, document, escape};
use longma_runner::{
    Ending,
    simulation::{Annotation, RunResult},
};
use longma_topology::Machine;

use crate::{Figures, function_name::abbreviate};

/// Number of functions whose assembly the page shows.
pub const ANNOTATED_FUNCTIONS: usize = 5;
/// Maximum number of source lines that the page shows.
pub const SOURCE_LINES: usize = 40;
/// Maximum number of names of executed programs.
const MAX_PROGRAMS: usize = 20;
/// Maximum number of characters of a name from the program.
const MAX_NAME_CHARS: usize = 100;
/// Maximum number of characters of a name in the title of a clipped one.
const MAX_TITLE_CHARS: usize = 1000;
/// Maximum number of characters of the command.
const MAX_COMMAND_CHARS: usize = 2000;

/// The content of the page.
pub struct RunPage<'a> {
    /// The result of the run.
    pub result: &'a RunResult,
    /// The machine of the run.
    pub machine: &'a Machine,
    /// The command that reproduces the run.
    pub command: &'a str,
    /// The costs by instruction and source line; `None` for a sampled run.
    pub annotation: Option<&'a Annotation>,
    /// The name of another run and its figures, to compare with.
    pub against: Option<(&'a str, &'a Figures)>,
}

/// Like `write!` to a `String`, which cannot fail.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {{ let _ = write!($out, $($arg)*); }};
}
use put;

/// Writes the content of a chapter; leaves it empty if the run has no data for it.
type WriteChapter = fn(&RunPage<'_>, &mut String);

/// The page as HTML.
pub fn page(run: &RunPage<'_>) -> String {
    let mut body = String::new();
    head(run, &mut body);
    let mut links = vec![("run", "The run")];
    let parts: [(&str, &str, WriteChapter); 6] = [
        ("changes", "What changed", changes::write),
        ("machine", "Machine", machine::write),
        ("cycles", "Where the cycles went", stack::write),
        ("functions", "Hottest code", code::write),
        ("misses", "Misses and bandwidth", memory::write),
        ("inputs", "Inputs", inputs),
    ];
    for (id, title, write) in parts {
        let mut part = String::new();
        write(run, &mut part);
        if part.is_empty() {
            continue;
        }
        put!(body, "<section class=\"chapter\" id=\"{id}\"><h2>{title}</h2>\n{part}</section>\n");
        links.push((id, title));
    }
    let links: String = links.iter().map(|(id, title)| format!("<a href=\"#{id}\">{title}</a>")).collect();
    document(&Document {
        title: &format!("run of {}", short_name(run)),
        version: &format!("longma {}", run.result.manifest.longma),
        style: include_str!("page.css"),
        links: ("parts of the page", &links),
        body: &body,
    })
}

/// A name from the program as safe HTML of bounded length.
fn name(text: &str) -> String {
    let safe = longma_text::sanitize(&clip(text, MAX_NAME_CHARS));
    escape(&safe)
}

/// A function's name or a path in a `code` element. If it is shortened, the element's title has more of it.
fn code(text: &str) -> String {
    let clipped = name(&abbreviate(text, MAX_NAME_CHARS));
    if text.chars().count() <= MAX_NAME_CHARS {
        return format!("<code>{clipped}</code>");
    }
    let title = escape(&longma_text::sanitize(&clip(text, MAX_TITLE_CHARS)));
    format!("<code title=\"{title}\">{clipped}</code>")
}

fn clip(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// The program's name without its folder.
fn short_name(run: &RunPage<'_>) -> String {
    let path = &run.result.manifest.program.path;
    let file = path.rsplit('/').next().unwrap_or(path);
    longma_text::sanitize(&clip(file, MAX_NAME_CHARS))
}

fn percent(part: f64, total: f64) -> f64 {
    if total > 0.0 { 100.0 * part / total } else { 0.0 }
}

/// A share as text: `12.3 %`.
fn share(part: f64, total: f64) -> String {
    format!("{:.1} %", percent(part, total))
}

fn bytes(bytes: f64) -> String {
    let units = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    match units.iter().find(|(_, size)| bytes >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", bytes / size),
        None => format!("{bytes:.0} B"),
    }
}

fn head(run: &RunPage<'_>, out: &mut String) {
    let RunResult { manifest, summary, .. } = run.result;
    let model = manifest.core_model.as_ref().map(|model| format!(", {model}")).unwrap_or_default();
    put!(
        out,
        "<section class=\"overview\" id=\"run\"><h1>{}</h1>\n<p class=\"about\">on <b>{}</b>, level {}{}{}</p>\n",
        escape(&short_name(run)),
        name(&run.machine.title),
        escape(&manifest.level),
        escape(&model),
        escape(&ending(run.result)),
    );
    put!(
        out,
        "<p class=\"command\"><code>{}</code><button type=\"button\" class=\"copy\" title=\"copy\">copy</button></p>\n",
        escape(&longma_text::sanitize(&clip(run.command, MAX_COMMAND_CHARS)))
    );
    if !run.result.programs.is_empty() {
        let programs: Vec<_> = run.result.programs.iter().take(MAX_PROGRAMS).map(|path| code(path)).collect();
        let more = run.result.programs.len().saturating_sub(MAX_PROGRAMS);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        put!(
            out,
            "<p class=\"about\">programs that the process executed: {}{more}</p>\n",
            programs.join(", ")
        );
    }
    out.push_str("<dl class=\"tiles\">");
    let mut tile = |title: &str, value: String, more: String| {
        put!(out, "<div><dt>{title}</dt><dd>{}<small>{}</small></dd></div>", escape(&value), escape(&more));
    };
    let cores = if summary.cores == 1 { "on 1 core".into() } else { format!("on {} cores", summary.cores) };
    let instructions = summary.instructions.max(1) as f64;
    tile("instructions", number(summary.instructions as f64), cores);
    if summary.stack.is_some() {
        let cycles = summary.busy_cycles;
        tile(
            "CPI",
            format!("{:.3}", cycles / instructions),
            format!("IPC {:.3}", instructions / cycles.max(1.0)),
        );
        tile("cycles", number(cycles.round()), "not idle".into());
        tile("time", summary.time.to_string(), "simulated".into());
    }
    if let Some(branches) = &summary.branches {
        let all = branches.conditional + branches.indirect + branches.returns;
        let missed = branches.conditional_mispredicted
            + branches.indirect_mispredicted
            + branches.returns_mispredicted;
        let rate = format!("{:.2} %", percent(missed as f64, all as f64));
        tile(
            "mispredicted",
            rate,
            format!("{:.2} per 1000 instructions", 1000.0 * missed as f64 / instructions),
        );
    }
    if let Some((architecture, source)) = run.result.source {
        let ratio = summary.instructions as f64 / source.max(1) as f64;
        tile(architecture, number(source as f64), format!("instructions; {ratio:.3} LoongArch each"));
    }
    if let Some(sampling) = &run.result.sampling {
        let error = format!("± {:.2} %", 100.0 * sampling.cpi.relative_error());
        tile("sample", error, format!("of CPI, from {} units", sampling.units));
    }
    out.push_str("</dl></section>\n");
}

fn ending(result: &RunResult) -> String {
    match (result.stopped, result.ending) {
        (Some(reason), _) => format!(", stopped before its end: {reason}"),
        (None, Ending::Signal(signal)) => format!(", ended by signal {signal}"),
        (None, Ending::Exit(0)) => String::new(),
        (None, Ending::Exit(status)) => format!(", exit status {status}"),
    }
}

/// The chapter of the inputs that determine the result.
fn inputs(run: &RunPage<'_>, out: &mut String) {
    let manifest = &run.result.manifest;
    let arguments = manifest.program.arguments.iter().map(|word| longma_text::quote_for_shell(word));
    let arguments = arguments.collect::<Vec<_>>().join(" ");
    let mut rows = vec![
        ("program", longma_text::sanitize(&clip(&manifest.program.path, MAX_COMMAND_CHARS))),
        ("program, SHA-256", manifest.program.sha256.clone()),
        ("arguments", longma_text::sanitize(&clip(&arguments, MAX_COMMAND_CHARS))),
        ("level", manifest.level.clone()),
        ("region", format!("{:?}", manifest.region).to_lowercase().replace("ofinterest", "of interest")),
        ("seed", manifest.seed.to_string()),
        ("version", manifest.longma.clone()),
    ];
    if let Some(machine) = &manifest.machine {
        rows.insert(3, ("machine", longma_text::sanitize(&clip(&machine.name, MAX_NAME_CHARS))));
        rows.insert(4, ("machine with all defaults, SHA-256", machine.sha256.clone()));
    }
    let optional = [
        ("core model", &manifest.core_model),
        ("translation", &manifest.translation),
        ("sampling", &manifest.sampling),
    ];
    rows.extend(optional.into_iter().filter_map(|(title, value)| Some((title, value.clone()?))));
    out.push_str("<div class=\"wide\"><table class=\"inputs\">");
    for (title, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        put!(out, "<tr><th>{title}<td><code>{}</code></tr>\n", escape(value));
    }
    out.push_str("</table></div>\n");
}
