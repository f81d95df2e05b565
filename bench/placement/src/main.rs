//! Measures placement: decisions and durable answers per second.

mod cluster;
mod load;
mod profile;
mod quality;
mod speed;

use clap::{Parser, Subcommand};
use longma_placement::Policy;
use std::path::PathBuf;

/// Measures the placement of virtual machines. Every line printed is JSON.
#[derive(Parser)]
#[command(version)]
struct Options {
    #[command(subcommand)]
    what: What,
    /// Random seed.
    #[arg(long, default_value_t = 1, global = true)]
    seed: u64,
}

#[derive(Subcommand)]
enum What {
    /// Measure decisions per second in memory, on hosts with ten virtual machines each.
    Decisions {
        /// Numbers of hosts.
        #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000")]
        hosts: Vec<usize>,
        /// Duration of each measurement.
        #[arg(long, default_value_t = 10.0)]
        seconds: f64,
    },
    /// Compare placement policies on fleets of four-node hosts with arrivals and departures.
    Fleet {
        /// Number of hosts.
        #[arg(long, default_value_t = 100)]
        hosts: usize,
        /// Simulated days.
        #[arg(long, default_value_t = 30.0)]
        days: f64,
        /// Offered load as fractions of all memory.
        #[arg(long, value_delimiter = ',', default_value = "1.0,1.1")]
        load: Vec<f64>,
        /// Parts of the virtual machines that have two virtual nodes.
        #[arg(long, value_delimiter = ',', default_value = "0,0.2")]
        two_nodes: Vec<f64>,
        /// Number of seeds, from --seed on.
        #[arg(long, default_value_t = 10)]
        seeds: u64,
        /// Policies to run [default: all].
        #[arg(long)]
        policy: Vec<String>,
        /// Also run Longma with requests that state their lifetimes: exact, median, or the part of the lifetime classes
        /// that are correct.
        #[arg(long, value_delimiter = ',', value_parser = quality::Stated::parse)]
        lifetimes: Vec<quality::Stated>,
        /// Requests with so little memory that CPUs run out first.
        #[arg(long)]
        cpu_bound: bool,
        /// Weights of the weighers, as JSON.
        #[arg(long, default_value = "{}")]
        weights: String,
    },
    /// Fill random hosts with virtual machines of several nodes, in percent of the number that fits.
    Capacity {
        /// Number of hosts for each row.
        #[arg(long, default_value_t = 1000)]
        hosts: u32,
    },
    /// Measure durable answers per second on SQLite, and their latency at 70 % of that rate.
    Durable {
        /// Number of hosts.
        #[arg(long, default_value_t = 10_000)]
        hosts: usize,
        /// Duration of each of the two parts.
        #[arg(long, default_value_t = 10.0)]
        seconds: f64,
        /// Requests in flight in the first part.
        #[arg(long, default_value_t = 64)]
        window: usize,
        /// The second part's load is 70 % of this rate, answers per second [default: the first part's rate].
        #[arg(long)]
        rate: Option<f64>,
        /// Folder for the SQLite file [default: a temporary folder].
        #[arg(long)]
        folder: Option<PathBuf>,
        /// URL of an empty PostgreSQL database to measure instead.
        #[arg(long, conflicts_with = "folder")]
        database: Option<String>,
    },
    /// Measure several schedulers on one PostgreSQL database: decisions and durable answers per second, latencies,
    /// conflicts, memory.
    Cluster {
        /// URL of an empty PostgreSQL database.
        #[arg(long)]
        database: String,
        /// Folder on the disk of the database, to measure its sync.
        #[arg(long)]
        folder: PathBuf,
        /// Number of hosts.
        #[arg(long, default_value_t = 100_000)]
        hosts: usize,
        /// Number of scheduler processes.
        #[arg(long, default_value_t = 2)]
        schedulers: usize,
        /// Duration of each of the two parts.
        #[arg(long, default_value_t = 20.0)]
        seconds: f64,
        /// Requests in flight per scheduler in the first part.
        #[arg(long, default_value_t = 64)]
        window: usize,
        /// The second part's load is 70 % of this rate, answers per second and scheduler [default: the first part's
        /// rate].
        #[arg(long)]
        rate: Option<f64>,
    },
    /// Run one of the benchmark's schedulers.
    #[command(hide = true)]
    Scheduler {
        #[arg(long)]
        database: String,
        #[arg(long)]
        folder: PathBuf,
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
        What::Fleet { hosts, days, load, two_nodes, seeds, policy: only, lifetimes, cpu_bound, weights } => {
            let weights = serde_json::from_str(&weights)?;
            let policy = Policy { weights, ..Policy::default() };
            for (load, two_nodes) in load.iter().flat_map(|l| two_nodes.iter().map(move |t| (*l, *t))) {
                let fleet = quality::Fleet { hosts, days, load, two_nodes, cpu_bound };
                let rows = fleet.measure(seed..seed + seeds, &policy, &only, &lifetimes);
                rows.iter().for_each(|row| println!("{row}"));
            }
        }
        What::Capacity { hosts } => {
            let equal = [(4, 2, 2), (8, 2, 2), (8, 4, 4)].map(|shape| (shape, false));
            let unequal = [((4, 2, 3), false), ((4, 2, 5), false), ((8, 4, 7), false)];
            let isolated = [(4, 2, 2), (4, 2, 4), (8, 4, 4)].map(|shape| (shape, true));
            for ((nodes, cells, vcpus), is_isolated) in equal.into_iter().chain(unequal).chain(isolated) {
                let shape = quality::Shape { nodes, cells, vcpus, is_isolated };
                println!("{}", quality::capacity(shape, hosts, seed));
            }
        }
        What::Durable { hosts, seconds, window, rate, folder, database } => {
            let temporary = tempfile::tempdir()?;
            let folder = folder.as_deref().unwrap_or(temporary.path());
            println!("{}", speed::durable(hosts, seconds, window, rate, seed, folder, database.as_deref()));
        }
        What::Cluster { database, folder, hosts, schedulers, seconds, window, rate } => {
            let options =
                cluster::ClusterOptions { database, folder, hosts, schedulers, seconds, window, rate, seed };
            println!("{}", cluster::cluster(&options)?);
        }
        What::Scheduler { database, folder, seconds, window, rate, name } => {
            let (hosts, schedulers) = (0, 1);
            let options =
                cluster::ClusterOptions { database, folder, hosts, schedulers, seconds, window, rate, seed };
            cluster::scheduler(&options, &name);
        }
    }
    Ok(())
}
