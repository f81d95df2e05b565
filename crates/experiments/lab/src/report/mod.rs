//! The HTML report: a self-contained page with the charts, tables and parameters of every experiment. It loads no
//! external scripts or fonts.
//!
//! Source: WAI-ARIA for the charts' roles; colours after Okabe and Ito (2008), which colour-blind readers can
//! distinguish.

mod chart;
pub mod draw;
mod figure;
mod machine;
mod matrix;
#[cfg(feature = "pdf")]
mod pdf;
pub mod scale;
mod standalone;
mod tornado;

#[cfg(feature = "pdf")]
pub use pdf::pdf;
pub use standalone::{FigureFile, figures};
pub use tornado::tornado;

use crate::campaign::Campaign;
use crate::compare::{Comparison, Verdict, compare};
use crate::replicates::groups;
use crate::table::Table;
use std::fmt::Write as _;

/// An experiment with its results.
pub struct Chapter<'a> {
    /// The experiment and its points.
    pub campaign: Campaign<'a>,
    /// Its results.
    pub table: Table,
    /// The command that reproduces the results.
    pub command: String,
}

/// A part of a page that is not an experiment.
pub struct Section {
    /// Name in links.
    pub id: String,
    /// Heading.
    pub title: String,
    /// Contents as HTML.
    pub body: String,
}

/// Maximum number of result rows in a chapter. The exported files have all.
const SHOWN_ROWS: usize = 200;

/// Renders the page of all chapters. `version` is the version of the models.
pub fn page(chapters: &[Chapter<'_>], version: &str) -> String {
    let mut body = String::new();
    overview(chapters, &mut body);
    for chapter in chapters {
        write_chapter(chapter, &mut body);
    }
    let links: String = chapters.iter().map(|chapter| link(chapter)).collect();
    document(&Document {
        title: "results compared with published values",
        version: &format!("models {version}"),
        style: "",
        links: ("experiments", &links),
        body: &body,
    })
}

/// The page of one experiment that another command measured, followed by sections. `title` describes its content.
pub fn page_with(title: &str, chapter: &Chapter<'_>, sections: &[Section], version: &str) -> String {
    let (mut body, mut links) = (String::new(), link(chapter));
    write_chapter(chapter, &mut body);
    for Section { id, title, body: own } in sections {
        let (id, title) = (escape(id), escape(title));
        put!(links, "<a href=\"#{id}\">{title}</a>");
        put!(body, "<section class=\"chapter\" id=\"{id}\"><h2>{title}</h2>\n{own}</section>\n");
    }
    document(&Document { title, version, style: "", links: ("sections", &links), body: &body })
}

/// The parts that differ between pages.
pub struct Document<'a> {
    /// The contents of the page, in a few words.
    pub title: &'a str,
    /// The version shown at its top.
    pub version: &'a str,
    /// Style rules in addition to those of all pages.
    pub style: &'a str,
    /// Label of the links at the side, and the links as HTML.
    pub links: (&'a str, &'a str),
    /// The contents as HTML.
    pub body: &'a str,
}

/// A self-contained page: it loads nothing, and needs no script to be read.
pub fn document(page: &Document<'_>) -> String {
    let Document { style: own_style, links: (label, links), body, .. } = page;
    let (title, version, label) = (escape(page.title), escape(page.version), escape(label));
    let (style, script) = (include_str!("page.css"), include_str!("page.js"));
    format!(
        r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Longma: {title}</title>
<style>
{style}{own_style}</style>
</head>
<body>
<header class="top"><b>Longma</b><span>{title}</span><span class="version">{version}</span>
<button id="theme" type="button" title="light or dark">◐</button></header>
<div class="columns">
<nav aria-label="{label}">{links}</nav>
<main>
{body}</main>
</div>
<div id="tip" role="status"></div>
<script>
{script}</script>
</body>
</html>
"#
    )
}

/// Escapes text for HTML and SVG. U+FFFD replaces characters that XML does not allow, such as control characters.
///
/// Source: XML 1.0, section 2.2.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\t' | '\n' | '\r' => out.push(letter),
            '\0'..' ' | '\u{fffe}' | '\u{ffff}' => out.push(char::REPLACEMENT_CHARACTER),
            _ => out.push(letter),
        }
    }
    out
}

/// Converts prose to HTML: text between backticks becomes code.
fn prose(text: &str) -> String {
    let parts: Vec<_> = text.split('`').map(escape).collect();
    let mut out = String::new();
    for (index, part) in parts.iter().enumerate() {
        // An unpaired backtick is unchanged.
        match (index % 2 == 1, index + 1 < parts.len()) {
            (true, true) => out.push_str(&format!("<code>{part}</code>")),
            (true, false) => out.push_str(&format!("`{part}")),
            (false, _) => out.push_str(part),
        }
    }
    out
}

fn link(chapter: &Chapter<'_>) -> String {
    let parts = chapter.campaign.experiment.parts();
    format!("<a href=\"#{}\">{}</a>", escape(&parts.name), escape(&parts.title))
}

/// Like `write!` to a `String`, which cannot fail.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => { let _ = write!($out, $($arg)*); };
}
pub(super) use put;

fn percent(share: Option<f64>) -> String {
    share.map_or("–".into(), |share| format!("{:.1} %", share * 100.0))
}

/// CSS class of a deviation. It is only a visual hint.
fn nearness(deviation: Option<f64>) -> &'static str {
    match deviation {
        Some(d) if d <= 0.1 => "near",
        Some(d) if d <= 0.3 => "off",
        Some(_) => "far",
        None => "none",
    }
}

fn overview(chapters: &[Chapter<'_>], out: &mut String) {
    out.push_str("<section class=\"overview\"><h1>All experiments</h1><div class=\"wide\"><table class=\"list\"><thead><tr>");
    out.push_str("<th>experiment<th class=n>points run<th class=n>failed runs<th class=n>published<th class=n>within 10 %<th class=n>largest deviation</tr></thead>\n");
    for chapter in chapters {
        let experiment = chapter.campaign.experiment;
        let verdict = Verdict::of(&compare(experiment, &chapter.table));
        let failed = chapter.table.failed;
        let (run, all) = (chapter.table.rows.len(), groups(&chapter.campaign).len());
        let (missing, runs) = (chapter.table.missing, chapter.campaign.points.len());
        // A point counts as run if at least one of its replicates has run.
        let of_runs = match experiment.parts().replicates.is_empty() || missing == 0 {
            true => String::new(),
            false => format!(" ({} of {runs} runs)", runs - missing),
        };
        let near = if verdict.compared == 0 { "–".into() } else { verdict.near.to_string() };
        let quick = if chapter.campaign.quick { " <i class=\"form\">quick</i>" } else { "" };
        let published = match verdict.compared + verdict.missing {
            0 => "–".into(),
            all => format!("{} of {all}", verdict.compared),
        };
        put!(
            out,
            "<tr><td>{}{quick}<td class=n>{run} of {all}{of_runs}<td class=n>{failed}<td class=n>{published}<td class=n>{near}<td class=\"n {}\">{}</tr>\n",
            link(chapter),
            nearness(verdict.largest_deviation),
            percent(verdict.largest_deviation),
        );
    }
    out.push_str("</table></div></section>\n");
}

fn write_chapter(chapter: &Chapter<'_>, out: &mut String) {
    let experiment = chapter.campaign.experiment;
    let parts = experiment.parts();
    put!(
        out,
        "<section class=\"chapter\" id=\"{}\"><h2>{}{}</h2>\n",
        escape(&parts.name),
        escape(&parts.title),
        if chapter.campaign.quick { " <i class=\"form\">quick form</i>" } else { "" },
    );
    if !chapter.campaign.shortened.is_empty() {
        out.push_str(
            "<p class=\"note\">Runs of the quick form are shorter than those of the published values.</p>\n",
        );
    }
    if let Some(description) = &parts.description {
        put!(out, "<p class=\"about\">{}</p>\n", prose(description));
    }
    sources(chapter, out);
    let command = escape(&chapter.command);
    put!(
        out,
        "<p class=\"command\"><code>{command}</code><button type=\"button\" class=\"copy\" title=\"copy\">copy</button></p>\n"
    );
    if chapter.table.missing > 0 {
        let what = if parts.replicates.is_empty() { "points" } else { "runs" };
        put!(
            out,
            "<p class=\"note\">{} of {} {what} are not run yet; the command above runs them.</p>\n",
            chapter.table.missing,
            chapter.campaign.points.len()
        );
    }
    chapter.table.unknown.iter().for_each(|(_, unknown)| {
        put!(out, "<p class=\"note\">{}</p>\n", prose(unknown));
    });
    out.push_str("<div class=\"charts\">\n");
    for plot in &parts.plots {
        chart::write(chapter, plot, out);
    }
    out.push_str("</div>\n");
    comparison(&compare(experiment, &chapter.table), out);
    results(&chapter.table, out);
    parameters(chapter, out);
    machine::write(chapter, out);
    out.push_str("</section>\n");
}

fn sources(chapter: &Chapter<'_>, out: &mut String) {
    let parts = chapter.campaign.experiment.parts();
    if parts.sources.is_empty() {
        return;
    }
    out.push_str("<ul class=\"sources\">");
    for (key, source) in &parts.sources {
        put!(out, "<li><b>{}</b> {}", escape(key), describe_source(source));
    }
    out.push_str("</ul>\n");
}

/// A source with its link as HTML.
pub(super) fn describe_source(source: &longma_topology::parts::Source) -> String {
    let mut html = format!("{} ({})", escape(&source.title), source.kind.word());
    if let Some(place) = &source.place {
        put!(html, ", {}", escape(place));
    }
    if let Some(url) =
        source.url.as_ref().filter(|url| url.starts_with("https://") || url.starts_with("http://"))
    {
        put!(html, " <a href=\"{0}\" rel=\"noreferrer\">{0}</a>", escape(url));
    }
    if let Some(reasoning) = &source.reasoning {
        put!(html, ": {}", prose(reasoning));
    }
    html
}

fn comparison(comparisons: &[Comparison], out: &mut String) {
    if comparisons.is_empty() {
        return;
    }
    let verdict = Verdict::of(comparisons);
    let open = if comparisons.len() <= 24 { " open" } else { "" };
    put!(
        out,
        "<details{open}><summary>Comparison with published values: {}</summary>\n",
        match verdict.compared {
            1 => format!("one value, {} away", percent(verdict.largest_deviation)),
            many => format!("{} of {many} values within 10 % or their bounds", verdict.near),
        },
    );
    out.push_str("<div class=\"wide\"><table class=\"published\"><thead><tr><th>point<th>metric<th>source<th>read<th class=n>published<th class=n>ours<th class=n>ratio<th>note</tr></thead>\n");
    for c in comparisons {
        let ours = c.text().unwrap_or("–".into());
        let ratio = match c.holds() {
            Some(holds) => if holds { "holds" } else { "fails" }.into(),
            None => c.ratio().map_or("–".into(), |ratio| format!("{ratio:.3}")),
        };
        let quick = if c.shortened { " <i class=\"form\">quick</i>" } else { "" };
        let mut note = c.note.as_deref().map(prose).unwrap_or_default();
        if let Some(why) = c.why() {
            put!(note, "{}Why ours differs: {}", if note.is_empty() { "" } else { "<br>" }, prose(why));
        }
        let (point, metric, unit, source) =
            (escape(&c.point), escape(&c.metric), escape(&c.unit), escape(&c.source));
        put!(
            out,
            "<tr><td>{point}<td>{metric} ({unit})<td>{source}<td>{}<td class=n>{}<td class=n>{ours}{quick}<td class=\"n {}\">{ratio}<td>{note}</tr>\n",
            c.read,
            escape(&c.published.to_string()),
            nearness(c.deviation()),
        );
    }
    out.push_str("</table></div></details>\n");
}

fn results(table: &Table, out: &mut String) {
    if table.rows.is_empty() {
        return;
    }
    put!(
        out,
        "<details><summary>Results: {} point{}</summary><div class=\"wide\"><table><thead><tr>",
        table.rows.len(),
        if table.rows.len() == 1 { "" } else { "s" }
    );
    let names = &table.names;
    let columns = table.parameters.iter().enumerate().filter(|(_, name)| !names.is_represented(name));
    let shown: Vec<_> = columns.collect();
    shown.iter().for_each(|(_, name)| {
        put!(out, "<th>{}", escape(names.title(name)));
    });
    for metric in &table.metrics {
        let host = if metric.depends_on_host { ", of this host" } else { "" };
        put!(out, "<th class=n>{} ({}{host})", escape(&metric.title), escape(&metric.unit));
    }
    out.push_str("</tr></thead>\n");
    for row in table.rows.iter().take(SHOWN_ROWS) {
        out.push_str("<tr>");
        shown.iter().for_each(|(index, name)| {
            put!(out, "<td>{}", escape(&names.value(name, &row.settings[*index])));
        });
        match &row.failure {
            Some(failure) => {
                put!(out, "<td class=\"failure\" colspan=\"{}\">{}", table.metrics.len(), escape(failure));
            }
            None => (0..row.values.len()).for_each(|metric| {
                put!(out, "<td class=n>{}", row.text(metric));
            }),
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>");
    if table.rows.len() > SHOWN_ROWS {
        put!(out, "<p class=\"note\">{} more are in the files.</p>", table.rows.len() - SHOWN_ROWS);
    }
    out.push_str("</details>\n");
}

/// Writes the workload's fixed parameters.
fn parameters(chapter: &Chapter<'_>, out: &mut String) {
    let Some(point) = chapter.campaign.points.first() else { return };
    put!(
        out,
        "<details><summary>Parameters of the workload <code>{}</code></summary><div class=\"wide\"><table><thead><tr><th>parameter<th>value</tr></thead>\n",
        escape(&point.workload)
    );
    for (name, value) in point.parameters.iter() {
        let varied = point.varied.iter().any(|(varied, _)| varied == name);
        let value = if varied { "<i>varies</i>".into() } else { escape(&value.to_string()) };
        put!(out, "<tr><td>{}<td>{value}</tr>\n", escape(name));
    }
    out.push_str("</table></div></details>\n");
}
