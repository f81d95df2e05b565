//! Processor time of one plan of `tune`, from small hosts to 256 CPUs, 128 queues and 10,000 flows. Every queue and
//! every thread starts on a random CPU (`scattered`) or may run on all of them (`unbound`); `settled` plans again from
//! the result of a plan, as a daemon does most of the time. The goal is 10 ms.

use longma_affinity::fake::topology;
use longma_affinity::tune::model::{Assignment, Link, Model, Queue, Thread};
use longma_affinity::tune::plan::{after, plan};
use longma_cpu_set::CpuSet;
use longma_random::SplitMix64;
use rustix::time::{ClockId, clock_gettime};

/// Plans measured.
const ROUNDS: usize = 25;

struct Host {
    /// Sockets, caches of each socket, cores of each cache, hardware threads of each core.
    topology: [u32; 4],
    queues: usize,
    threads: usize,
    flows: usize,
}

const fn of(topology: [u32; 4], queues: usize, threads: usize, flows: usize) -> Host {
    Host { topology, queues, threads, flows }
}

const HOSTS: [Host; 7] = [
    of([1, 1, 4, 2], 4, 4, 4),
    of([2, 1, 6, 1], 8, 16, 64),
    of([2, 1, 16, 2], 16, 64, 64),
    of([2, 4, 8, 2], 64, 64, 64),
    of([2, 8, 8, 2], 128, 128, 1_000),
    of([2, 8, 8, 2], 128, 512, 10_000),
    of([2, 8, 8, 2], 128, 10_000, 10_000),
];

fn scattered(
    &Host { topology: [sockets, caches, cores, siblings], queues, threads, flows }: &Host,
    is_bound: bool,
) -> (Model, Assignment) {
    let places = topology(sockets, caches, cores, siblings);
    let mut random = SplitMix64::new(1);
    let cpus = places.len() as u64;
    let mut below = |bound: u64| random.next_u64() % bound;
    let all: CpuSet = places.iter().map(|place| place.cpu).collect();
    let assignment = Assignment {
        queues: (0..queues).map(|_| Some(below(cpus) as u32)).collect(),
        threads: (0..threads)
            .map(|_| if is_bound { CpuSet::one(below(cpus) as u32) } else { all.clone() })
            .collect(),
    };
    // A few flows carry most of the bytes.
    let mut links: Vec<Link> = (0..flows)
        .map(|flow| Link {
            queue: below(queues as u64) as usize,
            thread: flow % threads,
            weight: 1.0 / (1.0 + below(1000) as f64),
        })
        .collect();
    let sum: f64 = links.iter().map(|link| link.weight).sum();
    links.iter_mut().for_each(|link| link.weight /= sum);
    let part = cpus as f64 / 8.0;
    let model = Model {
        queues: vec![Queue { node: Some(0), load: part / queues as f64, open: Some(all.clone()) }; queues],
        threads: vec![Thread { load: part / threads as f64, open: Some(all) }; threads],
        distances: Default::default(),
        other: places.iter().map(|place| (place.cpu, below(100) as f64 / 1000.0)).collect(),
        links,
        places,
    };
    (model, assignment)
}

/// Processor time of this process in milliseconds.
fn milliseconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

fn main() {
    println!(
        "{:>5} {:>7} {:>8} {:>7}  {:10} {:>9} {:>7} {:>6}  cost",
        "CPUs", "queues", "threads", "flows", "start", "median ms", "least", "moves"
    );
    for host in &HOSTS {
        for (name, is_bound) in [("scattered", true), ("unbound", false), ("settled", true)] {
            let (model, mut from) = scattered(host, is_bound);
            if name == "settled" {
                from = after(&from, &plan(&model, &from));
            }
            let mut times = Vec::new();
            let mut moves = Vec::new();
            for _ in 0..ROUNDS {
                let begin = milliseconds();
                moves = plan(&model, &from);
                times.push(milliseconds() - begin);
            }
            times.sort_by(f64::total_cmp);
            println!(
                "{:>5} {:>7} {:>8} {:>7}  {name:10} {:>9.2} {:>7.2} {:>6}  {:.3} to {:.3}",
                model.places.len(),
                host.queues,
                host.threads,
                host.flows,
                times[ROUNDS / 2],
                times[0],
                moves.len(),
                model.measure(&from),
                model.measure(&after(&from, &moves))
            );
        }
    }
}
