//! Compares texts with the files of a folder, or updates the files. The tests of `longma-core` include this file.

use std::{cell::RefCell, collections::BTreeSet, fs, path::PathBuf};

/// A folder of expected texts.
pub struct Snapshots {
    folder: PathBuf,
    updates: bool,
    names: RefCell<BTreeSet<String>>,
    wrong: RefCell<Vec<String>>,
}

impl Snapshots {
    /// The folder `name` in `tests/emitted` of the crate in `crate_folder`.
    pub fn new(crate_folder: &str, name: &str) -> Self {
        let folder: PathBuf = [crate_folder, "tests", "emitted", name].iter().collect();
        let updates = std::env::var_os("LONGMA_UPDATE").is_some_and(|value| value == "1");
        if updates {
            fs::create_dir_all(&folder).expect("the folder of texts");
        }
        Self { folder, updates, names: RefCell::default(), wrong: RefCell::default() }
    }

    /// Compares the file `name` with `text`, or updates it.
    pub fn is(&self, name: &str, text: &str) {
        let file = format!("{name}.txt");
        let path = self.folder.join(&file);
        if self.updates {
            fs::write(&path, text).expect("the text is written");
        } else if let Some(difference) = difference(&fs::read_to_string(&path).unwrap_or_default(), text) {
            self.wrong.borrow_mut().push(format!("{}, {difference}", path.display()));
        }
        self.names.borrow_mut().insert(file);
    }

    /// Fails if a text differed or the folder contains other files.
    pub fn finish(self) {
        let names = self.names.into_inner();
        let mut wrong = self.wrong.into_inner();
        for entry in fs::read_dir(&self.folder).expect("the folder of texts") {
            let name = entry.expect("an entry of the folder").file_name().to_string_lossy().into_owned();
            if !names.contains(&name) && self.updates {
                fs::remove_file(self.folder.join(name)).expect("the file is removed");
            } else if !names.contains(&name) {
                wrong.push(format!("{name} belongs to no test"));
            }
        }
        assert!(
            wrong.is_empty(),
            "{}\n\nIf the change is intended, update the files with LONGMA_UPDATE=1.",
            wrong.join("\n")
        );
    }
}

/// Checks that `tests/emitted` of the crate in `crate_folder` contains only tests and the given `folders`.
pub fn check_no_other_files(crate_folder: &str, folders: &[&str]) {
    let folder: PathBuf = [crate_folder, "tests", "emitted"].iter().collect();
    for entry in fs::read_dir(folder).expect("the folder of the tests") {
        let path = entry.expect("an entry of the folder").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_known = if path.is_dir() { folders.contains(&&*name) } else { name.ends_with(".rs") };
        assert!(is_known, "{} belongs to no test", path.display());
    }
}

/// Describes the first difference.
fn difference(recorded: &str, current: &str) -> Option<String> {
    if recorded == current {
        return None;
    }
    let (mut recorded, mut current) = (recorded.lines(), current.lines());
    for number in 1.. {
        match (recorded.next(), current.next()) {
            (None, None) => break,
            (recorded, current) if recorded == current => {}
            (recorded, current) => {
                let line_text = |line: Option<&str>| line.unwrap_or("(the end)").to_string();
                return Some(format!(
                    "line {number}:\n  was {}\n  is  {}",
                    line_text(recorded),
                    line_text(current)
                ));
            }
        }
    }
    Some("the last end of line".into())
}
