//! Artifact bundles: an experiment with its machines, programs, results and figures, and the command that reproduces
//! it, as a folder or as one archive.
//!
//! docs/src/reference/experiments.md describes the contents.

mod archive;
mod collect;
mod manifest;
mod verify;

pub use archive::{BundleError, Limits, MANIFEST, unpack, unpack_tar, write};
pub use collect::{Collected, Original, collect, inside};
pub use manifest::{
    BundledExperiment, BundledFile, BundledInput, BundledMachine, BundledPoint, Contents, FIGURES, Manifest,
    RESULTS,
};
pub use verify::{Difference, Rendered, Verification, changed_inputs, compare_rendered, local_keys, verify};

/// Completes the contents of a bundle with the files of `generated`, such as results and figures, and with the manifest.
///
/// # Errors
/// If a path of `generated` is taken.
pub fn complete(
    collected: Collected,
    generated: Contents,
    longma: &str,
    made_by: &str,
) -> Result<Contents, BundleError> {
    let Collected { experiments, mut contents } = collected;
    for (name, bytes) in generated {
        if contents.insert(name.clone(), bytes).is_some() {
            return Err(BundleError::Experiment(format!("two files of the bundle would be {name}")));
        }
    }
    let manifest = Manifest { experiments, ..Manifest::new(longma, made_by, &contents) };
    contents.insert(MANIFEST.into(), manifest.to_json());
    Ok(contents)
}
