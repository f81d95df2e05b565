//! Placement measured: decisions a second, durable answers a second, and what months of churn leave behind.
//! Not a test: the crate's tests say whether it is right.
//! Source: none.

mod churn;
mod fleet;
mod speed;

use clap::{Parser, Subcommand};
use longma_placement::scheduler::{Strategy, Weights};
use serde_json::Value;
use std::path::PathBuf;

/// Measures the placement of virtual machines. Every line printed is JSON.
#[derive(Parser)]
#[command(version)]
struct Options {
    #[command(subcommand)]
    what: What,
    /// Seed of all that is drawn.
    #[arg(long, default_value_t = 1, global = true)]
    seed: u64,
}

#[derive(Subcommand)]
enum What {
    /// Decisions a second in memory, hosts with ten virtual machines each.
    Decisions {
        /// Numbers of hosts.
        #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000")]
        hosts: Vec<usize>,
        /// Seconds for each.
        #[arg(long, default_value_t = 10.0)]
        seconds: f64,
    },
    /// Durable answers a second on SQLite, and their latency at 70 % of that.
    Durable {
        /// Number of hosts.
        #[arg(long, default_value_t = 10_000)]
        hosts: usize,
        /// Seconds for each of the two parts.
        #[arg(long, default_value_t = 10.0)]
        seconds: f64,
        /// Requests under way at once in the first part.
        #[arg(long, default_value_t = 64)]
        window: usize,
        /// Answers a second of which the second part's load is 70 % [default: as many as the first part had].
        #[arg(long)]
        rate: Option<f64>,
        /// Where the SQLite file goes [default: a temporary folder].
        #[arg(long)]
        folder: Option<PathBuf>,
        /// URL of an empty PostgreSQL database to measure instead.
        #[arg(long, conflicts_with = "folder")]
        database: Option<String>,
    },
    /// Arrivals and departures; what is refused, borrowed and left in pieces, by strategy, with means and 95 % intervals over seeds.
    Churn {
        /// Number of hosts, half of them with eight nodes and half with two.
        #[arg(long, default_value_t = 1000)]
        hosts: usize,
        /// Days.
        #[arg(long, default_value_t = 91.0)]
        days: f64,
        /// Offered load: part of all memory.
        #[arg(long, default_value_t = 0.95)]
        load: f64,
        /// Seeds.
        #[arg(long, default_value_t = 5)]
        seeds: u64,
        /// Virtual CPUs on a hundred shared CPUs.
        #[arg(long, default_value_t = 200)]
        overcommit_percent: u32,
        /// Weights of our strategy other than the usual, as JSON: {"packing": 3}.
        #[arg(long, default_value = "{}", value_parser = |text: &str| serde_json::from_str::<Weights>(text))]
        weights: Weights,
        /// Only our own strategy.
        #[arg(long)]
        own: bool,
    },
}

/// Means with half-widths of 95 % intervals (Student's t) of every number over the runs.
fn summary(strategy: Strategy, runs: &[Value]) -> Value {
    const T: [f64; 10] = [0.0, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262];
    let n = runs.len();
    let mut line = serde_json::Map::new();
    line.insert("strategy".into(), serde_json::to_value(strategy).unwrap_or_default());
    line.insert("seeds".into(), n.into());
    let keys: Vec<&String> = runs[0].as_object().into_iter().flat_map(|o| o.keys()).collect();
    for key in keys.into_iter().filter(|k| k.ends_with("percent")) {
        let values: Vec<f64> = runs.iter().filter_map(|r| r[key].as_f64()).collect();
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n.max(2) - 1) as f64;
        let half = T.get(n - 1).unwrap_or(&1.96) * (variance / n as f64).sqrt();
        line.insert(key.clone(), format!("{mean:.3} ± {half:.3}").into());
    }
    line.into()
}

fn main() -> std::io::Result<()> {
    let Options { what, seed } = Options::parse();
    match what {
        What::Decisions { hosts, seconds } => {
            for hosts in hosts {
                println!("{}", speed::decisions(hosts, seconds, seed));
            }
        }
        What::Durable { hosts, seconds, window, rate, folder, database } => {
            let temporary = tempfile::tempdir()?;
            let folder = folder.as_deref().unwrap_or(temporary.path());
            println!("{}", speed::durable(hosts, seconds, window, rate, seed, folder, database.as_deref()));
        }
        What::Churn { hosts, days, load, seeds, overcommit_percent, weights, own } => {
            let options = churn::Options { hosts, hours: days * 24.0, load, overcommit_percent, weights };
            let all = [Strategy::Numa, Strategy::FirstFit, Strategy::BestFit, Strategy::Spread];
            for strategy in all.into_iter().take(if own { 1 } else { all.len() }) {
                let runs: Vec<Value> =
                    (seed..seed + seeds.max(1)).map(|s| churn::run(&options, strategy, s)).collect();
                println!("{}", summary(strategy, &runs));
            }
        }
    }
    Ok(())
}
