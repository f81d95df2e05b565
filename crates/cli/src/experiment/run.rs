//! `longma experiment run`: campaigns, one after the other.
//! Not the running of a point: that is `longma-lab`.
//! Source: our own; exit status 130 after Ctrl-C as the shells use it.

use super::progress::Bar;
use super::{Format, Outcome, VERSION, Which, find, print, summary};
use longma_lab::{Campaign, Key, Options, Registry, Shard, Stop, Table, export};
use serde_json::json;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;

/// After Ctrl-C.
const INTERRUPTED: u8 = 130;

/// How campaigns are run.
#[derive(clap::Args)]
pub struct How {
    /// Points that run at the same time [default: one for each processor].
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    jobs: Option<u16>,
    /// Run only the i-th of n parts of the points, from 1; results merge in one store.
    #[arg(long, value_name = "i/n", value_parser = super::shard)]
    shard: Option<Shard>,
    /// Run points again that failed before.
    #[arg(long)]
    retry_failed: bool,
    /// Run only the point with this key; may be repeated.
    #[arg(long, value_name = "KEY")]
    only: Vec<String>,
    /// Print nothing but the records of the points, as lines for `longma experiment merge -`.
    #[arg(long, hide = true, requires = "only")]
    records: bool,
}

impl How {
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

/// Runs the experiments asked for and prints their tables.
pub fn run(which: &Which, how: &How, registry: &Registry, format: Format) -> Outcome {
    let experiments = find::open(which, registry)?;
    let stop = Arc::new(Stop::default());
    let heard = stop.clone();
    // Without a handler Ctrl-C ends the command at once, and nothing stored is lost either.
    let _ = ctrlc::set_handler(move || heard.request());
    let (store, options) = (which.store(), how.options());
    let (mut text, mut objects, mut failed) = (String::new(), Vec::new(), false);
    for experiment in &experiments {
        let campaign = Campaign::plan(experiment, which.quick, registry, VERSION)?;
        unknown_keys(&campaign, &options)?;
        let bar = Bar::new(experiment);
        let outcome = campaign.run(&store, registry, &options, &bar, &stop);
        bar.clear();
        let outcome = outcome?;
        if how.records {
            let keys = options.only.iter().flatten();
            return print::text(&outcome.results.lines(keys));
        }
        print::complaints(&outcome.results);
        let table = Table::of(&campaign, &outcome.results);
        let form = if which.quick { ".quick" } else { "" };
        let written =
            export(store.folder(), &format!("{}{form}", experiment.parts().name), &table, &outcome.results);
        match written {
            // A folder that cannot be written to still serves results.
            Err(error) if outcome.ran == 0 => eprintln!("longma: {error}"),
            written => drop(written?),
        }
        failed |= outcome.failed > 0 || !table.unknown.is_empty();
        match format {
            Format::Table => text.push_str(&print::results(experiment, &table, &outcome)),
            Format::Json => objects.push(print::results_json(experiment, &table, summary(&outcome))),
        }
        if stop.is_requested() {
            let left = outcome.left;
            eprintln!(
                "longma: stopped; {left} points of {} are left, and the same command goes on",
                experiment.parts().name
            );
            break;
        }
    }
    if format == Format::Json {
        text = format!("{:#}\n", json!(objects));
    } else if std::io::stderr().is_terminal() || std::io::stdout().is_terminal() {
        text.push_str(&format!("Results are in {}\n", store.folder().display()));
    }
    let printed = print::text(&text)?;
    Ok(match (stop.is_requested(), failed) {
        (true, _) => ExitCode::from(INTERRUPTED),
        (false, true) => ExitCode::FAILURE,
        (false, false) => printed,
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
