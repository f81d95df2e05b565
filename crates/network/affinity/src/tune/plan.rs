//! Plans changes to the placement of queues and threads. `damping` decides when to make them.
//!
//! Three searches make proposals: a steepest descent from the present placement, on small hosts; passes that move one
//! object at a time; and a placement from scratch. A plan is worth its changes if its total gain reaches [`MARGIN`]. A
//! lower gain suffices if it reaches [`MARGIN`] times the fraction of the bytes whose queue or thread moves; a small
//! reduction of load does not count towards this gain. A single change may gain less.

mod choices;
mod descent;
mod passes;

use super::layout::Layout;
use super::model::{Assignment, Model, costs};
use super::placement::{Change, Placement, Scale};
use choices::{CpuSearch, least_gain};
use longma_cpu_set::CpuSet;
use std::rc::Rc;

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
    /// Total cost before the plan.
    pub before: f64,
    /// Total cost after all changes of the plan.
    pub after: f64,
}

/// Minimum gain of a plan, and of a step for each of its changes: a class better for a twentieth of all bytes.
pub const MARGIN: f64 = 0.05;
/// A placement from scratch replaces the one reached step by step only if its cost is also lower by this fraction.
const FRESH_FRACTION: f64 = 0.2;
/// Other load above which a CPU is left out of a thread's CPUs if there are better ones.
const CROWDED: f64 = 0.5;
/// Maximum number of plans that are joined before the search ends.
const MAX_ROUNDS: usize = 8;

/// Returns the changes that lead from `from` to a better placement; empty if no placement is worth its changes.
pub fn plan(model: &Model, from: &Assignment) -> Vec<Move> {
    let layout = Layout::of(model);
    let start = Placement::of(&layout, from);
    let mut search = CpuSearch::new(&layout);
    let before = start.cost();
    let mut now = (start.clone(), before);
    // On a large host, the search continues after the next observation.
    let rounds = if descent::is_small(&layout) { MAX_ROUNDS } else { 1 };
    for _ in 0..rounds {
        let Some(next) = improved(&now, &mut search) else { break };
        now = next;
    }
    let (now, after) = now;
    let moved = changes(&start, &now).into_iter();
    let to = |change: Change| match change {
        Change::Queue(queue, cpu) => Some((Moved::Queue(queue), CpuSet::one(layout.cpus[cpu?]))),
        Change::Thread(thread, cpus) => Some((Moved::Thread(thread), cpus.set.clone())),
    };
    moved.filter_map(to).map(|(what, to)| Move { what, to, before, after }).collect()
}

/// The placement after some changes.
pub fn after(from: &Assignment, moves: &[Move]) -> Assignment {
    let mut assignment = from.clone();
    for change in moves {
        match change.what {
            Moved::Queue(index) => assignment.queues[index] = change.to.iter().next(),
            Moved::Thread(index) => assignment.threads[index] = change.to.clone(),
        }
    }
    assignment
}

/// The changes that lead from one placement to another.
fn changes(from: &Placement<'_>, to: &Placement<'_>) -> Vec<Change> {
    let queues = (0..to.queues.len()).filter(|queue| from.queues[*queue] != to.queues[*queue]);
    let threads = (0..to.threads.len()).filter(|thread| differs(from, to, *thread));
    let queues = queues.map(|queue| Change::Queue(queue, to.queues[queue]));
    queues.chain(threads.map(|thread| Change::Thread(thread, to.threads[thread].clone()))).collect()
}

/// Returns whether a thread has other CPUs in another placement.
fn differs(one: &Placement<'_>, other: &Placement<'_>, thread: usize) -> bool {
    let (one, other) = (&one.threads[thread], &other.threads[thread]);
    !Rc::ptr_eq(one, other) && one.set != other.set
}

/// A placement and its cost.
type PlacementCost<'a> = (Placement<'a>, f64);

/// The best placement that is proposed, if it is worth its changes.
fn improved<'a>(now: &PlacementCost<'a>, search: &mut CpuSearch<'_>) -> Option<PlacementCost<'a>> {
    let (near, limit) = nearby(&now.0, search);
    let near = (near.cost(), near);
    // A placement from scratch that cannot be good enough is not searched.
    let needed = (near.0 - MARGIN).min((1.0 - FRESH_FRACTION) * near.0);
    let fresh = (needed >= 0.0).then(|| {
        let mut fresh = passes::afresh(&now.0, search);
        passes::settle(&mut fresh, search);
        (fresh.cost(), fresh)
    });
    let (cost, mut best) = fresh.filter(|(cost, _)| *cost <= needed).unwrap_or(near);
    let cost = prune(&now.0, &mut best, cost, limit);
    is_worth(now, (&best, cost)).then_some((best, cost))
}

/// The best placement that is reached from `now` step by step, and the cost that [`prune`] must not exceed.
fn nearby<'a>(now: &Placement<'a>, search: &mut CpuSearch<'_>) -> (Placement<'a>, f64) {
    let mut near = now.clone();
    if !descent::is_small(now.layout) {
        passes::settle(&mut near, search);
        return (near, f64::INFINITY);
    }
    let mut coarse = now.clone();
    descent::descend(&mut near);
    coarse.scale = Scale::COARSE;
    descent::descend(&mut coarse);
    coarse.scale = Scale::FULL;
    let limit = near.cost().min(coarse.cost());
    passes::settle(&mut coarse, search);
    passes::settle(&mut near, search);
    (if coarse.cost() < near.cost() - 1e-9 { coarse } else { near }, limit)
}

/// Undoes changes that gain too little by themselves while the cost stays within `limit`. Returns the cost.
fn prune(from: &Placement<'_>, to: &mut Placement<'_>, mut cost: f64, limit: f64) -> f64 {
    for change in changes(to, from) {
        let weight = match &change {
            Change::Queue(queue, _) => to.layout.queue_weight[*queue],
            Change::Thread(thread, _) => to.layout.thread_weight[*thread],
        };
        let more = to.tried(&change);
        if more <= 1e-9 || more < least_gain(weight) && cost + more <= limit {
            to.make(&change);
            cost += more;
        }
    }
    cost
}

/// Returns whether the gain of all changes together is worth making them.
fn is_worth((from, before): &PlacementCost<'_>, (to, after): (&Placement<'_>, f64)) -> bool {
    let gain = before - after;
    if gain >= MARGIN {
        return true;
    }
    // Loads vary between observations, so a small reduction of load is not worth a move.
    let relief = costs::OVERLOAD * (from.overload() - to.overload());
    let certain = if (0.0..MARGIN).contains(&relief) { gain - relief } else { gain };
    certain > 1e-9 && certain >= MARGIN * weight_of(from, to)
}

/// Fraction of the bytes whose queue or thread differs.
fn weight_of(from: &Placement<'_>, to: &Placement<'_>) -> f64 {
    let is_moved: Vec<bool> = (0..to.threads.len()).map(|thread| differs(from, to, thread)).collect();
    let of_queue = |queue: usize| -> f64 {
        let moves = from.queues[queue] != to.queues[queue];
        let links = to.layout.of_queue.of_one(queue).iter();
        links.filter(|(thread, _)| moves || is_moved[*thread]).map(|(_, weight)| weight).sum()
    };
    (0..to.queues.len()).map(of_queue).sum()
}

#[cfg(test)]
mod tests;
