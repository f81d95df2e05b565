//! Where experiment files are: by path, or by name in the nearest folder `experiments`.
//! Not their content.

use super::Which;
use longma_lab::{Experiment, OpenError, Registry};
use std::error::Error;
use std::path::{Path, PathBuf};

type Found<T> = Result<T, Box<dyn Error>>;

/// The folder of experiment files: the one given, or the nearest above this folder, or above the command.
pub fn folder(given: Option<&Path>) -> Found<PathBuf> {
    if let Some(folder) = given {
        return if folder.is_dir() {
            Ok(folder.into())
        } else {
            Err(format!("there is no folder {}", folder.display()).into())
        };
    }
    let here = std::env::current_dir().ok();
    let command = std::env::current_exe().ok();
    let above = |start: &Path| start.ancestors().map(|a| a.join("experiments")).find(|a| a.is_dir());
    let found = here.as_deref().and_then(above).or_else(|| command.as_deref().and_then(above));
    found.ok_or_else(|| "there is no folder `experiments` here or above: give one with --folder".into())
}

/// Every experiment file of a folder, in the order of the names.
pub fn files(folder: &Path) -> Found<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
    files.sort();
    Ok(files)
}

/// The files of the experiments asked for.
pub fn wanted(which: &Which) -> Found<Vec<PathBuf>> {
    let files = || folder(which.folder.as_deref()).and_then(|folder| files(&folder));
    if which.all {
        return files();
    }
    if which.names.is_empty() {
        return Err("say which experiments, or --all; `longma experiment list` names them".into());
    }
    which.names.iter().map(|name| one(name, &files)).collect()
}

fn one(name: &str, files: &dyn Fn() -> Found<Vec<PathBuf>>) -> Found<PathBuf> {
    if name.contains(['/', '.']) {
        return Ok(name.into());
    }
    let files = files()?;
    let names: Vec<_> = files.iter().filter_map(|path| path.file_stem()?.to_str()).collect();
    match names.iter().position(|known| *known == name) {
        Some(index) => Ok(files[index].clone()),
        None => {
            let help = longma_topology::read::suggestion(name, names, "experiment");
            Err(format!("there is no experiment `{name}`; {help}").into())
        }
    }
}

/// The experiments asked for, opened.
pub fn open(which: &Which, registry: &Registry) -> Found<Vec<Experiment>> {
    let open = |path: PathBuf| match &which.paths_from {
        Some(folder) => Experiment::open_in(&path, folder, registry),
        None => Experiment::open(&path, registry),
    };
    let experiments: Result<Vec<_>, _> = wanted(which)?.into_iter().map(open).collect();
    experiments.map_err(|error| match error {
        OpenError::Invalid(report) => {
            format!("{report}\n\n{}", report.render(crate::machine::columns(), false)).into()
        }
        other => other.into(),
    })
}
