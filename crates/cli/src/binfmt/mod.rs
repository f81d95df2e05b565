//! `longma binfmt`: registers longma with the kernel's binfmt_misc, so that programs of other architectures run like
//! native ones. Registration lasts until the next boot; `print` writes rules that systemd-binfmt registers at each
//! boot.
//! Source: Linux Documentation/admin-guide/binfmt-misc.rst; binfmt.d(5).

mod invoked;
mod rules;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use rules::{Architecture, Rule};

pub use invoked::command_line;

/// Mount point of binfmt_misc.
const RULES: &str = "/proc/sys/fs/binfmt_misc";

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List the architectures and the interpreters registered for them.
    List,
    /// Register longma as the interpreter of other architectures' programs.
    ///
    /// Needs root. The registration lasts until the next boot.
    Register {
        /// The architectures [default: all except the host's].
        architectures: Vec<Architecture>,
        #[command(flatten)]
        how: InterpreterOptions,
    },
    /// Remove the rules that `register` added.
    Unregister {
        /// The architectures [default: all].
        architectures: Vec<Architecture>,
    },
    /// Print the rules in the format of files in /etc/binfmt.d.
    Print {
        /// The architectures [default: all except the host's].
        architectures: Vec<Architecture>,
        #[command(flatten)]
        how: InterpreterOptions,
    },
}

#[derive(clap::Args)]
struct InterpreterOptions {
    /// The interpreter to register [default: this command].
    #[arg(long, value_name = "PATH")]
    interpreter: Option<PathBuf>,
    /// Open the interpreter when registering it, not each time a program starts.
    ///
    /// Programs of the registered architectures then also run in containers and chroots that do not contain longma.
    /// Needs a statically linked longma.
    #[arg(long)]
    fixed: bool,
}

const DISABLED: &str =
    "binfmt_misc is disabled: enable it with `echo 1 >/proc/sys/fs/binfmt_misc/status` as root";

/// Errors of `longma binfmt`, with advice.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error(
        "binfmt_misc is not mounted at {RULES}: mount it as root, with `mount -t binfmt_misc binfmt_misc {RULES}`"
    )]
    NotMounted,
    #[error("{0} is this host's own architecture: the kernel would run all programs of the host with longma")]
    Own(Architecture),
    #[error("{0}; give another with --interpreter")]
    Interpreter(String),
    #[error("{0}")]
    Dynamic(String),
    #[error("cannot {what} `{name}` in {RULES}: {error}; {}", help(error))]
    Refused { what: &'static str, name: String, error: io::Error },
}

/// Advice for an error of the kernel.
fn help(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "this needs root, in the user namespace that mounted binfmt_misc",
        io::ErrorKind::ReadOnlyFilesystem => "binfmt_misc is mounted read-only",
        _ => "`longma binfmt list` shows what is registered",
    }
}

/// Runs `longma binfmt`.
///
/// # Errors
/// Fails if binfmt_misc is not mounted or cannot be changed, or if no valid rule can be made from the options.
pub fn run(args: Args) -> Result<ExitCode, Box<dyn std::error::Error>> {
    match args.action {
        Action::List => list()?,
        Action::Register { architectures, how } => register(&make_rules(&architectures, &how)?)?,
        Action::Unregister { architectures } => unregister(&architectures)?,
        Action::Print { architectures, how } => {
            make_rules(&architectures, &how)?.iter().for_each(|rule| println!("{rule}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn make_rules(architectures: &[Architecture], how: &InterpreterOptions) -> Result<Vec<Rule>, Problem> {
    if let Some(own) = architectures.iter().find(|architecture| architecture.is_host()) {
        return Err(Problem::Own(*own));
    }
    let interpreter = match &how.interpreter {
        Some(path) => std::path::absolute(path),
        None => std::env::current_exe(),
    };
    let interpreter = interpreter
        .map_err(|error| Problem::Interpreter(format!("cannot find this command itself: {error}")))?;
    rules::check_interpreter(&interpreter).map_err(Problem::Interpreter)?;
    if how.fixed {
        rules::check_static(&interpreter).map_err(Problem::Dynamic)?;
    }
    let requested = if architectures.is_empty() { Architecture::ALL } else { architectures };
    let foreign = requested.iter().filter(|architecture| !architecture.is_host());
    foreign
        .map(|architecture| Rule::new(*architecture, &interpreter, how.fixed).map_err(Problem::Interpreter))
        .collect()
}

/// Fails unless binfmt_misc is mounted.
fn require_mounted() -> Result<(), Problem> {
    if Path::new(RULES).join("register").exists() { Ok(()) } else { Err(Problem::NotMounted) }
}

fn register(rules: &[Rule]) -> Result<(), Problem> {
    require_mounted()?;
    for rule in rules {
        let refused = |what, error| Problem::Refused { what, name: rule.name(), error };
        // Replace a rule of the same name: it may name another interpreter.
        remove(&rule.name()).map_err(|error| refused("replace", error))?;
        write_file("register", &rule.to_string()).map_err(|error| refused("register", error))?;
        println!("{}: programs are run by {}", rule.architecture, rule.interpreter.display());
    }
    if is_disabled() {
        println!("{DISABLED}");
    }
    Ok(())
}

fn unregister(architectures: &[Architecture]) -> Result<(), Problem> {
    require_mounted()?;
    for architecture in if architectures.is_empty() { Architecture::ALL } else { architectures } {
        let name = architecture.rule_name();
        if remove(&name).map_err(|error| Problem::Refused { what: "remove", name, error })? {
            println!("{architecture}: unregistered");
        }
    }
    Ok(())
}

/// Removes a rule; returns false if it does not exist.
fn remove(name: &str) -> io::Result<bool> {
    match write_file(name, "-1") {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes to a file of binfmt_misc. Opens without `create`: the file system does not allow new files.
fn write_file(name: &str, what: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(Path::new(RULES).join(name))?.write_all(what.as_bytes())
}

fn list() -> Result<(), Problem> {
    require_mounted()?;
    let registered_rules = registered_rules();
    if is_disabled() {
        println!("{DISABLED}");
    }
    for architecture in Architecture::ALL {
        let of_it = registered_rules.iter().filter(|(_, status)| rules::is_for(status, *architecture));
        let interpreters: Vec<String> = of_it.map(|(name, status)| shown_rule(name, status)).collect();
        let fallback = if architecture.is_host() {
            "native"
        } else {
            "no interpreter: register with `longma binfmt register`"
        };
        let newest = if interpreters.len() > 1 { "; the last registered rule takes effect" } else { "" };
        let shown = if interpreters.is_empty() { fallback.into() } else { interpreters.join("; ") };
        println!("{:<12} {shown}{newest}", architecture.to_string());
    }
    Ok(())
}

/// Whether binfmt_misc is disabled as a whole.
fn is_disabled() -> bool {
    fs::read_to_string(Path::new(RULES).join("status")).is_ok_and(|status| status.starts_with("disabled"))
}

/// The registered rules: name and status text of each.
fn registered_rules() -> Vec<(String, String)> {
    let entries = fs::read_dir(RULES).into_iter().flatten().flatten();
    let rules = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let status = fs::read_to_string(entry.path()).ok()?;
        (name != "register" && name != "status").then_some((name, status))
    });
    let mut rules: Vec<_> = rules.collect();
    rules.sort();
    rules
}

fn shown_rule(name: &str, status: &str) -> String {
    let interpreter = status.lines().find_map(|line| line.strip_prefix("interpreter ")).unwrap_or("?");
    let off = if status.starts_with("disabled") { ", disabled" } else { "" };
    format!("{interpreter} ({name}{off})")
}
