//! The workload `vm-churn`: months of arrivals and departures on many hosts, as a discrete-event simulation without
//! hypervisors. Measures which requests a placement strategy refuses, how much memory virtual machines use on other
//! nodes, and how fragmented the free memory is. Virtual machines and hosts come from `longma_placement::fleet`.

use super::{number, parameter};
use longma_confidence::Interval;
use longma_lab::{Failure, Kind, Measure, Metrics, Parameter, Point, Rehearsal, Setting, Stop, Workload};
use longma_placement::fleet::{self, Rng};
use longma_placement::request::MemoryPolicy;
use longma_placement::scheduler::Strategy;
use longma_placement::{Host, Placement, Policy, Request, Scheduler};
use longma_topology::Machine;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

const STRATEGIES: [(&str, Strategy); 4] = [
    ("numa", Strategy::Numa),
    ("first-fit", Strategy::FirstFit),
    ("best-fit", Strategy::BestFit),
    ("spread", Strategy::Spread),
];
const STRATEGY_NAMES: &[&str] = &["numa", "first-fit", "best-fit", "spread"];

/// Metrics in percent: name and meaning. `NAME_interval` is the half-width of the 95 % confidence interval of each.
const MEASURES: [(&str, &str); 6] = [
    ("refused", "share of requests that fit on no host"),
    ("refused_memory", "share of requested memory in requests that fit on no host"),
    (
        "borrowed",
        "memory on other nodes than the virtual node's, for virtual machines with a preferred \
        memory policy, over time",
    ),
    ("several_nodes", "share of virtual machines on several nodes"),
    ("fragmented", "free memory that virtual machines of common sizes cannot use"),
    ("used", "memory in use"),
];

/// Arrivals begin this many hours before the start of a run, to determine the virtual machines that are present at the
/// start. Equal to the longest lifetime.
const BEFORE_HOURS: f64 = 2160.0;
/// Number of draws to estimate the means that determine the arrival rate.
const DRAWS: u32 = 200_000;
/// Number of events between checks for a stop request.
const EVENTS_PER_CHECK: usize = 1024;

/// Months of arriving and departing virtual machines.
pub struct Churn {
    parameters: Vec<Parameter>,
}

impl Default for Churn {
    fn default() -> Self {
        let integer = |name, value: i64, about| parameter(name, Kind::Integer, Some(value.into()), about);
        let parameters = vec![
            parameter(
                "strategy",
                Kind::Word(STRATEGY_NAMES),
                Some("numa".into()),
                "scheduler: `numa` is Longma's. The others ignore nodes and take the first host that fits, \
                    the fullest (`best-fit`), or the emptiest by Nova's weights (`spread`)",
            ),
            integer(
                "hosts",
                1000,
                "number of hosts: half like the machine, half with two nodes of 64 CPUs and 256 GiB",
            ),
            parameter("days", Kind::Number, Some(Setting::Number(91.0)), "simulated time"),
            parameter(
                "load",
                Kind::Number,
                Some(Setting::Number(0.95)),
                "share of all memory in use if no request were refused",
            ),
            integer("overcommit_percent", 200, "virtual CPUs per hundred shared CPUs"),
            integer("seeds", 5, "runs, each with different arrivals; all strategies get the same arrivals"),
            integer("seed", 1, "seed of the first run"),
        ];
        Self { parameters }
    }
}

/// Validated parameters of a point.
struct Setup {
    hosts: Vec<Host>,
    policy: Policy,
    hours: f64,
    load: f64,
    seeds: std::ops::Range<u64>,
}

impl Setup {
    fn of(point: &Point) -> Result<Self, Failure> {
        let machine =
            point.machine.as_ref().ok_or_else(|| Failure::refused("name the machine of the small hosts"))?;
        let machine = Machine::parse(&machine.name, &machine.text)
            .map_err(|report| Failure::refused(report.to_string()))?;
        let count = number(point, "hosts", 1.0)? as usize;
        let hosts = fleet::hosts(&machine, count).map_err(|error| Failure::refused(error.to_string()))?;
        let strategy = STRATEGIES.iter().find(|known| known.0 == point.text("strategy")).map(|known| known.1);
        let overcommit_percent = number(point, "overcommit_percent", 1.0)? as u32;
        let policy =
            Policy { strategy: strategy.unwrap_or_default(), overcommit_percent, ..Policy::default() };
        let first = number(point, "seed", 0.0)? as u64;
        let seeds = first..first + number(point, "seeds", 1.0)? as u64;
        let (hours, load) = (number(point, "days", 0.0)? * 24.0, number(point, "load", 0.0)?);
        Ok(Self { hosts, policy, hours, load, seeds })
    }
}

impl Workload for Churn {
    fn name(&self) -> &str {
        "vm-churn"
    }

    fn description(&self) -> &str {
        "months of virtual machines arriving and leaving on many hosts: refused requests, borrowed memory, fragmentation"
    }

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn rehearse(&self, point: &Point) -> Result<Rehearsal, Failure> {
        Setup::of(point)?;
        let measures = MEASURES.iter().flat_map(|(name, about)| {
            let interval = format!("half-width of the 95 % confidence interval of `{name}`");
            [Measure::new(*name, "%", *about), Measure::new(format!("{name}_interval"), "%", interval)]
        });
        let arrived = Measure::new("arrived", "requests", "of all runs");
        Ok(Rehearsal { measures: Some(measures.chain([arrived]).collect()), ..Rehearsal::default() })
    }

    fn run(&self, point: &Point, stop: &Stop) -> Result<Metrics, Failure> {
        let setup = Setup::of(point)?;
        let start = Instant::now();
        let mut check = || match point.time_limit {
            _ if stop.is_requested() => Err(Failure::stopped()),
            Some(limit) if start.elapsed() > limit => Err(Failure::late(limit)),
            _ => Ok(()),
        };
        let mut metrics = Metrics::default();
        let (mut runs, mut arrived) = (Vec::new(), 0);
        for seed in setup.seeds.clone() {
            let run = setup.run(seed, &mut check)?;
            arrived += run.arrived;
            runs.push(run.percent());
        }
        for (at, (name, _)) in MEASURES.iter().enumerate() {
            let values: Vec<f64> = runs.iter().map(|run| run[at]).collect();
            if let Some(interval) = Interval::of(&values) {
                metrics.result(name, interval.mean);
                metrics.result(&format!("{name}_interval"), interval.half.unwrap_or(0.0));
            }
        }
        metrics.result("arrived", arrived as f64);
        metrics.host.insert("wall_s".into(), start.elapsed().as_secs_f64());
        Ok(metrics)
    }
}

/// An arrival with its departure.
struct Arrival {
    at: f64,
    leaves: f64,
    request: Request,
}

/// Statistics of one run.
#[derive(Default)]
struct RunStatistics {
    arrived: u64,
    refused: u64,
    requested_mib: u64,
    refused_mib: u64,
    on_several_nodes: u64,
    /// MiB hours of virtual machines that may borrow memory, and the borrowed part of them.
    may_borrow: f64,
    borrowed: f64,
    samples: u32,
    fragmented: f64,
    used: f64,
}

impl RunStatistics {
    /// The metrics in percent, in the order of [`MEASURES`].
    fn percent(&self) -> [f64; MEASURES.len()] {
        let part = |of: f64, all: f64| if all > 0.0 { 100.0 * of / all } else { 0.0 };
        let samples = f64::from(self.samples);
        [
            part(self.refused as f64, self.arrived as f64),
            part(self.refused_mib as f64, self.requested_mib as f64),
            part(self.borrowed, self.may_borrow),
            part(self.on_several_nodes as f64, self.arrived as f64),
            part(self.fragmented, samples),
            part(self.used, samples),
        ]
    }
}

impl Setup {
    /// All arrivals in order. Virtual machines from before the start that are still present arrive at the start.
    fn arrivals(&self, seed: u64) -> Vec<Arrival> {
        let (mut random, mut sample) = (Rng::new(seed), Rng::new(!seed));
        let draws = 0..DRAWS;
        let mib: u64 = draws.clone().map(|_| fleet::request(&mut sample, "x").memory_mib).sum();
        let hours: f64 = draws.map(|_| fleet::lifetime_hours(&mut sample)).sum();
        let (mean_mib, mean_hours) = (mib as f64 / f64::from(DRAWS), hours / f64::from(DRAWS));
        let arrivals_per_hour = self.load * self.mib() as f64 / mean_mib / mean_hours;
        let mut all = Vec::new();
        let mut at = -BEFORE_HOURS;
        loop {
            // Poisson arrivals.
            at -= (1.0 - random.fraction()).ln() / arrivals_per_hour;
            if at > self.hours {
                return all;
            }
            let request = fleet::request(&mut random, &format!("v{}", all.len()));
            let leaves = at + fleet::lifetime_hours(&mut random);
            if leaves > 0.0 {
                all.push(Arrival { at: at.max(0.0), leaves, request });
            }
        }
    }

    /// Total memory of all hosts.
    fn mib(&self) -> u64 {
        self.hosts.iter().flat_map(|host| &host.nodes).map(|node| node.memory[0].mib).sum()
    }

    fn run(
        &self,
        seed: u64,
        check: &mut impl FnMut() -> Result<(), Failure>,
    ) -> Result<RunStatistics, Failure> {
        let failed = |what: String| Failure::failed(format!("the inventory contradicts itself: {what}"));
        let mut scheduler = Scheduler::new(self.policy.clone(), seed);
        for host in &self.hosts {
            scheduler.put_host(host).map_err(|error| Failure::refused(error.to_string()))?;
        }
        let total_mib = self.mib();
        let mut tally = RunStatistics::default();
        let mut leaving: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        let mut placed: Vec<Option<Placement>> = Vec::new();
        let mut in_use_mib = 0u64;
        let mut next_sample = self.hours * 0.1;
        for (count, arrival) in self.arrivals(seed).into_iter().enumerate() {
            if count % EVENTS_PER_CHECK == 0 {
                check()?;
            }
            while let Some(Reverse((_, vm))) = leaving.pop_if_due(arrival.at) {
                let placement =
                    placed[vm].take().ok_or_else(|| failed("a virtual machine departs twice".into()))?;
                in_use_mib -= placement.memory_mib().0;
                scheduler.release(&placement).map_err(|error| failed(error.to_string()))?;
            }
            if arrival.at >= next_sample {
                tally.samples += 1;
                tally.fragmented += fragmentation(&scheduler, self.policy.overcommit_percent);
                tally.used += in_use_mib as f64 / total_mib as f64;
                next_sample += self.hours * 0.05;
            }
            // Virtual machines present at the start do not count.
            let counted = arrival.at > 0.0;
            let found = scheduler.place(&arrival.request).ok();
            if counted {
                tally.add(&arrival, found.as_ref());
            }
            if let Some(placement) = found {
                in_use_mib += placement.memory_mib().0;
                leaving.push(Reverse((millionths(arrival.leaves), placed.len())));
                placed.push(Some(placement));
            }
        }
        Ok(tally)
    }
}

impl RunStatistics {
    fn add(&mut self, arrival: &Arrival, found: Option<&Placement>) {
        self.arrived += 1;
        self.requested_mib += arrival.request.memory_mib;
        let Some(placement) = found else {
            self.refused += 1;
            self.refused_mib += arrival.request.memory_mib;
            return;
        };
        self.on_several_nodes += u64::from(placement.cells.len() > 1);
        if placement.memory != MemoryPolicy::Strict {
            let (all, remote) = placement.memory_mib();
            let hours = arrival.leaves - arrival.at;
            self.may_borrow += all as f64 * hours;
            self.borrowed += remote as f64 * hours;
        }
    }
}

/// Converts hours to millionths of an hour, because integers are totally ordered.
fn millionths(hours: f64) -> u64 {
    (hours * 1e6) as u64
}

/// A queue of departures, earliest first.
trait Leaving {
    /// Removes the next departure if it is at `hours` or before.
    fn pop_if_due(&mut self, hours: f64) -> Option<Reverse<(u64, usize)>>;
}

impl Leaving for BinaryHeap<Reverse<(u64, usize)>> {
    fn pop_if_due(&mut self, hours: f64) -> Option<Reverse<(u64, usize)>> {
        let due = self.peek().is_some_and(|Reverse((at, _))| *at <= millionths(hours));
        if due { self.pop() } else { None }
    }
}

/// Fraction of the free memory that is unusable for virtual machines of common sizes, each on one node; the mean over
/// the sizes.
fn fragmentation(scheduler: &Scheduler, overcommit_percent: u32) -> f64 {
    const SIZES: [(u32, u64); 4] = [(2, 8192), (4, 16384), (8, 32768), (16, 65536)];
    let inventory = scheduler.inventory();
    let uses: Vec<_> = inventory.names().filter_map(|name| inventory.usage(name)).collect();
    let lost = SIZES.map(|(vcpus, mib)| {
        let (mut free, mut usable) = (0u64, 0u64);
        for node in uses.iter().flat_map(|host| &host.nodes) {
            let cpus = ((node.cpus - node.exclusive) * overcommit_percent / 100).saturating_sub(node.shared);
            let left = node.memory[0].1 - node.memory[0].2;
            free += left;
            usable += u64::from(cpus / vcpus).min(left / mib) * mib;
        }
        1.0 - usable as f64 / free.max(1) as f64
    });
    lost.iter().sum::<f64>() / SIZES.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(strategy: Strategy) -> Setup {
        let machine = Machine::open("hygon-8node").unwrap();
        let hosts = fleet::hosts(&machine, 6).unwrap();
        let policy = Policy { strategy, ..Policy::default() };
        Setup { hosts, policy, hours: 240.0, load: 0.95, seeds: 1..2 }
    }

    #[test]
    fn all_strategies_see_the_same_arrivals_and_a_seed_gives_the_same_run_again() {
        let run = |strategy| setup(strategy).run(3, &mut || Ok(())).unwrap();
        let (ours, again, first) = (run(Strategy::Numa), run(Strategy::Numa), run(Strategy::FirstFit));
        assert_eq!(ours.percent(), again.percent());
        assert_eq!((ours.arrived, ours.requested_mib), (first.arrived, first.requested_mib));
        assert!(ours.arrived > 100 && ours.samples > 10, "{} {}", ours.arrived, ours.samples);
        assert!(ours.borrowed / ours.may_borrow < first.borrowed / first.may_borrow);
    }
}
