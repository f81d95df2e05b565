//! `bundle.json`: the files of a bundle with their digests, and its experiments with their machines, programs and
//! points.

use longma_lab::{Key, digest};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the format.
const FORMAT: u32 = 1;
/// The largest manifest: a million points need 200 MB.
const MAX_BYTES: usize = 256 << 20;
/// The longest path of the format.
const MAX_PATH: usize = 255;
/// The folder with the results, which is a store.
pub const RESULTS: &str = "results";
/// The folder with the figures and tables of the report, with its slash.
pub const FIGURES: &str = "figures/";

/// The files of a bundle by path.
pub type Contents = BTreeMap<String, Vec<u8>>;

/// The contents of `bundle.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format.
    pub format: u32,
    /// Version of longma and of its models.
    pub longma: String,
    /// The command that made the bundle.
    pub made_by: String,
    /// The experiments.
    pub experiments: Vec<BundledExperiment>,
    /// All files except this one, by path.
    pub files: BTreeMap<String, BundledFile>,
}

/// A file of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundledFile {
    /// SHA-256 in hexadecimal.
    pub sha256: String,
    /// Length.
    pub bytes: u64,
}

/// An experiment of a bundle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BundledExperiment {
    /// Its name.
    pub name: String,
    /// Path of its file.
    pub file: String,
    /// Path of the folder to which paths in the file are relative.
    pub folder: String,
    /// Whether the results are of the quick form.
    pub quick: bool,
    /// The command that runs it in the unpacked bundle.
    pub command: String,
    /// Its machines.
    pub machines: Vec<BundledMachine>,
    /// The files that its points read, such as programs.
    pub inputs: Vec<BundledInput>,
    /// Its points in the order of the experiment.
    pub points: Vec<BundledPoint>,
}

/// A machine of an experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundledMachine {
    /// Its name in the experiment.
    pub name: String,
    /// Path of its file with all defaults.
    pub file: String,
    /// SHA-256 of that file.
    pub sha256: String,
}

/// A file that a point reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundledInput {
    /// Its name in the experiment.
    pub name: String,
    /// Its path in the bundle.
    pub file: String,
    /// SHA-256 of its contents.
    pub sha256: String,
    /// Whether the command contains it.
    pub built_in: bool,
}

/// A point of an experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundledPoint {
    /// Key of its result.
    pub key: Key,
    /// Its varying parameters.
    pub point: String,
}

/// Whether `path` is a path within a bundle: relative, of plain components separated by single slashes.
pub(crate) fn is_path(path: &str) -> bool {
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    path.len() <= MAX_PATH
        && path.split('/').all(is_plain)
        && !path.chars().any(|letter| letter == '\\' || longma_text::is_control_or_invisible(letter))
}

impl Manifest {
    /// The manifest of these files, without experiments.
    pub fn new(longma: &str, made_by: &str, contents: &Contents) -> Self {
        let file = |bytes: &Vec<u8>| BundledFile { sha256: digest(bytes), bytes: bytes.len() as u64 };
        let files = contents.iter().map(|(name, bytes)| (name.clone(), file(bytes))).collect();
        Self {
            format: FORMAT,
            longma: longma.into(),
            made_by: made_by.into(),
            experiments: Vec::new(),
            files,
        }
    }

    /// The manifest as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        // Cannot fail: it has string keys and no numbers other than integers.
        let text = serde_json::to_string_pretty(self).expect("a manifest is plain data");
        (text + "\n").into_bytes()
    }

    /// Parses a manifest. The error describes the fault.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > MAX_BYTES {
            return Err("bundle.json is too large".into());
        }
        let manifest: Self =
            serde_json::from_slice(bytes).map_err(|error| format!("bundle.json: {error}"))?;
        if manifest.format != FORMAT {
            let format = manifest.format;
            return Err(format!("its format is {format}; this version of longma knows {FORMAT}"));
        }
        let file = |path: &str| manifest.files.contains_key(path);
        for experiment in &manifest.experiments {
            let machines = experiment.machines.iter().map(|machine| &machine.file);
            let named = machines.chain(experiment.inputs.iter().map(|input| &input.file));
            if !file(&experiment.file)
                || !is_path(&experiment.folder)
                || !named.into_iter().all(|path| file(path))
            {
                return Err("bundle.json names files that it does not list".into());
            }
        }
        Ok(manifest)
    }
}
