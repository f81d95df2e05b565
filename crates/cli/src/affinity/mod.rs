//! `longma affinity`: the best cores for flows and their applications on this host.
//! Not the sweeps and the advice: those are `longma-affinity`.

mod advise;
mod check;
mod matrix;
mod modelled;
mod page;
mod report;
mod restore;
mod said;
mod show;
mod sweep;
mod tune;
mod variants;
mod ways;
mod why;

use clap::{Subcommand, ValueEnum};
use longma_affinity::cpus::CpuSet;
use longma_affinity::host::Host;
use longma_affinity::journal::{Journal, JournalError};
use longma_affinity::pairs::Pair;
use longma_affinity::setting::Interface;
use longma_affinity::tune::log::Log;
use longma_topology::{display_path, sanitize_lines};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

type Outcome = Result<ExitCode, Box<dyn Error>>;

/// After Ctrl-C, as the shells use it.
const INTERRUPTED: u8 = 130;

/// `longma affinity ...`
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: AffinityCommand,
}

#[derive(Subcommand)]
enum AffinityCommand {
    /// Look for what would disturb a sweep, and say what to do about it; nothing is changed.
    Check(check::Arguments),
    /// Measure pairs of cores, flow and application; all that is changed is put back.
    Sweep(sweep::Arguments),
    /// Show what a sweep measured: matrix, classes, costs, and what limits them.
    Report(report::Arguments),
    /// Name the best pair of cores, and the commands that apply it.
    Advise(advise::Arguments),
    /// Keep flows and their applications on one socket, on different cores that share a cache, until it is ended.
    Tune(tune::Arguments),
    /// Say what `tune` decided, and why.
    Why(why::Arguments),
    /// Put back what a killed sweep or `tune` left changed.
    Restore(restore::Arguments),
    /// Show the CPUs, and the interface's queues and interrupts on them.
    Show(show::Arguments),
}

/// How results are printed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// Names the journal where no option does.
const JOURNAL_VARIABLE: &str = "LONGMA_AFFINITY_JOURNAL";

/// Where changes are journalled.
#[derive(clap::Args)]
struct JournalOption {
    /// The journal of changes [env: LONGMA_AFFINITY_JOURNAL] [default: /run/longma/affinity.journal, without root in the user's runtime
    /// folder].
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
}

impl JournalOption {
    /// Begins the journal. Its own folder is made; one that somebody has named must be there.
    fn begin<'a>(&self, host: &'a dyn Host) -> Result<Journal<'a>, JournalError> {
        let path = self.path();
        if self.named().is_none() {
            own_folder(&path).map_err(|error| JournalError::File { path: path.clone(), error })?;
        }
        Journal::begin(&path, host)
    }

    /// Whether it is among the command's own words. What the environment says is for every command, whether it has use for it or not.
    fn is_given(&self) -> bool {
        self.journal.is_some()
    }

    /// The file that somebody has named.
    fn named(&self) -> Option<PathBuf> {
        let environment = || std::env::var_os(JOURNAL_VARIABLE).filter(|name| !name.is_empty());
        self.journal.clone().or_else(|| environment().map(PathBuf::from))
    }

    fn path(&self) -> PathBuf {
        let own = || {
            if rustix::process::geteuid().is_root() {
                return "/run/longma/affinity.journal".into();
            }
            let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
            folder.join(format!("longma-affinity-{}.journal", rustix::process::geteuid().as_raw()))
        };
        self.named().unwrap_or_else(own)
    }
}

/// Makes the folder that a file of this program's own is in.
fn own_folder(file: &Path) -> std::io::Result<()> {
    file.parent().map_or(Ok(()), std::fs::create_dir_all)
}

/// Where decisions are kept.
#[derive(clap::Args)]
struct StateOption {
    /// The log of decisions [default: /var/lib/longma/affinity.decisions, without root in the user's state folder].
    #[arg(long, value_name = "FILE", env = "LONGMA_AFFINITY_STATE")]
    state: Option<PathBuf>,
}

impl StateOption {
    /// Opens the log. Its own folder is made; one that somebody has named must be there.
    fn open(&self) -> Result<Log, String> {
        let path = self.path();
        let missing = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists());
        if let Some(folder) = missing.filter(|_| self.state.is_some()) {
            return Err(format!(
                "the log of decisions {}: there is no folder {}: make it, or name another file with --state",
                display_path(&path),
                display_path(folder)
            ));
        }
        own_folder(&path).and_then(|()| Log::open(&path)).map_err(|error| {
            format!("the log of decisions {}: {error}; choose another with --state", display_path(&path))
        })
    }

    fn path(&self) -> PathBuf {
        let own = || {
            if rustix::process::geteuid().is_root() {
                return "/var/lib/longma/affinity.decisions".into();
            }
            let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
            let folder = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).or_else(home);
            folder.unwrap_or_else(std::env::temp_dir).join("longma/affinity.decisions")
        };
        self.state.clone().unwrap_or_else(own)
    }
}

/// Runs `longma affinity`.
pub fn run(args: Args) -> Outcome {
    let outcome = match args.command {
        AffinityCommand::Check(arguments) => check::run(&arguments),
        AffinityCommand::Sweep(arguments) => sweep::run(&arguments),
        AffinityCommand::Report(arguments) => report::run(&arguments),
        AffinityCommand::Advise(arguments) => advise::run(&arguments),
        AffinityCommand::Tune(arguments) => tune::run(&arguments),
        AffinityCommand::Why(arguments) => why::run(&arguments),
        AffinityCommand::Restore(arguments) => restore::run(&arguments),
        AffinityCommand::Show(arguments) => show::run(&arguments),
    };
    outcome.map_err(|error| sanitize_lines(&error.to_string()).into())
}

/// What would end the program in the middle and can be answered; SIGALRM is left to those who set a limit with it.
const ENDINGS: [i32; 7] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU];

/// Becomes true at Ctrl-C, SIGTERM, a closed terminal and the like, so that all is put back before the end.
fn interruption() -> std::io::Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in ENDINGS {
        signal_hook::flag::register(signal, asked.clone())?;
    }
    Ok(asked)
}

fn interface(name: &str) -> Result<Interface, String> {
    name.parse().map_err(|error: longma_affinity::setting::InterfaceError| error.to_string())
}

fn cpus(list: &str) -> Result<CpuSet, String> {
    let cpus: CpuSet = list.parse().map_err(|error: longma_affinity::cpus::CpuSetError| error.to_string())?;
    if cpus.is_empty() { Err("name at least one CPU".into()) } else { Ok(cpus) }
}

fn pair(text: &str) -> Result<Pair, String> {
    let numbers = text
        .split_once(',')
        .and_then(|(flow, application)| Some((flow.parse().ok()?, application.parse().ok()?)));
    let (flow, application) = numbers.ok_or("write a pair as FLOW,APPLICATION, such as 0,1")?;
    Ok(Pair { flow, application })
}

/// The interface that is named, or the only one that there is to choose.
fn chosen(host: &dyn Host, named: Option<&Interface>) -> Result<Interface, String> {
    own_sys(host)?;
    if let Some(name) = named {
        return Ok(name.clone());
    }
    let all = longma_affinity::interface::names(host);
    let has_device = |name: &&Interface| {
        longma_affinity::interface::read(host, name)
            .is_some_and(|nic| nic.driver.is_some() && nic.state == "up")
    };
    match &all.iter().filter(has_device).collect::<Vec<_>>()[..] {
        [only] => Ok((*only).clone()),
        _ => {
            let names: Vec<&str> = all.iter().map(|name| name.name()).collect();
            Err(format!("name an interface with --interface: {}", names.join(", ")))
        }
    }
}

/// Refuses a /sys whose interfaces are others than the kernel speaks of: what is said of them would be wrong.
fn own_sys(host: &dyn Host) -> Result<(), String> {
    host.foreign_sysfs().map_or(Ok(()), |what| Err(JournalError::ForeignSysfs { what }.to_string()))
}

/// Columns of the terminal, and 80 of what is none.
fn width() -> usize {
    terminal_size::terminal_size().map_or(80, |(width, _)| usize::from(width.0))
}
