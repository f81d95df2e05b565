//! `longma experiment new`: writes an experiment file to start from.

use super::{Outcome, find, status::io_error};
use longma_command_line::output::print;
use longma_lab::{Experiment, Registry};
use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

const TEMPLATE: &str = include_str!("template/experiment.toml");

/// Writes a new experiment file and prints its path and the command that runs it.
pub fn run(name: &str, folder: Option<PathBuf>, registry: &Registry) -> Outcome {
    check_name(name)?;
    let text = TEMPLATE.replace("NAME", name);
    let is_given = folder.is_some();
    let folder = folder.or_else(find::nearest).unwrap_or_else(|| "experiments".into());
    let path = folder.join(format!("{name}.toml"));
    let checked = Experiment::check(&path, &folder, &text, registry);
    if checked.experiment.is_none() {
        return Err(format!("the name `{name}` cannot be used: {}", checked.report).into());
    }
    write(&folder, &path, &text)?;
    // `longma experiment run` does not search a directory given with --folder, so print the whole path.
    let name_or_path = if is_given { path.display().to_string() } else { name.into() };
    print(&format!("{}\nRun it with `longma experiment run {name_or_path} --quick`.\n", path.display()))
}

fn check_name(name: &str) -> Result<(), Box<dyn Error>> {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || name.len() > 64 || name.starts_with('-') || !name.bytes().all(is_letter) {
        let shown = longma_text::sanitize(name);
        return Err(format!(
            "`{shown}` cannot be the name of an experiment; use small letters, digits and hyphens, as in `my-first`"
        )
        .into());
    }
    if find::is_built_in(name) {
        return Err(format!("an experiment `{name}` is built into longma; choose another name").into());
    }
    Ok(())
}

/// Writes a new file. Fails if it exists already.
fn write(folder: &Path, path: &Path, text: &str) -> Result<(), Box<dyn Error>> {
    let failed = |error| io_error(format!("cannot write {}: {error}", path.display()), &error);
    fs::create_dir_all(folder).map_err(failed)?;
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(|error| match error
        .kind()
    {
        ErrorKind::AlreadyExists => {
            Box::<dyn Error>::from(format!("{} exists; choose another name, or remove it", path.display()))
        }
        _ => failed(error),
    })?;
    file.write_all(text.as_bytes()).map_err(|error| {
        // Remove the partial file: the next attempt would refuse to overwrite it.
        let _ = fs::remove_file(path);
        failed(error)
    })?;
    Ok(())
}
