//! A placement with its cost, which is updated incrementally when one queue or thread moves. The time of an update grows
//! with the links and CPUs of the moved object, not with the size of the host.

use super::layout::{Cpu, Layout, RANKS};
use super::model::{Assignment, Model, costs};
use longma_cpu_set::CpuSet;
use std::collections::HashMap;
use std::rc::Rc;

/// A set of CPUs with the counts that distances are computed from.
#[derive(Debug, PartialEq)]
pub struct Cpus {
    /// The set in the form that the kernel expects.
    pub set: CpuSet,
    pub list: Vec<Cpu>,
    of_group: Vec<u32>,
    of_socket: Vec<u32>,
    /// Groups all of whose CPUs are in the set, and the CPUs of other groups.
    whole: Vec<usize>,
    rest: Vec<Cpu>,
}

impl Cpus {
    pub fn of(layout: &Layout<'_>, list: Vec<Cpu>) -> Self {
        let set = list.iter().map(|cpu| layout.cpus[*cpu]).collect();
        let (mut of_group, mut of_socket) = (vec![0; layout.socket_of_group.len()], vec![0; layout.sockets]);
        for cpu in &list {
            of_group[layout.group[*cpu]] += 1;
            of_socket[layout.socket[*cpu]] += 1;
        }
        let is_whole = |group: usize| of_group[group] as usize == layout.cpus_of_group[group].len();
        let whole = (0..of_group.len()).filter(|group| is_whole(*group)).collect();
        let rest = list.iter().copied().filter(|cpu| !is_whole(layout.group[*cpu])).collect();
        Self { set, list, of_group, of_socket, whole, rest }
    }

    /// Mean cost of the classes between a flow's CPU and these CPUs.
    fn mean_rank(&self, layout: &Layout<'_>, flow: Cpu) -> f64 {
        let of_socket = f64::from(self.of_socket[layout.socket[flow]]);
        let of_group = f64::from(self.of_group[layout.group[flow]]);
        let mut sum = RANKS.other_socket * (self.list.len() as f64 - of_socket);
        sum += RANKS.same_socket * (of_socket - of_group);
        for sibling in &layout.cores[layout.core[flow]] {
            if self.set.contains(layout.cpus[*sibling]) {
                sum += if *sibling == flow { RANKS.same_cpu } else { RANKS.siblings };
            }
        }
        sum / self.list.len().max(1) as f64
    }
}

/// Costs of flows far from their NIC and of queues that share a core, in classes.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    far: f64,
    farther: f64,
    sibling: f64,
    stacked: f64,
    uneven: f64,
}

impl Scale {
    /// Cost of queues on one CPU, of which the busiest has `most` of the `sum` of their bytes.
    fn stack(self, (sum, most): (f64, f64)) -> f64 {
        let rest = sum - most;
        if rest > 0.0 { rest * (self.stacked + self.uneven * rest / sum) } else { 0.0 }
    }

    /// The costs of the model.
    pub const FULL: Self = Self {
        far: costs::FAR,
        farther: costs::FARTHER,
        sibling: costs::SIBLING,
        stacked: costs::STACKED,
        uneven: costs::UNEVEN,
    };
    /// Lower costs of queues that share a core or are far from their NIC. A search at this scale can pass through
    /// placements that are too expensive at the full scale.
    pub const COARSE: Self = Self { far: 1.0, farther: 0.5, sibling: 0.0, stacked: 0.0, uneven: 0.0 };
}

/// An object and its new CPUs.
#[derive(Clone, Debug)]
pub enum Change {
    Queue(usize, Option<Cpu>),
    Thread(usize, Rc<Cpus>),
}

/// A placement of a layout's queues and threads.
#[derive(Clone)]
pub struct Placement<'a> {
    pub layout: &'a Layout<'a>,
    /// A change of the scale affects only costs that are computed later.
    pub scale: Scale,
    pub queues: Vec<Option<Cpu>>,
    pub threads: Vec<Rc<Cpus>>,
    /// The empty set, for a thread that [`Placement::take_thread`] has removed.
    nowhere: Rc<Cpus>,
    /// Load of each CPU, without the load of threads that may run on its whole group.
    loads: Vec<f64>,
    /// Load of these threads on each CPU of a group. Most threads are bound to whole groups, or not bound.
    group_load: Vec<f64>,
    /// Upper bound of `loads` of each group's CPUs.
    group_peak: Vec<f64>,
    /// Queues with traffic on each CPU, and the number of queues without traffic. An interface may have very many
    /// queues without flows.
    on_cpu: Vec<Vec<usize>>,
    idle_on_cpu: Vec<usize>,
    /// For each CPU, the sum and the maximum of the weights of its queues.
    crowds: Vec<(f64, f64)>,
    /// Number of queues on each core, and the maximum of their weights.
    on_core: Vec<(usize, f64)>,
}

impl Model {
    /// Cost of a placement. 0 if every flow shares a cache but no core with its application and is close to its NIC, no
    /// core has two queues, and no CPU is full.
    pub fn measure(&self, assignment: &Assignment) -> f64 {
        Placement::of(&Layout::of(self), assignment).cost()
    }
}

fn over(load: f64) -> f64 {
    (load - costs::FULL).max(0.0)
}

impl<'a> Placement<'a> {
    pub fn of(layout: &'a Layout<'a>, assignment: &Assignment) -> Self {
        let mut placement = Self::without(layout);
        let queues = assignment.queues.iter().map(|cpu| cpu.and_then(|cpu| layout.find(cpu)));
        for (queue, cpu) in queues.enumerate() {
            placement.put_queue(queue, cpu);
        }
        // Many threads have the same affinity.
        let mut known: HashMap<&CpuSet, Rc<Cpus>> = HashMap::new();
        for (thread, set) in assignment.threads.iter().enumerate() {
            let list = || set.iter().filter_map(|cpu| layout.find(cpu)).collect();
            let cpus = known.entry(set).or_insert_with(|| Rc::new(Cpus::of(layout, list())));
            placement.put_thread(thread, cpus.clone());
        }
        placement
    }

    /// A placement in which no queue is steered and no thread runs.
    pub fn without(layout: &'a Layout<'a>) -> Self {
        let nowhere = Rc::new(Cpus::of(layout, Vec::new()));
        let mut placement = Self {
            layout,
            scale: Scale::FULL,
            queues: vec![None; layout.model.queues.len()],
            threads: vec![nowhere.clone(); layout.model.threads.len()],
            nowhere,
            loads: layout.other.clone(),
            group_load: vec![0.0; layout.socket_of_group.len()],
            group_peak: vec![0.0; layout.socket_of_group.len()],
            on_cpu: vec![Vec::new(); layout.cpus.len()],
            idle_on_cpu: vec![0; layout.cpus.len()],
            crowds: vec![(0.0, 0.0); layout.cpus.len()],
            on_core: vec![(0, 0.0); layout.cores.len()],
        };
        placement.lower_peaks();
        placement
    }

    /// Total cost.
    pub fn cost(&self) -> f64 {
        let queues = 0..self.queues.len();
        let distance: f64 = queues.map(|queue| self.distance_of(queue, self.queues[queue])).sum();
        let cores = &self.layout.cores;
        let crowds: f64 = cores.iter().map(|core| self.crowding(core)).sum();
        distance + crowds + costs::OVERLOAD * self.overload()
    }

    /// Load beyond the capacity of the CPUs, in CPUs.
    pub fn overload(&self) -> f64 {
        (0..self.loads.len()).map(|cpu| over(self.total_load(cpu))).sum()
    }

    /// Makes a change. Returns how the cost changes and the opposite change.
    pub fn make(&mut self, change: &Change) -> (f64, Change) {
        match change {
            Change::Queue(queue, cpu) => {
                let was = self.take_queue(*queue);
                let difference = self.queue_cost(*queue, *cpu) - self.queue_cost(*queue, was);
                self.put_queue(*queue, *cpu);
                (difference, Change::Queue(*queue, was))
            }
            Change::Thread(thread, cpus) => {
                let was = self.take_thread(*thread);
                let difference = self.thread_cost(*thread, cpus) - self.thread_cost(*thread, &was);
                self.put_thread(*thread, cpus.clone());
                (difference, Change::Thread(*thread, was))
            }
        }
    }

    /// The difference in cost due to a change.
    pub fn tried(&mut self, change: &Change) -> f64 {
        match change {
            Change::Queue(queue, cpu) => {
                let was = self.take_queue(*queue);
                let difference = self.queue_cost(*queue, *cpu) - self.queue_cost(*queue, was);
                self.put_queue(*queue, was);
                difference
            }
            Change::Thread(thread, cpus) => {
                let was = self.take_thread(*thread);
                let difference = self.thread_cost(*thread, cpus) - self.thread_cost(*thread, &was);
                self.put_thread(*thread, was);
                difference
            }
        }
    }

    /// Removes a queue from its CPU, so that [`Placement::queue_cost`] compares CPUs.
    pub fn take_queue(&mut self, queue: usize) -> Option<Cpu> {
        let cpu = self.queues[queue].take()?;
        self.loads[cpu] -= self.layout.model.queues[queue].load;
        let core = self.layout.core[cpu];
        self.on_core[core].0 -= 1;
        if self.layout.queue_weight[queue] > 0.0 {
            self.on_cpu[cpu].retain(|of| *of != queue);
            let weights = self.on_cpu[cpu].iter().map(|of| self.layout.queue_weight[*of]);
            self.crowds[cpu] =
                weights.fold((0.0, 0.0), |(sum, most), weight| (sum + weight, most.max(weight)));
            let most = self.layout.cores[core].iter().map(|of| self.crowds[*of].1).fold(0.0, f64::max);
            self.on_core[core].1 = most;
        } else {
            self.idle_on_cpu[cpu] -= 1;
        }
        Some(cpu)
    }

    /// Directs a removed queue to a CPU.
    pub fn put_queue(&mut self, queue: usize, cpu: Option<Cpu>) {
        self.queues[queue] = cpu;
        let Some(cpu) = cpu else { return };
        self.loads[cpu] += self.layout.model.queues[queue].load;
        self.raise_peak(cpu);
        match self.layout.queue_weight[queue] > 0.0 {
            true => self.on_cpu[cpu].push(queue),
            false => self.idle_on_cpu[cpu] += 1,
        }
        let (sum, most) = self.crowds[cpu];
        let weight = self.layout.queue_weight[queue];
        self.crowds[cpu] = (sum + weight, most.max(weight));
        let (count, most) = &mut self.on_core[self.layout.core[cpu]];
        (*count, *most) = (*count + 1, most.max(weight));
    }

    /// Removes a thread's load, so that [`Placement::thread_cost`] compares CPU sets.
    pub fn take_thread(&mut self, thread: usize) -> Rc<Cpus> {
        let cpus = std::mem::replace(&mut self.threads[thread], self.nowhere.clone());
        let part = self.part(thread, cpus.list.len());
        cpus.whole.iter().for_each(|group| self.group_load[*group] -= part);
        cpus.rest.iter().for_each(|cpu| self.loads[*cpu] -= part);
        cpus
    }

    /// Adds a removed thread to these CPUs.
    pub fn put_thread(&mut self, thread: usize, cpus: Rc<Cpus>) {
        let part = self.part(thread, cpus.list.len());
        cpus.whole.iter().for_each(|group| self.group_load[*group] += part);
        for cpu in &cpus.rest {
            self.loads[*cpu] += part;
            self.raise_peak(*cpu);
        }
        self.threads[thread] = cpus;
    }

    /// Load of a thread on each of `count` CPUs.
    fn part(&self, thread: usize, count: usize) -> f64 {
        self.layout.model.threads[thread].load / count.max(1) as f64
    }

    fn raise_peak(&mut self, cpu: Cpu) {
        let peak = &mut self.group_peak[self.layout.group[cpu]];
        *peak = peak.max(self.loads[cpu]);
    }

    /// Recomputes the upper bounds from the present loads. Until then, removed loads leave them too high.
    pub fn lower_peaks(&mut self) {
        self.group_peak.fill(0.0);
        (0..self.loads.len()).for_each(|cpu| self.raise_peak(cpu));
    }

    fn total_load(&self, cpu: Cpu) -> f64 {
        self.loads[cpu] + self.group_load[self.layout.group[cpu]]
    }

    /// Load of a CPU in units of 10^-9, so that equal loads compare equal although they were summed differently.
    pub fn load(&self, cpu: Cpu) -> i64 {
        (self.total_load(cpu) * 1e9).round() as i64
    }

    /// Queues on a CPU, and on its core.
    pub fn crowd(&self, cpu: Cpu) -> (usize, usize) {
        (self.on_cpu[cpu].len() + self.idle_on_cpu[cpu], self.on_core[self.layout.core[cpu]].0)
    }

    /// Cost per byte of a queue on a CPU due to the distance from the NIC.
    pub fn far_cost(&self, queue: usize, cpu: Cpu) -> f64 {
        match self.layout.far(queue, cpu) {
            far if far > 0.0 => self.scale.far + self.scale.farther * (far - 1.0),
            _ => 0.0,
        }
    }

    /// Cost of the classes and distances of a queue's flows if it is on `cpu`.
    fn distance_of(&self, queue: usize, cpu: Option<Cpu>) -> f64 {
        let weight = self.layout.queue_weight[queue];
        let Some(cpu) = cpu else { return costs::UNSTEERED * weight };
        let links = self.layout.of_queue.of_one(queue).iter();
        let ranks = links.map(|(thread, weight)| weight * self.threads[*thread].mean_rank(self.layout, cpu));
        ranks.sum::<f64>() + weight * self.far_cost(queue, cpu)
    }

    /// Cost that a removed queue would add on `cpu`.
    pub fn queue_cost(&self, queue: usize, cpu: Option<Cpu>) -> f64 {
        self.distance_of(queue, cpu) + cpu.map_or(0.0, |cpu| self.queue_burden(queue, cpu))
    }

    /// Cost of crowding and overload that a removed queue would add on `cpu`.
    pub fn queue_burden(&self, queue: usize, cpu: Cpu) -> f64 {
        let weight = self.layout.queue_weight[queue];
        let ((sum, most), most_of_core) = (self.crowds[cpu], self.on_core[self.layout.core[cpu]].1);
        let stack = self.scale.stack((sum + weight, most.max(weight))) - self.scale.stack((sum, most));
        // Of two CPUs of a core, the one with the lighter queues bears the cost.
        let (raise, raise_of_core) = ((weight - most).max(0.0), (weight - most_of_core).max(0.0));
        let crowding = stack + self.scale.sibling * (raise - raise_of_core);
        let load = self.total_load(cpu);
        crowding + costs::OVERLOAD * (over(load + self.layout.model.queues[queue].load) - over(load))
    }

    /// Cost of the queues that share the CPUs of a core.
    fn crowding(&self, core: &[Cpu]) -> f64 {
        let (mut cost, mut sum_of_most, mut most_of_core) = (0.0, 0.0, 0.0f64);
        for (sum, most) in core.iter().map(|cpu| self.crowds[*cpu]) {
            cost += self.scale.stack((sum, most));
            sum_of_most += most;
            most_of_core = most_of_core.max(most);
        }
        cost + self.scale.sibling * (sum_of_most - most_of_core)
    }

    /// Cost that a removed thread would add on these CPUs.
    pub fn thread_cost(&self, thread: usize, cpus: &Cpus) -> f64 {
        let links = self.layout.of_thread.of_one(thread).iter();
        let rank = |(queue, weight): &(usize, f64)| {
            self.queues[*queue].map_or(0.0, |flow| weight * cpus.mean_rank(self.layout, flow))
        };
        links.map(rank).sum::<f64>() + self.thread_overload(thread, cpus)
    }

    /// Cost of overload that a removed thread would add on these CPUs.
    pub fn thread_overload(&self, thread: usize, cpus: &Cpus) -> f64 {
        let part = self.part(thread, cpus.list.len());
        let whole = cpus.whole.iter().filter(|group| !self.has_room(**group, part));
        let of_whole = whole.map(|group| self.more_overload(&self.layout.cpus_of_group[*group], part));
        costs::OVERLOAD * (of_whole.sum::<f64>() + self.more_overload(&cpus.rest, part))
    }

    /// Like [`Self::thread_overload`], for CPUs of one group. Does not examine each CPU if all have capacity.
    pub fn thread_overload_in(&self, thread: usize, group: usize, cpus: &[Cpu]) -> f64 {
        let part = self.part(thread, cpus.len());
        if self.has_room(group, part) { 0.0 } else { costs::OVERLOAD * self.more_overload(cpus, part) }
    }

    /// Returns whether all CPUs of a group can take `part` more.
    fn has_room(&self, group: usize, part: f64) -> bool {
        self.group_peak[group] + self.group_load[group] + part <= costs::FULL
    }

    /// The overload that `part` more on each CPU adds, in CPUs.
    fn more_overload(&self, cpus: &[Cpu], part: f64) -> f64 {
        let more = |cpu: &Cpu| over(self.total_load(*cpu) + part) - over(self.total_load(*cpu));
        cpus.iter().map(more).sum()
    }
}
