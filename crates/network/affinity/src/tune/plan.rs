//! From where queues and threads are to where they should be: the fewest changes that make a placing clearly better.
//! Not when they are made: that is `steady`. Nothing here looks at a host.

use super::model::{Model, Placing};
use crate::cpus::CpuSet;

/// What is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moved {
    /// A queue, by index.
    Queue(usize),
    /// A thread, by index.
    Thread(usize),
}

/// One change of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// What is moved.
    pub what: Moved,
    /// The CPUs that it moves to: one for a queue.
    pub to: CpuSet,
    /// What all costs before the step that this change is part of.
    pub before: f64,
    /// What all costs after it.
    pub after: f64,
}

/// A change is worth making if it brings a twentieth of the bytes a class forward.
pub const MARGIN: f64 = 0.05;
/// Steps of one plan; the rest follows at the next look.
const MOST_STEPS: usize = 64;
/// CPUs of a group that a queue may be sent to, those with least load.
const BEST_OF_GROUP: usize = 2;
/// A CPU with more other load is left out of a thread's CPUs where there are better ones.
const CROWDED: f64 = 0.5;

/// A step: changes that are worth making together.
type Step = Vec<(Moved, CpuSet)>;

/// The changes that lead from `from` to a better placing: none if there is none that gains [`MARGIN`] a change.
pub fn plan(model: &Model, from: &Placing) -> Vec<Move> {
    let (mut placing, mut moves) = (from.clone(), Vec::<Move>::new());
    let mut cost = model.measure(&placing);
    for _ in 0..MOST_STEPS {
        let Some((step, after)) = best_step(model, &placing, cost) else { break };
        for (what, to) in step {
            make(&mut placing, what, &to);
            moves.push(Move { what, to, before: cost, after });
        }
        cost = after;
    }
    // Of several changes of one thing only the last is made.
    let is_last = |index: usize| moves[index + 1..].iter().all(|later| later.what != moves[index].what);
    let last = (0..moves.len()).filter(|index| is_last(*index)).map(|index| moves[index].clone());
    last.filter(|change| current(from, change.what) != Some(change.to.clone())).collect()
}

/// The placing after some changes.
pub fn after(from: &Placing, moves: &[Move]) -> Placing {
    let mut placing = from.clone();
    moves.iter().for_each(|change| make(&mut placing, change.what, &change.to));
    placing
}

fn make(placing: &mut Placing, what: Moved, to: &CpuSet) {
    match what {
        Moved::Queue(index) => placing.queues[index] = to.iter().next(),
        Moved::Thread(index) => placing.threads[index] = to.clone(),
    }
}

fn current(placing: &Placing, what: Moved) -> Option<CpuSet> {
    match what {
        Moved::Queue(index) => placing.queues[index].map(CpuSet::one),
        Moved::Thread(index) => Some(placing.threads[index].clone()),
    }
}

/// The step that gains most for its number of changes, with what all costs after it.
fn best_step(model: &Model, placing: &Placing, cost: f64) -> Option<(Step, f64)> {
    let mut best: Option<(Step, f64, f64)> = None;
    for step in steps(model, placing) {
        let mut then = placing.clone();
        step.iter().for_each(|(what, to)| make(&mut then, *what, to));
        let after = model.measure(&then);
        let gain = (cost - after) / step.len() as f64;
        // The first of equals: the order of the steps does not depend on chance.
        if gain >= MARGIN && best.as_ref().is_none_or(|(_, _, most)| gain > most + 1e-9) {
            best = Some((step, after, gain));
        }
    }
    best.map(|(step, after, _)| (step, after))
}

/// Every step that is looked at: a thread to a group, a queue to a CPU, and a queue to a CPU with all its threads into that group.
fn steps(model: &Model, placing: &Placing) -> Vec<Step> {
    let groups = model.groups();
    let loads = model.loads(placing);
    let mut steps: Vec<Step> = Vec::new();
    for (index, thread) in model.threads.iter().enumerate() {
        let Some(open) = &thread.open else { continue };
        let feeding = feeding(model, placing, index);
        let sets = groups.iter().flat_map(|group| choices(model, group, open, &feeding));
        steps.extend(sets.map(|set| vec![(Moved::Thread(index), set)]));
    }
    for (index, queue) in model.queues.iter().enumerate() {
        let Some(open) = &queue.open else { continue };
        let movable: Vec<usize> =
            threads_of(model, index).filter(|of| model.threads[*of].open.is_some()).collect();
        for group in &groups {
            let mut cpus: Vec<u32> = group.iter().copied().filter(|cpu| open.contains(*cpu)).collect();
            // CPU 0 last among equals: most other work lands there.
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
                    // One that lies well already is not touched.
                    if let Some(set) =
                        set.filter(|_| !lies_well(model, &placing.threads[*thread], group, cpu))
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

fn threads_of(model: &Model, queue: usize) -> impl Iterator<Item = usize> + '_ {
    let mut threads: Vec<usize> =
        model.links.iter().filter(|link| link.queue == queue).map(|link| link.thread).collect();
    threads.sort_unstable();
    threads.dedup();
    threads.into_iter()
}

/// The CPUs of the queues that a thread has flows of.
fn feeding(model: &Model, placing: &Placing, thread: usize) -> Vec<u32> {
    let of_thread = model.links.iter().filter(|link| link.thread == thread);
    of_thread.filter_map(|link| placing.queues[link.queue]).collect()
}

/// Whether a thread is inside of a group and on none of the flow's core.
fn lies_well(model: &Model, cpus: &CpuSet, group: &[u32], flow: u32) -> bool {
    let core = model.place(flow).map(|place| place.core.clone()).unwrap_or_default();
    cpus.iter().all(|cpu| group.contains(&cpu) && !core.contains(&cpu) && cpu != flow)
}

/// The sets of a group's CPUs that a thread may be bound to: all of them but the cores of its flows, as far as that leaves any, and of these
/// those that have room, and the one with most room.
fn choices(model: &Model, group: &[u32], open: &CpuSet, flows: &[u32]) -> Vec<CpuSet> {
    let cores: Vec<u32> = flows
        .iter()
        .filter_map(|cpu| model.place(*cpu))
        .flat_map(|place| place.core.iter().copied())
        .collect();
    let of_group: Vec<u32> = group.iter().copied().filter(|cpu| open.contains(*cpu)).collect();
    let without =
        |cpus: &[u32]| -> Vec<u32> { of_group.iter().copied().filter(|cpu| !cpus.contains(cpu)).collect() };
    let whole = [without(&cores), without(flows), of_group.clone()].into_iter().find(|set| !set.is_empty());
    let Some(whole) = whole else { return Vec::new() };
    let load = |cpu: &u32| model.other.get(cpu).copied().unwrap_or(0.0);
    let roomy: Vec<u32> = whole.iter().copied().filter(|cpu| load(cpu) < CROWDED).collect();
    let mut sets = vec![whole.clone()];
    if !roomy.is_empty() && roomy != whole {
        sets.push(roomy);
    }
    sets.into_iter().map(CpuSet::from_iter).collect()
}

#[cfg(test)]
mod tests;
