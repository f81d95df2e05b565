//! Placement measured: decisions a second, and durable answers a second.
//! Not a test: the crate's tests say whether it is right; how good it is, the experiment `placement-churn` says.

mod cluster;
mod load;
mod speed;

use clap::{Parser, Subcommand};
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
    /// Several schedulers on one PostgreSQL database at once: decisions and durable answers a second, latencies, conflicts, memory.
    Cluster {
        /// URL of an empty PostgreSQL database.
        #[arg(long)]
        database: String,
        /// Number of hosts.
        #[arg(long, default_value_t = 100_000)]
        hosts: usize,
        /// Number of schedulers, each a process.
        #[arg(long, default_value_t = 2)]
        schedulers: usize,
        /// Seconds for each of the two parts.
        #[arg(long, default_value_t = 20.0)]
        seconds: f64,
        /// Requests under way at once of each scheduler in the first part.
        #[arg(long, default_value_t = 64)]
        window: usize,
        /// Answers a second of each scheduler of which the second part's load is 70 % [default: as many as the first part had].
        #[arg(long)]
        rate: Option<f64>,
    },
    /// One of its schedulers.
    #[command(hide = true)]
    Scheduler {
        #[arg(long)]
        database: String,
        #[arg(long)]
        seconds: f64,
        #[arg(long)]
        window: usize,
        #[arg(long)]
        rate: Option<f64>,
        #[arg(long)]
        name: String,
    },
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
        What::Cluster { database, hosts, schedulers, seconds, window, rate } => {
            let wishes = cluster::Wishes { database, hosts, schedulers, seconds, window, rate, seed };
            println!("{}", cluster::cluster(&wishes)?);
        }
        What::Scheduler { database, seconds, window, rate, name } => {
            cluster::scheduler(&database, seconds, window, rate, seed, &name);
        }
    }
    Ok(())
}
