//! The files of a point: its program, and the input files that it names. The module `root` handles the files of a root
//! folder.

use super::root::root;
use longma_lab::{Failure, Point, Setting};
use longma_shipped::GuestError;
use std::io;
use std::path::{Component, Path, PathBuf};
use tempfile::TempDir;

/// Path of the program's file; with a root folder, the path that the program itself would use.
pub(super) fn program(point: &Point) -> PathBuf {
    if root(point).is_some() {
        return format!("/{}", name(point).trim_start_matches('/')).into();
    }
    // `inputs` reports a guest that cannot be used, before any point runs.
    program_path(point).unwrap_or_else(|_| name(point).into())
}

/// The program's name without arguments, with its variant.
pub(super) fn name(point: &Point) -> String {
    let file = point.text("program").split_whitespace().next().unwrap_or_default();
    format!("{file}{}", point.text("variant"))
}

/// The program's file; a guest that ships with the command is extracted.
pub(super) fn program_path(point: &Point) -> Result<PathBuf, Failure> {
    let name = name(point);
    longma_shipped::guest_or(&name, || point.path("folder").join(&name)).map_err(|error| match error {
        GuestError::Unknown { .. } => Failure::refused(error.to_string()),
        GuestError::Extract(_) => Failure::host(error.to_string()),
    })
}

/// The input files: the name that the program opens, and the path on this host.
pub(super) fn input_files(point: &Point) -> Result<Vec<(String, PathBuf)>, Failure> {
    let Some(Setting::Texts(names)) = point.parameter("files") else { return Ok(Vec::new()) };
    if root(point).is_some() && !names.is_empty() {
        return Err(Failure::refused(
            "`files` are not for programs with a `root`: put them into that folder",
        ));
    }
    let is_inside = |name: &str| {
        let mut parts = Path::new(name).components();
        !name.is_empty() && parts.all(|part| matches!(part, Component::Normal(_)))
    };
    let one = |name: &String| match is_inside(name) {
        true => Ok((name.clone(), point.path("folder").join(name))),
        false => Err(Failure::refused(format!("the input file `{name}` is not below `folder`"))),
    };
    names.iter().map(one).collect()
}

/// A folder with copies of the input files, if there are any.
pub(super) fn working_folder(point: &Point) -> Result<Option<TempDir>, Failure> {
    let files = input_files(point)?;
    if files.is_empty() {
        return Ok(None);
    }
    let copied = || {
        let folder = tempfile::tempdir()?;
        for (name, path) in &files {
            let copy = folder.path().join(name);
            copy.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            std::fs::copy(path, copy)?;
        }
        Ok::<_, io::Error>(folder)
    };
    copied().map(Some).map_err(|error| Failure::host(format!("cannot copy the input files: {error}")))
}
