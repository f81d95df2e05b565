//! Hosts and virtual machines to measure with.
//! Not a trace: sizes and lifetimes are drawn from the distributions below.
//! Source: sizes and lifetimes after the "Azure 2019" bars and curves of the notebook "Azure 2019 Public Dataset V2 - Trace Analysis"
//! (github.com/Azure/AzurePublicDataset), read off its figures; what they do not say (memory for each CPU, policies) is assumed.

use longma_placement::host::{Node, Pool};
use longma_placement::request::{CpuPolicy, MemoryPolicy};
use longma_placement::{Host, Request};
use longma_topology::Machine;
use rand::RngExt;
use rand::rngs::StdRng;

/// Virtual CPUs and how many of a thousand virtual machines have so many: up to 2 58 %, to 4 23 %, to 8 12 %, to 12 0.5 %, to 24 6 %, more
/// 0.5 %.
const VCPUS: [(u32, u32); 8] = [(1, 180), (2, 400), (4, 230), (8, 120), (12, 5), (16, 35), (24, 25), (32, 5)];
/// GiB for each virtual CPU, and how many of a thousand: assumed, so that 4 to 8 GiB is the commonest memory, as in the figure.
const GIB_A_VCPU: [(u64, u32); 3] = [(2, 300), (4, 450), (8, 250)];
/// Hours and the part of virtual machines that live no longer; between them the logarithm of the lifetime is uniform. The figure begins
/// at one hour and ends at 100; 5 minutes is the trace's step and 90 days the longest that the packing trace of 2020 keeps.
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

/// Half the hosts are like the paper's, eight small nodes; half have two large ones.
pub fn hosts(count: usize) -> Vec<Host> {
    let machine = Machine::open("hygon-8node").expect("a built-in machine");
    let hygon = Host::of_machine(&machine, "h").expect("it states its memory").with_first_core_reserved();
    let dual = dual_socket().with_first_core_reserved();
    let host = |at: usize| Host {
        name: format!("h{at}"),
        ..if at.is_multiple_of(2) { hygon.clone() } else { dual.clone() }
    };
    (0..count).map(host).collect()
}

/// Two sockets of 32 cores with two threads and 256 GiB each: a common server.
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
    }
}

fn draw<T: Copy>(random: &mut StdRng, table: &[(T, u32)]) -> T {
    let mut left = random.random_range(0..table.iter().map(|t| t.1).sum::<u32>());
    for (value, weight) in table {
        match left.checked_sub(*weight) {
            Some(rest) => left = rest,
            None => return *value,
        }
    }
    table[table.len() - 1].0
}

/// A virtual machine: of ten, five range, four exclusive and one without binding; of five, three strict and two preferred (assumed).
pub fn request(random: &mut StdRng, name: String) -> Request {
    let vcpus = draw(random, &VCPUS);
    let mib = u64::from(vcpus) * draw(random, &GIB_A_VCPU) * 1024;
    let cpu = draw(random, &[(CpuPolicy::Range, 5), (CpuPolicy::Exclusive, 4), (CpuPolicy::None, 1)]);
    let preferred = MemoryPolicy::Preferred { within_distance: 255 };
    let memory = draw(random, &[(MemoryPolicy::Strict, 3), (preferred, 2)]);
    Request { cpu, memory, ..Request::new(&name, vcpus, mib) }
}

/// How long it lives, hours.
pub fn lifetime_hours(random: &mut StdRng) -> f64 {
    let at: f64 = random.random_range(0.0..1.0);
    let pairs = LIFETIMES.windows(2);
    let piece = pairs.into_iter().find(|p| at < p[1].1).unwrap_or(&LIFETIMES[6..8]);
    let ((from, low), (to, high)) = (piece[0], piece[1]);
    from * (to / from).powf((at - low) / (high - low))
}
