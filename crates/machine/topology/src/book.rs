//! The tables of machine-file keys for the book (docs/src/reference/machine-files.md), generated from the `part!`
//! definitions in `parts/`.

use crate::parts::MachineFile;
use crate::read::{PartDoc, Value};
use std::fmt::Write;

/// Every kind of part with its keys, the machine file itself first.
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
        let _ = write!(
            text,
            "### {heading}\n\n{}\n\n| key | type | default | meaning |\n| --- | --- | --- | --- |\n",
            part.doc
        );
        for key in part.keys {
            let absent = match (key.required, key.default) {
                (true, _) => "**required**".into(),
                (false, "") => String::new(),
                (false, default) => format!("`{}`", word(default)),
            };
            let _ = writeln!(text, "| `{}` | {} | {absent} | {} |", key.name, key.kind, key.doc);
        }
        text.push('\n');
    }
    text
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
