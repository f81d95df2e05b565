//! `longma experiment`: creates, checks, runs, compares, reports and merges experiments. `longma-lab` does the work;
//! this module finds the files and prints the results.

mod bundle;
pub(crate) mod columns;
mod comparison;
pub mod explain;
mod figures;
mod find;
mod new;
mod print;
mod progress;
mod run;
mod sensitivity;
pub(crate) mod status;

use clap::{Subcommand, ValueEnum};
use longma_lab::{Experiment, Registry, Shard, Store};
use serde_json::json;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(super) type Outcome = Result<ExitCode, Box<dyn Error>>;

/// Version of the models; part of every result's key.
pub const VERSION: &str = env!("LONGMA_MODEL_VERSION");

/// The directory of results if no other one is given.
const DEFAULT_STORE: &str = "results";

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
    /// Select every experiment.
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// Use the quick form of the experiments.
    #[arg(long)]
    quick: bool,
    /// Directory of experiment files [default: the nearest `experiments` here or in a parent, else the experiments
    /// built into longma].
    #[arg(long, value_name = "FOLDER", conflicts_with = "built_in")]
    folder: Option<PathBuf>,
    /// Use the experiments built into longma, even if there is an `experiments` directory.
    #[arg(long)]
    built_in: bool,
    /// Directory of results.
    #[arg(long, value_name = "FOLDER", env = "LONGMA_RESULTS", default_value = "results")]
    store: PathBuf,
    /// Resolve relative paths in experiment files against this directory, instead of each file's own.
    #[arg(long, value_name = "FOLDER")]
    paths_from: Option<PathBuf>,
}

#[derive(Subcommand)]
enum ExperimentCommand {
    /// List the available experiments. Their source is printed on standard error.
    List {
        /// Directory of experiment files [default: the nearest `experiments` here or in a parent, else the experiments
        /// built into longma].
        #[arg(long, value_name = "FOLDER", conflicts_with = "built_in")]
        folder: Option<PathBuf>,
        /// List the experiments built into longma, even if there is an `experiments` directory.
        #[arg(long)]
        built_in: bool,
        /// Output format.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// Write a commented experiment file to start from.
    New {
        /// Name of the experiment: lowercase letters, digits and hyphens.
        name: String,
        /// Directory to write it to [default: the nearest `experiments` here or in a parent, else a new one here].
        #[arg(long, value_name = "FOLDER")]
        folder: Option<PathBuf>,
    },
    /// Check experiment files and report all problems. Sets up points with their machines, devices and programs without
    /// running them. The points cover each pair of parameter values.
    #[command(after_help = status::HELP)]
    Check {
        #[command(flatten)]
        which: Which,
        /// Check only the files; set up no point.
        #[arg(long)]
        file_only: bool,
        /// Output format.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// Run the points of experiments that have no result yet, and print the results.
    #[command(after_help = status::HELP)]
    Run {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        how: run::RunOptions,
        /// Output format.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// Compare results with published values.
    Compare {
        #[command(flatten)]
        which: Which,
        /// Fail if a result deviates from the published value by more than this, in percent of the published value.
        #[arg(long, value_name = "PERCENT")]
        within: Option<f64>,
        /// Output format.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// Write the results of experiments as one self-contained HTML page with charts.
    Report {
        #[command(flatten)]
        which: Which,
        /// Output file.
        #[arg(long, short, value_name = "FILE", default_value = "report.html")]
        output: PathBuf,
        /// Also write each figure as SVG and PDF, and each table as CSV and Parquet, to this folder.
        #[arg(long, value_name = "FOLDER")]
        figures: Option<PathBuf>,
    },
    /// Measure how much the estimates of a machine file matter: run with a low and a high value of each, and rank them.
    #[command(after_help = status::HELP)]
    Sensitivity(Box<sensitivity::Arguments>),
    /// Write experiments with their inputs, results and figures to one archive or folder, for others to verify.
    #[command(after_help = status::HELP)]
    Bundle {
        #[command(flatten)]
        which: Which,
        /// The output: an archive if the name ends in .tar or .tar.zst, otherwise a new folder.
        #[arg(long, short, value_name = "FILE|FOLDER")]
        out: PathBuf,
    },
    /// Run the points of a bundle again and compare the results. This runs programs of the bundle with your rights, so
    /// verify only bundles whose authors you trust, or as another user.
    #[command(after_help = status::HELP)]
    Verify(bundle::VerifyArguments),
    /// Add the results of other directories to one. If results contradict each other, print both values and exit with
    /// status 1.
    #[command(after_help = status::HELP)]
    Merge {
        /// Directories to take results from; `-` reads lines of results from standard input.
        #[arg(required = true, value_name = "FOLDER")]
        from: Vec<PathBuf>,
        /// Directory to add them to.
        #[arg(long, value_name = "FOLDER", env = "LONGMA_RESULTS", default_value = "results")]
        store: PathBuf,
    },
    /// List the points of experiments and the state of each.
    Points {
        #[command(flatten)]
        which: Which,
        /// Output format.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// List the metrics that experiments can measure, with units. Experiment files select among them.
    Metrics {
        #[command(flatten)]
        which: Which,
        /// Output format.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// List the workloads that experiments can run.
    Workloads {
        /// Output format.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
}

/// Output format.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// A table or text.
    Table,
    /// JSON.
    Json,
}

/// The workloads that experiments can run.
fn registry() -> Result<Registry, Box<dyn Error>> {
    // Use the running executable. While the points run, the path may come to name another version, whose results would
    // be stored as those of this version.
    let longma = PathBuf::from("/proc/self/exe");
    let is_there = longma.try_exists().unwrap_or(false);
    if !is_there {
        return Err("cannot find the longma command itself: /proc is not mounted".into());
    }
    Ok(longma_workloads::registry(longma))
}

/// Prints an error, if there is one, and returns the exit status.
pub fn ended(outcome: Outcome) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        print::warn(&error);
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
            comparison::compare(&which, &registry, within, format)
        }
        ExperimentCommand::Report { which, output, figures } => {
            print::report(&which, &registry, &output, figures.as_deref())
        }
        ExperimentCommand::Sensitivity(arguments) => sensitivity::run(&arguments, &registry),
        ExperimentCommand::Bundle { which, out } => bundle::bundle(&which, &out, &registry),
        ExperimentCommand::Verify(arguments) => bundle::verify(&arguments, &registry),
        ExperimentCommand::Merge { from, store } => merge(&from, store),
        ExperimentCommand::Points { which, format } => print::points(&which, &registry, format),
        ExperimentCommand::Metrics { which, format } => print::metrics(&which, &registry, format),
        ExperimentCommand::Workloads { format } => print::workloads(&registry, format),
    }
}

fn merge(from: &[PathBuf], store: PathBuf) -> Outcome {
    let (store, mut has_contradictions) = (Store::new(store), false);
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
        merged.damage.iter().for_each(|damage| print::warn(damage));
        merged.contradictions.iter().for_each(|contradiction| print::warn(contradiction));
        has_contradictions |= !merged.contradictions.is_empty() || !merged.damage.is_empty();
        eprintln!("{}: {} results added, {} already present", folder.display(), merged.added, merged.known);
    }
    Ok(status::ended(false, false, has_contradictions))
}

impl Which {
    fn store(&self) -> Store {
        Store::new(&self.store)
    }

    /// A command for the user to copy that runs `experiment` in the same form, from the same file and into the same store.
    fn command(&self, experiment: &Experiment) -> String {
        let name = &experiment.parts().name;
        // A name given as a path stays a path, because the name alone may mean another experiment.
        let is_of = |given: &&String| experiment.path() == Path::new(given.as_str());
        let name = self.names.iter().find(is_of).unwrap_or(name);
        self.words("run", std::slice::from_ref(name), &[])
    }

    /// The command that writes these experiments to the bundle `out`.
    fn bundle_command(&self, out: &Path) -> String {
        let all = ["--all".to_string()];
        let names = if self.all { &all[..] } else { &*self.names };
        self.words("bundle", names, &[("--out", Some(out))])
    }

    /// The command `longma experiment VERB NAMES` with the options that select and locate experiments and results.
    fn words(&self, verb: &str, names: &[String], further: &[(&str, Option<&Path>)]) -> String {
        let mut command = vec!["longma".to_string(), "experiment".into(), verb.into()];
        command.extend_from_slice(names);
        command.extend(self.quick.then(|| "--quick".into()));
        command.extend(self.built_in.then(|| "--built-in".into()));
        let default = Path::new(DEFAULT_STORE);
        let folders = [
            ("--folder", self.folder.as_deref()),
            ("--paths-from", self.paths_from.as_deref()),
            ("--store", Some(&*self.store).filter(|store| *store != default)),
        ];
        for (option, folder) in folders.iter().chain(further) {
            command.extend(folder.iter().flat_map(|f| [option.to_string(), f.display().to_string()]));
        }
        command.iter().map(|argument| longma_text::quote_for_shell(argument)).collect::<Vec<_>>().join(" ")
    }
}

/// Parses `i/n`, one of n parts of the points.
pub(super) fn shard(text: &str) -> Result<Shard, String> {
    text.parse()
}

/// Summary of a campaign as JSON.
pub(super) fn summary(outcome: &longma_lab::Outcome) -> serde_json::Value {
    let fault = |fault: &longma_lab::Fault| json!({ "key": fault.key, "point": fault.point, "error": fault.failure.message });
    let faults: Vec<_> = outcome.faults.iter().map(fault).collect();
    json!({ "ran": outcome.ran, "reused": outcome.reused, "failed": outcome.failed, "left": outcome.left, "host_faults": faults })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_to_copy_names_the_file_the_form_and_the_folders() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("my experiment.toml");
        let text = "format = 1\nname = \"mine\"\ntitle = \"t\"\nworkload = \"zoned\"\n[parameters]\ntree = \"zb\"\nworkload = \"W1\"\npairs = 1\n[metrics.reads]\nunit = \"nodes\"\n";
        std::fs::write(&file, text).unwrap();
        let experiment = Experiment::open(&file, &registry().unwrap()).unwrap();
        let mut which = Which {
            names: vec!["mine".into()],
            all: false,
            quick: false,
            folder: None,
            built_in: false,
            store: DEFAULT_STORE.into(),
            paths_from: None,
        };
        assert_eq!(which.command(&experiment), "longma experiment run mine");
        which.names = vec![file.display().to_string()];
        (which.quick, which.store, which.paths_from) = (true, "my results".into(), Some("/a".into()));
        let expected = format!(
            "longma experiment run '{}' --quick --paths-from /a --store 'my results'",
            file.display()
        );
        assert_eq!(which.command(&experiment), expected);
    }
}
