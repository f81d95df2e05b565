//! Plans changes to the placement of queues and threads: as few as possible, each with a significant gain. `steady`
//! decides when to make them.

use super::model::{Model, Placing};
use longma_cpu_set::CpuSet;

/// The object of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moved {
    /// A queue by its index.
    Queue(usize),
    /// A thread by its index.
    Thread(usize),
}

/// A change of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// The object to move.
    pub what: Moved,
    /// The new CPUs: exactly one for a queue.
    pub to: CpuSet,
    /// Total cost before the step that contains this change.
    pub before: f64,
    /// Total cost after that step.
    pub after: f64,
}

/// Minimum gain per change: one class for a twentieth of the bytes.
pub const MARGIN: f64 = 0.05;
/// Maximum number of steps in a plan. The next observation continues.
const MAX_STEPS: usize = 64;
/// Number of least loaded CPUs of a group to consider for a queue.
const BEST_OF_GROUP: usize = 2;
/// Other load above which a CPU is left out of a thread's CPUs if there are better ones.
const CROWDED: f64 = 0.5;

/// A step: changes evaluated together.
type Step = Vec<(Moved, CpuSet)>;

/// Returns the changes that lead from `from` to a better placement; empty if no step gains [`MARGIN`] per change.
pub fn plan(model: &Model, from: &Placing) -> Vec<Move> {
    let (mut placing, mut moves) = (from.clone(), Vec::<Move>::new());
    let mut cost = model.measure(&placing);
    for _ in 0..MAX_STEPS {
        let Some((step, after)) = best_step(model, &placing, cost) else { break };
        for (what, to) in step {
            make(&mut placing, what, &to);
            moves.push(Move { what, to, before: cost, after });
        }
        cost = after;
    }
    // If an object is changed several times, keep only the last change.
    let is_last = |index: usize| moves[index + 1..].iter().all(|later| later.what != moves[index].what);
    let last = (0..moves.len()).filter(|index| is_last(*index)).map(|index| moves[index].clone());
    last.filter(|change| current(from, change.what) != Some(change.to.clone())).collect()
}

/// The placement after some changes.
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

/// The step with the highest gain per change, and the total cost after it.
fn best_step(model: &Model, placing: &Placing, cost: f64) -> Option<(Step, f64)> {
    let mut best: Option<(Step, f64, f64)> = None;
    for step in steps(model, placing) {
        let mut then = placing.clone();
        step.iter().for_each(|(what, to)| make(&mut then, *what, to));
        let after = model.measure(&then);
        let gain = (cost - after) / step.len() as f64;
        // Prefer the first of equals, so that the result is deterministic.
        if gain >= MARGIN && best.as_ref().is_none_or(|(_, _, best_gain)| gain > best_gain + 1e-9) {
            best = Some((step, after, gain));
        }
    }
    best.map(|(step, after, _)| (step, after))
}

/// All steps to consider: a thread to a group, a queue to a CPU, and a queue to a CPU together with all its threads to
/// that group.
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
            // Prefer other CPUs to CPU 0, on which most other work runs.
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
                    // Leave well-placed threads alone.
                    if let Some(set) =
                        set.filter(|_| !is_well_placed(model, &placing.threads[*thread], group, cpu))
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

/// CPUs of the queues whose flows a thread uses.
fn feeding(model: &Model, placing: &Placing, thread: usize) -> Vec<u32> {
    let of_thread = model.links.iter().filter(|link| link.thread == thread);
    of_thread.filter_map(|link| placing.queues[link.queue]).collect()
}

/// Returns whether a thread is confined to a group and avoids the flow's core.
fn is_well_placed(model: &Model, cpus: &CpuSet, group: &[u32], flow: u32) -> bool {
    let core = model.place(flow).map(|place| place.core.clone()).unwrap_or_default();
    cpus.iter().all(|cpu| group.contains(&cpu) && !core.contains(&cpu) && cpu != flow)
}

/// Candidate CPU sets of a group for a thread: all CPUs except the cores of its flows, if any are left; those of them
/// with a low load; and the least loaded one.
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

#[cfg(test)]
mod tests;
