//! Decisions per second, in memory and durable, with their latencies. The experiment `placement-churn` measures their
//! quality.

use crate::load::{Load, memory_mib, percentile};
use crate::profile::{self, sync_times};
use longma_placement::fleet::{self, Rng};
use longma_placement::{Allocator, Placement, Policy, Scheduler, SqlStore, Store};
use longma_topology::Machine;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// `count` hosts.
pub fn hosts_to_measure(count: usize) -> Vec<longma_placement::Host> {
    let machine = Machine::open("hygon-8node").expect("a built-in machine");
    fleet::hosts(&machine, count).expect("it states its memory")
}

/// Decisions in memory: `hosts` hosts with ten virtual machines each, then alternating arrivals and departures.
pub fn decisions(hosts: usize, seconds: f64, seed: u64) -> Value {
    let mut random = Rng::new(seed);
    let mut scheduler = Scheduler::new(Policy::default(), seed);
    hosts_to_measure(hosts).iter().for_each(|h| scheduler.put_host(h).expect("a good host"));
    let mut placed: Vec<Placement> = Vec::new();
    let filling = Instant::now();
    let mut refused = 0u64;
    while placed.len() < hosts * 10 && refused < hosts as u64 {
        match scheduler.place(&fleet::request(&mut random, &format!("v{}", placed.len()))) {
            Ok(placement) => placed.push(placement),
            Err(_) => refused += 1,
        }
    }
    let fill_seconds = filling.elapsed().as_secs_f64();
    let mut latencies = Vec::new();
    let start = Instant::now();
    let (mut refused, mut releasing) = (0u64, Duration::ZERO);
    while start.elapsed().as_secs_f64() < seconds {
        let departing = placed.swap_remove(random.index(placed.len()));
        let request = fleet::request(&mut random, "v");
        let at = Instant::now();
        scheduler.release(&departing).expect("it was reserved");
        releasing += at.elapsed();
        let at = Instant::now();
        match scheduler.place(&request) {
            Ok(placement) => placed.push(placement),
            Err(_) => refused += 1,
        }
        latencies.push(at.elapsed());
    }
    let total: Duration = latencies.iter().sum();
    latencies.sort_unstable();
    let (now, peak) = memory_mib();
    json!({
        "hosts": hosts, "vms": placed.len(), "refused": refused, "decisions": latencies.len(),
        "decisions_a_second": (latencies.len() as f64 / total.as_secs_f64()).round(),
        "p50_us": percentile(&latencies, 0.5), "p99_us": percentile(&latencies, 0.99),
        "p999_us": percentile(&latencies, 0.999), "max_us": percentile(&latencies, 1.0),
        "release_us": releasing.as_secs_f64() * 1e6 / latencies.len() as f64,
        "fill_decisions_a_second": ((hosts * 10) as f64 / fill_seconds).round(),
        "memory_mib": now, "most_memory_mib": peak,
    })
}

/// Durable decisions: answered after the database (PostgreSQL at a URL, else a SQLite file) has synced them. First as
/// fast as possible, with `window` in flight; then at 70 % of that rate or of `rate` per second, with latency counted
/// from the time a request was due.
pub fn durable(
    hosts: usize,
    seconds: f64,
    window: usize,
    rate: Option<f64>,
    seed: u64,
    folder: &std::path::Path,
    database: Option<&str>,
) -> Value {
    let opened = match database {
        Some(url) => SqlStore::connect(url),
        None => SqlStore::open_file(&folder.join("placement.db")),
    };
    let store = Arc::new(opened.expect("the database opens"));
    let percent = Policy::default().overcommit_percent;
    for host in hosts_to_measure(hosts) {
        store.put_host(&host, percent).expect("a good host");
    }
    let mut syncs = sync_times(folder);
    let allocator = Allocator::open(store.clone(), Policy::default(), seed).expect("an empty store");
    let mut load = Load::new(allocator, seed, "v", false);
    load.warm();
    let fastest = load.fastest(window, seconds);
    let rate = rate.unwrap_or(fastest);
    store.record_times();
    let times = load.paced(rate * 0.7, seconds);
    let changes = store.record_times();
    syncs.extend(sync_times(folder));
    let check = store.check().expect("the database reads");
    assert!(check.is_empty(), "{check:?}");
    json!({
        "hosts": hosts, "window": window, "durable_a_second": fastest.round(), "load_a_second": (rate * 0.7).round(),
        "answers": times.len(), "most_memory_mib": memory_mib().1, "paced": profile::report(&times, &changes, &syncs),
    })
}
