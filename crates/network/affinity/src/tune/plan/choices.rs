//! The candidate CPUs of one queue or thread, and the best of them while all other objects stay in place.

use super::CROWDED;
use crate::tune::layout::{Cpu, Layout, RANKS};
use crate::tune::model::costs;
use crate::tune::placement::{Cpus, Placement};
use std::rc::Rc;

/// Costs closer than this are equal.
const EQUAL: f64 = 1e-9;

/// Finds the best CPUs of one object at a time. Keeps its tables between calls.
pub struct CpuSearch<'a> {
    layout: &'a Layout<'a>,
    /// Bytes of a queue's threads by CPU, each thread's divided among its CPUs.
    near: Vec<f64>,
    near_core: Vec<f64>,
    near_group: Vec<f64>,
    near_socket: Vec<f64>,
    /// Bytes of a thread's queues by group and by socket.
    feeds_group: Vec<f64>,
    feeds_socket: Vec<f64>,
    /// Cores of a thread's queues, and their open CPUs by group.
    is_fed: Vec<bool>,
    fed: Vec<usize>,
    fed_cpus: Vec<usize>,
    /// The CPU sets of each type of thread: the CPUs of a group, and for each core the CPUs of its group without those
    /// of the core.
    of_group: Vec<Option<Choice>>,
    beside_core: Vec<Option<Choice>>,
}

/// A CPU set, and its subset of CPUs with a low load if that subset is smaller.
#[derive(Clone)]
struct Choice {
    all: Rc<Cpus>,
    roomy: Option<Rc<Cpus>>,
}

/// Decides between equal costs; less is better.
type Preference = (u32, usize, usize, bool, i64);

impl<'a> CpuSearch<'a> {
    pub fn new(layout: &'a Layout<'a>) -> Self {
        let (groups, sockets) = (layout.socket_of_group.len(), layout.sockets);
        Self {
            layout,
            near: vec![0.0; layout.cpus.len()],
            near_core: vec![0.0; layout.cores.len()],
            near_group: vec![0.0; groups],
            near_socket: vec![0.0; sockets],
            feeds_group: vec![0.0; groups],
            feeds_socket: vec![0.0; sockets],
            is_fed: vec![false; layout.cores.len()],
            fed: Vec::new(),
            fed_cpus: vec![0; groups],
            of_group: vec![None; layout.kinds() * groups],
            beside_core: vec![None; layout.kinds() * layout.cores.len()],
        }
    }

    /// The CPU with the lowest cost for a queue that was removed from `was`, if the cost there is lower by at least
    /// `least`.
    pub fn better_for_queue(
        &mut self,
        placement: &Placement<'_>,
        queue: usize,
        was: Option<Cpu>,
        least: f64,
    ) -> Option<Cpu> {
        self.gather(placement, queue);
        let now = match was {
            None => costs::UNSTEERED * self.layout.queue_weight[queue],
            Some(cpu) => self.between(placement, queue, cpu) + self.within(placement, queue, cpu),
        };
        self.cheapest(placement, queue, now - least)
    }

    /// The best CPU of a queue that was removed from its CPU. If costs are equal, prefers a CPU near the NIC without
    /// another queue, and avoids CPU 0, on which most other work runs.
    pub fn best_for_queue(&mut self, placement: &Placement<'_>, queue: usize) -> Option<Cpu> {
        self.gather(placement, queue);
        self.cheapest(placement, queue, f64::INFINITY)
    }

    fn cheapest(&self, placement: &Placement<'_>, queue: usize, limit: f64) -> Option<Cpu> {
        let layout = self.layout;
        let open = layout.open_of_queue(queue)?;
        let mut best: Option<(Cpu, Preference)> = None;
        let mut least = limit;
        for cpus in &open.of_group {
            let Some(first) = cpus.first() else { continue };
            // This cost is the same for all CPUs of the group. The other costs are never negative.
            let between = self.between(placement, queue, *first);
            for cpu in cpus.iter().copied() {
                if between > least + EQUAL {
                    break;
                }
                let cost = between + self.within(placement, queue, cpu);
                if cost > least + EQUAL {
                    continue;
                }
                let (on_cpu, on_core) = placement.crowd(cpu);
                let is_first = layout.cpus[cpu] == 0;
                let far = (layout.far(queue, cpu) * 1e3) as u32;
                let preference = (far, on_cpu, on_core, is_first, placement.load(cpu));
                if cost < least - EQUAL || best.is_none_or(|(_, preferred)| preference < preferred) {
                    (best, least) = (Some((cpu, preference)), least.min(cost));
                }
            }
        }
        best.map(|(cpu, _)| cpu)
    }

    /// Accumulates the bytes of a queue's threads over the CPUs on which they may run.
    fn gather(&mut self, placement: &Placement<'_>, queue: usize) {
        self.near.fill(0.0);
        self.near_core.fill(0.0);
        self.near_group.fill(0.0);
        self.near_socket.fill(0.0);
        // Neighbouring threads often have the same CPUs.
        let mut same: Option<(&Rc<Cpus>, f64)> = None;
        for (thread, weight) in self.layout.of_queue.of_one(queue) {
            let cpus = &placement.threads[*thread];
            match &mut same {
                Some((of, sum)) if Rc::ptr_eq(of, cpus) => *sum += weight,
                _ => {
                    let full = same.replace((cpus, *weight));
                    full.into_iter().for_each(|of| distribute(&mut self.near, of));
                }
            }
        }
        same.into_iter().for_each(|of| distribute(&mut self.near, of));
        for (cpu, bytes) in self.near.iter().enumerate() {
            self.near_core[self.layout.core[cpu]] += bytes;
            self.near_group[self.layout.group[cpu]] += bytes;
            self.near_socket[self.layout.socket[cpu]] += bytes;
        }
    }

    /// Cost of a gathered queue's flows on `cpu` that is the same for all CPUs of its group.
    fn between(&self, placement: &Placement<'_>, queue: usize, cpu: Cpu) -> f64 {
        let layout = self.layout;
        let all: f64 = self.near_socket.iter().sum();
        let socket = self.near_socket[layout.socket[cpu]];
        RANKS.other_socket * (all - socket)
            + RANKS.same_socket * (socket - self.near_group[layout.group[cpu]])
            + layout.queue_weight[queue] * placement.far_cost(queue, cpu)
    }

    /// The rest of the cost: threads on the same core, other queues, and load.
    fn within(&self, placement: &Placement<'_>, queue: usize, cpu: Cpu) -> f64 {
        let own = self.near[cpu];
        RANKS.siblings * (self.near_core[self.layout.core[cpu]] - own)
            + RANKS.same_cpu * own
            + placement.queue_burden(queue, cpu)
    }

    /// The CPUs, all of one group, with the lowest cost for a removed thread, if that cost is less than `limit`.
    /// `first` is the group to prefer if costs are equal.
    pub fn best_for_thread(
        &mut self,
        placement: &Placement<'_>,
        thread: usize,
        first: Option<usize>,
        limit: f64,
    ) -> Option<Rc<Cpus>> {
        let layout = self.layout;
        let open = layout.open_of_thread(thread)?;
        self.feed(placement, thread);
        let all: f64 = self.feeds_socket.iter().sum();
        let (mut best, mut least) = (None, limit);
        let groups = first.into_iter().chain((0..open.of_group.len()).filter(|group| first != Some(*group)));
        for group in groups {
            let between = self.to_group(all, group);
            // The rest of the cost is never negative.
            if between > least - EQUAL || open.of_group[group].is_empty() {
                continue;
            }
            let (choice, is_apart) = self.choice(placement, thread, group);
            for cpus in std::iter::once(choice.all).chain(choice.roomy) {
                let cost = match is_apart {
                    true => between + placement.thread_overload_in(thread, group, &cpus.list),
                    false => placement.thread_cost(thread, &cpus),
                };
                if cost < least - EQUAL {
                    (best, least) = (Some(cpus), cost);
                }
            }
        }
        for core in self.fed.drain(..) {
            self.is_fed[core] = false;
            self.fed_cpus[layout.group_of_core(core)] = 0;
        }
        best
    }

    /// Cost of the classes between a thread's flows and other cores of a group; the weights of the flows add up to
    /// `all`.
    fn to_group(&self, all: f64, group: usize) -> f64 {
        let socket = self.feeds_socket[self.layout.socket_of_group[group]];
        RANKS.other_socket * (all - socket) + RANKS.same_socket * (socket - self.feeds_group[group])
    }

    /// Accumulates the bytes of a thread's queues over groups and sockets.
    fn feed(&mut self, placement: &Placement<'_>, thread: usize) {
        let layout = self.layout;
        self.feeds_group.fill(0.0);
        self.feeds_socket.fill(0.0);
        let Some(open) = layout.open_of_thread(thread) else { return };
        for (queue, weight) in layout.of_thread.of_one(thread) {
            let Some(cpu) = placement.queues[*queue] else { continue };
            self.feeds_group[layout.group[cpu]] += weight;
            self.feeds_socket[layout.socket[cpu]] += weight;
            let core = layout.core[cpu];
            if !std::mem::replace(&mut self.is_fed[core], true) {
                self.fed.push(core);
                self.fed_cpus[layout.group[cpu]] += open.of_core[core];
            }
        }
    }

    /// The open CPUs of a group for a thread, and whether they exclude the cores of the thread's flows. If no CPU would
    /// remain, excludes only the CPUs of these flows, or none.
    fn choice(&mut self, placement: &Placement<'_>, thread: usize, group: usize) -> (Choice, bool) {
        let layout = self.layout;
        let kind = layout.kind_of_thread(thread).unwrap_or(0);
        let of_group = layout.open_of_thread(thread).map_or(&[][..], |open| &open.of_group[group]);
        let fed = self.fed_cpus[group];
        let choice = |is_in: &dyn Fn(&Cpu) -> bool| {
            Choice::of(layout, of_group.iter().copied().filter(|cpu| is_in(cpu)).collect())
        };
        if fed == 0 {
            let known = &mut self.of_group[kind * layout.socket_of_group.len() + group];
            return (known.get_or_insert_with(|| choice(&|_| true)).clone(), true);
        }
        if fed < of_group.len() {
            let mut cores = self.fed.iter().filter(|core| layout.group_of_core(**core) == group);
            if let (Some(core), None) = (cores.next(), cores.next()) {
                let known = &mut self.beside_core[kind * layout.cores.len() + core];
                let make = || choice(&|cpu| layout.core[*cpu] != *core);
                return (known.get_or_insert_with(make).clone(), true);
            }
            return (choice(&|cpu| !self.is_fed[layout.core[*cpu]]), true);
        }
        let flows = layout.of_thread.of_one(thread);
        let has_flow = |cpu: &Cpu| flows.iter().any(|(of, _)| placement.queues[*of] == Some(*cpu));
        let is_all = of_group.iter().all(has_flow);
        (choice(&|cpu| is_all || !has_flow(cpu)), false)
    }
}

impl Choice {
    fn of(layout: &Layout<'_>, all: Vec<Cpu>) -> Self {
        let roomy: Vec<Cpu> = all.iter().copied().filter(|cpu| layout.other[*cpu] < CROWDED).collect();
        let is_smaller = !roomy.is_empty() && roomy.len() < all.len();
        let cpus = |list| Rc::new(Cpus::of(layout, list));
        Self { all: cpus(all), roomy: is_smaller.then(|| cpus(roomy)) }
    }
}

/// Divides the bytes of threads among their CPUs.
fn distribute(near: &mut [f64], (cpus, weight): (&Rc<Cpus>, f64)) {
    let part = weight / cpus.list.len().max(1) as f64;
    cpus.list.iter().for_each(|cpu| near[*cpu] += part);
}

/// Minimum gain for moving an object: an improvement by one class for a twentieth of the object's bytes.
pub fn least_gain(weight: f64) -> f64 {
    (super::MARGIN * weight).max(1e-6)
}
