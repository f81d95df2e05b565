//! The tables of machine-file keys for the book (docs/src/reference/machine-files.md), generated from the `part!`
//! definitions in `parts/`.

use crate::parts::MachineFile;
use crate::read::{KeyDoc, PartDoc, Value};
use std::fmt::Write;

/// Every type of part with its keys; the machine file itself is first.
pub fn keys() -> Vec<PartDoc> {
    let mut parts = Vec::new();
    MachineFile::describe(&mut parts);
    parts
}

/// The tables of keys in Markdown.
pub fn markdown() -> String {
    let mut text = String::new();
    for part in keys() {
        let mut heading = part.name.to_string();
        heading[..1].make_ascii_uppercase();
        let citations: Vec<String> =
            part.keys.iter().filter(|key| is_citation(key)).map(|key| format!("`{}`", key.name)).collect();
        let takes =
            if citations.is_empty() { String::new() } else { format!(" Takes {}.", citations.join(" and ")) };
        let _ = write!(
            text,
            "### {heading}\n\n{}{takes}\n\n| key | type | meaning |\n| --- | --- | --- |\n",
            part.doc
        );
        for key in part.keys.iter().filter(|key| !is_citation(key)) {
            let absent = match (key.required, key.default) {
                (true, _) => ", **required**".into(),
                (false, "") => String::new(),
                (false, default) => format!(", default `{}`", word(default)),
            };
            let _ = writeln!(text, "| `{}` | {}{absent} | {} |", key.name, key.kind, key.doc);
        }
        text.push('\n');
    }
    text
}

/// Whether a key cites sources, as in most parts. The page describes these keys once.
fn is_citation(key: &KeyDoc) -> bool {
    matches!(key.name, "source" | "source_of")
}

/// A default as it is written in a machine file.
fn word(default: &str) -> String {
    if let Some(count) = default.strip_prefix("Cycles::new(").and_then(|d| d.strip_suffix(')')) {
        return format!("\"{count} cycles\"");
    }
    match default.split_once("::") {
        // A variant's word is its name in lower case, with hyphens between the words.
        Some((_, variant)) => {
            let mut spelt = String::from("\"");
            for (index, letter) in variant.chars().enumerate() {
                if letter.is_uppercase() && index > 0 {
                    spelt.push('-');
                }
                spelt.extend(letter.to_lowercase());
            }
            spelt + "\""
        }
        None => default.into(),
    }
}
