//! Machine files that extend another machine: `extends = "NAME|FILE"`. The file contains only the differences: its
//! tables are merged with those of the other machine, key by key, and any other value of a key replaces the other
//! machine's.

use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::files;
use crate::module;
use crate::problem::Level;
use crate::read::{Problems, read_text};

/// The largest number of machines that extend one another.
const MAX_CHAIN: usize = 8;

/// The key that names the other machine.
const KEY: &str = "extends";

/// Reads the top-level table of the machine file `file`, which consists of `text` and of the machines that it extends.
/// Returns the result of `read`, or `None` if one of the files cannot be read, and the text to which the problems
/// refer: the concatenated texts of all files.
pub(crate) fn read_extended<T>(
    file: &str,
    text: &str,
    problems: &mut Problems,
    read: impl FnOnce(&DeTable<'_>, &mut Problems) -> T,
) -> (Option<T>, String) {
    let Some((files, texts)) = texts(file, text, problems) else { return (None, text.into()) };
    let folder = |file: &str| Path::new(file).parent().unwrap_or(Path::new("")).to_path_buf();
    let mut combined = String::new();
    let mut padded = Vec::new();
    for text in &texts {
        // Preceding texts are replaced by spaces, so that every value keeps its position in the concatenation.
        padded.push(" ".repeat(combined.len()) + text);
        combined.push_str(text);
        combined.push('\n');
    }
    let bases: Vec<Spanned<DeTable<'_>>> =
        padded[1..].iter().map(|text| DeTable::parse_recoverable(text).0).collect();
    let result = read_text(&padded[0], problems, |table, problems| {
        let mut merged = table.clone();
        module::resolve_paths(&folder(&files[0]), &mut merged);
        for (file, base) in files[1..].iter().zip(bases) {
            let mut base = base.into_inner();
            module::resolve_paths(&folder(file), &mut base);
            complete(&mut merged, base);
        }
        merged.remove(KEY);
        read(&merged, problems)
    });
    // Drop warnings about the other machines, for example about a source that only a replaced value cited.
    problems.list.retain(|problem| problem.level == Level::Error || problem.span.start < text.len());
    (Some(result), combined)
}

/// The names and the texts of the file and of the machines that it extends, in this order; `None` after recording a
/// problem.
fn texts(file: &str, text: &str, problems: &mut Problems) -> Option<(Vec<String>, Vec<String>)> {
    let (mut files, mut texts) = (vec![file.to_string()], vec![text.to_string()]);
    // The offset of the last text in the concatenation of all texts.
    let mut at = 0;
    while let Some(last) = texts.last().filter(|text| text.contains(KEY)) {
        let Some(Base { name, span, is_named }) = base_of(last, problems)? else { break };
        let span = at + span.start..at + span.end;
        if !is_named {
            let message = "a machine that extends another one needs a `name` of its own".into();
            let help = "add `name = \"...\"`, which keeps its results apart from those of the other".into();
            problems.error(span.clone(), message, "this file has no `name`", help);
        }
        if texts.len() == MAX_CHAIN {
            let help = "state the keys in one file".into();
            problems.error(
                span,
                format!("more than {MAX_CHAIN} machines extend one another"),
                "this machine",
                help,
            );
            return None;
        }
        at += last.len() + 1;
        let file = files.last().map_or("", String::as_str);
        match files::text(&beside(file, &name)) {
            Ok((opened, text)) => {
                if let Some(message) = cycle(&files, &opened) {
                    let help = "extend a machine that does not extend this one".into();
                    problems.error(span, message, "this machine", help);
                    return None;
                }
                files.push(opened);
                texts.push(text);
            }
            Err(error) => {
                let help = "give the name of a built-in machine, or a path relative to this file".into();
                problems.error(span, error.to_string(), "this machine", help);
                return None;
            }
        }
    }
    Some((files, texts))
}

/// The error if `next` is one of `files`, each of which extends the one after it, so that the chain would be a cycle;
/// otherwise `None`.
fn cycle(files: &[String], next: &str) -> Option<String> {
    let real = |file: &str| std::fs::canonicalize(file).unwrap_or_else(|_| PathBuf::from(file));
    let next = real(next);
    let first = files.iter().position(|file| real(file) == next)?;
    let members = &files[first..];
    Some(match members {
        [own] => format!("{own} extends itself"),
        _ => format!("{} extend one another in a cycle", members.join(", ")),
    })
}

/// The machine that a file extends.
struct Base {
    name: String,
    /// The position of its name.
    span: Range<usize>,
    /// Whether the file states a name.
    is_named: bool,
}

/// The machine that `text` extends. The outer `None` means that a problem was recorded.
fn base_of(text: &str, problems: &mut Problems) -> Option<Option<Base>> {
    let (table, _) = DeTable::parse_recoverable(text);
    let find = |wanted: &str| table.get_ref().iter().find(|(key, _)| key.get_ref() == wanted);
    let Some((_, node)) = find(KEY) else { return Some(None) };
    match node.get_ref() {
        DeValue::String(name) => {
            let is_named = find("name").is_some();
            Some(Some(Base { name: name.to_string(), span: node.span(), is_named }))
        }
        _ => problems.wrong_type(node, "the name or the path of a machine"),
    }
}

/// The argument of [`files::text`] for the machine `name` that `file` extends.
fn beside(file: &str, name: &str) -> String {
    match Path::new(file).parent() {
        Some(folder) if name.contains(['/', '.']) => folder.join(name).display().to_string(),
        _ => name.into(),
    }
}

/// Adds the keys of `base` that `table` lacks.
fn complete<'i>(table: &mut DeTable<'i>, base: DeTable<'i>) {
    for (key, value) in base {
        match table.iter_mut().find(|(own, _)| own.get_ref() == key.get_ref()) {
            None => drop(table.insert(key, value)),
            Some((_, own)) => {
                if let (DeValue::Table(own), DeValue::Table(base)) = (own.get_mut(), value.into_inner()) {
                    complete(own, base);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::machine::{Machine, check};

    const HEAD: &str =
        "extends = \"loongson-3a5000\"\nname = \"small\"\ntitle = \"3A5000 with a small L2\"\n";

    #[test]
    fn a_file_states_only_what_differs() {
        let base = Machine::open("loongson-3a5000").unwrap();
        let small =
            Machine::parse("small.toml", &format!("{HEAD}[caches.l2]\nsize = \"128 KiB\"\n")).unwrap();
        assert_eq!((small.name.as_str(), small.caches["l2"].size.bytes()), ("small", 128 << 10));
        assert_eq!(small.caches["l2"].ways, base.caches["l2"].ways);
        let written = small.to_toml();
        assert!(!written.contains("extends"));
        assert_eq!(Machine::parse("written.toml", &written).unwrap().parts(), small.parts());
        let only =
            |toml: &str| toml.lines().filter(|line| !line.starts_with(['n', 't', 's'])).collect::<String>();
        assert_eq!(only(&written), only(&base.to_toml()));
    }

    #[test]
    fn a_replaced_part_gives_no_warning_about_the_other_machine() {
        let prefetcher = "[caches.l3.prefetcher]\nkind = \"stride\"\nsource = \"depth\"\n";
        let checked = check("small.toml", &format!("{HEAD}{prefetcher}"));
        assert!(
            checked.machine.is_some() && checked.report.located().is_empty(),
            "{}",
            checked.report.summary()
        );
        let unused = "[sources.own]\nkind = \"estimate\"\ntitle = \"own\"\nreasoning = \"own\"\n";
        let checked = check("small.toml", &format!("{HEAD}{unused}"));
        assert_eq!(checked.report.located().len(), 1, "{}", checked.report.summary());
    }

    #[test]
    fn files_extend_files_beside_them() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("small.toml", &format!("{HEAD}[caches.l2]\nsize = \"128 KiB\"\n"));
        write("smaller.toml", "extends = \"./small.toml\"\nname = \"smaller\"\n[caches.l2]\nways = 4\n");
        let machine = Machine::open(folder.path().join("smaller.toml").to_str().unwrap()).unwrap();
        assert_eq!((machine.caches["l2"].size.bytes(), machine.name.as_str()), (128 << 10, "smaller"));
        for number in 0..9 {
            let text = format!("extends = \"./{}.toml\"\nname = \"m{number}\"\n", number + 1);
            write(&format!("{number}.toml"), &text);
        }
        let error = Machine::open(folder.path().join("0.toml").to_str().unwrap()).unwrap_err();
        assert!(format!("{error:?}").contains("more than 8 machines"), "{error:?}");
    }

    #[test]
    fn a_cycle_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, base: &str| {
            let text = format!("extends = \"./{base}.toml\"\nname = \"{name}\"\n");
            std::fs::write(folder.path().join(format!("{name}.toml")), text).unwrap();
        };
        write("self", "self");
        write("first", "second");
        write("second", "first");
        for (file, expected) in
            [("self.toml", "self.toml extends itself"), ("first.toml", "second.toml extend one another")]
        {
            let error = Machine::open(folder.path().join(file).to_str().unwrap()).unwrap_err();
            assert!(format!("{error:?}").contains(expected), "{error:?}");
        }
    }

    #[test]
    fn a_machine_that_extends_another_has_a_name_of_its_own() {
        let text = "title = \"small\"\nextends = \"loongson-3a5000\"\n[caches.l2]\nsize = \"128 KiB\"\n";
        let checked = check("small.toml", text);
        let located = checked.report.located();
        assert!(checked.machine.is_none());
        assert_eq!((located.len(), located[0].line), (1, 2), "{}", checked.report.render(100, false));
        assert!(located[0].message.contains("`name` of its own"), "{}", located[0].message);
    }

    #[test]
    fn problems_point_into_the_file_itself() {
        let text = format!("{HEAD}[caches.l2]\nsise = \"128 KiB\"\n");
        let report = check("small.toml", &text).report;
        let located = report.located();
        assert_eq!((located.len(), located[0].line), (1, 5), "{}", report.render(100, false));
        for (name, expected) in
            [("loongson-3a500", "did you mean `loongson-3a5000`?"), ("./no.toml", "no.toml")]
        {
            let report = check("small.toml", &format!("extends = \"{name}\"\nname = \"small\"\n")).report;
            let located = report.located();
            assert_eq!((located.len(), located[0].line), (1, 1), "{}", report.render(100, false));
            assert!(located[0].message.contains(expected), "{}", located[0].message);
        }
        let report = check("small.toml", "extends = 3\nname = \"small\"\n").report;
        assert_eq!(report.located()[0].line, 1);
    }
}
