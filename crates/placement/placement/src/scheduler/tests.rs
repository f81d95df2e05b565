//! Compares the scheduler with a brute-force reference and checks the reservation rules. Tests that need a store are in
//! `tests/`.

mod capacity;
mod lifetime;

use super::*;
use crate::host::{Device, DeviceKind, Node, Pool};
use crate::request::{
    CpuPolicy, DeviceNeed, EmulatorPolicy, Level, Membership, MemoryPolicy, Relation, SmtPolicy,
};
use longma_topology::Machine;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn hygon(name: &str) -> Host {
    Host::of_machine(&Machine::open("hygon-8node").unwrap(), name).unwrap().with_first_core_reserved()
}

/// A host with the given number of nodes and of cores per node. Each core has two threads; each node has 16 GiB in
/// ordinary pages and 2 GiB in 2 MiB pages.
fn small(name: &str, nodes: u32, cores: u32) -> Host {
    let total = nodes * cores;
    let core = |c: u32| [c, c + total].into_iter().collect();
    let memory = || vec![Pool { page_kib: 4, mib: 16384 }, Pool { page_kib: 2048, mib: 2048 }];
    let node =
        |id: u32| Node { id, cores: (id * cores..(id + 1) * cores).map(core).collect(), memory: memory() };
    Host {
        name: name.into(),
        nodes: (0..nodes).map(node).collect(),
        distances: (0..nodes)
            .map(|i| {
                (0..nodes)
                    .map(|j| {
                        if i == j {
                            10
                        } else if i / 2 == j / 2 {
                            16
                        } else {
                            32
                        }
                    })
                    .collect()
            })
            .collect(),
        devices: vec![Device::new("gpu0", DeviceKind::Gpu, Some(nodes - 1), 1)],
        reserved: [0].into_iter().collect(),
        gone: Default::default(),
        foreign: Default::default(),
    }
}

fn scheduler(hosts: &[Host]) -> Scheduler {
    let mut scheduler = Scheduler::new(Policy::default(), 1);
    hosts.iter().for_each(|h| scheduler.put_host(h).unwrap());
    scheduler
}

fn exclusive(name: &str, vcpus: u32, mib: u64) -> Request {
    Request { cpu: CpuPolicy::Exclusive, ..Request::new(name, vcpus, mib) }
}

#[test]
fn a_large_request_spreads_over_near_nodes() {
    let mut scheduler = scheduler(&[hygon("h")]);
    let mut request = exclusive("big", 32, 65536);
    request.virtual_nodes = Some(2);
    let placement = scheduler.place(&request).unwrap();
    let nodes: Vec<u32> = placement.cells.iter().map(|c| c.node).collect();
    assert_eq!(nodes.iter().map(|n| n / 4).collect::<BTreeSet<_>>().len(), 1, "one socket: {nodes:?}");
    assert!(placement.cells.iter().all(|c| c.cpus.len() == 16
        && c.memory == [crate::placement::Share { node: c.node, page_kib: 4, mib: 32768 }]));
}

#[test]
fn a_request_without_virtual_nodes_gets_the_fewest_that_suffice() {
    let mut scheduler = scheduler(&[hygon("h")]);
    assert_eq!(scheduler.place(&Request::new("a", 16, 8192)).unwrap().cells.len(), 1);
    assert_eq!(scheduler.place(&Request::new("b", 16, 40_000)).unwrap().cells.len(), 2);
    assert_eq!(scheduler.place(&Request::new("c", 64, 8192)).unwrap().cells.len(), 4);
}

#[test]
fn hardware_threads_of_a_core_are_used_avoided_or_required_together() {
    let mut scheduler = scheduler(&[small("h", 1, 4)]);
    let cpus = |p: &Placement| (p.cells[0].cpus.clone(), p.cells[0].idle.clone());
    // CPU 0 is reserved, so the core with CPUs 0 and 4 is not whole.
    let avoid = Request { smt: SmtPolicy::Avoid, ..exclusive("avoid", 1, 64) };
    assert_eq!(cpus(&scheduler.place(&avoid).unwrap()), (vec![1], vec![5]));
    let require = Request { smt: SmtPolicy::Require, ..exclusive("require", 2, 64) };
    assert_eq!(cpus(&scheduler.place(&require).unwrap()), (vec![2, 6], vec![]));
    assert_eq!(cpus(&scheduler.place(&exclusive("single", 1, 64)).unwrap()), (vec![4], vec![]));
    let odd = Request { smt: SmtPolicy::Require, ..exclusive("odd", 1, 64) };
    assert!(matches!(scheduler.place(&odd), Err(NoPlacement::NoFit { hosts: 1 })));
    let explained = scheduler.explain(&odd, None, 10).unwrap();
    assert_eq!(explained.refused_by.get("exclusive-cpus"), Some(&1));
    let isolated = Request { emulator: EmulatorPolicy::Isolated, ..exclusive("isolated", 1, 64) };
    let placement = scheduler.place(&isolated).unwrap();
    assert_eq!((placement.cells[0].cpus.clone(), placement.emulator_cpu), (vec![3], Some(7)));
}

#[test]
fn preferred_memory_borrows_from_the_nearest_within_its_bound() {
    let mut scheduler = scheduler(&[small("h", 4, 8)]);
    let mut request = Request::new("a", 2, 20_000);
    request.virtual_nodes = Some(1);
    assert!(scheduler.decide(&request).is_err());
    request.memory = MemoryPolicy::Preferred { within_distance: 16 };
    let placement = scheduler.place(&request).unwrap();
    let home = placement.cells[0].node;
    assert_eq!(placement.memory_mib(), (20_000, 20_000 - 16384));
    assert_eq!(placement.cells[0].memory[1].node, home ^ 1);
    assert_eq!(placement.bound, [home & 2, (home & 2) + 1]);
    request.memory_mib = 40_000;
    assert!(scheduler.decide(&request).is_err(), "beyond the bound");
}

#[test]
fn a_busy_node_is_left_alone() {
    let mut scheduler = scheduler(&[small("h", 2, 8)]);
    let busy = NodeLoad { cpu: 0.95, memory: 0.2 };
    scheduler.set_load("h", &[busy, NodeLoad::default()]);
    assert_eq!(scheduler.place(&Request::new("a", 2, 512)).unwrap().cells[0].node, 1);
    scheduler.set_load("h", &[NodeLoad::default(), busy]);
    assert_eq!(scheduler.decide(&Request::new("b", 2, 512)).unwrap().cells[0].node, 0);
    // The load survives a new description, as after a placement by another scheduler.
    scheduler.set_load("h", &[busy, NodeLoad::default()]);
    scheduler.put_host(&small("h", 2, 8)).unwrap();
    assert_eq!(scheduler.decide(&Request::new("b", 2, 512)).unwrap().cells[0].node, 1);
}

#[test]
fn groups_keep_together_and_apart() {
    let mut scheduler = scheduler(&[small("h0", 2, 8), small("h1", 2, 8)]);
    let member = |name: &str, relation, level| {
        let groups = vec![Membership { group: "g".into(), relation, level }];
        Request { groups, ..Request::new(name, 1, 64) }
    };
    let anti = |name| member(name, Relation::AntiAffinity, Level::Host);
    let a = scheduler.place(&anti("a")).unwrap();
    let b = scheduler.place(&anti("b")).unwrap();
    assert_ne!(a.host, b.host);
    assert!(scheduler.place(&anti("c")).is_err());
    let same_node = scheduler.place(&member("d", Relation::Affinity, Level::Node)).unwrap();
    assert!([&a, &b].iter().any(|p| p.host == same_node.host && p.cells[0].node == same_node.cells[0].node));
    let other_node = scheduler.place(&member("e", Relation::AntiAffinity, Level::Node)).unwrap();
    assert!(
        [&a, &b].iter().all(|p| p.host != other_node.host || p.cells[0].node != other_node.cells[0].node)
    );
    let foreign = Request { tenant: "other".into(), ..anti("a") };
    assert!(scheduler.place(&foreign).is_ok(), "groups are a tenant's own");
    scheduler.release(&a).unwrap();
    let explained = scheduler.explain(&anti("f"), None, 9).unwrap();
    assert!(explained.fitting <= 1);
}

#[test]
fn a_device_is_local_and_given_once() {
    let mut scheduler = scheduler(&[small("h", 2, 8)]);
    let need = DeviceNeed::of_kind(DeviceKind::Gpu, true);
    let request = Request { devices: vec![need], ..Request::new("a", 1, 64) };
    let placement = scheduler.place(&request).unwrap();
    assert_eq!((placement.cells[0].node, &placement.devices[0][..]), (1, "gpu0"));
    assert!(scheduler.place(&request).is_err());
    scheduler.release(&placement).unwrap();
    assert!(scheduler.place(&request).is_ok());
}

#[test]
fn an_explanation_names_missing_resources_by_host() {
    let mut scheduler = scheduler(&[small("h0", 2, 4), small("h1", 2, 4)]);
    scheduler.set_status("h1", HostStatus::Draining);
    let mut request = Request::new("a", 2, 20_000);
    request.virtual_nodes = Some(1);
    let explained = scheduler.explain(&request, None, 10).unwrap();
    assert_eq!(explained.fitting, 0);
    let h0 = explained.hosts.iter().find(|h| h.host == "h0").unwrap();
    let memory = &h0.nodes[0].refused[0];
    assert_eq!((&memory.filter[..], memory.needed, memory.available), ("memory", 20_000, 16384));
    assert_eq!(explained.refused_by.get("status"), Some(&1));
    let fits = scheduler.explain(&Request::new("b", 1, 64), Some("h0"), 10).unwrap();
    assert!(fits.hosts[0].score.is_some() && fits.hosts[0].nodes[0].weights.len() == NODE_WEIGHERS_LEN);
}

const NODE_WEIGHERS_LEN: usize = super::weigh::NODE_WEIGHERS.len();

#[test]
fn a_draining_host_takes_nothing_and_the_same_seed_decides_the_same() {
    let hosts: Vec<Host> = (0..20).map(|h| small(&format!("h{h}"), 2, 4)).collect();
    let run = |seed| {
        let mut scheduler = Scheduler::new(Policy::default(), seed);
        hosts.iter().for_each(|h| scheduler.put_host(h).unwrap());
        scheduler.set_status("h3", HostStatus::Draining);
        let placed =
            (0..60).map(|v| scheduler.place(&Request::new(&format!("v{v}"), 1 + v % 3, 900)).unwrap());
        placed.collect::<Vec<_>>()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
    assert!(run(7).iter().all(|p| p.host != "h3"));
}

/// Checks from the placements alone that no resource is reserved twice.
pub(super) fn check_promises(hosts: &[Host], placements: &[Placement], percent: u64) {
    let mut owners: BTreeMap<(&str, u32), usize> = BTreeMap::new();
    let mut shared: BTreeMap<(&str, u32), u64> = BTreeMap::new();
    let mut memory: BTreeMap<(&str, u32, u32), u64> = BTreeMap::new();
    let mut devices: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for (vm, placement) in placements.iter().enumerate() {
        let host = placement.host.as_str();
        let node_of = |id: u32| {
            hosts.iter().find(|h| h.name == host).unwrap().nodes.iter().find(|n| n.id == id).unwrap()
        };
        let nodes: BTreeSet<u32> = placement.cells.iter().map(|c| c.node).collect();
        assert_eq!(nodes.len(), placement.cells.len(), "each virtual node has a separate node");
        for cell in &placement.cells {
            for cpu in cell.cpus.iter().chain(&cell.idle) {
                assert!(node_of(cell.node).cpus().contains(*cpu), "a CPU of the node");
                assert_eq!(owners.insert((host, *cpu), vm), None, "CPU {cpu} of {host} promised twice");
            }
            if placement.cpu == CpuPolicy::Exclusive {
                assert_eq!(cell.cpus.len() as u32, cell.vcpus);
            } else {
                *shared.entry((host, cell.node)).or_default() += u64::from(cell.vcpus);
            }
            for share in &cell.memory {
                assert!(
                    placement.memory != MemoryPolicy::Strict || share.node == cell.node,
                    "strict is local"
                );
                assert!(placement.bound.contains(&share.node));
                *memory.entry((host, share.node, share.page_kib)).or_default() += share.mib;
            }
        }
        if let Some(cpu) = placement.emulator_cpu {
            assert_eq!(owners.insert((host, cpu), vm), None, "CPU {cpu} of {host} promised twice");
        }
        for device in &placement.devices {
            *devices.entry((host, device)).or_default() += 1;
        }
    }
    for host in hosts {
        let name = host.name.as_str();
        for cpu in host.reserved.iter() {
            assert!(!owners.contains_key(&(name, cpu)), "CPU {cpu} is the host's own");
        }
        for node in &host.nodes {
            let cpus = node.cpus();
            let free =
                cpus.iter().filter(|c| !host.reserved.contains(*c) && !owners.contains_key(&(name, *c)));
            let limit = free.count() as u64 * percent / 100;
            let carried = shared.get(&(name, node.id)).copied().unwrap_or(0);
            assert!(carried <= limit, "node {} of {name} carries {carried} of {limit}", node.id);
            for pool in &node.memory {
                let used = memory.get(&(name, node.id, pool.page_kib)).copied().unwrap_or(0);
                assert!(used <= pool.mib, "node {} of {name} holds {used} of {} MiB", node.id, pool.mib);
            }
        }
        for device in &host.devices {
            assert!(devices.get(&(name, &device.name[..])).copied().unwrap_or(0) <= device.slots);
        }
    }
}

fn any_request() -> impl Strategy_<Value = Request> {
    let policies = (
        prop_oneof![3 => Just(CpuPolicy::Range), 3 => Just(CpuPolicy::Exclusive), 1 => Just(CpuPolicy::None)],
        prop_oneof![
            2 => Just(MemoryPolicy::Strict),
            1 => Just(MemoryPolicy::Preferred { within_distance: 255 }),
            1 => Just(MemoryPolicy::Preferred { within_distance: 16 })
        ],
        prop_oneof![2 => Just(SmtPolicy::Prefer), 1 => Just(SmtPolicy::Avoid), 1 => Just(SmtPolicy::Require)],
        prop_oneof![2 => Just(EmulatorPolicy::Shared), 1 => Just(EmulatorPolicy::Isolated)],
    );
    let sizes = (1u32..10, 4u64..6000, prop_oneof![3 => Just(None), 1 => (1u32..4).prop_map(Some)]);
    let extras = (prop::bool::weighted(0.2), prop::bool::weighted(0.1), 0u8..8);
    (policies, sizes, extras).prop_map(
        |((cpu, memory, smt, emulator), (vcpus, mib, nodes), (huge, gpu, group))| {
            let exclusive = cpu == CpuPolicy::Exclusive;
            let nodes = nodes.map(|n: u32| n.min(vcpus));
            let step = 2 * u64::from(nodes.unwrap_or(1));
            let relation = if group % 2 == 0 { Relation::Affinity } else { Relation::AntiAffinity };
            let level = if group < 2 { Level::Host } else { Level::Node };
            let member = Membership { group: format!("g{group}"), relation, level };
            Request {
                cpu,
                memory,
                smt: if exclusive { smt } else { SmtPolicy::Prefer },
                emulator: if exclusive { emulator } else { EmulatorPolicy::WithVcpus },
                virtual_nodes: nodes,
                huge_page_kib: huge.then_some(2048),
                devices: if gpu {
                    vec![DeviceNeed::of_kind(DeviceKind::Gpu, vcpus % 2 == 0)]
                } else {
                    vec![]
                },
                groups: if group < 4 { vec![member] } else { vec![] },
                ..Request::new("vm", vcpus, if huge { (mib / 4).max(1).div_ceil(step) * step } else { mib })
            }
        },
    )
}

use proptest::strategy::Strategy as Strategy_;

#[derive(Clone, Debug)]
enum SchedulerOperation {
    Place(Request),
    Give(usize),
    Load(usize, u8),
    Status(usize, bool),
}

fn any_step() -> impl Strategy_<Value = SchedulerOperation> {
    prop_oneof![
        6 => any_request().prop_map(SchedulerOperation::Place),
        3 => any::<usize>().prop_map(SchedulerOperation::Give),
        1 => (any::<usize>(), any::<u8>()).prop_map(|(h, l)| SchedulerOperation::Load(h, l)),
        1 => (any::<usize>(), prop::bool::weighted(0.7)).prop_map(|(h, up)| SchedulerOperation::Status(h, up)),
    ]
}

/// Whether a brute-force search over every host and every set of nodes finds a placement.
fn reference_fits(scheduler: &Scheduler, request: &Request) -> bool {
    let rules = scheduler.rules();
    let groups = GroupRules::of(&scheduler.inventory, request);
    Demand::of(request, Overhead::default()).iter().any(|demand| {
        scheduler.inventory.hosts.iter().enumerate().any(|(at, host)| {
            let mask = groups.nodes(at as u32);
            (1u64..1 << host.nodes.len())
                .filter(|set| set.count_ones() == demand.cells && set & !mask == 0)
                .any(|set| {
                    // The mask contains only this set, so every node of it must be used.
                    fit(&rules, host, demand, set)
                        .is_some_and(|f| assign::assign(host, request, demand, f.nodes()).is_some())
                })
        })
    })
}

/// Every rejected host has a reason for the host itself or for each of its nodes.
fn refusals_have_reasons(scheduler: &Scheduler, request: &Request) {
    for host in scheduler.explain(request, None, usize::MAX).unwrap().hosts {
        let each_node = host.nodes.iter().all(|node| !node.refused.is_empty());
        assert!(host.score.is_some() || !host.refused.is_empty() || each_node, "{request:?}: {host:?}");
    }
}

fn run(steps: &[SchedulerOperation], hosts: &[Host], rankings: usize) {
    let mut scheduler = Scheduler::new(Policy { rankings, ..Policy::default() }, 3);
    hosts.iter().for_each(|h| scheduler.put_host(h).unwrap());
    let mut placed: Vec<Placement> = Vec::new();
    for step in steps {
        match step {
            SchedulerOperation::Place(request) => {
                request.check().unwrap();
                let fits = reference_fits(&scheduler, request);
                refusals_have_reasons(&scheduler, request);
                match scheduler.place(request) {
                    Ok(placement) => placed.push(placement),
                    Err(NoPlacement::NoFit { .. }) => assert!(!fits, "refused what fits: {request:?}"),
                    Err(error) => panic!("{error}"),
                }
            }
            SchedulerOperation::Give(n) if !placed.is_empty() => {
                scheduler.release(&placed.swap_remove(n % placed.len())).unwrap();
            }
            SchedulerOperation::Give(_) => {}
            SchedulerOperation::Load(host, load) => {
                let load = NodeLoad { cpu: f32::from(*load) / 255.0, memory: 0.3 };
                let host = &hosts[host % hosts.len()];
                scheduler.set_load(&host.name, &vec![load; host.nodes.len()]);
            }
            SchedulerOperation::Status(host, up) => {
                let status = if *up { HostStatus::Up } else { HostStatus::Draining };
                scheduler.set_status(&hosts[host % hosts.len()].name, status);
            }
        }
        check_promises(hosts, &placed, 200);
    }
    // The incrementally updated inventory equals one that is rebuilt from scratch.
    let mut fresh = Inventory::new(200);
    hosts.iter().for_each(|h| _ = fresh.put_host(h).unwrap());
    for (new, old) in fresh.hosts.iter_mut().zip(&scheduler.inventory.hosts) {
        new.status = old.status;
        new.nodes.iter_mut().zip(&*old.nodes).for_each(|(n, o)| n.load = o.load);
    }
    placed.iter().for_each(|p| _ = fresh.reserve(p).unwrap());
    assert_eq!(fresh.hosts, scheduler.inventory.hosts);
    let sorted = |inventory: &Inventory| -> BTreeMap<String, Vec<_>> {
        let of = |(k, m): (&String, &Vec<_>)| {
            (k.clone(), {
                let mut m = m.clone();
                m.sort();
                m
            })
        };
        inventory.groups.iter().map(of).collect()
    };
    assert_eq!(sorted(&fresh), sorted(&scheduler.inventory));
    for step in steps {
        let SchedulerOperation::Place(request) = step else { continue };
        for demand in Demand::of(request, Overhead::default()) {
            let Scheduler { inventory, policy, rankings, .. } = &mut scheduler;
            let rules = Rules { weights: &policy.weights, overcommit_percent: 200, first_nodes: false };
            let score = |h: usize| fit(&rules, &inventory.hosts[h], &demand, u64::MAX).map(|f| f.rank());
            let kept = rankings.scores(&demand, score);
            assert_eq!(kept, (0..hosts.len()).map(score).collect::<Vec<_>>());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_reserved_twice_nothing_that_fits_is_refused_and_the_index_is_right(
        steps in prop::collection::vec(any_step(), 1..60),
        rankings in 1usize..20,
    ) {
        let hosts = [small("h0", 4, 3), small("h1", 2, 4), small("h2", 4, 3), small("h3", 1, 2)];
        run(&steps, &hosts, rankings);
    }
}

#[test]
fn the_search_finds_nodes_on_a_host_of_sixty_four() {
    let mut scheduler = scheduler(&[small("wide", 64, 2)]);
    // Leave four free nodes that are far apart, and request four.
    let blockers: Vec<_> =
        (0..64).map(|v| scheduler.place(&exclusive(&format!("b{v}"), 3, 16_000)).unwrap()).collect();
    for blocker in blockers.iter().filter(|b| [3, 17, 40, 62].contains(&b.cells[0].node)) {
        scheduler.release(blocker).unwrap();
    }
    let request = Request { virtual_nodes: Some(4), ..exclusive("wide", 8, 40_000) };
    let placement = scheduler.place(&request).unwrap();
    let nodes: BTreeSet<u32> = placement.cells.iter().map(|c| c.node).collect();
    assert_eq!(nodes, [3, 17, 40, 62].into());
}

/// Checks that a comparison strategy makes the same choice from its caches as from a full scan.
fn run_as_others(steps: &[SchedulerOperation], hosts: &[Host], strategy: super::Strategy) {
    let mut scheduler = Scheduler::new(Policy { strategy, ..Policy::default() }, 3);
    // Half of the hosts are added later.
    let (first, later) = hosts.split_at(hosts.len() / 2);
    first.iter().for_each(|h| scheduler.put_host(h).unwrap());
    let mut placed: Vec<Placement> = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        if at == steps.len() / 2 {
            later.iter().for_each(|h| scheduler.put_host(h).unwrap());
        }
        match step {
            SchedulerOperation::Place(request) => {
                let demands = scheduler.demands(request);
                // An invalid request, such as one with a fraction of a huge page, has no placement.
                let plain = (request.check().is_ok())
                    .then(|| demands.iter().find_map(|demand| scheduler.scan_baseline(request, demand)))
                    .flatten();
                let chosen = scheduler.decide(request).ok();
                assert_eq!(chosen, plain, "{strategy:?}: {request:?}");
                if let Some(placement) = chosen {
                    scheduler.reserve(&placement).unwrap();
                    placed.push(placement);
                }
            }
            SchedulerOperation::Give(n) if !placed.is_empty() => {
                scheduler.release(&placed.swap_remove(n % placed.len())).unwrap();
            }
            SchedulerOperation::Give(_) | SchedulerOperation::Load(..) => {}
            SchedulerOperation::Status(host, up) => {
                let status = if *up { HostStatus::Up } else { HostStatus::Draining };
                scheduler.set_status(&hosts[host % hosts.len()].name, status);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn baselines_choose_the_same_with_and_without_the_cache(
        steps in prop::collection::vec(any_step(), 1..250),
    ) {
        let hosts: Vec<Host> = (0..70).map(|h| small(&format!("h{h}"), 1 + h % 2, 1 + h % 3)).collect();
        for strategy in [super::Strategy::FirstFit, super::Strategy::BestFit, super::Strategy::Spread] {
            run_as_others(&steps, &hosts, strategy);
        }
    }
}

#[test]
fn a_refusal_for_shared_cpus_states_whether_the_ratio_or_the_cpus_are_too_low() {
    let reason = |scheduler: &Scheduler, vcpus: u32| {
        let request = Request { virtual_nodes: Some(1), ..Request::new("a", vcpus, 64) };
        let explained = scheduler.explain(&request, None, 1).unwrap();
        let refused = &explained.hosts[0].nodes[1].refused;
        refused.first().map(|r| (r.what.clone(), r.needed, r.available))
    };
    let with = |overcommit_percent| {
        let mut scheduler = Scheduler::new(Policy { overcommit_percent, ..Policy::default() }, 1);
        scheduler.put_host(&hygon("h")).unwrap();
        scheduler
    };
    let mut scheduler = with(150);
    let (what, needed, available) = reason(&scheduler, 25).unwrap();
    assert!(what.contains("not dedicated"), "the ratio allows 24 of them: {what}");
    assert_eq!((needed, available), (25, 16));
    assert_eq!(reason(&scheduler, 16), None);
    let first = scheduler.decide_on(&Request::new("first", 16, 64), "h", &[1], None).unwrap();
    scheduler.reserve(&first).unwrap();
    let (what, _, available) = reason(&scheduler, 9).unwrap();
    assert!(what.contains("ratio") && available == 8, "{what}");
    let (what, _, available) = reason(&with(50), 16).unwrap();
    assert!(what.contains("ratio") && available == 8, "{what}");
}

/// The memory reserved for a request, as (node, page size in KiB, MiB).
fn reserved_for(scheduler: &mut Scheduler, request: &Request) -> Option<Vec<(u32, u32, u64)>> {
    let placement = scheduler.place(request).ok()?;
    assert_eq!(placement.memory_mib().0, request.memory_mib, "the guest gets what it asked for");
    Some(placement.tally().memory.into_iter().map(|((node, kib), mib)| (node, kib, mib)).collect())
}

#[test]
fn placements_reserve_memory_for_emulators() {
    let overhead = Overhead { fixed_mib: 10, vcpu_mib: 5 };
    let mut host = small("h1", 1, 8);
    host.nodes[0].memory = vec![Pool { page_kib: 4, mib: 1000 }, Pool { page_kib: 2048, mib: 512 }];
    let with = |overhead| {
        let mut scheduler = Scheduler::new(Policy { overhead, ..Policy::default() }, 1);
        scheduler.put_host(&host).unwrap();
        scheduler
    };
    let full = Request::new("full", 2, 1000);
    assert!(reserved_for(&mut with(Overhead::default()), &full).is_some());
    assert!(reserved_for(&mut with(overhead), &full).is_none());
    let mut scheduler = with(overhead);
    let large = Request::new("large", 2, 940);
    assert_eq!(reserved_for(&mut scheduler, &large), Some(vec![(0, 4, 960)]));
    // Huge pages are a separate resource, but the emulator's memory is in ordinary pages.
    let huge = |name: &str, vcpus| Request { huge_page_kib: Some(2048), ..Request::new(name, vcpus, 256) };
    assert_eq!(reserved_for(&mut scheduler, &huge("a", 2)), Some(vec![(0, 4, 20), (0, 2048, 256)]));
    assert_eq!(reserved_for(&mut scheduler, &huge("b", 3)), None);
    let why = scheduler.explain(&huge("b", 3), None, 1).unwrap().hosts[0].reason().unwrap();
    assert!(why.contains("25 MiB free in ordinary pages") && why.contains("has 20"), "{why}");
}

#[test]
fn the_overhead_is_borrowed_before_guest_memory() {
    let overhead = Overhead { fixed_mib: 30, vcpu_mib: 0 };
    let mut scheduler = Scheduler::new(Policy { overhead, ..Policy::default() }, 1);
    let mut host = small("h1", 2, 4);
    host.nodes.iter_mut().for_each(|node| node.memory = vec![Pool { page_kib: 4, mib: 1000 }]);
    scheduler.put_host(&host).unwrap();
    let memory = MemoryPolicy::Preferred { within_distance: 255 };
    let request = Request { memory, virtual_nodes: Some(1), ..Request::new("a", 2, 990) };
    let placement = scheduler.place(&request).unwrap();
    assert_eq!(placement.memory_mib(), (990, 0), "all guest memory is local");
    assert_eq!(placement.overhead_mib(), 30);
    assert_eq!(placement.tally().memory.values().sum::<u64>(), 1020);
}

#[test]
fn a_removed_host_is_forgotten_and_may_return() {
    let mut scheduler = scheduler(&[small("h1", 2, 4), small("h2", 2, 4)]);
    let request = Request::new("a", 2, 64);
    assert!(scheduler.remove_host("h1") && !scheduler.remove_host("h1"));
    assert_eq!(scheduler.inventory().names().collect::<Vec<_>>(), ["h2"]);
    assert_eq!(scheduler.place(&request).unwrap().host, "h2");
    assert_eq!(scheduler.explain(&request, None, 10).unwrap().hosts.len(), 1);
    scheduler.remove_host("h2");
    assert_eq!(scheduler.place(&request), Err(NoPlacement::NoFit { hosts: 0 }));
    scheduler.put_host(&small("h1", 2, 4)).unwrap();
    assert_eq!(scheduler.place(&request).unwrap().host, "h1");
}
