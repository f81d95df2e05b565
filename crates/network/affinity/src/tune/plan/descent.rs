//! Steepest descent: makes the step with the highest gain per change until none gains [`MARGIN`] per change. A step may
//! move a queue together with all its threads. Only small hosts use it: its time grows with the square of their size.

use super::{CROWDED, MARGIN};
use crate::tune::layout::{Cpu, Layout};
use crate::tune::placement::{Change, Cpus, Placement};
use std::rc::Rc;

/// Number of candidate steps that a descent may evaluate.
const MAX_EVALUATIONS: usize = 10_000;
/// The largest product of the number of objects and the number of candidate steps with one change for which a host is
/// considered small.
const SMALL: usize = 4_000;
/// Number of least loaded CPUs of a group to consider for a queue.
const BEST_OF_GROUP: usize = 2;

/// Changes evaluated together.
type Changes = Vec<Change>;

/// Descends from a placement, by the costs of its scale.
pub fn descend(placement: &mut Placement<'_>) {
    let mut left = MAX_EVALUATIONS;
    loop {
        let steps = steps(placement);
        let Some(rest) = left.checked_sub(steps.len()) else { return };
        left = rest;
        let mut best: Option<(&Changes, f64)> = None;
        for step in &steps {
            let gain = -evaluated(placement, step) / step.len() as f64;
            // Prefer the first of equals, so that the result is deterministic.
            if gain >= MARGIN && best.is_none_or(|(_, best_gain)| gain > best_gain + 1e-9) {
                best = Some((step, gain));
            }
        }
        let Some((step, _)) = best else { return };
        for change in step {
            placement.make(change);
        }
    }
}

/// Returns whether a host has few enough candidate steps for a descent.
pub fn is_small(layout: &Layout<'_>) -> bool {
    let (groups, queues, threads) =
        (layout.socket_of_group.len(), layout.of_queue.len(), layout.of_thread.len());
    (threads + 2 * queues) * groups * (threads + queues) <= SMALL
}

/// The change in cost by a step, which is undone.
fn evaluated(placement: &mut Placement<'_>, step: &Changes) -> f64 {
    if let [change] = &step[..] {
        return placement.tried(change);
    }
    let mut sum = 0.0;
    let mut back = Vec::with_capacity(step.len());
    for change in step {
        let (difference, undo) = placement.make(change);
        sum += difference;
        back.push(undo);
    }
    for undo in back.iter().rev() {
        placement.make(undo);
    }
    sum
}

/// All steps to consider: moving a thread to a group, moving a queue to a CPU, and moving a queue to a CPU together
/// with all its threads to the group of that CPU.
fn steps(placement: &Placement<'_>) -> Vec<Changes> {
    let layout = placement.layout;
    let groups = 0..layout.socket_of_group.len();
    let mut steps: Vec<Changes> = Vec::new();
    for thread in 0..layout.of_thread.len() {
        let links = layout.of_thread.of_one(thread).iter();
        let flows: Vec<Cpu> = links.filter_map(|(queue, _)| placement.queues[*queue]).collect();
        let sets = groups.clone().flat_map(|group| choices(layout, thread, group, &flows));
        steps.extend(sets.map(|set| vec![Change::Thread(thread, set)]));
    }
    for queue in 0..layout.of_queue.len() {
        let Some(open) = layout.open_of_queue(queue) else { continue };
        let mut movable: Vec<usize> =
            layout.of_queue.of_one(queue).iter().map(|(thread, _)| *thread).collect();
        movable.retain(|thread| layout.open_of_thread(*thread).is_some());
        movable.sort_unstable();
        movable.dedup();
        for group in groups.clone() {
            let mut cpus = open.of_group[group].clone();
            // Prefer other CPUs to CPU 0, on which most other work runs.
            cpus.sort_by_key(|cpu| (placement.load(*cpu), layout.cpus[*cpu] == 0));
            for cpu in cpus.into_iter().take(BEST_OF_GROUP) {
                steps.push(vec![Change::Queue(queue, Some(cpu))]);
                let step = together(placement, queue, (group, cpu), &movable);
                steps.extend((step.len() > 1).then_some(step));
            }
        }
    }
    steps
}

/// The step that moves a queue to a CPU and its threads to the CPU's group. Well-placed threads do not move.
fn together(
    placement: &Placement<'_>,
    queue: usize,
    (group, cpu): (usize, Cpu),
    movable: &[usize],
) -> Changes {
    let layout = placement.layout;
    let is_well = |of: &Cpu| layout.group[*of] == group && layout.core[*of] != layout.core[cpu];
    let mut step = vec![Change::Queue(queue, Some(cpu))];
    for thread in movable {
        if !placement.threads[*thread].list.iter().all(is_well) {
            let set = choices(layout, *thread, group, &[cpu]).next_back();
            step.extend(set.map(|set| Change::Thread(*thread, set)));
        }
    }
    step
}

/// Candidate CPU sets of a group for a thread: all CPUs except the cores of its flows, if any are left; and those of
/// them with a low load.
fn choices(
    layout: &Layout<'_>,
    thread: usize,
    group: usize,
    flows: &[Cpu],
) -> impl DoubleEndedIterator<Item = Rc<Cpus>> {
    let of_group = layout.open_of_thread(thread).map_or(&[][..], |open| &open.of_group[group]);
    let without = |is_out: &dyn Fn(Cpu, Cpu) -> bool| -> Option<Vec<Cpu>> {
        let is_in = |cpu: &Cpu| !flows.iter().any(|flow| is_out(*cpu, *flow));
        Some(of_group.iter().copied().filter(is_in).collect()).filter(|set: &Vec<Cpu>| !set.is_empty())
    };
    let apart = without(&|cpu, flow| layout.core[cpu] == layout.core[flow]);
    let set = apart.or_else(|| without(&|cpu, flow| cpu == flow)).unwrap_or_else(|| of_group.into());
    let roomy: Vec<Cpu> = set.iter().copied().filter(|cpu| layout.other[*cpu] < CROWDED).collect();
    let is_narrower = !roomy.is_empty() && roomy.len() < set.len();
    let all = [(!set.is_empty()).then_some(set), is_narrower.then_some(roomy)];
    all.into_iter().flatten().map(|set| Rc::new(Cpus::of(layout, set)))
}
