//! Measures the host time that a campaign adds to a point that it runs and stores, and to a point whose result it
//! reuses. The workload itself takes no time.

#[path = "../tests/synthetic/mod.rs"]
mod synthetic;

use std::path::Path;
use std::time::{Duration, Instant};

use longma_lab::{Campaign, Options, Stop, Store, Table, export};

const POINTS: u32 = 1000;
/// Campaigns measured; the median counts.
const ROUNDS: usize = 5;
const CAMPAIGN: &str = r#"
format = 1
name = "thousand"
title = "A thousand points"
workload = "synthetic"
[sweep]
n = { from = 0, to = 999 }
size = ["4 KiB"]
mode = ["plain"]
[metrics.rate]
unit = "MB/s"
[metrics.latency]
unit = "ns"
"#;

/// Runs the campaign in `folder` and exports its table; returns the time of each point.
fn run(folder: &Path) -> Duration {
    let begin = Instant::now();
    let (registry, _) = synthetic::registry();
    let experiment = synthetic::experiment(CAMPAIGN, &registry);
    let campaign = Campaign::plan(&experiment, false, &registry, "bench").expect("the campaign is valid");
    let options = Options { jobs: 1, ..Options::default() };
    let outcome = campaign
        .run(&Store::new(folder), &registry, &options, &(), &Stop::default())
        .expect("the campaign runs");
    let table = Table::of(&campaign, &outcome.results);
    export(folder, "thousand", &table, &outcome.results).expect("the table is written");
    begin.elapsed() / POINTS
}

fn main() {
    let mut times: Vec<[Duration; 2]> = Vec::new();
    for _ in 0..ROUNDS {
        let folder = tempfile::tempdir().expect("a temporary folder");
        times.push([run(folder.path()), run(folder.path())]);
    }
    for (which, what) in ["run and stored", "reused"].into_iter().enumerate() {
        let mut of: Vec<_> = times.iter().map(|round| round[which]).collect();
        of.sort_unstable();
        println!("{what}: {:?} a point", of[ROUNDS / 2]);
    }
}
