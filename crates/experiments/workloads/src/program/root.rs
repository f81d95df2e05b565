//! The folder that a program sees as `/`: what it contains is part of a result, and each run gets a copy.

use super::Program;
use super::inputs::program;
use longma_lab::{Failure, InputFile, Point};
use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tempfile::TempDir;

/// The folder that the program sees as `/`, if the point has one.
pub(super) fn root(point: &Point) -> Option<PathBuf> {
    let name = Some(point.text("root")).filter(|name| !name.is_empty())?;
    Some(point.path("folder").join(name))
}

/// An entry of a root folder.
enum InRoot {
    /// A folder.
    Folder,
    /// A regular file.
    File,
    /// A symbolic link to this path.
    Link(PathBuf),
}

/// The contents of a root folder by path below it, folders before their contents.
fn contents(root: &Path) -> Result<BTreeMap<PathBuf, InRoot>, Failure> {
    /// Maximum number of entries. Each run copies all of them.
    const MAX_ENTRIES: usize = 20_000;
    let refused = |path: &Path, what: &dyn std::fmt::Display| {
        Failure::refused(format!("cannot use {} in the folder of `root`: {what}", path.display()))
    };
    let (mut found, mut folders) = (BTreeMap::new(), vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        let at = root.join(&folder);
        for entry in std::fs::read_dir(&at).map_err(|error| refused(&at, &error))? {
            let entry = entry.map_err(|error| refused(&at, &error))?;
            let (path, below) = (entry.path(), folder.join(entry.file_name()));
            let kind = entry.file_type().map_err(|error| refused(&path, &error))?;
            let what = if kind.is_dir() {
                folders.push(below.clone());
                InRoot::Folder
            } else if kind.is_file() {
                InRoot::File
            } else if kind.is_symlink() {
                InRoot::Link(std::fs::read_link(&path).map_err(|error| refused(&path, &error))?)
            } else {
                return Err(refused(&path, &"it is neither a file, a folder nor a link"));
            };
            found.insert(below, what);
            if found.len() > MAX_ENTRIES {
                return Err(refused(root, &format_args!("it has over {MAX_ENTRIES} entries")));
            }
        }
    }
    Ok(found)
}

/// A copy of the point's root folder, if it has one, so that a run changes nothing for the next. Modes and times are
/// the same everywhere: all files are executable.
pub(super) fn copied_root(point: &Point) -> Result<Option<TempDir>, Failure> {
    let Some(root) = root(point) else { return Ok(None) };
    let contents = contents(&root)?;
    let copied = || {
        let copy = tempfile::tempdir()?;
        for (path, what) in &contents {
            let to = copy.path().join(path);
            match what {
                InRoot::Folder => std::fs::create_dir(&to)?,
                InRoot::File => {
                    std::fs::copy(root.join(path), &to)?;
                    std::fs::set_permissions(&to, Permissions::from_mode(0o755))?;
                }
                InRoot::Link(target) => std::os::unix::fs::symlink(target, &to)?,
            }
        }
        let entries = contents.iter().filter(|(_, what)| !matches!(what, InRoot::Link(_)));
        // Set the times of folders last: creating files in a folder changes its time.
        for (path, _) in entries.rev() {
            File::open(copy.path().join(path))?.set_modified(SystemTime::UNIX_EPOCH)?;
        }
        File::open(copy.path())?.set_modified(SystemTime::UNIX_EPOCH)?;
        Ok::<_, io::Error>(copy)
    };
    copied().map(Some).map_err(|error| Failure::host(format!("cannot copy the folder of `root`: {error}")))
}

impl Program {
    /// The contents of a root folder, and the program in it.
    pub(super) fn root_inputs(
        &self,
        point: &Point,
        root: &Path,
    ) -> Result<BTreeMap<String, String>, Failure> {
        let mut inputs = BTreeMap::from([("program".to_string(), program(point).display().to_string())]);
        for (path, what) in contents(root)? {
            let at = root.join(&path);
            let what = match what {
                InRoot::Folder => "folder".into(),
                InRoot::Link(target) => format!("link to {}", target.display()),
                InRoot::File => self.digest(&at).map_err(|error| {
                    Failure::refused(format!("cannot read {} in the folder of `root`: {error}", at.display()))
                })?,
            };
            inputs.insert(format!("root/{}", path.display()), what);
        }
        Ok(inputs)
    }
}

/// The files of a root folder, for a bundle.
pub(super) fn root_files(point: &Point, root: &Path) -> Result<Vec<InputFile>, Failure> {
    let contents = contents(root)?.into_iter();
    let file = |(path, what): (PathBuf, InRoot)| match what {
        InRoot::Folder => None,
        InRoot::Link(_) => Some(Err(Failure::refused(format!(
            "the folder of `root` has the link {}, which a bundle cannot contain; put a copy of the file there",
            path.display()
        )))),
        InRoot::File => {
            let name = Path::new(point.text("folder")).join(point.text("root")).join(&path);
            let (name, path) = (name.display().to_string(), root.join(&path));
            Some(Ok(InputFile { name, path, is_built_in: false }))
        }
    };
    contents.filter_map(file).collect()
}
