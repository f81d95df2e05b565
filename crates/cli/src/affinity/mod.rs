//! `longma affinity`: finds the best CPUs for network flows and their applications on this host, with
//! `longma-affinity`.

mod advise;
mod check;
mod history;
mod matrix;
mod modelled;
mod option_scope;
mod page;
mod record;
mod report;
mod restore;
mod show;
mod sweep;
mod terminal;
mod transfer;
mod tune;
mod variants;
mod why;

use clap::{Subcommand, ValueEnum};
use longma_affinity::host::Host;
use longma_affinity::journal::{Journal, JournalError};
use longma_affinity::pairs::Pair;
use longma_affinity::setting::Interface;
use longma_affinity::tune::log::Log;
use longma_cpu_set::CpuSet;
use longma_text::{display_path, sanitize_lines};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

type Outcome = Result<ExitCode, Box<dyn Error>>;

/// Exit status after Ctrl-C, as in shells.
const INTERRUPTED: u8 = 130;

/// `longma affinity ...`
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: AffinityCommand,
}

#[derive(Subcommand)]
enum AffinityCommand {
    /// Check for conditions that would disturb a sweep, and print advice. Changes nothing.
    Check(check::Arguments),
    /// Measure throughput for pairs of CPUs, one for the flow and one for the application. Restores all settings
    /// afterwards.
    Sweep(sweep::Arguments),
    /// Report the results of a sweep: throughput matrix, classes of pairs, costs and bottlenecks.
    Report(report::Arguments),
    /// Recommend a pair of CPUs and print the commands that apply it.
    Advise(advise::Arguments),
    /// Run a daemon that keeps flows and their applications on different cores that share a cache.
    Tune(tune::Arguments),
    /// Print the decisions of `tune` and their reasons.
    Why(why::Arguments),
    /// Print what `tune` changed, by run and setting.
    History(history::Arguments),
    /// Restore settings that a killed sweep or `tune` left changed.
    Restore(restore::Arguments),
    /// Write the files of /proc and /sys that `check`, `advise` and `tune --dry-run` read to an archive, for their
    /// option --tree on another host.
    Record(record::Arguments),
    /// Show the CPUs with their load and the interface's queues and interrupts.
    Show(show::Arguments),
    /// Transfer data between two hosts, as a load for `sweep` that can send with MSG_ZEROCOPY.
    Transfer(transfer::Arguments),
}

/// Output format.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table or text.
    Table,
    /// JSON.
    Json,
}

/// Environment variable that names the journal if no option does.
const JOURNAL_VARIABLE: &str = "LONGMA_AFFINITY_JOURNAL";

/// Environment variable that names the log of decisions if no option does.
const STATE_VARIABLE: &str = "LONGMA_AFFINITY_STATE";

/// The file named by an environment variable, unless it is empty.
fn file_of_environment(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|name| !name.is_empty()).map(PathBuf::from)
}

/// Selects the journal of changed settings.
#[derive(clap::Args)]
struct JournalOption {
    /// Journal of changed settings [env: LONGMA_AFFINITY_JOURNAL] [default: /run/longma/affinity.journal for root, else
    /// a file in the user's runtime directory].
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
}

impl JournalOption {
    /// Opens the journal. Creates the default directory, but not that of a file named by the user.
    fn begin<'a>(&self, host: &'a dyn Host) -> Result<Journal<'a>, JournalError> {
        let path = self.path();
        if self.named().is_none() {
            own_folder(&path).map_err(|error| JournalError::File { path: path.clone(), error })?;
        }
        Journal::begin(&path, host)
    }

    /// Whether the option is on the command line. The environment variable applies to all commands, so it does not
    /// count.
    fn is_given(&self) -> bool {
        self.journal.is_some()
    }

    /// The journal named by the option or the environment.
    fn named(&self) -> Option<PathBuf> {
        self.journal.clone().or_else(|| file_of_environment(JOURNAL_VARIABLE))
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

/// Creates the parent directory of a default file.
fn own_folder(file: &Path) -> std::io::Result<()> {
    file.parent().map_or(Ok(()), std::fs::create_dir_all)
}

/// Selects the log of decisions.
#[derive(clap::Args)]
struct StateOption {
    /// Log of decisions [env: LONGMA_AFFINITY_STATE] [default: /var/lib/longma/affinity.decisions for root, else a
    /// file in the user's state directory].
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

impl StateOption {
    /// The log named by the option or the environment.
    fn named(&self) -> Option<PathBuf> {
        self.state.clone().or_else(|| file_of_environment(STATE_VARIABLE))
    }

    /// Opens the log. Creates the default directory, but not that of a file named by the user.
    fn open(&self) -> Result<Log, String> {
        let path = self.path();
        let missing = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists());
        if let Some(folder) = missing.filter(|_| self.named().is_some()) {
            return Err(format!(
                "the log of decisions {}: there is no directory {}: create it, or name another file with --state",
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
        self.named().unwrap_or_else(own)
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
        AffinityCommand::History(arguments) => history::run(&arguments),
        AffinityCommand::Restore(arguments) => restore::run(&arguments),
        AffinityCommand::Record(arguments) => record::run(&arguments),
        AffinityCommand::Show(arguments) => show::run(&arguments),
        AffinityCommand::Transfer(arguments) => transfer::run(&arguments),
    };
    outcome.map_err(|error| sanitize_lines(&error.to_string()).into())
}

/// Signals that end the process and can be handled. SIGALRM is left to callers that set a time limit with it.
const ENDINGS: [i32; 7] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU];

/// A flag that becomes true at any of these signals, so that settings are restored before exit.
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
    let cpus: CpuSet = list.parse().map_err(|error: longma_cpu_set::CpuSetError| error.to_string())?;
    if cpus.is_empty() { Err("name at least one CPU".into()) } else { Ok(cpus) }
}

/// A length of time in whole seconds, such as `90`, `90s` or `2min`. The lengths of runs are whole because iperf3 takes
/// no others.
fn seconds(text: &str, most: u32) -> Result<u32, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let of_unit = match &text[digits.len()..] {
        "" | "s" => Some(1),
        "min" => Some(60),
        "h" => Some(3600),
        _ => None,
    };
    let number = digits.parse::<u32>().ok();
    let seconds =
        of_unit.and_then(|unit| number?.checked_mul(unit)).filter(|seconds| (1..=most).contains(seconds));
    seconds.ok_or_else(|| {
        format!("give a whole number of seconds from 1 to {most}, such as 5 or 5s; min and h are units, too")
    })
}

fn pair(text: &str) -> Result<Pair, String> {
    let numbers = text
        .split_once(',')
        .and_then(|(flow, application)| Some((flow.parse().ok()?, application.parse().ok()?)));
    let (flow, application) = numbers.ok_or("write a pair as FLOW,APPLICATION, such as 0,1")?;
    Ok(Pair { flow, application })
}

/// The named interface, or the only one that is up and has a device, or the only one that is up.
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
    let is_up =
        |name: &&Interface| longma_affinity::interface::read(host, name).is_some_and(|nic| nic.state == "up");
    let listed = |names: &[&Interface]| names.iter().map(|name| name.name()).collect::<Vec<_>>().join(", ");
    match &all.iter().filter(has_device).collect::<Vec<_>>()[..] {
        [only] => Ok((*only).clone()),
        // In a container, the only interface is virtual.
        [] if all.iter().filter(is_up).count() == 1 => Ok(all.iter().find(is_up).unwrap_or(&all[0]).clone()),
        [] if all.is_empty() => Err("there is no network interface except the loopback".into()),
        [] => Err(format!(
            "no interface that is up has a device: name one with --interface NAME; there are {}",
            listed(&all.iter().collect::<Vec<_>>())
        )),
        several => Err(format!(
            "several interfaces are up: name one with --interface NAME, such as {}",
            listed(several)
        )),
    }
}

/// Rejects a /sys that shows another network namespace than the kernel interfaces use: its interfaces would be the
/// wrong ones.
fn own_sys(host: &dyn Host) -> Result<(), String> {
    host.foreign_sysfs().map_or(Ok(()), |what| Err(JournalError::ForeignSysfs { what }.to_string()))
}

/// Width of the terminal in columns; 80 if standard output is not a terminal.
fn width() -> usize {
    terminal_size::terminal_size().map_or(80, |(width, _)| usize::from(width.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_affinity::fake::FakeHost;

    #[test]
    fn lengths_of_time_have_units() {
        let cases = [("5", Some(5)), ("5s", Some(5)), ("2min", Some(120)), ("1h", Some(3600)), ("0", None)];
        for (text, expected) in cases {
            assert_eq!(seconds(text, 3600).ok(), expected, "{text}");
        }
        for wrong in ["", "s", "0.5", "2h", "5 s", "99999999999", "4294967295h", "5ms", "-1", "+5x"] {
            assert!(seconds(wrong, 3600).is_err_and(|why| why.contains("such as 5 or 5s")), "{wrong}");
        }
    }

    /// Containers may have such a /sys.
    #[test]
    fn the_only_interface_that_is_up_is_chosen_even_without_a_device() {
        let host = FakeHost::with(&[
            ("sys/class/net/lo/operstate", "unknown"),
            ("sys/class/net/va/operstate", "up"),
            ("sys/class/net/vb/operstate", "down"),
        ]);
        assert_eq!(chosen(&host, None).unwrap().name(), "va");
        host.put("sys/class/net/vb/operstate", "up");
        assert!(
            chosen(&host, None).unwrap_err().contains("name one with --interface NAME; there are va, vb")
        );
        host.put("sys/class/net/vb/device/driver", "-> ../drivers/ixgbe");
        assert_eq!(chosen(&host, None).unwrap().name(), "vb");
    }
}
