//! Quality of placement: the refusals of policies on fleets with many arrivals and departures, and the number of
//! virtual machines of several nodes that fit on a host.

use longma_placement::fleet::{self, Rng};
use longma_placement::host::{Host, Node, Pool, uniform_distances};
use longma_placement::replay::{Arrival, Candidate, Interval, Outcome, replay};
use longma_placement::request::{CpuPolicy, EmulatorPolicy};
use longma_placement::scheduler::Strategy;
use longma_placement::scheduler::capacity::mixed_copies;
use longma_placement::{Policy, Request, Scheduler};
use serde_json::{Value, json};

/// Arrivals before hour 0 that fill the fleet: the longest lifetime.
const BEFORE_HOURS: f64 = 2160.0;
/// Number of draws for the means that determine the rate of arrivals.
const DRAWS: u32 = 100_000;

/// The parameters of a simulation.
pub struct Fleet {
    pub hosts: usize,
    pub days: f64,
    /// Offered load as a fraction of all memory.
    pub load: f64,
    /// Part of the virtual machines that have two virtual nodes.
    pub two_nodes: f64,
    /// Whether CPUs run out before memory: `load` is a fraction of the virtual CPUs, and memory is 0.5 or 1 GiB per virtual CPU.
    pub cpu_bound: bool,
}

/// Hosts of four nodes, each with 16 cores of two threads and 128 GiB. The first core is the host's own.
fn four_node_hosts(count: usize) -> Vec<Host> {
    let core = |core: u32| [core, core + 64].into_iter().collect();
    let node = |id: u32| Node {
        id,
        cores: (id * 16..(id + 1) * 16).map(core).collect(),
        memory: vec![Pool { page_kib: 4, mib: 128 << 10 }],
    };
    let host = |at: usize| {
        let host = Host {
            name: format!("h{at}"),
            nodes: (0..4).map(node).collect(),
            distances: uniform_distances(4),
            devices: Vec::new(),
            reserved: Default::default(),
            gone: Default::default(),
            foreign: Default::default(),
        };
        host.with_first_core_reserved()
    };
    (0..count).map(host).collect()
}

/// Median of the lifetimes, hours.
const MEDIAN_HOURS: f64 = 0.56;
/// Lifetime classes as Azure predicts them: upper bounds in hours, and the median lifetime of the class.
///
/// Source: Cortez et al., "Resource Central" (SOSP 2017), for the bounds.
const PREDICTED_CLASSES: [(f64, f64); 4] = [(0.25, 0.15), (1.0, 0.5), (24.0, 4.0), (f64::INFINITY, 220.0)];

/// What requests state about their lifetimes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stated {
    /// The exact lifetime.
    Exact,
    /// The median lifetime of all requests: what a history without further knowledge says.
    Median,
    /// The median of the lifetime's class, with this probability; otherwise that of a neighbouring class.
    Class(f64),
}

impl Stated {
    /// Parses `exact`, `median`, or the part of the classes that are correct.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "exact" => Ok(Self::Exact),
            "median" => Ok(Self::Median),
            _ => match text.parse() {
                Ok(part) if (0.0..=1.0).contains(&part) => Ok(Self::Class(part)),
                _ => Err("give exact, median, or a part from 0 to 1".into()),
            },
        }
    }

    /// What the request of a virtual machine that lives `hours` states, hours.
    fn hours(self, random: &mut Rng, hours: f64) -> f64 {
        let correct = match self {
            Self::Exact => return hours,
            Self::Median => return MEDIAN_HOURS,
            Self::Class(correct) => correct,
        };
        let class = PREDICTED_CLASSES.iter().position(|class| hours <= class.0).unwrap_or(3);
        let predicted = match (random.fraction() < correct, class) {
            (true, _) => class,
            (false, 0) => 1,
            (false, 3) => 2,
            (false, _) => class - 1 + 2 * random.index(2),
        };
        PREDICTED_CLASSES[predicted].1
    }

    /// Adds it to the requests of a trace.
    fn add_to(self, arrivals: &[Arrival], seed: u64) -> Vec<Arrival> {
        let mut random = Rng::new(seed.rotate_left(32));
        let stated = |arrival: &Arrival| {
            let hours = self.hours(&mut random, arrival.leaves - arrival.at);
            let request =
                Request { lifetime_s: Some((hours * 3600.0).ceil() as u64), ..arrival.request.clone() };
            Arrival { request, ..arrival.clone() }
        };
        arrivals.iter().map(stated).collect()
    }
}

impl Fleet {
    fn request(&self, random: &mut Rng, name: &str) -> Request {
        let request = fleet::request(random, name);
        let memory_mib = match self.cpu_bound {
            true => u64::from(request.vcpus) * [512, 1024][random.index(2)],
            false => request.memory_mib,
        };
        let request = Request { memory_mib, ..request };
        let two = random.fraction() < self.two_nodes && request.vcpus >= 2;
        Request { virtual_nodes: two.then_some(2), ..request }
    }

    /// Poisson arrivals in order. Virtual machines from before hour 0 are included if they are still present then.
    fn arrivals(&self, hosts: &[Host], seed: u64) -> Vec<Arrival> {
        let (mut random, mut sample) = (Rng::new(seed), Rng::new(!seed));
        // Exclusive virtual CPUs take the place of two shared ones.
        let size = |request: Request| match (self.cpu_bound, request.cpu) {
            (false, _) => request.memory_mib,
            (true, CpuPolicy::Exclusive) => 2 * u64::from(request.vcpus),
            (true, _) => request.vcpus.into(),
        };
        let sizes: u64 = (0..DRAWS).map(|_| size(self.request(&mut sample, "x"))).sum();
        let hours: f64 = (0..DRAWS).map(|_| fleet::lifetime_hours(&mut sample)).sum();
        let total: u64 = match self.cpu_bound {
            true => hosts.iter().map(|host| 2 * host.cpu_count() as u64).sum(),
            false => hosts.iter().flat_map(|h| &h.nodes).map(|n| n.memory[0].mib).sum(),
        };
        let rate = self.load * total as f64 * f64::from(DRAWS).powi(2) / sizes as f64 / hours;
        let (mut all, mut at) = (Vec::new(), -BEFORE_HOURS);
        while at < self.days * 24.0 {
            at -= (1.0 - random.fraction()).ln() / rate;
            let request = self.request(&mut random, &format!("v{}", all.len()));
            let hours = fleet::lifetime_hours(&mut random);
            let leaves = at + hours;
            if leaves > 0.0 {
                all.push(Arrival { at, leaves, request });
            }
        }
        all
    }

    /// Replays `seeds` under each policy; returns a row per policy with means over the seeds and 95 % intervals.
    /// `stated` adds rows of Longma with requests that state their lifetimes.
    pub fn measure(
        &self,
        seeds: std::ops::Range<u64>,
        policy: &Policy,
        only: &[String],
        stated: &[Stated],
    ) -> Vec<Value> {
        let hosts = four_node_hosts(self.hosts);
        let traces: Vec<_> = seeds.clone().map(|seed| self.arrivals(&hosts, seed)).collect();
        let chosen = Candidate::all(policy).into_iter().filter(|c| only.is_empty() || only.contains(&c.name));
        let run = |trace: &[Arrival], candidate: &Candidate, seed: u64| {
            replay(&hosts, trace, candidate, seed).expect("good hosts and arrivals in order")
        };
        let runs = || traces.iter().zip(seeds.clone());
        let mut rows: Vec<(String, Vec<Outcome>)> = chosen
            .map(|candidate| {
                let outcomes = runs().map(|(trace, seed)| run(trace, &candidate, seed)).collect();
                (candidate.name, outcomes)
            })
            .collect();
        let longma = &Candidate::with_lifetimes(policy);
        rows.extend(stated.iter().map(|stated| {
            let outcomes = runs().map(|(trace, seed)| run(&stated.add_to(trace, seed), longma, seed));
            (format!("longma, lifetimes: {stated:?}"), outcomes.collect())
        }));
        let percents =
            |outcomes: &[Outcome], of: fn(&Outcome) -> f64| outcomes.iter().map(of).collect::<Vec<_>>();
        let interval = |values: &[f64]| {
            let Interval { mean, half } = Interval::of(values);
            json!([(mean * 1000.0).round() / 1000.0, (half * 1000.0).round() / 1000.0])
        };
        let refused = |o: &Outcome| o.total().refused_percent();
        let remote = |o: &Outcome| o.total().remote_percent();
        let row = |(name, outcomes): &(String, Vec<Outcome>)| {
            let (refused_percents, remote_percents) =
                (percents(outcomes, refused), percents(outcomes, remote));
            // Differences by seed: all policies get the same arrivals for a seed.
            let difference = |other: &[f64], mine: &[f64]| {
                interval(&other.iter().zip(mine).map(|(o, m)| m - o).collect::<Vec<_>>())
            };
            let ours = &rows[0].1;
            json!({
                "policy": name, "refused": interval(&refused_percents), "remote": interval(&remote_percents),
                "ours_refused_minus_this": difference(&refused_percents, &percents(ours, refused)),
                "ours_remote_minus_this": difference(&remote_percents, &percents(ours, remote)),
                "fragmentation": interval(&percents(outcomes, |o| o.fragmentation_percent)),
                "moves": outcomes.iter().map(|o| o.moves).sum::<u64>(),
                "requests": outcomes.iter().map(|o| o.total().requests).sum::<u64>(),
                "load": self.load, "two_nodes": self.two_nodes, "seeds": [seeds.start, seeds.end - 1],
            })
        };
        rows.iter().map(row).collect()
    }
}

/// CPUs of each node of the hosts of [`capacity`].
const NODE_CPUS: u32 = 16;

/// A virtual machine of [`capacity`].
#[derive(Clone, Copy)]
pub struct Shape {
    /// Number of nodes of the host.
    pub nodes: u32,
    /// Number of virtual nodes.
    pub cells: u32,
    /// Number of virtual CPUs, all of them dedicated.
    pub vcpus: u32,
    /// Whether the emulator has a CPU of its own, on the first node.
    pub is_isolated: bool,
}

impl Shape {
    /// CPUs of each virtual node, the largest first. There are at most two sizes.
    fn sizes(&self) -> Vec<u32> {
        let part = |cell| self.vcpus / self.cells + u32::from(cell < self.vcpus % self.cells);
        (0..self.cells).map(|cell| part(cell) + u32::from(self.is_isolated && cell == 0)).collect()
    }

    fn request(&self) -> Request {
        let emulator = if self.is_isolated { EmulatorPolicy::Isolated } else { EmulatorPolicy::Shared };
        let request = Request::new("vm", self.vcpus, 64);
        Request { cpu: CpuPolicy::Exclusive, virtual_nodes: Some(self.cells), emulator, ..request }
    }

    /// Number of virtual machines that fit on a host of which `free_cpus[n]` CPUs are free on node `n`.
    fn possible(&self, free_cpus: &[u32]) -> u32 {
        let sizes = self.sizes();
        let (large, small) = (sizes[0], sizes[sizes.len() - 1]);
        let larges = sizes.iter().filter(|size| **size > small).count();
        let total =
            |free: &u32| (0..=free / large).map(|count| count + (free - count * large) / small).collect();
        mixed_copies(free_cpus.iter().map(total).collect(), larges, sizes.len())
    }
}

/// Fills `hosts` random hosts with virtual machines. Returns the number placed by Longma and by first fit in percent of the
/// number that fits. A virtual node of one CPU has 4 of them free in the mean, larger ones as many times more.
pub fn capacity(shape: Shape, hosts: u32, seed: u64) -> Value {
    let mut random = Rng::new(seed);
    let (mut possible, mut placed, mut below) = (0u64, [0u64; 2], 0u32);
    let sizes = shape.sizes();
    let most_free = (NODE_CPUS / 2 * sizes[sizes.len() - 1]).min(NODE_CPUS - 1);
    for _ in 0..hosts {
        let free_cpus: Vec<u32> =
            (0..shape.nodes).map(|_| random.index(most_free as usize + 1) as u32).collect();
        let both =
            [Strategy::Numa, Strategy::FirstFit].map(|strategy| count_fitting(&free_cpus, shape, strategy));
        possible += u64::from(shape.possible(&free_cpus));
        placed = [placed[0] + u64::from(both[0]), placed[1] + u64::from(both[1])];
        below += u32::from(both[0] < both[1]);
    }
    let percent = |count: u64| (count as f64 / possible.max(1) as f64 * 1e4).round() / 100.0;
    json!({
        "nodes": shape.nodes, "virtual_node_cpus": sizes, "hosts": hosts, "fit": possible, "longma": percent(placed[0]),
        "first_fit": percent(placed[1]), "hosts_below_first_fit": below,
    })
}

/// Number of virtual machines that fill a host of which `free_cpus[n]` CPUs are free on node `n`.
fn count_fitting(free_cpus: &[u32], shape: Shape, strategy: Strategy) -> u32 {
    let node = |id: u32| Node {
        id,
        // One CPU more for the host itself.
        cores: (id * 100..=id * 100 + NODE_CPUS).map(|cpu| [cpu].into_iter().collect()).collect(),
        memory: vec![Pool { page_kib: 4, mib: 1 << 20 }],
    };
    let host = Host {
        name: "h".into(),
        nodes: (0..free_cpus.len() as u32).map(node).collect(),
        distances: uniform_distances(free_cpus.len()),
        devices: Vec::new(),
        reserved: (0..free_cpus.len() as u32).map(|id| id * 100).collect(),
        gone: Default::default(),
        foreign: Default::default(),
    };
    let mut scheduler = Scheduler::new(Policy { strategy, ..Policy::default() }, 1);
    scheduler.put_host(&host).expect("a good host");
    let exclusive = |vcpus| Request { cpu: CpuPolicy::Exclusive, ..Request::new("vm", vcpus, 64) };
    for (node, free) in (0..).zip(free_cpus) {
        let other = exclusive(NODE_CPUS - free);
        let placement = scheduler.decide_on(&other, "h", &[node], None).expect("an empty node");
        scheduler.reserve(&placement).expect("free CPUs");
    }
    let request = shape.request();
    (0..).take_while(|_| scheduler.place(&request).is_ok()).count() as u32
}
