//! The planner of version 0.1: steepest descent, in which each change must gain [`MARGIN`] by itself. The planner must
//! never end with a higher cost. The cost is summed over all links and CPUs for every candidate, without the tables of
//! the planner, so the comparison also checks these tables.

use crate::pairs::{Class, Pair, classify};
use crate::tune::model::{Assignment, Model, costs};
use crate::tune::plan::{MARGIN, Moved};
use longma_cpu_set::CpuSet;
use std::collections::BTreeMap;

/// Cost of a placement.
pub type Cost = fn(&Model, &Assignment) -> f64;

const MAX_STEPS: usize = 64;
const BEST_OF_GROUP: usize = 2;
const CROWDED: f64 = 0.5;

type Step = Vec<(Moved, CpuSet)>;

/// The placement in which the descent ends.
pub fn descend(model: &Model, from: &Assignment, measure: Cost) -> Assignment {
    let mut assignment = from.clone();
    let mut cost = measure(model, &assignment);
    for _ in 0..MAX_STEPS {
        let mut best: Option<(Step, f64, f64)> = None;
        for step in steps(model, &assignment) {
            let mut then = assignment.clone();
            step.iter().for_each(|(what, to)| make(&mut then, *what, to));
            let after = measure(model, &then);
            let gain = (cost - after) / step.len() as f64;
            if gain >= MARGIN && best.as_ref().is_none_or(|(_, _, best_gain)| gain > best_gain + 1e-9) {
                best = Some((step, after, gain));
            }
        }
        let Some((step, after, _)) = best else { break };
        step.iter().for_each(|(what, to)| make(&mut assignment, *what, to));
        cost = after;
    }
    assignment
}

/// The cost of version 0.1: the classes of the links and the overload of CPUs.
pub fn first_cost(model: &Model, assignment: &Assignment) -> f64 {
    distance(model, assignment, 1.0) + 4.0 * overload(model, assignment)
}

/// The present cost.
pub fn present_cost(model: &Model, assignment: &Assignment) -> f64 {
    distance(model, assignment, costs::FAR)
        + crowding(model, assignment)
        + costs::OVERLOAD * overload(model, assignment)
}

fn distance(model: &Model, assignment: &Assignment, far_cost: f64) -> f64 {
    let rank = |flow: u32, application: u32| {
        let class = classify(&model.places, Pair { flow, application }).unwrap_or(Class::SameCpu);
        Class::ALL.iter().position(|of| *of == class).unwrap() as f64
    };
    let of_link = |link: &crate::tune::model::Link| {
        let Some(flow) = assignment.queues[link.queue] else { return costs::UNSTEERED * link.weight };
        let node = model.queues[link.queue].node;
        let place = model.place(flow).map(|place| place.node);
        let has_node = model.places.iter().any(|place| Some(place.node) == node);
        let far = if node.is_some() && place != node && has_node { far_cost } else { 0.0 };
        let cpus = &assignment.threads[link.thread];
        let ranks: f64 = cpus.iter().map(|cpu| rank(flow, cpu)).sum();
        link.weight * (far + ranks / cpus.len().max(1) as f64)
    };
    model.links.iter().map(of_link).sum()
}

/// The cost of sharing: of every queue of a CPU except its busiest, and of every CPU of a core except its busiest.
fn crowding(model: &Model, assignment: &Assignment) -> f64 {
    let weight = |queue: usize| -> f64 {
        model.links.iter().filter(|link| link.queue == queue).map(|link| link.weight).sum()
    };
    let all_but_most =
        |weights: &[f64]| weights.iter().sum::<f64>() - weights.iter().copied().fold(0.0, f64::max);
    let of_cpu = |cpu: u32| -> Vec<f64> {
        let queues = (0..model.queues.len()).filter(|queue| assignment.queues[*queue] == Some(cpu));
        queues.map(weight).collect()
    };
    let mut cost = 0.0;
    for place in &model.places {
        let (rest, sum) = (all_but_most(&of_cpu(place.cpu)), of_cpu(place.cpu).iter().sum::<f64>());
        if rest > 0.0 {
            cost += rest * (costs::STACKED + costs::UNEVEN * rest / sum);
        }
        if place.core.iter().min() == Some(&place.cpu) {
            let most: Vec<f64> =
                place.core.iter().map(|cpu| of_cpu(*cpu).into_iter().fold(0.0, f64::max)).collect();
            cost += costs::SIBLING * all_but_most(&most);
        }
    }
    cost
}

fn loads(model: &Model, assignment: &Assignment) -> BTreeMap<u32, f64> {
    let mut loads: BTreeMap<u32, f64> = model
        .places
        .iter()
        .map(|place| (place.cpu, model.other.get(&place.cpu).copied().unwrap_or(0.0)))
        .collect();
    for (queue, cpu) in model.queues.iter().zip(&assignment.queues) {
        if let Some(load) = cpu.and_then(|cpu| loads.get_mut(&cpu)) {
            *load += queue.load;
        }
    }
    for (thread, cpus) in model.threads.iter().zip(&assignment.threads) {
        for cpu in cpus.iter() {
            if let Some(load) = loads.get_mut(&cpu) {
                *load += thread.load / cpus.len() as f64;
            }
        }
    }
    loads
}

fn overload(model: &Model, assignment: &Assignment) -> f64 {
    loads(model, assignment).values().map(|load| (load - costs::FULL).max(0.0)).sum()
}

fn make(assignment: &mut Assignment, what: Moved, to: &CpuSet) {
    match what {
        Moved::Queue(index) => assignment.queues[index] = to.iter().next(),
        Moved::Thread(index) => assignment.threads[index] = to.clone(),
    }
}

/// Groups of CPUs that share a last-level cache, or a socket if no cache is known.
fn groups(model: &Model) -> Vec<Vec<u32>> {
    let mut groups: BTreeMap<(u32, Option<Vec<u32>>), Vec<u32>> = BTreeMap::new();
    for place in &model.places {
        groups.entry((place.socket, place.last_cache.clone())).or_default().push(place.cpu);
    }
    groups.into_values().collect()
}

/// All steps to consider: a thread to a group, a queue to a CPU, and a queue to a CPU together with all its threads to
/// that group.
fn steps(model: &Model, assignment: &Assignment) -> Vec<Step> {
    let groups = groups(model);
    let loads = loads(model, assignment);
    let mut steps: Vec<Step> = Vec::new();
    for (index, thread) in model.threads.iter().enumerate() {
        let Some(open) = &thread.open else { continue };
        let feeding = feeding(model, assignment, index);
        let sets = groups.iter().flat_map(|group| choices(model, group, open, &feeding));
        steps.extend(sets.map(|set| vec![(Moved::Thread(index), set)]));
    }
    for (index, queue) in model.queues.iter().enumerate() {
        let Some(open) = &queue.open else { continue };
        let movable: Vec<usize> =
            threads_of(model, index).into_iter().filter(|of| model.threads[*of].open.is_some()).collect();
        for group in &groups {
            let mut cpus: Vec<u32> = group.iter().copied().filter(|cpu| open.contains(*cpu)).collect();
            cpus.sort_by(|one, other| {
                loads[one].total_cmp(&loads[other]).then((*one == 0).cmp(&(*other == 0)))
            });
            for cpu in cpus.into_iter().take(BEST_OF_GROUP) {
                let alone = (Moved::Queue(index), CpuSet::one(cpu));
                steps.push(vec![alone.clone()]);
                let mut step = vec![alone];
                for thread in &movable {
                    let open = model.threads[*thread].open.as_ref();
                    let set =
                        open.and_then(|open| choices(model, group, open, &[cpu]).into_iter().next_back());
                    if let Some(set) =
                        set.filter(|_| !is_well_placed(model, &assignment.threads[*thread], group, cpu))
                    {
                        step.push((Moved::Thread(*thread), set));
                    }
                }
                if step.len() > 1 {
                    steps.push(step);
                }
            }
        }
    }
    steps
}

fn threads_of(model: &Model, queue: usize) -> Vec<usize> {
    let mut threads: Vec<usize> =
        model.links.iter().filter(|link| link.queue == queue).map(|link| link.thread).collect();
    threads.sort_unstable();
    threads.dedup();
    threads
}

/// CPUs of the queues whose flows a thread uses.
fn feeding(model: &Model, assignment: &Assignment, thread: usize) -> Vec<u32> {
    let of_thread = model.links.iter().filter(|link| link.thread == thread);
    of_thread.filter_map(|link| assignment.queues[link.queue]).collect()
}

fn is_well_placed(model: &Model, cpus: &CpuSet, group: &[u32], flow: u32) -> bool {
    let core = model.place(flow).map(|place| place.core.clone()).unwrap_or_default();
    cpus.iter().all(|cpu| group.contains(&cpu) && !core.contains(&cpu) && cpu != flow)
}

fn choices(model: &Model, group: &[u32], open: &CpuSet, flows: &[u32]) -> Vec<CpuSet> {
    let cores: Vec<u32> = flows
        .iter()
        .filter_map(|cpu| model.place(*cpu))
        .flat_map(|place| place.core.iter().copied())
        .collect();
    let of_group: Vec<u32> = group.iter().copied().filter(|cpu| open.contains(*cpu)).collect();
    let without =
        |cpus: &[u32]| -> Vec<u32> { of_group.iter().copied().filter(|cpu| !cpus.contains(cpu)).collect() };
    let allowed = [without(&cores), without(flows), of_group.clone()].into_iter().find(|set| !set.is_empty());
    let Some(allowed) = allowed else { return Vec::new() };
    let load = |cpu: &u32| model.other.get(cpu).copied().unwrap_or(0.0);
    let roomy: Vec<u32> = allowed.iter().copied().filter(|cpu| load(cpu) < CROWDED).collect();
    let mut sets = vec![allowed.clone()];
    if !roomy.is_empty() && roomy != allowed {
        sets.push(roomy);
    }
    sets.into_iter().map(CpuSet::from_iter).collect()
}
