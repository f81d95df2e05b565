//! Writes, for each machine of an experiment, a table of its parameters with their sources.

use super::{Chapter, describe_source, escape, put};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use toml::{Table, Value};

/// Writes a collapsible table for each machine.
pub(super) fn write(chapter: &Chapter<'_>, out: &mut String) {
    let machines: BTreeMap<&str, &str> = chapter
        .campaign
        .points
        .iter()
        .filter_map(|point| point.machine.as_ref())
        .map(|machine| (machine.name.as_str(), &*machine.text))
        .rev()
        .collect();
    for (name, text) in machines {
        // The text was generated from a valid machine, so parsing never fails.
        let (Ok(root), Ok(machine)) = (text.parse::<Table>(), longma_topology::Machine::parse(name, text))
        else {
            continue;
        };
        put!(
            out,
            "<details class=\"machine\"><summary>Machine <code>{}</code>: {}</summary>\n",
            escape(name),
            escape(&machine.title)
        );
        out.push_str(
            "<div class=\"wide\"><table><thead><tr><th>part<th>parameter<th>value<th>source</tr></thead>\n",
        );
        for (key, value) in &root {
            if key != "sources" {
                write_part(key, value, &mut Vec::new(), out);
            }
        }
        out.push_str("</table></div><ul class=\"sources\">");
        for (key, source) in &machine.sources {
            put!(out, "<li><b>{}</b> {}", escape(key), describe_source(source));
        }
        out.push_str("</ul></details>\n");
    }
}

/// The citations of an enclosing part.
struct Citations<'a> {
    /// The source of all parameters without their own.
    default: Option<&'a Value>,
    by_key: Option<&'a Table>,
}

/// Writes rows for all parameters of a part, nested parts last. A part without a source inherits the citation of its
/// enclosing part.
fn write_part<'a>(path: &str, value: &'a Value, outer: &mut Vec<Citations<'a>>, out: &mut String) {
    match value {
        Value::Table(table) => {
            outer.push(Citations {
                default: table.get("source"),
                by_key: table.get("source_of").and_then(Value::as_table),
            });
            let (inner, own): (Vec<_>, Vec<_>) = table
                .iter()
                .filter(|(key, _)| !matches!(key.as_str(), "source" | "source_of" | "title" | "name"))
                .partition(|(_, value)| is_part(value));
            for (key, value) in own {
                write_row(path, key, value, outer, out);
            }
            for (key, value) in inner {
                write_part(&format!("{path}.{key}"), value, outer, out);
            }
            outer.pop();
        }
        Value::Array(parts) if is_part(value) => {
            for (index, value) in parts.iter().enumerate() {
                let name = value.get("name").and_then(Value::as_str).map_or(index.to_string(), String::from);
                write_part(&format!("{path}.{name}"), value, outer, out);
            }
        }
        _ => {}
    }
}

fn is_part(value: &Value) -> bool {
    match value {
        Value::Table(_) => true,
        Value::Array(array) => array.iter().any(Value::is_table),
        _ => false,
    }
}

fn write_row(path: &str, key: &str, value: &Value, citations: &[Citations<'_>], out: &mut String) {
    let single = citations.last().and_then(|c| c.by_key?.get(key));
    let source = single.or_else(|| citations.iter().rev().find_map(|c| c.default));
    put!(
        out,
        "<tr><td>{}<td>{}<td>{}<td>{}</tr>\n",
        escape(path),
        escape(key),
        escape(&format_value(value)),
        source.map_or(String::new(), |source| escape(&format_value(source)))
    );
}

fn format_value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(array) => array.iter().map(format_value).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}
