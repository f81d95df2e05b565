//! Scheduler processes that concurrently place on one PostgreSQL database. `api.py` measures the API, and `cluster.py`
//! runs the server.

use crate::load::{Load, memory_mib};
use crate::profile::{self, sync_times};
use crate::speed::hosts_to_measure;
use longma_placement::{Allocator, Policy, SqlStore, Store};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Number of hosts described concurrently: waiting writes are committed together.
const TOGETHER: usize = 64;

/// The options of a measurement.
pub struct ClusterOptions {
    /// URL of an empty PostgreSQL database.
    pub database: String,
    /// Folder on the disk of the database.
    pub folder: PathBuf,
    pub hosts: usize,
    pub schedulers: usize,
    /// Duration of each of the two parts.
    pub seconds: f64,
    /// Requests in flight per scheduler in the first part.
    pub window: usize,
    /// The second part's load is 70 % of this rate, answers per second and scheduler; by default, the first part's
    /// rate.
    pub rate: Option<f64>,
    pub seed: u64,
}

fn store(database: &str) -> Arc<SqlStore> {
    Arc::new(SqlStore::connect(database).expect("the database opens"))
}

/// Describes the hosts; returns the rate per second.
fn describe(database: &str, count: usize) -> f64 {
    let (store, hosts) = (store(database), hosts_to_measure(count));
    let percent = Policy::default().overcommit_percent;
    let (next, began) = (AtomicUsize::new(0), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..TOGETHER {
            scope.spawn(|| {
                while let Some(host) = hosts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    store.put_host(host, percent).expect("a good host");
                }
            });
        }
    });
    count as f64 / began.elapsed().as_secs_f64()
}

/// A scheduler process.
struct Scheduler {
    process: Child,
    orders: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Scheduler {
    fn start(options: &ClusterOptions, number: usize) -> std::io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["scheduler", "--database", &options.database, "--window", &options.window.to_string()]);
        command.arg("--folder").arg(&options.folder);
        command.args(["--seconds", &options.seconds.to_string(), "--name", &format!("s{number}v")]);
        command.args(options.rate.map(|rate| format!("--rate={rate}")));
        command.arg(format!("--seed={}", options.seed + number as u64));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (orders, stdout) = pipes.expect("both were asked for");
        Ok(Self { process, orders, stdout: BufReader::new(stdout).lines() })
    }

    /// The next line of its output.
    fn next_report(&mut self) -> Value {
        let line = self.stdout.next().expect("a scheduler ended").expect("its words can be read");
        serde_json::from_str(&line).expect("it says JSON")
    }
}

/// Describes the hosts, runs the schedulers concurrently, and compares the tables with the placements.
pub fn cluster(options: &ClusterOptions) -> std::io::Result<Value> {
    let described = describe(&options.database, options.hosts);
    let began = Instant::now();
    let mut all =
        (0..options.schedulers).map(|n| Scheduler::start(options, n)).collect::<Result<Vec<_>, _>>()?;
    let opened: Vec<Value> = all.iter_mut().map(Scheduler::next_report).collect();
    let opening_s = began.elapsed().as_secs_f64();
    let mut parts = Vec::new();
    for _ in 0..2 {
        // Start all at the same time.
        for scheduler in &mut all {
            scheduler.orders.write_all(b"go\n")?;
        }
        parts.push(all.iter_mut().map(Scheduler::next_report).collect::<Vec<_>>());
    }
    for mut scheduler in all {
        drop(scheduler.orders);
        scheduler.process.wait()?;
    }
    let checking = Instant::now();
    let wrong = store(&options.database).check().expect("the database reads");
    assert!(wrong.is_empty(), "promised twice, or sums that are none: {:?}", &wrong[..wrong.len().min(5)]);
    let sum =
        |part: usize, key: &str| parts[part].iter().filter_map(|report| report[key].as_f64()).sum::<f64>();
    Ok(json!({
        "hosts": options.hosts, "schedulers": options.schedulers, "described_a_second": described.round(),
        "opening_s": opening_s, "opened": opened, "fastest": parts[0], "paced": parts[1],
        "durable_a_second": sum(0, "durable_a_second"), "conflicts": sum(0, "conflicts") + sum(1, "conflicts"),
        "check": "nothing is promised twice", "check_s": checking.elapsed().as_secs_f64(),
        "checker_most_memory_mib": memory_mib().1,
    }))
}

/// A scheduler process: prints a line when ready and after each part, and starts each part on command.
pub fn scheduler(options: &ClusterOptions, name: &str) {
    let began = Instant::now();
    let &ClusterOptions { seconds, window, rate, seed, .. } = options;
    let store = store(&options.database);
    let allocator = Allocator::open(store.clone(), Policy::default(), seed).expect("what it has agrees");
    let mut load = Load::new(allocator, seed, name, true);
    let opened_s = began.elapsed().as_secs_f64();
    load.warm();
    let (now, peak) = memory_mib();
    println!("{}", json!({ "opened_s": opened_s, "memory_mib": now, "most_memory_mib": peak }));
    let await_order = || std::io::stdin().read_line(&mut String::new()).expect("orders can be read");
    await_order();
    let fastest = load.fastest(window, seconds);
    let (spent, decisions) = load.deciding;
    let conflicts = load.allocator.conflicts();
    println!(
        "{}",
        json!({
            "durable_a_second": fastest.round(), "decisions_a_second": (decisions as f64 / spent.as_secs_f64()).round(),
            "conflicts": conflicts, "news": load.news, "memory_mib": memory_mib().0,
        })
    );
    await_order();
    let mut syncs = sync_times(&options.folder);
    let rate = rate.unwrap_or(fastest) * 0.7;
    store.record_times();
    let times = load.paced(rate, seconds);
    let changes = store.record_times();
    syncs.extend(sync_times(&options.folder));
    println!(
        "{}",
        json!({
            "load_a_second": rate.round(), "answers": times.len(), "paced": profile::report(&times, &changes, &syncs),
            "conflicts": load.allocator.conflicts() - conflicts, "news": load.news, "most_memory_mib": memory_mib().1,
        })
    );
}
