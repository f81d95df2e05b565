//! Virtual machines with several virtual nodes fill hosts to their capacity.

use super::*;
use crate::scheduler::{Strategy, capacity};
use longma_random::SplitMix64;

/// CPUs of each node of the hosts below.
const NODE_CPUS: u32 = 16;

/// A scheduler with one host on which other virtual machines leave `slots[n]` CPUs free on node `n`.
fn with_free_cpus(slots: &[u32], strategy: Strategy) -> Scheduler {
    let mut scheduler = Scheduler::new(Policy { strategy, ..Policy::default() }, 1);
    scheduler.put_host(&small("h", slots.len() as u32, NODE_CPUS / 2)).unwrap();
    for (node, free) in slots.iter().enumerate() {
        // CPU 0 is reserved.
        let taken = NODE_CPUS - u32::from(node == 0) - free;
        if taken > 0 {
            let other = exclusive("other", taken, 64);
            let placement = scheduler.decide_on(&other, "h", &[node as u32], None).unwrap();
            scheduler.reserve(&placement).unwrap();
        }
    }
    scheduler
}

/// Number of virtual machines with one CPU on each of `cells` nodes that the scheduler places until it refuses one.
fn placed(slots: &[u32], cells: u32, strategy: Strategy) -> u32 {
    let mut scheduler = with_free_cpus(slots, strategy);
    let request = Request { virtual_nodes: Some(cells), ..exclusive("vm", cells, 64) };
    (0..).find(|_| scheduler.place(&request).is_err()).unwrap()
}

#[test]
fn a_large_node_is_used_by_every_machine_of_two_nodes() {
    assert_eq!(placed(&[3, 1, 1, 0], 2, Strategy::Numa), 2);
    assert_eq!(placed(&[1, 1, 2, 0], 2, Strategy::Numa), 2);
}

#[test]
fn hosts_fill_to_their_capacity_and_never_less_than_by_first_fit() {
    let mut random = SplitMix64::new(4242);
    for (nodes, cells) in [(4, 2), (8, 2), (8, 4)] {
        for _ in 0..30 {
            let slots: Vec<u32> = (0..nodes).map(|_| random.index(9) as u32).collect();
            let (ours, first_fit) =
                (placed(&slots, cells, Strategy::Numa), placed(&slots, cells, Strategy::FirstFit));
            let possible = capacity::copies(&slots, cells as usize);
            assert_eq!(ours, possible, "{slots:?}, {cells} virtual nodes");
            assert!(ours >= first_fit, "{slots:?}: first fit places {first_fit}");
        }
    }
}

/// Memory, cores and shared CPUs limit the capacity too.
#[test]
fn the_scarcest_resource_of_each_node_counts() {
    let shared = |memory_mib| Request { virtual_nodes: Some(2), ..Request::new("vm", 2, memory_mib) };
    for (request, possible) in [
        // Room by memory: 5, 1, 1 and 1 virtual nodes; CPUs for many more.
        (shared(2 * 3000), 3),
        // Three whole cores on each node: one CPU is reserved for the host or carries another virtual machine.
        (
            Request { smt: SmtPolicy::Avoid, ..Request { virtual_nodes: Some(2), ..exclusive("vm", 2, 64) } },
            6,
        ),
    ] {
        let mut scheduler = scheduler(&[small("h", 4, 4)]);
        for node in 1..4 {
            let other = Request::new("other", 1, 16384 - 4000);
            let placement = scheduler.decide_on(&other, "h", &[node], None).unwrap();
            scheduler.reserve(&placement).unwrap();
        }
        let count = (0..).find(|_| scheduler.place(&request).is_err()).unwrap();
        assert_eq!(count, possible, "{request:?}");
    }
}

#[test]
fn the_larger_virtual_nodes_find_the_larger_nodes_of_a_wide_host() {
    let mut host = small("h", 32, 4);
    let distance = |a: usize, b: usize| if a == b { 10 } else { 16 + 16 * u32::from(a / 8 != b / 8) };
    host.distances = (0..32).map(|a| (0..32).map(|b| distance(a, b)).collect()).collect();
    let mut scheduler = scheduler(&[host]);
    // Nodes 3, 17 and 29 have five CPUs left, the others two.
    for node in 0..32 {
        let free = if [3, 17, 29].contains(&node) { 5 } else { 2 };
        let other = exclusive("other", 8 - u32::from(node == 0) - free, 64);
        let placement = scheduler.decide_on(&other, "h", &[node], None).unwrap();
        scheduler.reserve(&placement).unwrap();
    }
    // Virtual nodes of three, three, three and two CPUs.
    let request = Request { virtual_nodes: Some(4), ..exclusive("vm", 11, 64) };
    let placement = scheduler.place(&request).unwrap();
    let nodes: BTreeSet<u32> = placement.cells[..3].iter().map(|c| c.node).collect();
    assert_eq!(nodes, [3, 17, 29].into());
}

/// Virtual machines whose virtual nodes differ in size, because CPUs do not divide evenly or the emulator has its own.
#[test]
fn machines_of_unequal_virtual_nodes_fill_hosts_as_far_as_first_fit_and_to_98_percent() {
    let mut random = SplitMix64::new(4243);
    let isolated = |vcpus| Request { emulator: EmulatorPolicy::Isolated, ..exclusive("vm", vcpus, 64) };
    for (nodes, cells, request, sizes) in [
        (4, 2, exclusive("vm", 3, 64), [2, 1]),
        (4, 2, exclusive("vm", 5, 64), [3, 2]),
        (4, 2, isolated(2), [2, 1]),
        (4, 2, isolated(4), [3, 2]),
        (4, 3, exclusive("vm", 4, 64), [2, 1]),
        (8, 4, isolated(4), [2, 1]),
    ] {
        let (mut ours, mut all) = (0, 0);
        for _ in 0..30 {
            let free: Vec<u32> = (0..nodes).map(|_| random.index(13) as u32).collect();
            let request = Request { virtual_nodes: Some(cells), ..request.clone() };
            let count = |strategy| {
                let mut scheduler = with_free_cpus(&free, strategy);
                (0..).find(|_| scheduler.place(&request).is_err()).unwrap()
            };
            let (placed, first_fit) = (count(Strategy::Numa), count(Strategy::FirstFit));
            assert!(placed >= first_fit, "{free:?}, {sizes:?}: {placed}, first fit places {first_fit}");
            let totals =
                |free: &u32| (0..=free / sizes[0]).map(|a| a + (free - a * sizes[0]) / sizes[1]).collect();
            ours += placed;
            all += capacity::mixed_copies(free.iter().map(totals).collect(), 1, cells as usize);
        }
        assert!(f64::from(ours) >= 0.98 * f64::from(all), "{nodes} nodes, {sizes:?}: {ours} of {all}");
    }
}

/// Only the first virtual node needs the local device. The others must still be placed for the capacity.
#[test]
fn a_local_device_does_not_hide_the_capacity_for_unequal_virtual_nodes() {
    const NODES: usize = 4;
    let devices = vec![DeviceNeed::of_kind(DeviceKind::Gpu, true)];
    let request = Request { virtual_nodes: Some(3), devices, ..exclusive("vm", 5, 64) };
    let totals = |free: &u32| (0..=free / 2).map(|a| a + (free - a * 2)).collect();
    let copies = |free: &[u32]| capacity::mixed_copies(free.iter().map(totals).collect(), 2, 3);
    let mut random = SplitMix64::new(4244);
    for _ in 0..40 {
        let free: Vec<u32> = (0..NODES).map(|_| 2 + random.index(11) as u32).collect();
        let placement = with_free_cpus(&free, Strategy::Numa).place(&request).unwrap();
        let mut left = free.clone();
        placement.cells.iter().for_each(|cell| left[cell.node as usize] -= cell.vcpus);
        let pairs = (0..NODES - 1).flat_map(|large| (0..NODES - 1).map(move |small| (large, small)));
        let best = pairs.filter(|(large, small)| large != small).map(|(large, small)| {
            let mut left = free.clone();
            left[NODES - 1] -= 2;
            left[large] -= 2;
            left[small] -= 1;
            copies(&left)
        });
        assert_eq!(Some(copies(&left)), best.max(), "{free:?}: {:?}", placement.cells);
    }
}
