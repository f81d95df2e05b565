//! Tests of plans for random flows and machines: they never increase the cost or touch excluded objects.

mod greedy;

use super::super::model::{Link, Queue, Thread, costs};
use super::*;
use crate::fake::topology;
use crate::numa::NodeDistances;
use crate::tune::placement::Cpus;
use longma_topology::CpuLocation;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A random model with a random placement.
fn drawn(max_len: usize) -> impl Strategy<Value = (Model, Assignment)> {
    let shape = (2u32..=8, 1u32..=2, 1u32..=6, 1u32..=2);
    let queues = proptest::collection::vec((any::<u32>(), any::<bool>(), 0.0..0.8f64, 0u8..8), 1..=max_len);
    let threads = proptest::collection::vec((any::<u32>(), 0.0..0.9f64, 0u8..8), 1..=max_len);
    let links = proptest::collection::vec((any::<usize>(), any::<usize>(), 0.01..1.0f64), 1..=2 * max_len);
    let other = proptest::collection::vec(0.0..1.0f64, 8);
    (shape, queues, threads, links, other, any::<u32>()).prop_map(
        |(shape, queues, threads, links, other, nic)| {
            let places = topology(shape.0, shape.1, shape.2, shape.3);
            let count = places.len() as u32;
            let all: CpuSet = (0..count).collect();
            // One in eight must not be changed.
            let open = |chance: u8| (chance > 0).then(|| all.clone());
            let assignment = Assignment {
                queues: queues
                    .iter()
                    .map(|(cpu, is_steered, ..)| is_steered.then_some(cpu % count))
                    .collect(),
                threads: threads.iter().map(|(cpu, ..)| CpuSet::one(cpu % count)).collect(),
            };
            let total: f64 = links.iter().map(|(_, _, weight)| weight).sum();
            let link = |(queue, thread, weight): &(usize, usize, f64)| Link {
                queue: queue % queues.len(),
                thread: thread % threads.len(),
                weight: weight / total,
            };
            let node = Some(nic % shape.0);
            let model = Model {
                links: links.iter().map(link).collect(),
                queues: queues
                    .iter()
                    .map(|(_, _, load, chance)| Queue { node, load: *load, open: open(*chance) })
                    .collect(),
                threads: threads
                    .iter()
                    .map(|(_, load, chance)| Thread { load: *load, open: open(*chance) })
                    .collect(),
                // Most CPUs are idle.
                distances: BTreeMap::new(),
                other: (0..count)
                    .map(|cpu| (cpu, (other[cpu as usize % other.len()] - 0.6).max(0.0)))
                    .collect(),
                places,
            };
            (model, assignment)
        },
    )
}

/// The lowest cost of any placement of one queue and one thread.
fn best_of_all(model: &Model, from: &Assignment) -> f64 {
    let layout = Layout::of(model);
    let mut placement = Placement::of(&layout, from);
    let cpus = 0..model.places.len();
    let (mut cost, mut best) = (placement.cost(), placement.cost());
    for flow in cpus.clone() {
        if model.queues[0].open.is_some() {
            cost += placement.make(&Change::Queue(0, Some(flow))).0;
        }
        for application in cpus.clone() {
            if model.threads[0].open.is_some() {
                let only = Rc::new(Cpus::of(&layout, vec![application]));
                cost += placement.make(&Change::Thread(0, only)).0;
            }
            best = best.min(cost);
        }
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_plan_never_worsens_the_placement_respects_exclusions_and_ends((model, from) in drawn(6)) {
        let moves = plan(&model, &from);
        let then = after(&from, &moves);
        prop_assert!(model.measure(&then) <= model.measure(&from) + 1e-9);
        for change in &moves {
            let open = match change.what {
                Moved::Queue(index) => &model.queues[index].open,
                Moved::Thread(index) => &model.threads[index].open,
            };
            prop_assert!(open.is_some() && !change.to.is_empty());
            prop_assert!(matches!(change.what, Moved::Thread(_)) || change.to.iter().count() == 1);
        }
        // A plan is stable: the next observation plans nothing more.
        prop_assert_eq!(plan(&model, &then), vec![]);
    }

    #[test]
    fn a_plan_is_never_worse_than_that_of_version_0_1((model, from) in drawn(6)) {
        let moves = plan(&model, &from);
        let cost = model.measure(&after(&from, &moves));
        for choose in [greedy::present_cost, greedy::first_cost] {
            let then = greedy::descend(&model, &from, choose);
            let greedy = greedy::present_cost(&model, &then);
            prop_assert!((greedy - model.measure(&then)).abs() < 1e-9, "{greedy} {}", model.measure(&then));
            // A change that gains enough by the old costs may gain too little by the present ones.
            let is_refused = moves.is_empty() && model.measure(&from) - greedy < MARGIN;
            prop_assert!(cost <= greedy + 1e-9 || is_refused, "{cost} {greedy}");
        }
    }
}

#[test]
fn the_distance_from_the_best_pair_is_small_and_is_printed() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut distances: Vec<f64> = Vec::new();
    let mut starts: Vec<f64> = Vec::new();
    for _ in 0..100 {
        let (model, from) = drawn(1).new_tree(&mut runner).unwrap().current();
        let best = best_of_all(&model, &from);
        distances.push(model.measure(&after(&from, &plan(&model, &from))) - best);
        starts.push(model.measure(&from) - best);
    }
    let quantiles = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        [50, 75, 90, 95, 100]
            .map(|percent| format!("{percent} %: {:.3}", values[(percent * values.len() / 100).max(1) - 1]))
    };
    println!("classes above the best pair, at the start: {}", quantiles(&mut starts).join("  "));
    println!("classes above the best pair, as planned:   {}", quantiles(&mut distances).join("  "));
    // A plan skips changes that gain less than the margin, and a queue and a thread are two changes. In 8 of 100 cases
    // it stays a class or more away from the best.
    assert!(distances[89] <= 2.0 * MARGIN, "{distances:?}");
}

fn one_flow(
    places: Vec<CpuLocation>,
    node: Option<u32>,
    flow: Option<u32>,
    application: u32,
) -> (Model, Assignment) {
    let all: CpuSet = places.iter().map(|place| place.cpu).collect();
    let model = Model {
        queues: vec![Queue { node, load: 0.3, open: Some(all.clone()) }],
        threads: vec![Thread { load: 0.3, open: Some(all) }],
        links: vec![Link { queue: 0, thread: 0, weight: 1.0 }],
        distances: BTreeMap::new(),
        other: BTreeMap::new(),
        places,
    };
    (model, Assignment { queues: vec![flow], threads: vec![CpuSet::one(application)] })
}

#[test]
fn a_thread_on_its_flows_cpu_moves_off_it_and_stays_by_its_cache() {
    let (model, from) = one_flow(topology(2, 1, 6, 1), Some(0), Some(2), 2);
    let then = after(&from, &plan(&model, &from));
    assert_eq!(model.measure(&then), 0.0);
    let ((flow, threads), places) = ((then.queues[0].unwrap(), &then.threads[0]), &model.places);
    assert!(threads.iter().all(|cpu| cpu != flow && places[cpu as usize].socket == 0), "{then:?}");
}

#[test]
fn a_flow_and_its_application_on_the_other_socket_come_to_the_nic() {
    let (model, from) = one_flow(topology(2, 1, 6, 2), Some(0), Some(8), 9);
    assert_eq!(model.measure(&after(&from, &plan(&model, &from))), 0.0);
    // A pinned thread keeps its flow close: the flow crosses the link between sockets, but the copy does not.
    let (mut model, from) = one_flow(topology(2, 1, 6, 2), Some(0), Some(2), 9);
    model.threads[0].open = None;
    let then = after(&from, &plan(&model, &from));
    assert_eq!((model.measure(&then), then.threads[0].clone()), (costs::FAR, CpuSet::one(9)));
}

/// With sub-NUMA clustering, the CPUs of both nodes of a socket share its cache.
#[test]
fn a_thread_stays_on_the_nics_node_where_a_cache_spans_two() {
    let mut places = topology(1, 1, 8, 1);
    places.iter_mut().for_each(|place| place.node = place.cpu / 4);
    let (model, from) = one_flow(places, Some(1), Some(0), 1);
    let then = after(&from, &plan(&model, &from));
    let cpus: Vec<u32> = then.threads[0].iter().chain(then.queues[0]).collect();
    assert!(cpus.iter().all(|cpu| *cpu >= 4), "{then:?}");
}

/// The NIC's node has no CPU that may be used, or none at all. Node 2 is the closest one, although its number is not
/// the next one.
#[test]
fn a_flow_that_cannot_come_to_its_nics_node_comes_to_the_closest() {
    for (nic_node, row) in
        [(0, vec![(0, 10), (1, 32), (2, 16), (3, 32)]), (7, vec![(7, 10), (1, 32), (2, 17), (3, 32)])]
    {
        let places = topology(4, 1, 4, 1);
        let (mut model, from) = one_flow(places, Some(nic_node), Some(12), 13);
        let usable: CpuSet = (4..16).collect();
        (model.queues[0].open, model.threads[0].open) = (Some(usable.clone()), Some(usable));
        model.distances = [(nic_node, NodeDistances(row.into_iter().collect()))].into();
        let then = after(&from, &plan(&model, &from));
        let cpus: Vec<u32> = then.threads[0].iter().chain(then.queues[0]).collect();
        assert!(cpus.iter().all(|cpu| model.places[*cpu as usize].node == 2), "node {nic_node}: {then:?}");
    }
}

#[test]
fn well_placed_objects_stay_and_two_cpus_suffice() {
    let (model, from) = one_flow(topology(2, 1, 6, 1), Some(0), Some(2), 3);
    assert!(plan(&model, &from).is_empty());
    let (model, from) = one_flow(topology(1, 1, 2, 1), None, Some(0), 0);
    assert_eq!(plan(&model, &from).len(), 1);
    let (model, from) = one_flow(topology(1, 1, 1, 1), None, Some(0), 0);
    assert!(plan(&model, &from).is_empty());
}

/// `count` queues with a flow and a thread each, all of the same rate, on random CPUs of a host.
fn many_flows(places: Vec<CpuLocation>, count: usize, seed: u64) -> (Model, Assignment) {
    let mut random = longma_random::SplitMix64::new(seed);
    let cpus = places.len() as u64;
    let all: CpuSet = places.iter().map(|place| place.cpu).collect();
    let mut cpu = || (random.next_u64() % cpus) as u32;
    let assignment = Assignment {
        queues: (0..count).map(|_| Some(cpu())).collect(),
        threads: (0..count).map(|_| CpuSet::one(cpu())).collect(),
    };
    let model = Model {
        queues: vec![Queue { node: Some(0), load: 0.05, open: Some(all.clone()) }; count],
        threads: vec![Thread { load: 0.1, open: Some(all) }; count],
        links: (0..count).map(|of| Link { queue: of, thread: of, weight: 1.0 / count as f64 }).collect(),
        distances: BTreeMap::new(),
        other: BTreeMap::new(),
        places,
    };
    (model, assignment)
}

#[test]
fn many_small_gains_make_a_plan() {
    for seed in 0..4 {
        let (model, from) = many_flows(topology(2, 4, 8, 2), 64, seed);
        let moves = plan(&model, &from);
        let (before, now) = (model.measure(&from), model.measure(&after(&from, &moves)));
        assert!(now < 0.2 * before, "{} moves, cost {before} to {now}", moves.len());
    }
}

/// The queues of a plan on each CPU, after a NIC on node 0 with `count` queues was planned from random CPUs.
fn random_places(
    shape: (u32, u32, u32, u32),
    count: usize,
    seed: u64,
) -> (Vec<CpuLocation>, BTreeMap<u32, usize>) {
    let (model, from) = many_flows(topology(shape.0, shape.1, shape.2, shape.3), count, seed);
    let then = after(&from, &plan(&model, &from));
    let mut counts = BTreeMap::new();
    then.queues.iter().flatten().for_each(|cpu| *counts.entry(*cpu).or_default() += 1);
    (model.places, counts)
}

#[test]
fn queues_take_one_core_each_of_the_nics_node() {
    for seed in 0..8 {
        for (shape, count) in [((2, 1, 8, 1), 7), ((2, 1, 8, 2), 8), ((2, 4, 4, 2), 16), ((4, 1, 4, 1), 3)] {
            let (places, counts) = random_places(shape, count, seed);
            let cores: std::collections::BTreeSet<u32> =
                counts.keys().map(|cpu| places[*cpu as usize].core[0]).collect();
            assert!(counts.keys().all(|cpu| places[*cpu as usize].node == 0), "{shape:?} {counts:?}");
            assert_eq!((counts.len(), cores.len()), (count, count), "{shape:?} {counts:?}");
        }
    }
}

#[test]
fn more_queues_than_cores_take_siblings_and_then_share_cpus_evenly_but_leave_no_node() {
    for seed in 0..8 {
        // Six cores with two threads each: eight queues use all cores.
        let (places, counts) = random_places((2, 1, 6, 2), 8, seed);
        let cores: std::collections::BTreeSet<u32> =
            counts.keys().map(|cpu| places[*cpu as usize].core[0]).collect();
        assert_eq!((counts.len(), cores.len()), (8, 6), "{counts:?}");
        assert!(counts.keys().all(|cpu| places[*cpu as usize].node == 0), "{counts:?}");
        // Twenty queues on eight CPUs.
        let (places, counts) = random_places((2, 1, 4, 2), 20, seed);
        assert!(counts.keys().all(|cpu| places[*cpu as usize].node == 0), "{counts:?}");
        assert!(counts.len() == 8 && counts.values().all(|count| *count <= 3), "{counts:?}");
    }
}

/// Packets of flows that are not followed, such as UDP's, load a queue. It has no reason to leave the NIC's node.
#[test]
fn a_loaded_queue_without_known_flows_stays_on_its_node() {
    let places = topology(2, 1, 4, 2);
    let near: CpuSet = places.iter().filter(|place| place.node == 1).map(|place| place.cpu).collect();
    for load in [0.3, 0.6, 0.9] {
        let (mut model, mut from) = one_flow(places.clone(), Some(1), Some(12), 13);
        model.queues.push(Queue { node: Some(1), load, open: model.queues[0].open.clone() });
        from.queues.push(Some(4));
        model.other = near.iter().map(|cpu| (cpu, if cpu == 4 { 0.8 } else { 0.5 })).collect();
        let is_near = |model: &Model| {
            after(&from, &plan(model, &from)).queues.iter().flatten().all(|cpu| near.contains(*cpu))
        };
        // The cost alone does not keep the queue without a flow near its NIC.
        assert!(!is_near(&model), "{load}");
        model.keep_unlinked_queues_near();
        assert!(is_near(&model), "{load}");
    }
}

#[test]
fn idle_queues_stay_and_do_not_count_as_neighbours() {
    let (mut model, mut from) = one_flow(topology(1, 1, 4, 1), Some(0), Some(1), 2);
    model.queues.resize(8, Queue { node: Some(0), load: 0.0, open: Some("0-3".parse().unwrap()) });
    from.queues.resize(8, Some(1));
    assert!(plan(&model, &from).is_empty());
}
