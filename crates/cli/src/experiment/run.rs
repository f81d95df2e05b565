//! `longma experiment run`: runs campaigns one after the other.

use super::progress::Bar;
use super::{Format, Outcome, VERSION, Which, find, print, status, summary};
use longma_lab::{
    Campaign, ExportError, Exported, Key, Options, Outcome as Campaigned, Registry, Shard, Stop, Store,
    StoreError, Table, export,
};
use serde_json::json;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;

/// Options of a campaign's run.
#[derive(clap::Args)]
pub struct RunOptions {
    /// Number of points to run at the same time [default: one per processor].
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    jobs: Option<u16>,
    /// Run only the i-th of n parts of the points, counting from 1. `longma experiment merge` combines the results.
    #[arg(long, value_name = "i/n", value_parser = super::shard)]
    shard: Option<Shard>,
    /// Run previously failed points again.
    #[arg(long)]
    retry_failed: bool,
    /// Run only the point with this key; may be repeated.
    #[arg(long, value_name = "KEY")]
    only: Vec<String>,
    /// Print only the records of the points, as lines for `longma experiment merge -`.
    #[arg(long, hide = true, requires = "only")]
    records: bool,
}

impl RunOptions {
    fn options(&self) -> Options {
        let defaults = Options::default();
        let only: std::collections::BTreeSet<_> =
            self.only.iter().map(|key| Key::from(key.as_str())).collect();
        Options {
            jobs: self.jobs.map_or(defaults.jobs, usize::from),
            shard: self.shard.unwrap_or(defaults.shard),
            retry_failed: self.retry_failed,
            only: (!only.is_empty()).then_some(only),
        }
    }
}

/// Runs the requested experiments and prints their tables.
pub fn run(which: &Which, how: &RunOptions, registry: &Registry, format: Format) -> Outcome {
    let experiments = find::open(which, registry)?;
    let stop = Arc::new(Stop::default());
    let stop_on_signal = stop.clone();
    // If no handler can be set, Ctrl-C ends the command at once. Stored results are kept either way.
    let _ = ctrlc::set_handler(move || stop_on_signal.request());
    let (store, options) = (which.store(), how.options());
    let (mut text, mut objects) = (String::new(), Vec::new());
    let (mut host, mut wrong, mut failed) = (false, false, false);
    for (index, experiment) in experiments.iter().enumerate() {
        let campaign = Campaign::plan(experiment, which.quick, registry, VERSION)?;
        unknown_keys(&campaign, &options)?;
        let bar = Bar::new(experiment, (index, experiments.len()));
        let outcome = campaign.run(&store, registry, &options, &bar, &stop);
        bar.clear();
        let mut outcome = outcome?;
        print::report_faults(&outcome);
        host |= !outcome.faults.is_empty();
        if how.records {
            let keys = options.only.iter().flatten();
            // Not changed for display: each line has a checksum.
            return longma_command_line::output::print(&outcome.results.lines(keys))
                .map(|_| status::ended(host, false, false));
        }
        let (table, written) = export_table(&store, &campaign, &mut outcome)?;
        print::report_store_problems(&outcome.results);
        let written = match written {
            // No point was run, so print the stored results even if their directory is not writable.
            Err(error) if outcome.ran == 0 => {
                print::warn(&error);
                None
            }
            written => Some(written?),
        };
        let unknown = unmeasured_metrics(&campaign, &table, registry);
        unknown.iter().for_each(|unknown| print::warn(unknown));
        wrong |= !unknown.is_empty();
        failed |= outcome.failed > 0 || outcome.results.contradict(&campaign);
        match format {
            Format::Table => text.push_str(&print::results(&campaign, &table, &outcome)),
            Format::Json => {
                let path = written.as_ref().and_then(|files| files.parquet.as_deref());
                let mut object = print::results_json(experiment, &table, summary(&outcome), path);
                object["contradict"] = outcome.results.contradict(&campaign).into();
                objects.push(object);
            }
        }
        if stop.is_requested() {
            let left = outcome.left;
            eprintln!(
                "longma: stopped; {left} points of {} are left, and the same command continues",
                experiment.parts().name
            );
            break;
        }
    }
    if format == Format::Json {
        text = longma_text::escape_json(&format!("{:#}\n", json!(objects)));
    } else if std::io::stderr().is_terminal() || std::io::stdout().is_terminal() {
        text.push_str(&format!("Results are in {}\n", store.folder().display()));
    }
    print::show(&text)?;
    if stop.is_requested() {
        return Ok(ExitCode::from(status::INTERRUPTED));
    }
    Ok(status::ended(host, wrong, failed))
}

/// Messages about metrics that no run reported and none can report. A run omits statistics of events that never
/// happened, so a missing metric alone is not an error.
fn unmeasured_metrics(campaign: &Campaign<'_>, table: &Table, registry: &Registry) -> Vec<String> {
    if table.unknown.is_empty() {
        return Vec::new();
    }
    let known = campaign.experiment.rehearse(campaign.quick, registry, VERSION).unwrap_or_default();
    let unknown = table.unknown.iter().filter(|(source, _)| !known.measures.contains_key(source));
    unknown.map(|(_, message)| message.clone()).collect()
}

/// Exports the table of all results in the store, including those of other commands. Reads and writes under the store's
/// lock, so that the last written files include all results.
fn export_table(
    store: &Store,
    campaign: &Campaign<'_>,
    outcome: &mut Campaigned,
) -> Result<(Table, Result<Exported, ExportError>), StoreError> {
    let form = if campaign.quick { ".quick" } else { "" };
    let name = format!("{}{form}", campaign.experiment.parts().name);
    store.exclusively(|| {
        // Free the results before they are read again: those of a large campaign may fit into memory only once.
        let damage = std::mem::take(&mut outcome.results).damage;
        outcome.results = store.results_of(campaign.keys())?;
        // Keep the damage found earlier: a record that another command is writing right now is not damaged.
        outcome.results.damage = damage;
        let table = Table::of(campaign, &outcome.results);
        let written = export(store.folder(), &name, &table, &outcome.results);
        Ok((table, written))
    })
}

fn unknown_keys(campaign: &Campaign<'_>, options: &Options) -> Result<(), String> {
    let unknown = options.only.iter().flatten().find(|key| campaign.points.iter().all(|p| p.key != **key));
    match unknown {
        Some(key) => Err(format!(
            "no point of {} has the key {key}; `longma experiment points` lists them",
            campaign.experiment.parts().name
        )),
        None => Ok(()),
    }
}
