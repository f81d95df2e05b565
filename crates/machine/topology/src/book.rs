//! The book's tables of keys, from the same definitions that read the files.
//! Not the chapter itself: that is docs/src/reference/machine-files.md, which a test keeps in step with this.
//! Source: the `part!` definitions under `parts/`.

use crate::parts::MachineFile;
use crate::read::{PartDoc, Value};
use std::fmt::Write;

/// Every kind of part with its keys, outermost first.
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
            "### {heading}\n\n{}\n\n| key | holds | if left out | meaning |\n| --- | --- | --- | --- |\n",
            part.doc
        );
        for key in part.keys {
            let absent = match (key.required, key.default) {
                (true, _) => "**must be given**".into(),
                (false, "") => String::new(),
                (false, default) => format!("`{}`", word(default)),
            };
            let _ = writeln!(text, "| `{}` | {} | {absent} | {} |", key.name, key.kind, key.doc);
        }
        text.push('\n');
    }
    text
}

/// A default as a machine file would write it.
fn word(default: &str) -> String {
    if let Some(count) = default.strip_prefix("Cycles::new(").and_then(|d| d.strip_suffix(')')) {
        return format!("\"{count} cycles\"");
    }
    match default.split_once("::") {
        // Variants are spelt as their words but for case and hyphens.
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
