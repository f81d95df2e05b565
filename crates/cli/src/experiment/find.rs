//! Finds experiment files: by path, by name in the nearest `experiments` directory, or by name among those built into
//! the command.

use super::Which;
use longma_lab::{Experiment, OpenError, Registry};
use longma_shipped::{CacheFolders, ENTRIES};
use std::error::Error;
use std::path::{Path, PathBuf};

type FindResult<T> = Result<T, Box<dyn Error>>;

/// The experiments that a name can refer to.
pub struct Experiments {
    /// The folder or built-in set that contains them.
    pub origin: Origin,
    /// Their files, sorted by name.
    pub files: Vec<PathBuf>,
}

/// Origin of experiments.
pub enum Origin {
    /// The directory given with `--folder`.
    Given(PathBuf),
    /// The nearest `experiments` directory, here or in a parent.
    Nearest(PathBuf),
    /// The command itself.
    BuiltIn,
}

impl Experiments {
    /// The experiments of the given directory; otherwise those of the nearest `experiments` directory, unless
    /// `built_in` is set; otherwise those built into the command.
    pub fn of(given: Option<&Path>, built_in: bool) -> FindResult<Self> {
        if let Some(folder) = given {
            let files = files(folder)?;
            return Ok(Self { origin: Origin::Given(folder.into()), files });
        }
        match nearest().filter(|_| !built_in) {
            Some(folder) => Ok(Self { files: files(&folder)?, origin: Origin::Nearest(folder) }),
            None => Self::built_in(),
        }
    }

    /// Extracts the experiments built into the command, with the machine files and programs that they name.
    fn built_in() -> FindResult<Self> {
        let root = longma_shipped::extract(ENTRIES, &CacheFolders::of_process())
            .map_err(|error| super::status::HostError(error.to_string()))?;
        let files = longma_shipped::experiments().map(|entry| root.join(entry.path)).collect();
        Ok(Self { origin: Origin::BuiltIn, files })
    }

    fn file(&self, name: &str) -> Option<&PathBuf> {
        self.files.iter().find(|path| path.file_stem().is_some_and(|stem| stem == name))
    }

    /// The file of the experiment `name`. If the nearest `experiments` directory does not have it, a built-in
    /// experiment of that name is used.
    fn file_by_name(&self, name: &str) -> FindResult<PathBuf> {
        if let Some(file) = self.file(name) {
            return Ok(file.clone());
        }
        if let Origin::Nearest(folder) = &self.origin
            && is_built_in(name)
        {
            let built_in = Self::built_in()?;
            if let Some(file) = built_in.file(name) {
                eprintln!(
                    "longma: {} has no {name}.toml: using the experiment built into longma",
                    folder.display()
                );
                return Ok(file.clone());
            }
        }
        let names = self.files.iter().filter_map(|path| path.file_stem()?.to_str());
        let help = longma_topology::read::suggestion(name, names, "experiment");
        Err(format!("there is no experiment `{name}`; {help}").into())
    }
}

/// The nearest `experiments` directory, here or in a parent.
pub fn nearest() -> Option<PathBuf> {
    let current = std::env::current_dir().ok()?;
    current.ancestors().map(|above| above.join("experiments")).find(|folder| folder.is_dir())
}

/// Whether an experiment of this name is built into the command.
pub fn is_built_in(name: &str) -> bool {
    longma_shipped::entry(&format!("experiments/{name}.toml")).is_some()
}

/// The experiment files of a directory, sorted by name.
fn files(folder: &Path) -> FindResult<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Err(format!("there is no folder {}", folder.display()).into());
    }
    let entries =
        std::fs::read_dir(folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
    files.sort();
    Ok(files)
}

/// The files of the requested experiments.
pub fn requested_files(which: &Which) -> FindResult<Vec<PathBuf>> {
    let experiments = || Experiments::of(which.folder.as_deref(), which.built_in);
    if which.all {
        return experiments().map(|experiments| experiments.files);
    }
    if which.names.is_empty() {
        return Err("name an experiment, or give --all; `longma experiment list` prints the names".into());
    }
    let is_path = |name: &&String| name.contains(['/', '.']);
    if which.names.iter().all(|name| is_path(&name)) {
        return Ok(which.names.iter().map(PathBuf::from).collect());
    }
    let experiments = experiments()?;
    let one = |name: &String| if is_path(&name) { Ok(name.into()) } else { experiments.file_by_name(name) };
    which.names.iter().map(one).collect()
}

/// Opens the requested experiments.
pub fn open(which: &Which, registry: &Registry) -> FindResult<Vec<Experiment>> {
    let open = |path: PathBuf| match &which.paths_from {
        Some(folder) => Experiment::open_in(&path, folder, registry),
        None => Experiment::open(&path, registry),
    };
    let experiments: Result<Vec<_>, _> = requested_files(which)?.into_iter().map(open).collect();
    experiments.map_err(|error| match error {
        OpenError::Invalid(report) => {
            format!("{report}\n\n{}", report.render(longma_command_line::output::columns(), false)).into()
        }
        other => other.into(),
    })
}
