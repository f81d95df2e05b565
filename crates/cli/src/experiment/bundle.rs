//! `longma experiment bundle` and `verify`: puts experiments with their inputs, results and figures into a bundle, and
//! runs a bundle again. `longma-bundle` reads and writes it.

use super::progress::Bar;
use super::{Format, Outcome, VERSION, Which, figures, find, print, status};
use longma_bundle::{
    BundleError, BundledExperiment, Contents, FIGURES, Limits, Manifest, Original, RESULTS, Rendered,
    Verification, changed_inputs, collect, compare_rendered, complete, inside, local_keys, unpack,
};
use longma_command_line::output::print_json;
use longma_lab::{
    Campaign, Chapter, Experiment, Key, Options, Registry, Results, Shard, State, Stop, Store, Table, page,
};
use longma_text::{display_path, sanitize};
use serde_json::json;
use std::collections::BTreeSet;
use std::error::Error;
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
    generated.extend(rendered(&collected.experiments, campaigns, &results)?);
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

/// The files that are made from results: the report with its figures and tables, and the introduction.
fn rendered(
    experiments: &[BundledExperiment],
    campaigns: Vec<Campaign<'_>>,
    results: &Results,
) -> Result<Contents, status::HostError> {
    let chapter = |(campaign, one): (_, &BundledExperiment)| {
        let table = Table::of(&campaign, results).summarized(&campaign);
        Chapter { campaign, table, command: one.command.clone() }
    };
    let chapters: Vec<_> = campaigns.into_iter().zip(experiments).map(chapter).collect();
    let named = figures::files(&chapters)?.into_iter();
    let mut files: Contents = named.map(|(name, bytes)| (format!("{FIGURES}{name}"), bytes)).collect();
    files.insert("README.md".into(), readme(experiments).into_bytes());
    files.insert("report.html".into(), page(&chapters, VERSION).into_bytes());
    Ok(files)
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
fn failed(error: BundleError) -> Box<dyn Error> {
    let text = error.to_string();
    match error {
        BundleError::File { error, .. } => status::io_error(text, &error),
        _ => text.into(),
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
    let host = |error| status::io_error(format!("cannot make a temporary folder: {error}"), &error);
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
    let open = |one: &BundledExperiment| {
        Experiment::open_in(&root.join(&one.file), &root.join(&one.folder), registry)
    };
    let experiments = manifest.experiments.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let mut campaigns = Vec::new();
    for (experiment, bundled) in experiments.iter().zip(&manifest.experiments) {
        let campaign = Campaign::plan(experiment, bundled.quick, registry, VERSION)?;
        inside(&root, &campaign, registry).map_err(failed)?;
        campaigns.push(campaign);
    }
    let stop_on_signal = verifier.stop.clone();
    // If no handler can be set, Ctrl-C ends the command at once.
    let _ = ctrlc::set_handler(move || stop_on_signal.request());
    let mut verified = Vec::new();
    for (index, (bundled, campaign)) in manifest.experiments.iter().zip(&campaigns).enumerate() {
        verified.push(verifier.run(bundled, campaign, (index, campaigns.len()))?);
        if verifier.stop.is_requested() {
            return Ok(ExitCode::from(status::INTERRUPTED));
        }
    }
    let files = verifier.rendered(&manifest, campaigns)?;
    let differ = contradict
        || verified.iter().any(|one| one.equal < one.compared || one.missing > 0)
        || files.as_ref().is_some_and(|files| !files.different.is_empty());
    match arguments.format {
        Format::Table => print::show(&describe(&manifest, &verified, files.as_ref()))?,
        Format::Json => print_json(
            &json!({ "bundle_by": manifest.longma, "verified_by": longma(), "experiments": verified, "rendered": files }),
        )?,
    };
    let compared = verified.iter().any(|one| one.compared > 0);
    // With --shard, the selected part of the points may be empty. Otherwise, something must have been compared.
    let is_empty_part = arguments.shard.is_some() && verified.iter().all(|one| one.selected == 0);
    Ok(status::ended(verifier.host, false, differ || !compared && !is_empty_part))
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
    /// The bundle's files that are made from results, compared with the same files made again. `None` if another
    /// version made them.
    fn rendered(
        &self,
        manifest: &Manifest,
        campaigns: Vec<Campaign<'_>>,
    ) -> Result<Option<Rendered>, Box<dyn Error>> {
        if manifest.longma != longma() {
            return Ok(None);
        }
        let again = rendered(&manifest.experiments, campaigns, &self.results)?;
        let can_make = |name: &str| match name.rsplit('.').next() {
            Some("pdf") => cfg!(feature = "pdf"),
            Some("parquet") => cfg!(feature = "parquet"),
            _ => true,
        };
        let files = compare_rendered(self.root, manifest.files.keys(), &again, can_make);
        let failed = |error| status::io_error(format!("cannot read the unpacked bundle: {error}"), &error);
        files.map(Some).map_err(failed)
    }

    fn run(
        &mut self,
        bundled: &BundledExperiment,
        campaign: &Campaign<'_>,
        position: (usize, usize),
    ) -> Result<Verification, Box<dyn Error>> {
        let keys = local_keys(bundled, campaign)?;
        let only = self.only.iter().filter_map(|key| keys.get(key).cloned()).collect::<BTreeSet<_>>();
        let changed_inputs = changed_inputs(bundled, campaign, self.registry);
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
        let bar = Bar::new(campaign.experiment, position);
        let outcome = campaign.run(&self.store, self.registry, &options, &bar, &self.stop);
        bar.clear();
        let outcome = outcome?;
        print::report_faults(&outcome);
        self.host |= !outcome.faults.is_empty();
        let verification = longma_bundle::verify(bundled, &keys, &self.results, &outcome.results);
        let selected = outcome.ran + outcome.reused + outcome.left + outcome.faults.len();
        Ok(Verification { changed_inputs, selected, ..verification })
    }
}

/// The outcome as text.
fn describe(manifest: &Manifest, verified: &[Verification], files: Option<&Rendered>) -> String {
    /// Maximum number of different points shown. They often differ for the same reason.
    const SHOWN: usize = 10;
    let mut text = String::new();
    for one in verified {
        let Verification { experiment, points, selected, compared, equal, missing, .. } = one;
        let experiment = sanitize(experiment);
        let _ = match selected {
            0 => writeln!(text, "{experiment}: none of its {points} points are in this part"),
            _ => writeln!(
                text,
                "{experiment}: {compared} of {points} points run again, {equal} with the same results"
            ),
        };
        if *missing > 0 {
            let _ = writeln!(text, "  {missing} points have no result in the bundle");
        }
        for difference in one.differences.iter().take(SHOWN) {
            let line = format!("{} ({}): {difference}", difference.point, difference.key);
            let _ = writeln!(text, "  differs: {}", sanitize(&line));
        }
        if one.differences.len() > SHOWN {
            let _ = writeln!(text, "  ... and {} more points", one.differences.len() - SHOWN);
        }
        for changed in &one.changed_inputs {
            let changed = sanitize(changed);
            let _ = writeln!(text, "  {changed} is not that of the bundle: this longma contains another");
        }
    }
    let (longma, maker) = (longma(), sanitize(&manifest.longma));
    match files {
        Some(Rendered { equal, different, not_compared }) => {
            let all = equal + different.len() + not_compared.len();
            let _ = writeln!(
                text,
                "{equal} of {all} files of the report are equal to the files made from the results"
            );
            for name in different {
                let _ = writeln!(text, "  differs: {}", sanitize(name));
            }
            for name in not_compared {
                let _ = writeln!(text, "  not compared, as this build cannot make it: {}", sanitize(name));
            }
            let _ = writeln!(text, "Made and run again by {longma}.");
        }
        None => {
            text.push_str("The report and its figures are not compared: another version may draw others.\n");
            let _ = writeln!(text, "Made by {maker}, run again by {longma}, whose models may differ.");
        }
    }
    text
}
