//! A model with dense indices, so that the planner finds a CPU's core, group and node, and the links of a queue or
//! thread, without searching. A group is the CPUs of a node that share a last-level cache, or a socket if no cache is
//! known. With sub-NUMA clustering, a cache spans several nodes.

use super::model::Model;
use crate::numa::NodeDistances;
use crate::pairs::Class;
use longma_cpu_set::CpuSet;
use std::collections::{BTreeSet, HashMap};

/// Index of a CPU in [`Layout::cpus`].
pub type Cpu = usize;

/// Cost of each class: its position in [`Class::ALL`].
pub struct Ranks {
    pub same_socket: f64,
    pub siblings: f64,
    pub other_socket: f64,
    pub same_cpu: f64,
}

/// Ranks of the classes; different cores that share a cache cost nothing.
pub const RANKS: Ranks = Ranks {
    same_socket: rank(Class::SameSocket),
    siblings: rank(Class::Siblings),
    other_socket: rank(Class::OtherSocket),
    same_cpu: rank(Class::SameCpu),
};

const fn rank(class: Class) -> f64 {
    let mut position = 0;
    while Class::ALL[position] as usize != class as usize {
        position += 1;
    }
    position as f64
}

/// The CPUs that some queues or threads may use.
pub struct Open {
    /// The usable CPUs by group.
    pub of_group: Vec<Vec<Cpu>>,
    /// Number of usable CPUs by core.
    pub of_core: Vec<usize>,
}

/// The links of each queue or thread, in one list.
pub struct Links {
    /// The index of the first link of each queue or thread, and the number of links.
    begins: Vec<usize>,
    all: Vec<(usize, f64)>,
}

/// A model with dense indices.
pub struct Layout<'a> {
    pub model: &'a Model,
    /// Numbers of the CPUs.
    pub cpus: Vec<u32>,
    index: Vec<Option<Cpu>>,
    /// Core, group and socket of each CPU.
    pub core: Vec<usize>,
    pub group: Vec<usize>,
    pub socket: Vec<usize>,
    node: Vec<u32>,
    /// CPUs of each core.
    pub cores: Vec<Vec<Cpu>>,
    /// CPUs of each group.
    pub cpus_of_group: Vec<Vec<Cpu>>,
    /// Socket of each group.
    pub socket_of_group: Vec<usize>,
    pub sockets: usize,
    /// Other load of each CPU.
    pub other: Vec<f64>,
    /// Thread and weight of each link of a queue.
    pub of_queue: Links,
    /// Queue and weight of each link of a thread.
    pub of_thread: Links,
    pub queue_weight: Vec<f64>,
    pub thread_weight: Vec<f64>,
    /// Queues and threads that may be moved, the heaviest first.
    pub movable_queues: Vec<usize>,
    pub movable_threads: Vec<usize>,
    /// For each known node of a NIC, how far each CPU is from it.
    far: Vec<Vec<f64>>,
    /// Position in `far` of the node of each queue's NIC.
    far_of_queue: Vec<Option<usize>>,
    opens: Vec<Open>,
    open_of_queue: Vec<Option<usize>>,
    open_of_thread: Vec<Option<usize>>,
}

impl Links {
    fn of(count: usize, links: impl Iterator<Item = (usize, (usize, f64))> + Clone) -> Self {
        let mut begins = vec![0; count + 1];
        links.clone().for_each(|(of, _)| begins[of + 1] += 1);
        (0..count).for_each(|of| begins[of + 1] += begins[of]);
        let mut next = begins.clone();
        let mut all = vec![(0, 0.0); begins[count]];
        for (of, link) in links {
            all[next[of]] = link;
            next[of] += 1;
        }
        Self { begins, all }
    }

    /// Number of queues or threads.
    pub fn len(&self) -> usize {
        self.begins.len() - 1
    }

    /// The links of a single object.
    pub fn of_one(&self, one: usize) -> &[(usize, f64)] {
        &self.all[self.begins[one]..self.begins[one + 1]]
    }
}

/// Numbers items in the order of their first occurrence.
struct Numbers<K>(HashMap<K, usize>);

impl<K: std::hash::Hash + Eq> Numbers<K> {
    fn new() -> Self {
        Self(HashMap::new())
    }

    fn of(&mut self, key: K) -> usize {
        let next = self.0.len();
        *self.0.entry(key).or_insert(next)
    }
}

/// Indices of the movable objects, in descending order of weight.
fn movable(opens: &[Option<usize>], weights: &[f64]) -> Vec<usize> {
    let mut all: Vec<usize> = (0..opens.len()).filter(|of| opens[*of].is_some()).collect();
    all.sort_by(|one, other| weights[*other].total_cmp(&weights[*one]));
    all
}

/// How far each CPU is from `node`, given the nodes of the CPUs. See [`Layout::far`].
fn far(model: &Model, node_of_cpu: &[u32], node: u32) -> Vec<f64> {
    let unknown = NodeDistances::default();
    let distances = model.distances.get(&node).unwrap_or(&unknown);
    let distance = |of: &u32| distances.between(node, *of);
    let all: BTreeSet<u32> = node_of_cpu.iter().map(distance).collect();
    let mut others = all.iter().skip(1);
    let (Some(closest), Some(next)) = (all.first(), others.next()) else {
        return vec![0.0; node_of_cpu.len()];
    };
    let range = f64::from(all.last().unwrap_or(next) - next).max(1.0);
    let far = |of: &u32| match distance(of) {
        distance if distance == *closest => 0.0,
        distance => 1.0 + f64::from(distance - next) / range,
    };
    node_of_cpu.iter().map(far).collect()
}

impl<'a> Layout<'a> {
    pub fn of(model: &'a Model) -> Self {
        let places = &model.places;
        let most = places.iter().map(|place| place.cpu).max().map_or(0, |cpu| cpu as usize + 1);
        let mut index = vec![None; most];
        let (mut cores, mut groups, mut sockets) = (Numbers::new(), Numbers::new(), Numbers::new());
        let mut kinds: Vec<_> =
            places.iter().map(|place| (place.socket, place.node, place.last_cache.as_ref())).collect();
        kinds.sort();
        for kind in kinds {
            groups.of(kind);
        }
        let (mut core, mut group, mut socket) = (Vec::new(), Vec::new(), Vec::new());
        for (at, place) in places.iter().enumerate() {
            index[place.cpu as usize] = Some(at);
            // A CPU without a reported core is treated as a separate core.
            let first = place.core.iter().min().copied().unwrap_or(place.cpu);
            core.push(cores.of((place.socket, first)));
            group.push(groups.of((place.socket, place.node, place.last_cache.as_ref())));
            socket.push(sockets.of(place.socket));
        }
        let mut of_core = vec![Vec::new(); cores.0.len()];
        let mut socket_of_group = vec![0; groups.0.len()];
        let mut cpus_of_group = vec![Vec::new(); groups.0.len()];
        for at in 0..places.len() {
            of_core[core[at]].push(at);
            socket_of_group[group[at]] = socket[at];
            cpus_of_group[group[at]].push(at);
        }
        let links = || model.links.iter();
        let mut layout = Self {
            model,
            cpus: places.iter().map(|place| place.cpu).collect(),
            index,
            core,
            group,
            socket,
            node: places.iter().map(|place| place.node).collect(),
            cores: of_core,
            cpus_of_group,
            socket_of_group,
            sockets: sockets.0.len(),
            other: places.iter().map(|of| model.other.get(&of.cpu).copied().unwrap_or(0.0)).collect(),
            of_queue: Links::of(model.queues.len(), links().map(|of| (of.queue, (of.thread, of.weight)))),
            of_thread: Links::of(model.threads.len(), links().map(|of| (of.thread, (of.queue, of.weight)))),
            queue_weight: vec![0.0; model.queues.len()],
            thread_weight: vec![0.0; model.threads.len()],
            movable_queues: Vec::new(),
            movable_threads: Vec::new(),
            far: Vec::new(),
            far_of_queue: Vec::new(),
            opens: Vec::new(),
            open_of_queue: Vec::new(),
            open_of_thread: Vec::new(),
        };
        for link in &model.links {
            layout.queue_weight[link.queue] += link.weight;
            layout.thread_weight[link.thread] += link.weight;
        }
        let mut nic_nodes = Numbers::new();
        layout.far_of_queue =
            model.queues.iter().map(|queue| queue.node.map(|node| nic_nodes.of(node))).collect();
        layout.far = vec![Vec::new(); nic_nodes.0.len()];
        for (node, at) in nic_nodes.0 {
            layout.far[at] = far(model, &layout.node, node);
        }
        layout.open();
        layout.movable_queues = movable(&layout.open_of_queue, &layout.queue_weight);
        layout.movable_threads = movable(&layout.open_of_thread, &layout.thread_weight);
        layout
    }

    /// Most queues and threads may use the same CPUs.
    fn open(&mut self) {
        let mut numbers: HashMap<&'a CpuSet, usize> = HashMap::new();
        let mut opens = Vec::new();
        let mut last: Option<(&CpuSet, usize)> = None;
        let mut number = |set: &'a Option<CpuSet>| {
            let set = set.as_ref()?;
            if let Some((_, number)) = last.filter(|(of, _)| *of == set) {
                return Some(number);
            }
            let next = numbers.len();
            let number = *numbers.entry(set).or_insert(next);
            if number == next {
                opens.push(set);
            }
            last = Some((set, number));
            Some(number)
        };
        let queues = self.model.queues.iter().map(|queue| number(&queue.open)).collect();
        let threads = self.model.threads.iter().map(|thread| number(&thread.open)).collect();
        (self.open_of_queue, self.open_of_thread) = (queues, threads);
        self.opens = opens.into_iter().map(|set| self.opened(set)).collect();
    }

    fn opened(&self, set: &CpuSet) -> Open {
        let mut open = Open {
            of_group: vec![Vec::new(); self.socket_of_group.len()],
            of_core: vec![0; self.cores.len()],
        };
        for at in (0..self.cpus.len()).filter(|at| set.contains(self.cpus[*at])) {
            open.of_group[self.group[at]].push(at);
            open.of_core[self.core[at]] += 1;
        }
        open
    }

    /// Index of a CPU; `None` if it is offline.
    pub fn find(&self, cpu: u32) -> Option<Cpu> {
        self.index.get(cpu as usize).copied().flatten()
    }

    /// The CPUs that a queue may be directed to; `None` if it must not be changed.
    pub fn open_of_queue(&self, queue: usize) -> Option<&Open> {
        Some(&self.opens[self.open_of_queue[queue]?])
    }

    /// The CPUs that a thread may be bound to; `None` if it must not be changed.
    pub fn open_of_thread(&self, thread: usize) -> Option<&Open> {
        Some(&self.opens[self.open_of_thread[thread]?])
    }

    /// A number that threads with the same CPUs share.
    pub fn kind_of_thread(&self, thread: usize) -> Option<usize> {
        self.open_of_thread[thread]
    }

    /// Number of thread types.
    pub fn kinds(&self) -> usize {
        self.opens.len()
    }

    /// Group of a core's CPUs.
    pub fn group_of_core(&self, core: usize) -> usize {
        self.group[self.cores[core][0]]
    }

    /// How far a CPU is from a queue's NIC: 0 on the closest node, 1 on the next, and up to 2 on the farthest.
    pub fn far(&self, queue: usize, cpu: Cpu) -> f64 {
        self.far_of_queue[queue].map_or(0.0, |at| self.far[at][cpu])
    }

    /// Returns whether a CPU is farther from a queue's NIC than others.
    pub fn is_far(&self, queue: usize, cpu: Cpu) -> bool {
        self.far(queue, cpu) > 0.0
    }
}
