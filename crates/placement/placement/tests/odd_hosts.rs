//! Unusual hosts: nodes without memory, nodes without CPUs, and hosts that lose reserved resources.

use longma_placement::audit::intended_pins;
use longma_placement::defragment::{COMMON_SIZES, plan};
use longma_placement::fleet::Rng;
use longma_placement::host::{Host, Node, Pool, uniform_distances};
use longma_placement::lost_resources::retain_reserved;
use longma_placement::request::{CpuPolicy, MemoryPolicy};
use longma_placement::store::{Reservation, Vm, VmQuery};
use longma_placement::{CpuSet, Placement, Policy, Request, Scheduler, SqlStore, Store};
use std::collections::BTreeSet;

/// A host whose nodes have the given numbers of two-thread cores and MiB.
fn host_of(name: &str, nodes: &[(u32, u64)]) -> Host {
    let mut next = 0;
    let mut core = || {
        next += 2;
        [next - 2, next - 1].into_iter().collect::<CpuSet>()
    };
    let mut made = Vec::new();
    for (id, (cores, mib)) in (0..).zip(nodes) {
        let cores = (0..*cores).map(|_| core()).collect();
        made.push(Node { id, cores, memory: vec![Pool { page_kib: 4, mib: *mib }] });
    }
    let distances = uniform_distances(made.len());
    Host {
        name: name.into(),
        nodes: made,
        distances,
        devices: Vec::new(),
        reserved: CpuSet::new(),
        gone: CpuSet::new(),
        foreign: Default::default(),
    }
}

fn scheduler(host: &Host) -> Scheduler {
    let mut scheduler = Scheduler::new(Policy::default(), 1);
    scheduler.put_host(host).unwrap();
    scheduler
}

/// Places small virtual machines with one and two virtual nodes and every combination of CPU and memory policies, until
/// nothing more fits.
fn fill(scheduler: &mut Scheduler) -> Vec<(Request, Placement)> {
    let mut placed = Vec::new();
    for cpu in [CpuPolicy::Exclusive, CpuPolicy::Range, CpuPolicy::None] {
        for memory in [MemoryPolicy::Strict, MemoryPolicy::Preferred { within_distance: 255 }] {
            for virtual_nodes in [None, Some(1), Some(2)] {
                let name = format!("v{}", placed.len());
                let request = Request { cpu, memory, virtual_nodes, ..Request::new(&name, 2, 512) };
                if let Ok(placement) = scheduler.place(&request) {
                    placed.push((request, placement));
                }
            }
        }
    }
    placed
}

#[test]
fn a_node_without_memory_lends_its_cpus_and_one_without_cpus_its_memory() {
    // Linux reports such nodes for empty memory slots and for memory-only devices (CXL).
    let host = host_of("h", &[(4, 0), (4, 16_384), (0, 16_384)]);
    host.check().unwrap();
    let mut scheduler = scheduler(&host);
    let place = |scheduler: &mut Scheduler, request: &Request| scheduler.place(request);
    let strict = Request { memory: MemoryPolicy::Strict, ..Request::new("strict", 2, 512) };
    for n in 0..4 {
        let placed = place(&mut scheduler, &Request { name: format!("s{n}"), ..strict.clone() }).unwrap();
        assert_eq!(placed.cells[0].node, 1, "strict memory is where both are");
    }
    let large =
        Request { memory: MemoryPolicy::Preferred { within_distance: 20 }, ..Request::new("p", 6, 20_000) };
    let placed = place(&mut scheduler, &Request { virtual_nodes: Some(1), ..large }).unwrap();
    assert_ne!(placed.cells[0].node, 2, "no virtual CPU on a node without CPUs");
    assert!(placed.cells[0].memory.iter().all(|s| s.node != 0 && s.mib > 0), "{:?}", placed.cells[0].memory);
    assert!(!placed.bound.is_empty() && !placed.bound.contains(&0), "{:?}", placed.bound);
    let pins = intended_pins(&host, &[], &placed);
    assert!(pins.vcpus.iter().all(|cpus| !cpus.is_empty()) && !pins.emulator.is_empty());
    let two = Request { memory: MemoryPolicy::Strict, virtual_nodes: Some(2), ..Request::new("two", 2, 512) };
    let explanation = scheduler.explain(&two, None, 10).unwrap();
    assert_eq!(explanation.fitting, 0, "two virtual nodes need two nodes with both");
    let refused =
        |node: usize| explanation.hosts[0].nodes[node].refused.iter().map(|r| &*r.filter).collect::<Vec<_>>();
    assert!(refused(0).contains(&"memory") && refused(2).contains(&"shared-cpus"), "{explanation:?}");
}

#[test]
fn with_any_missing_resources_scores_are_numbers_and_virtual_cpus_have_cpus() {
    let mut random = Rng::new(16);
    for _ in 0..200 {
        let nodes: Vec<(u32, u64)> = (0..1 + random.index(5))
            .map(|_| ([0, 1, 4][random.index(3)], [0, 700, 9000][random.index(3)]))
            .collect();
        let host = host_of("h", &nodes);
        host.check().unwrap();
        let mut scheduler = scheduler(&host);
        for (request, placement) in fill(&mut scheduler) {
            for cell in &placement.cells {
                let (cores, _) = nodes[cell.node as usize];
                assert!(cores > 0, "{nodes:?}: {request:?} on node {}", cell.node);
                assert!(cell.memory.iter().all(|s| nodes[s.node as usize].1 > 0), "{nodes:?}: {cell:?}");
            }
            let pins = intended_pins(&host, &[], &placement);
            assert!(pins.vcpus.iter().all(|cpus| !cpus.is_empty()), "{nodes:?}: {placement:?}");
        }
        let explanation = scheduler.explain(&Request::new("more", 1, 64), None, 10).unwrap();
        let weights = explanation.hosts[0].nodes.iter().flat_map(|n| &n.weights);
        assert!(weights.clone().all(|w| (0.0..=1.0).contains(&w.value)), "{nodes:?}: {explanation:?}");
        let planned = plan(&scheduler, "h", &[], &COMMON_SIZES, 4);
        assert!(planned.score.0.is_finite() && planned.score.1.is_finite(), "{nodes:?}");
    }
}

/// A store with virtual machines of all policies on one host.
fn store_with_vms(random: &mut Rng) -> (tempfile::TempDir, SqlStore, Host) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqlStore::open_file(&folder.path().join("placement.db")).unwrap();
    let host = host_of("h", &[(4, 9000), (4, 9000), (2, 0), (0, 5000)]);
    store.put_host(&host, 200).unwrap();
    let mut scheduler = scheduler(&host);
    for (request, placement) in fill(&mut scheduler) {
        if random.index(3) > 0 {
            let reservation = Reservation { request, placement, key: None, origin: 1 };
            store.reserve(reservation).wait().unwrap();
        }
    }
    (folder, store, host)
}

/// The host after it lost some of its CPUs, memory and nodes.
fn after_loss(host: &Host, random: &mut Rng) -> Host {
    let mut less = host.clone();
    for node in &mut less.nodes {
        for core in &mut node.cores {
            *core = core.iter().filter(|_| random.index(3) > 0).collect();
        }
        node.cores.retain(|core| !core.is_empty());
        if random.index(3) == 0 {
            node.memory[0].mib /= 1 + random.index(8) as u64;
        }
    }
    if random.index(4) == 0 {
        let removed = random.index(less.nodes.len());
        less.nodes.remove(removed);
        less.distances = uniform_distances(less.nodes.len());
    }
    less
}

#[test]
fn lost_resources_stay_reserved_and_are_not_allocated_to_others() {
    let mut random = Rng::new(7);
    let mut lost = 0;
    for _ in 0..60 {
        let (_folder, store, host) = store_with_vms(&mut random);
        let found = after_loss(&host, &mut random);
        let vms: Vec<Vm> = store.vms(&VmQuery::default()).unwrap();
        let placements: Vec<Placement> = vms.iter().filter_map(|vm| vm.placement.clone()).collect();
        let kept = retain_reserved(&found, &host, &placements, 200);
        kept.host.check().unwrap();
        assert_eq!(kept.lost.is_empty(), kept.host == found, "{:?}", kept.lost);
        lost += usize::from(!kept.lost.is_empty());
        // The database accepts the extended description and rejects the one without the lost resources.
        store.put_host(&kept.host, 200).unwrap_or_else(|e| panic!("{e}: {:?}", kept.lost));
        assert_eq!(store.put_host(&found, 200).is_err(), !kept.lost.is_empty(), "{:?}", kept.lost);
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
        // The scheduler accepts all existing reservations, and allocates no lost CPU to others.
        let mut scheduler = scheduler(&kept.host);
        for place in &placements {
            scheduler.reserve(place).unwrap_or_else(|e| panic!("{e}: {:?}", kept.lost));
        }
        let cpus: BTreeSet<u32> =
            found.nodes.iter().flat_map(|n| n.cpus().iter().collect::<Vec<_>>()).collect();
        for n in 0..30 {
            let one = Request { cpu: CpuPolicy::Exclusive, ..Request::new(&format!("n{n}"), 1, 1) };
            let Ok(placed) = scheduler.place(&one) else { break };
            let cpu = placed.cells[0].cpus[0];
            assert!(cpus.contains(&cpu), "CPU {cpu} is gone: {:?}", kept.lost);
        }
        // The scheduler allocates no lost CPU after the reservations are released either, as long as the host is not
        // described again.
        for place in &placements {
            scheduler.release(place).unwrap();
        }
        for n in 30..60 {
            let one = Request { cpu: CpuPolicy::Exclusive, ..Request::new(&format!("n{n}"), 1, 1) };
            let Ok(placed) = scheduler.place(&one) else { break };
            let cpu = placed.cells[0].cpus[0];
            assert!(!kept.dedicated_cpus.contains(cpu), "CPU {cpu} is gone: {:?}", kept.lost);
        }
        for vm in &vms {
            let own: Vec<u32> = vm.placement.iter().flat_map(|p| p.tally().exclusive).map(|e| e.1).collect();
            let is_lost = own.iter().any(|cpu| !cpus.contains(cpu));
            assert_eq!(is_lost, own.iter().any(|cpu| kept.dedicated_cpus.contains(*cpu)), "{:?}", kept.lost);
        }
        // Without reservations, nothing is retained.
        assert_eq!(retain_reserved(&found, &kept.host, &[], 200).host, found);
    }
    assert!(lost > 20, "{lost} hosts lost reserved resources");
}
