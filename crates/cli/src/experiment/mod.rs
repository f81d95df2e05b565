//! `longma experiment`: list, check, run, compare, report, merge.
//! Not the work itself: that is `longma-lab`; here files are found and results printed.

pub(crate) mod columns;
pub mod explain;
mod find;
mod new;
mod print;
mod progress;
mod run;
pub(crate) mod status;

use clap::{Subcommand, ValueEnum};
use longma_lab::{Registry, Shard, Store};
use serde_json::json;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

pub(super) type Outcome = Result<ExitCode, Box<dyn Error>>;

/// The version of the models, part of every result's key.
pub const VERSION: &str = env!("LONGMA_MODEL_VERSION");

/// `longma experiment ...`
#[derive(clap::Args)]
#[command(after_help = status::HELP)]
pub struct Args {
    #[command(subcommand)]
    command: ExperimentCommand,
}

/// Which experiments, and where they and their results are.
#[derive(clap::Args, Clone)]
pub(super) struct Which {
    /// Experiments: names (see `longma experiment list`) or experiment files.
    #[arg(value_name = "NAME|FILE")]
    names: Vec<String>,
    /// Every experiment there is.
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// The quick form, for a first look.
    #[arg(long)]
    quick: bool,
    /// The folder of experiment files [default: the nearest `experiments` here or above, else the experiments built into longma].
    #[arg(long, value_name = "FOLDER", conflicts_with = "built_in")]
    folder: Option<PathBuf>,
    /// Use the experiments built into longma, even if there is a folder `experiments`.
    #[arg(long)]
    built_in: bool,
    /// The folder of results.
    #[arg(long, value_name = "FOLDER", env = "LONGMA_RESULTS", default_value = "results")]
    store: PathBuf,
    /// Begin relative paths inside the experiment files here, instead of at each file.
    #[arg(long, value_name = "FOLDER")]
    paths_from: Option<PathBuf>,
}

#[derive(Subcommand)]
enum ExperimentCommand {
    /// Names the experiments there are, and says on standard error where they come from.
    List {
        /// The folder of experiment files [default: the nearest `experiments` here or above, else the experiments built into longma].
        #[arg(long, value_name = "FOLDER", conflicts_with = "built_in")]
        folder: Option<PathBuf>,
        /// List the experiments built into longma, even if there is a folder `experiments`.
        #[arg(long)]
        built_in: bool,
        /// How to print.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// Writes an experiment file with comments, as a start for your own.
    New {
        /// Its name: small letters, digits and hyphens.
        name: String,
        /// The folder to write it to [default: the nearest `experiments` here or above, else a new one here].
        #[arg(long, value_name = "FOLDER")]
        folder: Option<PathBuf>,
    },
    /// Reports everything wrong with experiment files: every point is set up, with its machine, devices and program, and none is run.
    #[command(after_help = status::HELP)]
    Check {
        #[command(flatten)]
        which: Which,
        /// Check what the files say alone; set up no point.
        #[arg(long)]
        file_only: bool,
        /// How to print.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// Runs the points of experiments that have no result yet, and prints the results.
    #[command(after_help = status::HELP)]
    Run {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        how: run::How,
        /// How to print.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// Prints results beside what was published.
    Compare {
        #[command(flatten)]
        which: Which,
        /// Fail if a result is further than this from what was published, in percent of it.
        #[arg(long, value_name = "PERCENT")]
        within: Option<f64>,
        /// How to print.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// Writes the results of experiments as one page with charts, complete in itself.
    Report {
        #[command(flatten)]
        which: Which,
        /// The page.
        #[arg(long, short, value_name = "FILE", default_value = "report.html")]
        output: PathBuf,
    },
    /// Adds the results of other folders to one. Results that contradict each other are told with both values, and the status is 1.
    #[command(after_help = status::HELP)]
    Merge {
        /// The folders to take results from; `-` takes lines from standard input.
        #[arg(required = true, value_name = "FOLDER")]
        from: Vec<PathBuf>,
        /// The folder to add them to.
        #[arg(long, value_name = "FOLDER", env = "LONGMA_RESULTS", default_value = "results")]
        store: PathBuf,
    },
    /// Prints the points of experiments with what has become of them.
    Points {
        #[command(flatten)]
        which: Which,
        /// How to print.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// Lists what experiments could measure, with units; their files choose among it.
    Metrics {
        #[command(flatten)]
        which: Which,
        /// How to print.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// Names what experiments can run.
    Workloads {
        /// How to print.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
}

/// How results are printed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// What experiments can run.
fn registry() -> Result<Registry, Box<dyn Error>> {
    // This very program: under its name another may lie before all points have run, whose results would count as this one's.
    let longma = PathBuf::from("/proc/self/exe");
    let is_there = longma.try_exists().unwrap_or(false);
    if !is_there {
        return Err("cannot find the longma command itself: /proc is not mounted".into());
    }
    Ok(longma_workloads::registry(longma))
}

/// Says what went wrong, and with which status the command ends.
pub fn ended(outcome: Outcome) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        eprintln!("longma: {error}");
        ExitCode::from(status::of(&*error))
    })
}

/// Runs `longma experiment`.
pub fn run(args: Args) -> Outcome {
    let registry = registry()?;
    match args.command {
        ExperimentCommand::List { folder, built_in, format } => {
            print::list(folder.as_deref(), built_in, &registry, format)
        }
        ExperimentCommand::New { name, folder } => new::run(&name, folder, &registry),
        ExperimentCommand::Check { which, file_only, format } => {
            print::check(&which, file_only, &registry, format)
        }
        ExperimentCommand::Run { which, how, format } => run::run(&which, &how, &registry, format),
        ExperimentCommand::Compare { which, within, format } => {
            print::compare(&which, &registry, within, format)
        }
        ExperimentCommand::Report { which, output } => print::report(&which, &registry, &output),
        ExperimentCommand::Merge { from, store } => merge(&from, store),
        ExperimentCommand::Points { which, format } => print::points(&which, &registry, format),
        ExperimentCommand::Metrics { which, format } => print::metrics(&which, &registry, format),
        ExperimentCommand::Workloads { format } => print::workloads(&registry, format),
    }
}

fn merge(from: &[PathBuf], store: PathBuf) -> Outcome {
    let (store, mut is_odd) = (Store::new(store), false);
    for folder in from {
        let merged = if folder.as_os_str() == "-" {
            let mut lines = Vec::new();
            std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut lines)
                .map_err(|error| status::HostError(format!("cannot read standard input: {error}")))?;
            store.merge_lines(&lines)?
        } else {
            if !folder.is_dir() {
                return Err(format!("there is no folder {}", folder.display()).into());
            }
            store.merge(&Store::new(folder))?
        };
        merged.damage.iter().for_each(|damage| eprintln!("longma: {damage}"));
        merged.contradictions.iter().for_each(|contradiction| eprintln!("longma: {contradiction}"));
        is_odd |= !merged.contradictions.is_empty() || !merged.damage.is_empty();
        eprintln!("{}: {} results added, {} known", folder.display(), merged.added, merged.known);
    }
    Ok(status::ended(false, false, is_odd))
}

impl Which {
    fn store(&self) -> Store {
        Store::new(&self.store)
    }

    /// The command that does the same, for people to copy.
    fn command(&self, name: &str) -> String {
        let quick = if self.quick { " --quick" } else { "" };
        format!("longma experiment run {name}{quick}")
    }
}

/// A part of the points, as clap reads it.
pub(super) fn shard(text: &str) -> Result<Shard, String> {
    text.parse()
}

/// What a campaign did, as JSON.
pub(super) fn summary(outcome: &longma_lab::Outcome) -> serde_json::Value {
    let fault = |fault: &longma_lab::Fault| json!({ "key": fault.key, "point": fault.point, "error": fault.failure.message });
    let faults: Vec<_> = outcome.faults.iter().map(fault).collect();
    json!({ "ran": outcome.ran, "reused": outcome.reused, "failed": outcome.failed, "left": outcome.left, "host_faults": faults })
}
