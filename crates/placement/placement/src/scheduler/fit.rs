//! Finds the best nodes of one host for a demand. The number of steps is bounded, however many nodes the host has.
//! `ranking` chooses among hosts, and `assign` chooses CPUs.

use super::capacity::{Capacity, MixedCapacity};
use super::demand::{CellDemand, Demand};
use super::filter::{Candidate, HOST_FILTERS, NODE_FILTERS, Shortage};
use super::weigh::{HOST_WEIGHERS, NODE_WEIGHERS, Weights};
use crate::host::MAX_NODES;
use crate::inventory::HostState;
use crate::request::{MAX_VIRTUAL_NODES, MemoryPolicy};

/// Maximum number of node sets for an exhaustive search. Beyond it, one set is grown from each node.
const MAX_SETS: usize = 128;
/// Maximum number of large virtual nodes of a node that the capacity for virtual nodes of two sizes considers.
const MAX_LARGE_PER_NODE: u32 = 256;
/// Maximum number of choices of the large virtual nodes' nodes within a set that are tried one by one.
const MAX_LARGE_CHOICES: usize = 8;
/// Maximum score in integer form.
pub(crate) const MAX_SCORE: u16 = 1023;

/// The nodes chosen for the virtual nodes of a demand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fit {
    /// Score from 0 to 1.
    pub score: f32,
    nodes: [u8; MAX_VIRTUAL_NODES as usize],
    cells: u8,
}

impl Fit {
    pub fn nodes(&self) -> &[u8] {
        &self.nodes[..usize::from(self.cells)]
    }

    pub fn rank(&self) -> u16 {
        (self.score.clamp(0.0, 1.0) * f32::from(MAX_SCORE)) as u16
    }
}

/// Parameters of a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules<'a> {
    pub weights: &'a Weights,
    pub overcommit_percent: u32,
    /// Takes the first nodes that fit, as the comparison strategies do.
    pub first_nodes: bool,
}

/// The nodes of a mask that fit a virtual node, and their scores.
struct Suitable {
    mask: u64,
    weights: [f32; MAX_NODES],
}

fn suitable(rules: &Rules<'_>, host: &HostState, demand: &Demand, cell: &CellDemand, mask: u64) -> Suitable {
    let mut found = Suitable { mask: 0, weights: [0.0; MAX_NODES] };
    for (at, (shape, state)) in host.shape.nodes.iter().zip(&*host.nodes).enumerate() {
        if mask >> at & 1 == 0 {
            continue;
        }
        let percent = rules.overcommit_percent;
        let c = Candidate { host, at, shape, state, demand, cell, overcommit_percent: percent };
        if NODE_FILTERS.iter().any(|f| f.shortage(&c).is_some()) {
            continue;
        }
        found.mask |= 1 << at;
        if !rules.first_nodes {
            found.weights[at] = node_weight(rules.weights, &c);
        }
    }
    found
}

/// Number of virtual nodes like `cell` that each node of `mask` holds beside `count` virtual nodes like `other`, without
/// borrowed memory.
fn slots(
    rules: &Rules<'_>,
    host: &HostState,
    demand: &Demand,
    mask: u64,
    (cell, other, count): (&CellDemand, &CellDemand, u32),
) -> [u32; MAX_NODES] {
    let mut slots = [0u32; MAX_NODES];
    for (at, (shape, state)) in host.shape.nodes.iter().zip(&*host.nodes).enumerate() {
        let percent = rules.overcommit_percent;
        let c = Candidate { host, at, shape, state, demand, cell, overcommit_percent: percent };
        if mask >> at & 1 == 1 && NODE_FILTERS.iter().all(|f| f.shortage(&c).is_none()) {
            let copies = NODE_FILTERS.iter().map(|f| f.copies_beside(&c, other, count)).min().unwrap_or(0);
            slots[at] = u32::try_from(copies).unwrap_or(u32::MAX);
        }
    }
    slots
}

/// The number of virtual machines like `demand` that fit on the nodes of `mask` without borrowed memory.
fn capacity(rules: &Rules<'_>, host: &HostState, demand: &Demand, mask: u64) -> Capacity {
    let cells = demand.cells as usize;
    // Parts that only the first virtual node has do not count.
    let cell = CellDemand { first: false, ..demand.cell(0) };
    let slots = slots(rules, host, demand, mask, (&cell, &cell, 0));
    Capacity::of(&slots[..host.nodes.len()], cells)
}

/// As [`capacity`], for virtual machines whose virtual nodes differ in size. `None` if they do not.
fn mixed_capacity(rules: &Rules<'_>, host: &HostState, demand: &Demand, mask: u64) -> Option<MixedCapacity> {
    let large = demand.cell(0);
    let small = demand.cell(demand.cells - 1);
    let larges = (0..demand.cells).take_while(|at| !demand.is_similar(&demand.cell(*at), &small)).count();
    if larges == 0 || rules.weights.capacity == 0.0 {
        return None;
    }
    // What only the first virtual node has does not count if others are as large.
    let large = CellDemand { first: larges == 1, ..large };
    let most_large = slots(rules, host, demand, mask, (&large, &large, 0));
    let mut totals: Vec<Vec<u32>> = vec![Vec::new(); host.nodes.len()];
    for count in 0..=MAX_LARGE_PER_NODE {
        // Only nodes that hold `count` large ones.
        let holders = (0..host.nodes.len()).filter(|at| mask >> at & 1 == 1 && most_large[*at] >= count);
        let holders = holders.fold(0, |mask, at| mask | 1u64 << at);
        if holders == 0 {
            break;
        }
        let beside = slots(rules, host, demand, holders, (&small, &large, count));
        for at in (0..host.nodes.len()).filter(|at| holders >> at & 1 == 1) {
            totals[at].push(beside[at].saturating_add(count));
        }
    }
    Some(MixedCapacity::of(totals, larges, demand.cells as usize))
}

/// Score of a node, 0 to 1.
fn node_weight(weights: &Weights, c: &Candidate<'_>) -> f32 {
    let (mut sum, mut all) = (0.0, 0.0);
    for weigher in NODE_WEIGHERS {
        let weight = weigher.weight(weights);
        if weight > 0.0 {
            sum += weigher.weigh(c) * weight;
            all += weight;
        }
    }
    if all > 0.0 { sum / all } else { 0.0 }
}

/// A quick check against the cached host summary. False if no node can hold the first virtual node.
fn may_fit(host: &HostState, demand: &Demand, cell: &CellDemand) -> bool {
    let free = &host.free;
    let memory = match (demand.page_kib, demand.memory) {
        (Some(_), _) => true,
        (None, MemoryPolicy::Strict) => demand.pages_mib(cell) <= free.node_mib.into(),
        (None, MemoryPolicy::Preferred { .. }) => demand.all_pages_mib() <= free.host_mib,
    };
    memory && cell.vcpus <= free.node_cpus.into()
}

/// Finds the best nodes of `host` within `mask`; `None` if the demand does not fit.
pub(crate) fn fit(rules: &Rules<'_>, host: &HostState, demand: &Demand, mask: u64) -> Option<Fit> {
    let cell = demand.cell(0);
    if !may_fit(host, demand, &cell) || HOST_FILTERS.iter().any(|f| f.shortage(host, demand).is_some()) {
        return None;
    }
    let first = suitable(rules, host, demand, &cell, mask);
    if first.mask == 0 {
        return None;
    }
    let mut found = Fit { score: 0.0, nodes: [0; MAX_VIRTUAL_NODES as usize], cells: demand.cells as u8 };
    let node_score = if demand.cells == 1 {
        let best = best_node(rules, &first, first.mask);
        found.nodes[0] = best as u8;
        first.weights[best]
    } else {
        best_set(rules, host, demand, &Cells::new(rules, host, demand, mask, first), &mut found)?
    };
    let (mut sum, mut all) = (node_score, 1.0);
    let nodes_weight: f32 = NODE_WEIGHERS.iter().map(|w| w.weight(rules.weights)).sum();
    for weigher in HOST_WEIGHERS {
        // Weight relative to the node weighers.
        let weight = weigher.weight(rules.weights) / nodes_weight.max(f32::MIN_POSITIVE);
        sum += weigher.weigh(host, demand) * weight;
        all += weight;
    }
    found.score = sum / all;
    Some(found)
}

/// Finds the fullest nodes of `host` that hold the demand. The score is higher the less memory they have left.
pub(crate) fn fullest(rules: &Rules<'_>, host: &HostState, demand: &Demand, mask: u64) -> Option<Fit> {
    let mut found = fit(&Rules { first_nodes: true, ..*rules }, host, demand, mask)?;
    let free = |node: u8| super::filter::free_mib(host, node.into(), demand.page_kib);
    let allowed = |cell: u32| {
        suitable(&Rules { first_nodes: true, ..*rules }, host, demand, &demand.cell(cell), mask).mask
    };
    let mut chosen: Vec<u8> = Vec::new();
    let mut nodes = allowed(0);
    for cell in 0..demand.cells {
        if cell > 0 && demand.cell(cell) != demand.cell(cell - 1) {
            nodes = allowed(cell);
        }
        let left = (0..host.nodes.len() as u8).filter(|n| nodes >> n & 1 == 1 && !chosen.contains(n));
        chosen.extend(left.min_by_key(|n| free(*n)));
    }
    if chosen.len() == demand.cells as usize && super::assign::memory_fits(host, demand, &chosen) {
        found.nodes[..chosen.len()].copy_from_slice(&chosen);
    }
    let mib: u64 = found.nodes().iter().map(|n| free(*n)).sum();
    found.score = -(mib as f32);
    Some(found)
}

fn best_node(rules: &Rules<'_>, suitable: &Suitable, mask: u64) -> usize {
    let mut best = mask.trailing_zeros() as usize;
    if !rules.first_nodes {
        for at in (best + 1)..MAX_NODES - mask.leading_zeros() as usize {
            if mask >> at & 1 == 1 && suitable.weights[at] > suitable.weights[best] {
                best = at;
            }
        }
    }
    best
}

/// The node of each virtual node, and the sum of their scores.
type Assignment = ([u8; MAX_VIRTUAL_NODES as usize], f32);

/// The suitable nodes for each virtual node of a demand.
struct Cells {
    kinds: Vec<Suitable>,
    kind_of: [usize; MAX_VIRTUAL_NODES as usize],
    cells: usize,
    capacity: Capacity,
    /// The capacity if virtual nodes differ in size.
    mixed: Option<MixedCapacity>,
}

impl Cells {
    fn new(rules: &Rules<'_>, host: &HostState, demand: &Demand, mask: u64, first: Suitable) -> Self {
        let cells = demand.cells as usize;
        let (mut kinds, mut kind_of) = (vec![first], [0; MAX_VIRTUAL_NODES as usize]);
        for (at, kind) in kind_of.iter_mut().enumerate().take(cells).skip(1) {
            let cell = demand.cell(at as u32);
            if at == 1 || cell != demand.cell(at as u32 - 1) {
                kinds.push(suitable(rules, host, demand, &cell, mask));
            }
            *kind = kinds.len() - 1;
        }
        let (capacity, mixed) = match rules.first_nodes {
            true => (Capacity::default(), None),
            false => (capacity(rules, host, demand, mask), mixed_capacity(rules, host, demand, mask)),
        };
        Self { kinds, kind_of, cells, capacity, mixed }
    }

    fn of(&self, at: usize) -> &Suitable {
        &self.kinds[self.kind_of[at]]
    }

    fn last(&self) -> u64 {
        self.of(self.cells - 1).mask
    }

    /// Assigns the nodes of `set` to the virtual nodes in order. Returns the assignment and its total score; `None` if
    /// a virtual node finds no suitable node.
    fn assign(&self, rules: &Rules<'_>, set: u64) -> Option<Assignment> {
        self.assign_by(set, |_, here, left| best_node(rules, here, here.mask & left))
    }

    /// As [`Self::assign`], with the large virtual nodes on the nodes that hold most of them without holding fewer
    /// virtual nodes in all.
    fn assign_spare(&self, rules: &Rules<'_>, mixed: &MixedCapacity, set: u64) -> Option<Assignment> {
        self.assign_by(set, |at, here, left| {
            let usable = here.mask & left;
            if at >= mixed.larges() {
                return best_node(rules, here, usable);
            }
            let nodes = (0..MAX_NODES).filter(|node| usable >> node & 1 == 1);
            nodes.max_by_key(|node| mixed.spare_larges(*node)).unwrap_or(0)
        })
    }

    /// As [`Self::assign`], with the large virtual nodes on the nodes of `large` if they fit there.
    fn assign_larges(&self, rules: &Rules<'_>, larges: usize, large: u64, set: u64) -> Option<Assignment> {
        self.assign_by(set, |at, here, left| {
            let usable = here.mask & left;
            let preferred = usable & if at < larges { large } else { !large };
            best_node(rules, here, if preferred == 0 { usable } else { preferred })
        })
    }

    fn assign_by(&self, set: u64, choose: impl Fn(usize, &Suitable, u64) -> usize) -> Option<Assignment> {
        let (mut left, mut weight) = (set, 0.0);
        let mut nodes = [0u8; MAX_VIRTUAL_NODES as usize];
        for (at, node) in nodes.iter_mut().enumerate().take(self.cells) {
            let here = self.of(at);
            if here.mask & left == 0 {
                return None;
            }
            let chosen = choose(at, here, left);
            left &= !(1 << chosen);
            *node = chosen as u8;
            weight += here.weights[chosen];
        }
        Some((nodes, weight))
    }

    /// Number of virtual machines that no longer fit after one is placed on `nodes`, besides this one.
    fn deficit(&self, nodes: &[u8]) -> u32 {
        let set = |nodes: &[u8]| nodes.iter().fold(0u64, |mask, n| mask | 1 << n);
        match &self.mixed {
            Some(mixed) => {
                let (large, small) = nodes.split_at(mixed.larges());
                mixed.deficit(set(large), set(small))
            }
            None => self.capacity.deficit(set(nodes)),
        }
    }

    /// Calls `consider` with all node sets, or with a selection of good ones if there are too many.
    fn sets(&self, host: &HostState, consider: &mut impl FnMut(u64) -> bool) {
        if sets(self.last().count_ones() as usize, self.cells) <= MAX_SETS {
            each_set(self.last(), self.cells, consider);
        } else {
            self.grown_sets(host, consider);
            // The best nodes, wherever they are: they suffice if any do.
            consider(self.last());
        }
    }

    /// Calls `consider` with one set for each suitable first node: that node, the nearest nodes that keep the capacity,
    /// and the nearest other ones, with ties broken by score.
    fn grown_sets(&self, host: &HostState, consider: &mut impl FnMut(u64) -> bool) {
        let (first, last) = (self.of(0), self.last());
        for seed in (0..host.nodes.len()).filter(|seed| first.mask >> seed & 1 == 1) {
            let near = host.shape.by_distance[seed].iter().map(|n| usize::from(*n));
            let mut near: Vec<usize> = near.filter(|n| last >> n & 1 == 1 && *n != seed).collect();
            near.sort_by(|a, b| {
                let distance = |n: &usize| host.shape.distances[seed][*n];
                distance(a).cmp(&distance(b)).then(first.weights[*b].total_cmp(&first.weights[*a]))
            });
            let required = self.capacity.deficit(1 << seed) as usize;
            let critical = near.iter().filter(|n| self.capacity.critical >> **n & 1 == 1).take(required);
            let mut set = critical.fold(1u64 << seed, |set, n| set | 1 << n);
            for n in near {
                if (set.count_ones() as usize) < self.cells {
                    set |= 1 << n;
                }
            }
            consider(set);
        }
    }
}

/// Chooses good nodes, close to each other, for several virtual nodes. Demands never increase from one virtual node to
/// the next, so a node that fits one fits all later ones. A greedy assignment in this order therefore succeeds whenever
/// an assignment exists.
fn best_set(
    rules: &Rules<'_>,
    host: &HostState,
    demand: &Demand,
    each: &Cells,
    found: &mut Fit,
) -> Option<f32> {
    let (cells, last) = (each.cells, each.last());
    if (last.count_ones() as usize) < cells {
        return None;
    }
    let mut best: Option<f32> = None;
    // Returns whether the assignment is the best so far, and the number of further virtual machines it costs.
    let mut consider_assignment = |assignment: Option<Assignment>| -> (bool, u32) {
        let Some((nodes, weight)) = assignment else { return (false, 0) };
        let Weights { distance, capacity, .. } = rules.weights;
        let parts = weight / cells as f32 + closeness(host, &nodes[..cells]) * distance;
        let lost = each.deficit(&nodes[..cells]);
        let score = parts / (1.0 + distance) / (1.0 + capacity * lost as f32);
        if best.is_none_or(|b| score > b) && super::assign::memory_fits(host, demand, &nodes[..cells]) {
            best = Some(score);
            found.nodes = nodes;
            return (true, lost);
        }
        (false, lost)
    };
    let mut consider = |set: u64| -> bool {
        let (mut is_best, lost) = consider_assignment(each.assign(rules, set));
        let Some(mixed) = &each.mixed else { return is_best };
        let spare = consider_assignment(each.assign_spare(rules, mixed, set));
        is_best |= spare.0;
        if lost.min(spare.1) > 0 && sets(set.count_ones() as usize, mixed.larges()) <= MAX_LARGE_CHOICES {
            each_set(set, mixed.larges(), &mut |large| {
                is_best |= consider_assignment(each.assign_larges(rules, mixed.larges(), large, set)).0;
                is_best
            });
        }
        is_best
    };
    if rules.first_nodes {
        let mut set = 0;
        let mut left = last;
        // The first virtual node has the fewest suitable nodes.
        let start = 1 << each.of(0).mask.trailing_zeros();
        set |= start;
        left &= !start;
        while (set.count_ones() as usize) < cells {
            let next = 1 << left.trailing_zeros();
            set |= next;
            left &= !next;
        }
        if consider(set) {
            return best;
        }
    }
    each.sets(host, &mut consider);
    best
}

/// Why the virtual nodes do not fit together although each passes the filters on some node.
pub(crate) enum JointShortage {
    /// Too few distinct nodes.
    Nodes(Shortage),
    /// Too little memory in MiB, for the set of nodes that has the most.
    Memory(Shortage),
}

/// Returns why several virtual nodes do not fit on a host together; `None` if they fit, or if a filter already gives
/// the reason.
pub(crate) fn joint_shortage(
    rules: &Rules<'_>,
    host: &HostState,
    demand: &Demand,
    mask: u64,
) -> Option<JointShortage> {
    let first = suitable(rules, host, demand, &demand.cell(0), mask);
    if first.mask == 0 {
        return None;
    }
    let each = Cells::new(rules, host, demand, mask, first);
    // A node that fits one virtual node fits all later ones.
    let nodes = |at: usize| Shortage::unless(at as u64 + 1, each.of(at).mask.count_ones().into());
    if let Some(shortage) = (0..each.cells).find_map(nodes) {
        return Some(JointShortage::Nodes(shortage));
    }
    let all = demand.all_pages_mib();
    let mut missing = all;
    each.sets(host, &mut |set| {
        if let Some((nodes, _)) = each.assign(rules, set) {
            missing = missing.min(super::assign::missing_mib(host, demand, &nodes[..each.cells]));
        }
        false
    });
    Shortage::unless(all, all - missing).map(JointShortage::Memory)
}

/// 1 if all pairs of nodes are at the local distance, and less the farther apart they are.
fn closeness(host: &HostState, nodes: &[u8]) -> f32 {
    let mut sum = 0.0;
    let mut pairs = 0.0;
    for (i, a) in nodes.iter().enumerate() {
        for b in &nodes[i + 1..] {
            sum += host.shape.distances[usize::from(*a)][usize::from(*b)] as f32;
            pairs += 1.0;
        }
    }
    10.0 * pairs / sum.max(10.0)
}

/// Binomial coefficient: the number of sets of `k` out of `n`. Stops early above [`MAX_SETS`].
fn sets(n: usize, k: usize) -> usize {
    let mut count = 1usize;
    for i in 0..k.min(n - k) {
        count = count * (n - i) / (i + 1);
        if count > MAX_SETS {
            return count;
        }
    }
    count
}

/// Calls `consider` with every set of `k` nodes of `mask`.
fn each_set(mask: u64, k: usize, consider: &mut impl FnMut(u64) -> bool) {
    fn extend(rest: u64, k: usize, set: u64, consider: &mut impl FnMut(u64) -> bool) {
        if k == 0 {
            consider(set);
            return;
        }
        let mut rest = rest;
        while rest.count_ones() as usize >= k {
            let node = 1 << rest.trailing_zeros();
            rest &= !node;
            extend(rest, k - 1, set | node, consider);
        }
    }
    extend(mask, k, 0, consider);
}
