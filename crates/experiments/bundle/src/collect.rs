//! Finds the files that experiments read, and determines their paths in the bundle. A path relative to the experiment's
//! file stays the same, so that the unpacked file works without changes.

use crate::archive::BundleError;
use crate::manifest::{BundledExperiment, BundledInput, BundledMachine, BundledPoint, Contents, is_path};
use longma_lab::{Campaign, Experiment, InputFile, Point, Registry, Setting, digest};
use longma_topology::{Machine, names_module};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The folder of the files that experiments name by path.
const FILES: &str = "files";
/// The folder of the programs that the command contains, by digest.
const PROGRAMS: &str = "programs";
/// The folder of the machines with all defaults.
const MACHINES: &str = "machines";

/// An experiment to put into a bundle.
pub struct Original<'a> {
    /// The experiment and its points.
    pub campaign: &'a Campaign<'a>,
    /// The points of its other form, if their inputs exist.
    pub other_form: Vec<Point>,
}

/// The experiments of a bundle, and the files that they read.
pub struct Collected {
    /// The experiments.
    pub experiments: Vec<BundledExperiment>,
    /// The files by path.
    pub contents: Contents,
}

/// Collects the files of the experiments. The results and the figures are not among them.
///
/// # Errors
/// A file cannot be read, or an experiment names one by an absolute path, which other hosts do not have.
pub fn collect(originals: &[Original<'_>], registry: &Registry) -> Result<Collected, BundleError> {
    let sources: Vec<Sources> =
        originals.iter().map(|original| Sources::of(original, registry)).collect::<Result<_, _>>()?;
    let folders = sources.iter().flat_map(Sources::folders);
    let root = folders.reduce(common).unwrap_or_default();
    let mut places = Places { root, contents: Contents::new() };
    let experiments = originals.iter().zip(&sources).map(|(original, sources)| {
        let parts = original.campaign.experiment.parts();
        let file = places.add(&sources.file, read(&sources.file)?)?;
        let folder = places.place(&sources.folder)?;
        let machines = sources.machines.iter().map(|(name, machine)| {
            if let Some((path, text)) = &machine.file {
                places.add(path, text.clone().into_bytes())?;
            }
            let text = machine.whole.to_toml();
            let file = format!("{MACHINES}/{}.toml", machine.whole.name);
            let sha256 = digest(text.as_bytes());
            let file = places.put(file, text.into_bytes())?;
            Ok(BundledMachine { name: name.clone(), file, sha256 })
        });
        let machines = machines.collect::<Result<_, BundleError>>()?;
        let inputs = sources.inputs.iter().map(|(input, at)| {
            let bytes = read(&input.path)?;
            let sha256 = digest(&bytes);
            let file = match input.is_built_in {
                true => places.put(format!("{PROGRAMS}/{sha256}"), bytes)?,
                false => places.add(at, bytes)?,
            };
            Ok(BundledInput { name: input.name.clone(), file, sha256, built_in: input.is_built_in })
        });
        let inputs = inputs.collect::<Result<_, BundleError>>()?;
        let point = |point: &Point| BundledPoint { key: point.key.clone(), point: point.label() };
        let quick = original.campaign.quick;
        let command = command(&file, &folder, quick);
        let points = original.campaign.points.iter().map(point).collect();
        Ok(BundledExperiment {
            name: parts.name.clone(),
            file,
            folder,
            quick,
            command,
            machines,
            inputs,
            points,
        })
    });
    let experiments = experiments.collect::<Result<_, BundleError>>()?;
    Ok(Collected { experiments, contents: places.contents })
}

/// The command that runs the experiment in the unpacked bundle.
fn command(file: &str, folder: &str, quick: bool) -> String {
    let mut command = vec!["longma", "experiment", "run", file];
    command.extend(quick.then_some("--quick"));
    if Path::new(file).parent() != Some(Path::new(folder)) {
        command.extend(["--paths-from", folder]);
    }
    command.iter().map(|word| longma_text::quote_for_shell(word)).collect::<Vec<_>>().join(" ")
}

/// Checks that the experiment reads no files outside the folder `root`.
///
/// # Errors
/// Which file it names.
pub fn inside(root: &Path, campaign: &Campaign<'_>, registry: &Registry) -> Result<(), BundleError> {
    let original = Original { campaign, other_form: Vec::new() };
    let sources = Sources::of(&original, registry)?;
    let root = normal(root);
    match sources.paths().find(|path| !path.starts_with(&root)) {
        Some(path) => Err(BundleError::Experiment(format!(
            "{} reads {}, which is not in the bundle",
            campaign.experiment.parts().name,
            longma_text::display_path(path)
        ))),
        None => Ok(()),
    }
}

/// The files that an experiment reads.
struct Sources {
    file: PathBuf,
    folder: PathBuf,
    machines: BTreeMap<String, NamedMachine>,
    /// Input files, each with its path on this host.
    inputs: Vec<(InputFile, PathBuf)>,
}

struct NamedMachine {
    /// Its file and the name that replaces it in the bundle; `None` for a built-in machine.
    file: Option<(PathBuf, String)>,
    whole: Machine,
}

impl Sources {
    fn of(original: &Original<'_>, registry: &Registry) -> Result<Self, BundleError> {
        let experiment = original.campaign.experiment;
        let folder = normal(experiment.folder());
        let mut machines = BTreeMap::new();
        for name in machine_names(experiment) {
            let machine = machine(&name, &folder, experiment)?;
            machines.insert(name, machine);
        }
        let workload = registry.get(&experiment.parts().workload);
        let mut inputs = BTreeSet::new();
        for point in original.campaign.points.iter().chain(&original.other_form) {
            let files = workload.map_or(Ok(Vec::new()), |workload| workload.files(point));
            inputs.extend(files.map_err(|failure| BundleError::Experiment(failure.to_string()))?);
        }
        let parts = experiment.parts();
        let fixed = parts.parameters.iter().chain(parts.quick.iter().flat_map(|quick| &quick.parameters));
        let points = original.campaign.points.iter().chain(&original.other_form);
        let varied = points.flat_map(|point| point.varied.iter().map(|(name, value)| (name, value)));
        inputs.extend(fixed.chain(varied).filter_map(|(name, value)| match value {
            Setting::Text(module) if name.strip_prefix("machine.").is_some_and(names_module) => {
                Some(InputFile {
                    name: module.clone(),
                    path: experiment.folder().join(module),
                    is_built_in: false,
                })
            }
            _ => None,
        }));
        let place = |input: InputFile| {
            let at = match input.is_built_in {
                true => folder.clone(),
                false => relative(&input.name, &folder, experiment)?,
            };
            Ok((input, at))
        };
        let inputs = inputs.into_iter().map(place).collect::<Result<_, BundleError>>()?;
        Ok(Self { file: normal(experiment.path()), folder, machines, inputs })
    }

    /// The paths of all files, and the folder.
    fn paths(&self) -> impl Iterator<Item = &Path> {
        let machines = self.machines.values().filter_map(|machine| Some(&*machine.file.as_ref()?.0));
        let inputs = self.inputs.iter().map(|(_, at)| &**at);
        [&*self.file, &*self.folder].into_iter().chain(machines).chain(inputs)
    }

    fn folders(&self) -> impl Iterator<Item = PathBuf> {
        let above = |path: &Path| path.parent().unwrap_or(path).to_path_buf();
        // The folder itself counts as a folder, not as a file in the folder above it.
        self.paths().map(move |path| if path == self.folder { self.folder.clone() } else { above(path) })
    }
}

/// The machines that the experiment names, in any form and in `explain`.
fn machine_names(experiment: &Experiment) -> BTreeSet<String> {
    let parts = experiment.parts();
    let quick = parts.quick.iter().flat_map(|quick| &quick.machines);
    let mechanisms = parts.explain.iter().flat_map(|explain| explain.mechanisms.values());
    let switched = mechanisms.flat_map(|mechanism| [&mechanism.off, &mechanism.on]);
    let switched = switched.filter_map(|settings| settings.get("machine").and_then(Setting::text));
    parts
        .machines
        .iter()
        .chain(quick)
        .map(|name| name.to_string())
        .chain(switched.map(String::from))
        .collect()
}

fn machine(name: &str, folder: &Path, experiment: &Experiment) -> Result<NamedMachine, BundleError> {
    let failed = |error: &dyn std::fmt::Display| BundleError::Experiment(error.to_string());
    if !name.contains(['/', '.']) {
        let whole = Machine::open(name).map_err(|error| failed(&error))?;
        return Ok(NamedMachine { file: None, whole });
    }
    let path = relative(name, folder, experiment)?;
    let given = experiment.folder().join(name).display().to_string();
    let whole = Machine::open(&given).map_err(|error| failed(&error))?;
    let (_, text) = Machine::text(&given).map_err(|error| failed(&error))?;
    // A file that extends another machine or names a plug-in would also need that file.
    let text = if text.contains("extends") || text.contains("module") { whole.to_toml() } else { text };
    Ok(NamedMachine { file: Some((path, text)), whole })
}

/// The absolute path of a file that the experiment names.
fn relative(name: &str, folder: &Path, experiment: &Experiment) -> Result<PathBuf, BundleError> {
    if Path::new(name).is_absolute() {
        return Err(BundleError::Experiment(format!(
            "{} names {} by an absolute path, which other hosts do not have; write it relative to the experiment's file",
            experiment.parts().name,
            longma_text::sanitize(name)
        )));
    }
    Ok(normal(&folder.join(name)))
}

/// An absolute path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    // The folder of a file without a folder is empty.
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let mut normal = PathBuf::new();
    for part in absolute.components() {
        match part {
            Component::CurDir => {}
            // Above the root is the root.
            Component::ParentDir => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    normal
}

/// The folder that both paths are in.
fn common(one: PathBuf, other: PathBuf) -> PathBuf {
    let same = one.components().zip(other.components()).take_while(|(one, other)| one == other);
    same.map(|(part, _)| part).collect()
}

fn read(path: &Path) -> Result<Vec<u8>, BundleError> {
    fs::read(path).map_err(|error| BundleError::File { path: path.into(), error })
}

/// The contents of a bundle, and the folder of this host that corresponds to its folder `files`.
struct Places {
    root: PathBuf,
    contents: Contents,
}

impl Places {
    /// Path of the file `at` in the bundle.
    fn place(&self, at: &Path) -> Result<String, BundleError> {
        let rest = at.strip_prefix(&self.root).ok().and_then(Path::to_str);
        let place = rest.map(|rest| if rest.is_empty() { FILES.into() } else { format!("{FILES}/{rest}") });
        place.filter(|place| is_path(place)).ok_or_else(|| {
            BundleError::Experiment(format!(
                "the path {} cannot be in a bundle: give it at most 200 letters, without control characters",
                longma_text::display_path(at)
            ))
        })
    }

    /// Adds the file `at`.
    fn add(&mut self, at: &Path, bytes: Vec<u8>) -> Result<String, BundleError> {
        let place = self.place(at)?;
        self.put(place, bytes)
    }

    /// Adds a file of this name.
    fn put(&mut self, place: String, bytes: Vec<u8>) -> Result<String, BundleError> {
        let known = self.contents.entry(place.clone()).or_insert_with(|| bytes.clone());
        if *known != bytes {
            return Err(BundleError::Experiment(format!(
                "two different files would be {place} in the bundle"
            )));
        }
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_file_without_a_folder_is_the_current_one() {
        assert_eq!(normal(Path::new("")), std::env::current_dir().unwrap());
    }

    #[test]
    fn the_root_is_the_folder_that_all_files_are_in() {
        let root = ["/a/b/c", "/a/b/d/e", "/a/b"].into_iter().map(PathBuf::from).reduce(common);
        assert_eq!(root, Some("/a/b".into()));
        assert_eq!(normal(Path::new("/a/./b/../c")), Path::new("/a/c"));
        assert_eq!(normal(Path::new("/../..")), Path::new("/"));
    }

    #[test]
    fn two_files_cannot_take_one_place() {
        let mut places = Places { root: "/a".into(), contents: Contents::new() };
        assert_eq!(places.add(Path::new("/a/b/c"), b"1".to_vec()).unwrap(), "files/b/c");
        assert_eq!(places.add(Path::new("/a/b/c"), b"1".to_vec()).unwrap(), "files/b/c");
        let error = places.add(Path::new("/a/b/c"), b"2".to_vec()).unwrap_err().to_string();
        assert!(error.contains("two different files would be files/b/c"), "{error}");
        assert!(places.add(Path::new("/a/b\n"), Vec::new()).is_err());
        assert!(places.add(Path::new("/b"), Vec::new()).is_err());
    }

    #[test]
    fn the_command_runs_the_unpacked_file() {
        assert_eq!(
            command("files/a b.toml", "files", true),
            "longma experiment run 'files/a b.toml' --quick"
        );
        assert_eq!(
            command("files/x/a.toml", "files/y", false),
            "longma experiment run files/x/a.toml --paths-from files/y"
        );
    }
}
