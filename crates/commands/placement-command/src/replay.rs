//! `longma placement replay`: compares placement policies on a modelled fleet and a request trace.

use super::Outcome;
use super::connection::FormatOptions;
use super::print::{self, Page, heading};
use clap::builder::PossibleValuesParser;
use longma_placement::Policy;
use longma_placement::replay::{Candidate, Comparison, Interval, Recommendation, compare, replay_all};
use longma_placement::request::{CpuPolicy, MemoryPolicy};
use longma_placement_service::{fleet_file, trace};
use serde_json::json;
use std::path::PathBuf;

/// Arguments of `longma placement replay`.
#[derive(clap::Args)]
pub struct Arguments {
    /// TOML file that lists the kinds of hosts.
    #[arg(long, value_name = "FILE")]
    fleet: PathBuf,
    /// CSV file of requests with the columns starttime, endtime, core and memory.
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Kind of host of which `core` and `memory` are fractions [default: the first of the fleet].
    #[arg(long, value_name = "KIND")]
    machine: Option<String>,
    /// CPU policy of requests that state none.
    #[arg(long, default_value = "range", value_parser = PossibleValuesParser::new(["range", "exclusive", "none"]))]
    cpu: String,
    /// Memory policy of requests that state none.
    #[arg(long, default_value = "preferred", value_parser = PossibleValuesParser::new(["strict", "preferred"]))]
    memory_policy: String,
    /// Virtual CPUs with policy `range` or `none` per 100 physical CPUs.
    #[arg(long, value_name = "PERCENT", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    overcommit: u32,
    #[command(flatten)]
    format: FormatOptions,
}

/// Runs `longma placement replay`.
pub fn run(arguments: &Arguments) -> Outcome {
    let fleet = fleet_file::open(&arguments.fleet)?;
    let machine = match &arguments.machine {
        None => fleet.kinds.first(),
        Some(name) => fleet.kinds.iter().find(|kind| kind.0 == *name),
    };
    let (_, machine) = machine.ok_or_else(|| {
        let known: Vec<&str> = fleet.kinds.iter().map(|kind| &*kind.0).collect();
        format!("--machine: the fleet has no such kind of host; it has {}", known.join(", "))
    })?;
    let cpu = match &*arguments.cpu {
        "exclusive" => CpuPolicy::Exclusive,
        "none" => CpuPolicy::None,
        _ => CpuPolicy::Range,
    };
    let memory = match &*arguments.memory_policy {
        "strict" => MemoryPolicy::Strict,
        _ => MemoryPolicy::Preferred { within_distance: 255 },
    };
    let arrivals = trace::open(&arguments.trace, &trace::Conversion { machine, cpu, memory })?;
    let policy = Policy { overcommit_percent: arguments.overcommit, ..Policy::default() };
    let mut candidates = Candidate::all(&policy);
    if arrivals.iter().any(|arrival| arrival.request.lifetime_s.is_some()) {
        candidates.insert(1, Candidate::with_lifetimes(&policy));
    }
    let outcomes = replay_all(&fleet.hosts, &arrivals, &candidates, 1)?;
    let (rows, recommended) = compare(&outcomes).ok_or("no policy was replayed")?;
    let counted = outcomes.first().map_or(0, |(_, outcome)| outcome.total().requests);
    if arguments.format.json {
        let (hosts, requests) = (fleet.hosts.len(), arrivals.len());
        return print::json(&json!({
            "hosts": hosts, "requests": requests, "counted": counted, "policies": rows, "recommended": recommended,
        }));
    }
    let mut page = Page::new();
    page.line(&format!(
        "{} hosts, {} requests, of which {} before time 0 fill the hosts and do not count",
        fleet.hosts.len(),
        arrivals.len(),
        arrivals.len() as u64 - counted
    ));
    page.table(&table(&rows));
    describe_recommendation(&rows, &recommended).iter().for_each(|line| page.line(line));
    page.print()
}

fn format_interval(value: Interval) -> String {
    match value.half.is_finite() {
        true => format!("{:.2} ± {:.2} %", value.mean, value.half),
        false => format!("{:.2} %", value.mean),
    }
}

fn table(rows: &[Comparison]) -> Vec<Vec<String>> {
    let mut table =
        vec![heading(["POLICY", "REFUSED", "REFUSED MEMORY", "REMOTE MEMORY", "FRAGMENTED", "MOVES"])];
    table.extend(rows.iter().map(|row| {
        vec![
            row.policy.clone(),
            format!("{:.2} %", row.refused_requests),
            format_interval(row.refused),
            format_interval(row.remote),
            format!("{:.1} %", row.fragmentation),
            row.moves.to_string(),
        ]
    }));
    table
}

fn describe_recommendation(rows: &[Comparison], recommended: &Recommendation) -> Vec<String> {
    let mut lines = vec![format!("recommended: {}", recommended.policy)];
    if let (Some(next), Some(margin)) = (&recommended.next, recommended.margin) {
        let Interval { mean, half } = margin;
        lines.push(format!(
            "  {next}, the best of those that refuse measurably more, refuses {mean:.2} ± {half:.2} points more of the \
             requested memory"
        ));
    }
    if !recommended.alike.is_empty() {
        let remote = |policy: &str| rows.iter().find(|row| row.policy == policy).map(|row| row.remote.mean);
        let has_less = recommended.alike.iter().any(|other| remote(other) > remote(&recommended.policy));
        let reason = if has_less { "; it has the least remote memory" } else { ", nor in remote memory" };
        let alike = recommended.alike.join(", ");
        lines.push(format!("  no measurable difference in refused memory: {alike}{reason}"));
    }
    lines
}
