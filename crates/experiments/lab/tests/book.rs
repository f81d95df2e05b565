//! Checks that the tables in the book match the code and the machine files.

mod synthetic;

use std::fmt::Write as _;

const CHAPTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/src/reference/experiments.md");
const START: &str = "<!-- keys: generated -->\n";
const END: &str = "<!-- /keys -->\n";

fn tables() -> String {
    let mut text = String::from("\n");
    // The chapter on machine files has the keys of sources.
    for part in longma_lab::keys().into_iter().filter(|part| part.name != "source") {
        let mut heading = part.name.to_string();
        heading[..1].make_ascii_uppercase();
        let _ =
            write!(text, "### {heading}\n\n{}\n\n| key | type | meaning |\n| --- | --- | --- |\n", part.doc);
        for key in part.keys {
            let required = if key.required { ", **required**" } else { "" };
            let _ = writeln!(text, "| `{}` | {}{required} | {} |", key.name, key.kind, key.doc);
        }
        text.push('\n');
    }
    text
}

/// Set `LONGMA_UPDATE_BOOK=1` to write the tables into the chapter.
#[test]
fn the_chapter_lists_every_key_as_the_code_defines_it() {
    let chapter = std::fs::read_to_string(CHAPTER).unwrap();
    let (before, rest) = chapter.split_once(START).expect("the chapter marks where the tables start");
    let (written, after) = rest.split_once(END).expect("the chapter marks where the tables end");
    if std::env::var_os("LONGMA_UPDATE_BOOK").is_some_and(|value| value == "1") {
        std::fs::write(CHAPTER, format!("{before}{START}{}{END}{after}", tables())).unwrap();
        return;
    }
    assert!(written == tables(), "run the test with LONGMA_UPDATE_BOOK=1 and read the difference");
}

const PROCESSOR: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/src/results/data-path-parameters.md");
const PARAMETERS_START: &str = "<!-- parameters: generated -->\n";
const PARAMETERS_END: &str = "<!-- /parameters -->\n";
/// The machines of the chapter, relative to the repository's root. All but the first list only what differs from the
/// previous ones.
const MACHINES: [&str; 5] = [
    "crates/machine/topology/machines/godson3.toml",
    "crates/machine/topology/machines/godson3-conventional.toml",
    "crates/machine/topology/machines/godson3-two-chips.toml",
    "experiments/machines/godson3-and-pci.toml",
    "experiments/machines/3a5000-ethernet.toml",
];

fn machine(path: &str) -> toml::Table {
    let path = format!("{}/../../../{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap().parse().unwrap()
}

/// The sources that a part cites.
fn cited(part: &toml::Table, fallback: &str) -> String {
    match part.get("source") {
        Some(toml::Value::String(one)) => one.clone(),
        Some(toml::Value::Array(many)) => {
            many.iter().filter_map(toml::Value::as_str).collect::<Vec<_>>().join(", ")
        }
        _ => fallback.into(),
    }
}

/// All parameters below `part` as (path, value, sources), sorted by name.
fn parameters(part: &toml::Table, path: &str, fallback: &str, rows: &mut Vec<(String, String, String)>) {
    const WORDS: [&str; 6] = ["title", "description", "source", "source_of", "name", "kernel"];
    let source = cited(part, fallback);
    let own = part.get("source_of").and_then(toml::Value::as_table);
    for (key, value) in part.iter().filter(|(key, _)| !WORDS.contains(&key.as_str())) {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let cites = own
            .and_then(|of| of.get(key))
            .map_or(source.clone(), |v| v.as_str().map_or_else(|| v.to_string(), String::from));
        match value {
            toml::Value::Table(table) => parameters(table, &path, &cites, rows),
            toml::Value::Array(parts) if parts.iter().all(toml::Value::is_table) => {
                for (index, part) in parts.iter().filter_map(toml::Value::as_table).enumerate() {
                    let name = part.get("name").and_then(toml::Value::as_str);
                    let name = name.map_or_else(|| index.to_string(), String::from);
                    parameters(part, &format!("{path}.{name}"), &cites, rows);
                }
            }
            value => rows.push((path, value.to_string().replace('"', ""), cites)),
        }
    }
}

fn parameter_tables() -> String {
    let mut text = String::from("\n");
    let mut known = std::collections::BTreeSet::new();
    let mut cited = std::collections::BTreeMap::new();
    for path in MACHINES {
        let mut table = machine(path);
        let sources = table.remove("sources").unwrap();
        let mut rows = Vec::new();
        parameters(&table, "", "", &mut rows);
        rows.retain(|row| row.0 != "format" && known.insert(row.clone()));
        let _ = write!(text, "### `{path}`\n\n| parameter | value | source |\n| --- | --- | --- |\n");
        for (parameter, value, source) in rows {
            let _ = writeln!(text, "| `{parameter}` | {value} | {source} |");
        }
        text.push('\n');
        for (name, source) in sources.as_table().unwrap() {
            let text = |key: &str| source.get(key).and_then(toml::Value::as_str).unwrap_or_default().trim();
            let words = [text("title"), text("place"), text("url"), text("reasoning")];
            let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
            cited
                .entry(name.clone())
                .or_insert((text("kind").to_string(), words.join(". ").replace('|', "/")));
        }
    }
    text.push_str("### Sources\n\n| source | kind | what it is |\n| --- | --- | --- |\n");
    for (name, (kind, words)) in cited {
        let _ = writeln!(text, "| {name} | {kind} | {words} |");
    }
    text.push('\n');
    text
}

/// Set `LONGMA_UPDATE_BOOK=1` to write the tables into the chapter.
#[test]
fn the_processors_chapter_lists_every_parameter_with_its_source() {
    let chapter = std::fs::read_to_string(PROCESSOR).unwrap();
    let (before, rest) =
        chapter.split_once(PARAMETERS_START).expect("the chapter marks where the tables start");
    let (written, after) = rest.split_once(PARAMETERS_END).expect("the chapter marks where the tables end");
    let tables = parameter_tables();
    if std::env::var_os("LONGMA_UPDATE_BOOK").is_some_and(|value| value == "1") {
        let whole = format!("{before}{PARAMETERS_START}{tables}{PARAMETERS_END}{after}");
        std::fs::write(PROCESSOR, whole).unwrap();
        return;
    }
    assert!(written == tables, "run the test with LONGMA_UPDATE_BOOK=1 and read the difference");
}
