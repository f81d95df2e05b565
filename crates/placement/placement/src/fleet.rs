//! Synthetic hosts and virtual machines for benchmarks, drawn from the distributions below. The random stream is
//! reproducible and not cryptographically secure.
//!
//! Source: sizes and lifetimes are read off the "Azure 2019" charts of the notebook "Azure 2019 Public Dataset V2 -
//! Trace Analysis" (github.com/Azure/AzurePublicDataset). Properties that the charts do not show (memory per CPU,
//! policies) are assumed.

use crate::host::{Host, HostError, Node, Pool};
use crate::request::{CpuPolicy, MemoryPolicy, Request};
pub use longma_random::SplitMix64 as Rng;
use longma_topology::Machine;

/// Number of virtual CPUs and its weight per thousand virtual machines: 58 % have up to 2, 23 % up to 4, 12 % up to 8,
/// 0.5 % up to 12, 6 % up to 24, and 0.5 % more.
const VCPUS: [(u32, u32); 8] = [(1, 180), (2, 400), (4, 230), (8, 120), (12, 5), (16, 35), (24, 25), (32, 5)];
/// GiB per virtual CPU and its weight per thousand. Assumed such that 4 to 8 GiB is the most common memory size, as in
/// the chart.
const GIB_PER_VCPU: [(u64, u32); 3] = [(2, 300), (4, 450), (8, 250)];
/// Cumulative distribution of lifetimes: hours, and the fraction of virtual machines that live no longer. Between two
/// points the logarithm of the lifetime is uniform. The chart covers 1 to 100 hours; 5 minutes is the step of the
/// trace, and 90 days is the longest lifetime in the packing trace of 2020.
const LIFETIMES: [(f64, f64); 8] = [
    (1.0 / 12.0, 0.0),
    (1.0, 0.65),
    (5.0, 0.77),
    (10.0, 0.82),
    (20.0, 0.88),
    (40.0, 0.90),
    (100.0, 0.92),
    (2160.0, 1.0),
];

/// One of the values of a table of values and weights.
fn draw<T: Copy>(chance: &mut Rng, table: &[(T, u32)]) -> T {
    let mut left = chance.index(table.iter().map(|entry| entry.1 as usize).sum()) as u32;
    for (value, weight) in table {
        match left.checked_sub(*weight) {
            Some(rest) => left = rest,
            None => return *value,
        }
    }
    table[table.len() - 1].0
}

/// Creates `count` hosts. Half are copies of `eight`, a machine with small nodes; the other half have two large nodes.
/// Each host reserves its first core.
///
/// # Errors
/// If `eight` does not describe a host.
pub fn hosts(eight: &Machine, count: usize) -> Result<Vec<Host>, HostError> {
    let small = Host::of_machine(eight, "h")?.with_first_core_reserved();
    let large = dual_socket().with_first_core_reserved();
    let host = |at: usize| Host {
        name: format!("h{at}"),
        ..if at.is_multiple_of(2) { small.clone() } else { large.clone() }
    };
    Ok((0..count).map(host).collect())
}

/// A common server: two sockets, each with 32 cores, two threads per core and 256 GiB.
fn dual_socket() -> Host {
    let core = |core: u32| [core, core + 64].into_iter().collect();
    let node = |id: u32| Node {
        id,
        cores: (id * 32..(id + 1) * 32).map(core).collect(),
        memory: vec![Pool { page_kib: 4, mib: 256 << 10 }],
    };
    Host {
        name: "dual".into(),
        nodes: (0..2).map(node).collect(),
        distances: vec![vec![10, 21], vec![21, 10]],
        devices: Vec::new(),
        reserved: Default::default(),
        gone: Default::default(),
        foreign: Default::default(),
    }
}

/// Draws a request. CPU policy: 50 % range, 40 % exclusive, 10 % none. Memory policy: 60 % strict, 40 % preferred. Both
/// are assumed.
pub fn request(chance: &mut Rng, name: &str) -> Request {
    let vcpus = draw(chance, &VCPUS);
    let mib = u64::from(vcpus) * draw(chance, &GIB_PER_VCPU) * 1024;
    let cpu = draw(chance, &[(CpuPolicy::Range, 5), (CpuPolicy::Exclusive, 4), (CpuPolicy::None, 1)]);
    let preferred = MemoryPolicy::Preferred { within_distance: 255 };
    let memory = draw(chance, &[(MemoryPolicy::Strict, 3), (preferred, 2)]);
    Request { cpu, memory, ..Request::new(name, vcpus, mib) }
}

/// Draws a lifetime in hours.
pub fn lifetime_hours(chance: &mut Rng) -> f64 {
    let at = chance.fraction();
    let mut pairs = LIFETIMES.windows(2);
    let piece = pairs.find(|pair| at < pair[1].1).unwrap_or(&LIFETIMES[6..8]);
    let ((from, low), (to, high)) = (piece[0], piece[1]);
    from * (to / from).powf((at - low) / (high - low))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_follow_the_tables_and_are_reproducible() {
        let mut chance = Rng::new(7);
        let drawn: Vec<Request> = (0..20_000).map(|_| request(&mut chance, "v")).collect();
        let part = |of: &dyn Fn(&Request) -> bool| drawn.iter().filter(|r| of(r)).count() as f64 / 20_000.0;
        assert!((part(&|r| r.vcpus <= 2) - 0.58).abs() < 0.02);
        assert!((part(&|r| r.memory == MemoryPolicy::Strict) - 0.6).abs() < 0.02);
        assert!(drawn.iter().all(|r| r.check().is_ok()));
        let hours: Vec<f64> = (0..20_000).map(|_| lifetime_hours(&mut chance)).collect();
        assert!(hours.iter().all(|h| (1.0 / 12.0..=2160.0).contains(h)));
        let short = hours.iter().filter(|h| **h < 1.0).count() as f64 / 20_000.0;
        assert!((short - 0.65).abs() < 0.02, "{short}");
        assert_eq!(request(&mut Rng::new(1), "v"), request(&mut Rng::new(1), "v"));
    }
}
