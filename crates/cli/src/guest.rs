//! `longma guest`: lists and copies the guest programs that ship inside the command. Also resolves `guests:NAME` on the
//! command lines of `longma run` and `longma translate`.

use crate::run;
use clap::{Subcommand, ValueEnum};
use longma_command_line::output::{print, print_json, table};
use longma_shipped::{GUESTS, Guest, GuestError, PREFIX, contents, guest, guest_file};
use serde_json::json;
use std::error::Error;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// `longma guest ...`
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Lists the guest programs; `longma run guests:NAME` runs one.
    List {
        /// How to print.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// Writes a guest program to a file, for a debugger or a folder of --root.
    Copy {
        /// Its name: NAME for LoongArch64, ARCHITECTURE/NAME for others.
        name: String,
        /// The file to write, which must not exist [default: the program's name, here].
        file: Option<PathBuf>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// Runs `longma guest`.
pub fn run(args: Args) -> Result<ExitCode, Box<dyn Error>> {
    match args.action {
        Action::List { format: Format::Json } => print_json(&GUESTS.iter().map(object).collect()),
        Action::List { format: Format::Table } => print(&list()),
        Action::Copy { name, file } => copy(&name, file),
    }
}

fn object(guest: &Guest) -> serde_json::Value {
    json!({ "name": guest.name, "description": guest.description, "kind": guest.kind, "arguments": guest.arguments,
        "builds": guest.builds })
}

fn list() -> String {
    let mut rows = vec![["NAME", "VECTORS", "OTHER", "WHAT IT DOES"].map(String::from).to_vec()];
    let mark = |is_so| if is_so { "yes".to_string() } else { "-".into() };
    let vectors = |build: &&str| build.ends_with("-lasx");
    let other = |build: &&str| !build.starts_with("loongarch64/");
    rows.extend(GUESTS.iter().map(|guest| {
        let (vectors, other) = (guest.builds.iter().any(vectors), guest.builds.iter().any(other));
        vec![guest.name.into(), mark(vectors), mark(other), guest.description.into()]
    }));
    if std::io::stdout().is_terminal() {
        let width = longma_command_line::output::columns();
        rows = rows.into_iter().map(|row| fit_last_cell(row, width)).collect();
    }
    let example = "\nlongma run guests:NAME runs one.\n\
                   VECTORS: guests:NAME-lsx and guests:NAME-lasx are builds with 128-bit and 256-bit vectors.\n\
                   OTHER: guests:aarch64/NAME, guests:mips64el/NAME and guests:x86_64/NAME run by translation.\n";
    table(&rows) + example
}

/// Shortens the last cell of a row to fit the terminal.
fn fit_last_cell(mut row: Vec<String>, width: usize) -> Vec<String> {
    /// Width of the columns before the last one: the longest name, and two marks.
    const BEFORE: usize = 14 + 2 + 7 + 2 + 5 + 2;
    let limit = width.saturating_sub(BEFORE).max(20);
    if let Some(last) = row.last_mut()
        && last.chars().count() > limit
    {
        *last = last.chars().take(limit - 3).collect::<String>().trim_end().to_string() + "...";
    }
    row
}

fn copy(name: &str, file: Option<PathBuf>) -> Result<ExitCode, Box<dyn Error>> {
    let entry = guest(name.strip_prefix(PREFIX).unwrap_or(name))?;
    let default_file = || entry.path.rsplit('/').next().unwrap_or_default().into();
    let path: PathBuf = file.unwrap_or_else(default_file);
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o777).open(&path);
    let mut file = opened.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => format!("{} exists; name another file, or remove it", path.display()),
        _ => format!("cannot write {}: {error}", path.display()),
    })?;
    file.write_all(contents(entry)).map_err(|error| {
        // Remove the partial file: the next attempt would refuse to overwrite it.
        let _ = fs::remove_file(&path);
        format!("cannot write {}: {error}", path.display())
    })?;
    print(&format!("{}\n", path.display()))
}

/// Replaces a program named `guests:NAME` with the path of that guest's file.
///
/// # Errors
/// Returns the exit status after printing the reason.
pub fn resolve(program: Option<&mut OsString>, has_root: bool) -> Result<(), ExitCode> {
    let Some(program) = program else { return Ok(()) };
    let Some(name) = program.to_str().filter(|name| name.starts_with(PREFIX)) else { return Ok(()) };
    if has_root {
        let message = format!("{name} is not inside the directory of --root");
        let name = name.trim_start_matches(PREFIX);
        let advice = format!("copy it there with `longma guest copy {name} FILE`, and name that file");
        return Err(run::refused(&message, &advice, run::NOT_FOUND));
    }
    match guest_file(name) {
        Some(Ok(file)) => {
            *program = file.into();
            Ok(())
        }
        Some(Err(error)) => {
            let text = error.to_string();
            let (message, advice) = text.rsplit_once("; ").unwrap_or((&text, ""));
            let status = match &error {
                GuestError::Unknown { .. } => run::NOT_FOUND,
                GuestError::Extract(_) => run::OWN_FAILURE,
            };
            Err(run::refused(message, advice, status))
        }
        None => Ok(()),
    }
}
