//! Passes over all queues and threads. A pass moves each object to its best CPUs while the others stay in place. The time of
//! a pass grows with the number of links.

use super::choices::{CpuSearch, least_gain};
use crate::tune::placement::{Change, Placement};

/// Maximum number of passes. Most placements settle after two or three.
const MAX_PASSES: usize = 8;

/// Makes passes over a placement until nothing moves. Passes over objects linked to a moved object alternate with
/// passes over all objects, because a move may also free capacity for other objects.
pub fn settle(placement: &mut Placement<'_>, search: &mut CpuSearch<'_>) {
    let layout = placement.layout;
    let mut is_queue_due = vec![true; layout.of_queue.len()];
    let mut is_thread_due = vec![true; layout.of_thread.len()];
    let mut is_full = true;
    for _ in 0..MAX_PASSES {
        placement.lower_peaks();
        let mut has_moved = false;
        for queue in &layout.movable_queues {
            if std::mem::take(&mut is_queue_due[*queue]) && queue_moves(placement, search, *queue) {
                layout.of_queue.of_one(*queue).iter().for_each(|(thread, _)| is_thread_due[*thread] = true);
                has_moved = true;
            }
        }
        for thread in &layout.movable_threads {
            if std::mem::take(&mut is_thread_due[*thread]) && thread_moves(placement, search, *thread) {
                layout.of_thread.of_one(*thread).iter().for_each(|(queue, _)| is_queue_due[*queue] = true);
                has_moved = true;
            }
        }
        if !has_moved && is_full {
            break;
        }
        is_full = !has_moved;
        if is_full {
            is_queue_due.fill(true);
            is_thread_due.fill(true);
        }
    }
}

fn queue_moves(placement: &mut Placement<'_>, search: &mut CpuSearch<'_>, queue: usize) -> bool {
    let was = placement.take_queue(queue);
    let least = least_gain(placement.layout.queue_weight[queue]);
    let better = search.better_for_queue(placement, queue, was, least);
    placement.put_queue(queue, better.or(was));
    let is_bad = |cpu| placement.layout.is_far(queue, cpu) || placement.crowd(cpu).0 > 1;
    better.is_some() || was.is_some_and(is_bad) && moves_with_threads(placement, search, queue)
}

/// Moves a queue that is far from its NIC or shares its CPU, together with the threads that mostly use it, if that
/// lowers the cost. Moved alone, the queue would stay close to its threads, and the threads close to the queue.
fn moves_with_threads(placement: &mut Placement<'_>, search: &mut CpuSearch<'_>, queue: usize) -> bool {
    let layout = placement.layout;
    let mostly_uses = |(thread, weight): &&(usize, f64)| {
        layout.open_of_thread(*thread).is_some() && 2.0 * weight >= layout.thread_weight[*thread]
    };
    let threads: Vec<usize> =
        layout.of_queue.of_one(queue).iter().filter(mostly_uses).map(|(thread, _)| *thread).collect();
    let mut difference = 0.0;
    let mut were: Vec<Change> = Vec::new();
    for thread in &threads {
        let cpus = placement.take_thread(*thread);
        difference -= placement.thread_cost(*thread, &cpus);
        were.push(Change::Thread(*thread, cpus));
    }
    let was = placement.take_queue(queue);
    difference -= placement.queue_cost(queue, was);
    were.push(Change::Queue(queue, was));
    let best = search.best_for_queue(placement, queue).or(was);
    difference += placement.queue_cost(queue, best);
    placement.put_queue(queue, best);
    for thread in &threads {
        let group = best.map(|cpu| layout.group[cpu]);
        let Some(cpus) = search.best_for_thread(placement, *thread, group, f64::INFINITY) else { continue };
        difference += placement.thread_cost(*thread, &cpus);
        placement.put_thread(*thread, cpus);
    }
    if difference <= -least_gain(layout.queue_weight[queue]) {
        return true;
    }
    were.iter().rev().for_each(|change| drop(placement.make(change)));
    false
}

fn thread_moves(placement: &mut Placement<'_>, search: &mut CpuSearch<'_>, thread: usize) -> bool {
    let least = least_gain(placement.layout.thread_weight[thread]);
    let was = placement.take_thread(thread);
    let limit = placement.thread_cost(thread, &was) - least;
    let better = search.best_for_thread(placement, thread, None, limit);
    let moves = better.is_some();
    placement.put_thread(thread, better.unwrap_or(was));
    moves
}

/// A placement from scratch: places the busiest queue on the best free CPU, then its threads, then the next queue. Places
/// only movable objects with flows; the others stay as in `from`.
pub fn afresh<'a>(from: &Placement<'a>, search: &mut CpuSearch<'_>) -> Placement<'a> {
    let layout = from.layout;
    let mut placement = from.clone();
    let queues = || layout.movable_queues.iter().filter(|queue| layout.queue_weight[**queue] > 0.0);
    let mut is_placed: Vec<bool> = from.queues.iter().map(Option::is_some).collect();
    queues().for_each(|queue| is_placed[*queue] = true);
    let is_open = |thread: usize| layout.open_of_thread(thread).is_some();
    let mut is_waiting: Vec<bool> = (0..layout.of_thread.len())
        .map(|thread| {
            is_open(thread) && layout.of_thread.of_one(thread).iter().any(|(queue, _)| is_placed[*queue])
        })
        .collect();
    for queue in queues() {
        placement.take_queue(*queue);
    }
    for thread in (0..is_waiting.len()).filter(|thread| is_waiting[*thread]) {
        placement.take_thread(thread);
    }
    placement.lower_peaks();
    let place = |placement: &mut Placement<'_>, search: &mut CpuSearch<'_>, thread: usize, group| {
        let best = search.best_for_thread(placement, thread, group, f64::INFINITY);
        placement.put_thread(thread, best.unwrap_or_else(|| from.threads[thread].clone()));
    };
    for queue in queues() {
        let Some(cpu) = search.best_for_queue(&placement, *queue) else { continue };
        placement.put_queue(*queue, Some(cpu));
        for (thread, _) in layout.of_queue.of_one(*queue) {
            if std::mem::take(&mut is_waiting[*thread]) {
                place(&mut placement, search, *thread, Some(layout.group[cpu]));
            }
        }
    }
    for thread in (0..is_waiting.len()).filter(|thread| is_waiting[*thread]) {
        place(&mut placement, search, thread, None);
    }
    placement
}
