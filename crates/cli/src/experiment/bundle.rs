//! `longma experiment bundle` and `verify`: puts experiments with their inputs, results and figures into a bundle, and
//! runs a bundle again. `longma-bundle` reads and writes it.

use super::progress::Bar;
use super::{Format, Outcome, VERSION, Which, figures, find, print, status};
use longma_bundle::{
    BundleError, BundledExperiment, Contents, Limits, Manifest, Original, RESULTS, Verification,
    changed_inputs, collect, complete, inside, local_keys, unpack,
};
use longma_command_line::output::print_json;
use longma_lab::{
    Campaign, Chapter, Experiment, Key, Options, Registry, Results, Shard, State, Stop, Store, Table, page,
};
use longma_text::display_path;
use serde_json::json;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// `longma experiment verify ...`
#[derive(clap::Args)]
pub struct VerifyArguments {
    /// The bundle: an archive or a folder.
    bundle: PathBuf,
    /// Number of points to run at the same time [default: one per processor].
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    jobs: Option<u16>,
    /// Run only the i-th of n parts of the points, counting from 1.
    #[arg(long, value_name = "i/n", value_parser = super::shard)]
    shard: Option<Shard>,
    /// Run only the point with this key in the bundle; may be repeated.
    #[arg(long, value_name = "KEY")]
    only: Vec<String>,
    /// Keep the results of the second run in this directory. Points with a result there are not run again.
    #[arg(long, value_name = "FOLDER")]
    store: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// `longma experiment bundle`
pub fn bundle(which: &Which, out: &Path, registry: &Registry) -> Outcome {
    let experiments = find::open(which, registry)?;
    let campaigns = print::plan(&experiments, which, registry)?;
    let results = which.store().results_of(campaigns.iter().flat_map(Campaign::keys))?;
    print::report_store_problems(&results);
    for campaign in &campaigns {
        let experiment = campaign.experiment;
        let missing = campaign.points.iter().filter(|p| Campaign::state(p, &results) == State::Missing);
        let missing = missing.count();
        if missing > 0 {
            let (all, name, command) =
                (campaign.points.len(), &experiment.parts().name, which.command(experiment));
            print::warn(&format_args!(
                "{missing} of {all} points of {name} have no result; `{command}` runs them"
            ));
            return Ok(ExitCode::from(status::FAILED));
        }
        if results.contradict(campaign) {
            return Ok(ExitCode::from(status::FAILED));
        }
    }
    let originals: Vec<_> = campaigns.iter().map(|campaign| original(campaign, registry)).collect();
    let collected = collect(&originals, registry).map_err(failed)?;
    let keys: BTreeSet<_> = campaigns.iter().flat_map(Campaign::keys).collect();
    let mut generated = Contents::new();
    generated.insert(format!("{RESULTS}/segments/bundle.records"), results.lines(keys).into_bytes());
    let commands: Vec<_> = collected.experiments.iter().map(|one| one.command.clone()).collect();
    generated.insert("README.md".into(), readme(&collected.experiments).into_bytes());
    let chapter = |(campaign, command)| {
        let table = Table::of(&campaign, &results).summarized(&campaign);
        Chapter { campaign, table, command }
    };
    let chapters: Vec<_> = campaigns.into_iter().zip(commands).map(chapter).collect();
    generated.insert("report.html".into(), page(&chapters, VERSION).into_bytes());
    let named = figures::files(&chapters)?.into_iter();
    generated.extend(named.map(|(name, bytes)| (format!("figures/{name}"), bytes)));
    let made_by = which.bundle_command(out);
    let contents = complete(collected, generated, &longma(), &made_by).map_err(failed)?;
    longma_bundle::write(&contents, out, Limits::default()).map_err(failed)?;
    let bytes: usize = contents.values().map(Vec::len).sum();
    let command =
        format!("longma experiment verify {}", longma_text::quote_for_shell(&out.display().to_string()));
    print::show(&format!(
        "{}: {} files, {bytes} bytes\nOn another machine, `{command}` runs it again and compares the results.\n",
        display_path(out),
        contents.len()
    ))
}

fn original<'a>(campaign: &'a Campaign<'a>, registry: &Registry) -> Original<'a> {
    // With the quick form, `compare` also evaluates the points of the whole form, which may need other programs.
    let other_form = campaign.experiment.points(!campaign.quick, registry, VERSION).unwrap_or_default();
    Original { campaign, other_form }
}

/// The version in the manifest.
fn longma() -> String {
    format!("longma {VERSION}")
}

/// An error of the host, or of the input.
fn failed(error: BundleError) -> Box<dyn std::error::Error> {
    let is_absent = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    match &error {
        BundleError::File { error: cause, .. } if !is_absent(cause) => status::HostError::of(error).into(),
        other => other.to_string().into(),
    }
}

/// A description of the bundle and its use.
fn readme(experiments: &[BundledExperiment]) -> String {
    let mut text = format!("# Artifact bundle\n\nMade by {}. The experiments:\n\n", longma());
    for one in experiments {
        let form = if one.quick { ", quick form" } else { "" };
        let _ = writeln!(text, "- {}: {} points{form}", one.name, one.points.len());
    }
    text.push_str(
        "\nRun every point again and compare the results with these (BUNDLE is this folder or its archive):\n\n    longma experiment verify BUNDLE\n\nIn the unpacked folder, print the tables without a run, or run what a changed file needs:\n\n",
    );
    for one in experiments {
        let _ = writeln!(text, "    {} --store {RESULTS}", one.command);
    }
    text.push_str(
        "\n| path | contents |\n| --- | --- |\n| `bundle.json` | every file with its SHA-256; points, programs, machines |\n| `files/` | experiment files, machine files, programs and input files |\n| `programs/` | programs that longma contains, by SHA-256 |\n| `machines/` | the machines with all defaults |\n| `results/` | the results, a store |\n| `report.html`, `figures/` | the report; its figures and tables |\n",
    );
    text
}

/// `longma experiment verify`
pub fn verify(arguments: &VerifyArguments, registry: &Registry) -> Outcome {
    let host = |error: std::io::Error| status::HostError(format!("cannot make a temporary folder: {error}"));
    let folder = tempfile::tempdir().map_err(host)?;
    let root = folder.path().join("bundle");
    std::fs::create_dir(&root).map_err(host)?;
    let manifest = unpack(&arguments.bundle, &root, Limits::default()).map_err(failed)?;
    let results = Store::new(root.join(RESULTS)).results()?;
    print::report_store_problems(&results);
    let contradict = !results.contradictions.is_empty();
    let again = arguments.store.clone().unwrap_or_else(|| folder.path().join("again"));
    let mut verifier = Verifier {
        arguments,
        registry,
        root: &root,
        results,
        store: Store::new(again),
        stop: Arc::new(Stop::default()),
        only: arguments.only.iter().map(|key| Key::from(&**key)).collect(),
        host: false,
    };
    let known: BTreeSet<_> =
        manifest.experiments.iter().flat_map(|one| &one.points).map(|p| &p.key).collect();
    if let Some(unknown) = verifier.only.iter().find(|key| !known.contains(key)) {
        return Err(format!("no point of the bundle has the key {unknown}").into());
    }
    let stop_on_signal = verifier.stop.clone();
    // If no handler can be set, Ctrl-C ends the command at once.
    let _ = ctrlc::set_handler(move || stop_on_signal.request());
    let mut verified = Vec::new();
    for (index, bundled) in manifest.experiments.iter().enumerate() {
        verified.push(verifier.run(bundled, (index, manifest.experiments.len()))?);
        if verifier.stop.is_requested() {
            return Ok(ExitCode::from(status::INTERRUPTED));
        }
    }
    let differ = contradict || verified.iter().any(|one| one.equal < one.compared || one.missing > 0);
    match arguments.format {
        Format::Table => print::show(&describe(&manifest, &verified))?,
        Format::Json => print_json(
            &json!({ "bundle_by": manifest.longma, "verified_by": longma(), "experiments": verified }),
        )?,
    };
    let compared = verified.iter().any(|one| one.compared > 0);
    Ok(status::ended(verifier.host, false, differ || !compared))
}

/// A verification in progress.
struct Verifier<'a> {
    arguments: &'a VerifyArguments,
    registry: &'a Registry,
    /// The unpacked bundle.
    root: &'a Path,
    /// The results of the bundle.
    results: Results,
    /// Where the results of the second run go.
    store: Store,
    stop: Arc<Stop>,
    only: BTreeSet<Key>,
    /// Whether the host was at fault for a point.
    host: bool,
}

impl Verifier<'_> {
    fn run(
        &mut self,
        bundled: &BundledExperiment,
        position: (usize, usize),
    ) -> Result<Verification, Box<dyn std::error::Error>> {
        let (file, folder) = (self.root.join(&bundled.file), self.root.join(&bundled.folder));
        let experiment = Experiment::open_in(&file, &folder, self.registry)?;
        let campaign = Campaign::plan(&experiment, bundled.quick, self.registry, VERSION)?;
        inside(self.root, &campaign, self.registry).map_err(failed)?;
        let keys = local_keys(bundled, &campaign)?;
        let only = self.only.iter().filter_map(|key| keys.get(key).cloned()).collect::<BTreeSet<_>>();
        let changed_inputs = changed_inputs(bundled, &campaign, self.registry);
        if !self.only.is_empty() && only.is_empty() {
            let points = keys.len();
            let experiment = bundled.name.clone();
            return Ok(Verification { experiment, points, changed_inputs, ..Verification::default() });
        }
        let defaults = Options::default();
        let options = Options {
            jobs: self.arguments.jobs.map_or(defaults.jobs, usize::from),
            shard: self.arguments.shard.unwrap_or(defaults.shard),
            retry_failed: false,
            only: (!only.is_empty()).then_some(only),
        };
        let bar = Bar::new(&experiment, position);
        let outcome = campaign.run(&self.store, self.registry, &options, &bar, &self.stop);
        bar.clear();
        let outcome = outcome?;
        print::report_faults(&outcome);
        self.host |= !outcome.faults.is_empty();
        let verification = longma_bundle::verify(bundled, &keys, &self.results, &outcome.results);
        Ok(Verification { changed_inputs, ..verification })
    }
}

/// The outcome as text.
fn describe(manifest: &Manifest, verified: &[Verification]) -> String {
    /// Maximum number of different points shown. They often differ for the same reason.
    const SHOWN: usize = 10;
    let mut text = String::new();
    for one in verified {
        let Verification { experiment, points, compared, equal, missing, .. } = one;
        let _ = writeln!(
            text,
            "{experiment}: {compared} of {points} points run again, {equal} with the same results"
        );
        if *missing > 0 {
            let _ = writeln!(text, "  {missing} points have no result in the bundle");
        }
        for difference in one.differences.iter().take(SHOWN) {
            let _ = writeln!(text, "  differs: {} ({}): {difference}", difference.point, difference.key);
        }
        if one.differences.len() > SHOWN {
            let _ = writeln!(text, "  ... and {} more points", one.differences.len() - SHOWN);
        }
        for changed in &one.changed_inputs {
            let _ = writeln!(text, "  {changed} is not that of the bundle: this longma contains another");
        }
    }
    let longma = longma();
    if manifest.longma == longma {
        let _ = writeln!(text, "Made and run again by {longma}.");
    } else {
        let _ =
            writeln!(text, "Made by {}, run again by {longma}, whose models may differ.", manifest.longma);
    }
    text
}
