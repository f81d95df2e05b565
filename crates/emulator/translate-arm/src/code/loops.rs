//! Finds the loops of a unit and assigns LoongArch registers to source registers that have none outside of loops.
//! Source: Tarjan, Depth-first search and linear graph algorithms, SIAM J. Comput. 1(2), 1972 (strongly connected
//! components).

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::copies::source;
use super::reachable::ReachableCode;
use super::uses::Uses;
use crate::instruction::{Instruction, Op, Operand};
use crate::registers::{Location, place, slot};

/// A register assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterAssignment {
    /// The locations of the general-purpose registers.
    pub(super) general: [Location; 31],
    /// A vector that is spilled to memory, so that instructions can use its register as a temporary.
    pub(super) spilled_vector: Option<u8>,
}

/// Maximum loop nesting depth that is analysed.
const MAX_DEPTH: usize = 4;

/// The assignment outside of loops.
pub(super) const OUTSIDE: RegisterAssignment = {
    let mut general = [Location::Slot(0); 31];
    let mut number = 0;
    while number < 31 {
        general[number] = place(number as u8);
        number += 1;
    }
    RegisterAssignment { general, spilled_vector: None }
};

/// Whether a vector instruction needs a temporary vector register.
fn borrows(i: Instruction) -> bool {
    use Op::*;
    let has_lane =
        i.row().operands.iter().any(|operand| matches!(operand, Operand::Register { kind: b'E', .. }));
    has_lane
        || matches!(
            i.op,
            Ext | FaddpScalar
                | FaddpV
                | FmlsV
                | SabaV
                | UabaV
                | SadalpV
                | UadalpV
                | AddpV
                | Xtn2
                | Fcvtn2
                | Fcvtzs
                | Fcvtns
                | Fcvtps
                | Fcvtms
                | Fcvtzu
        )
}

/// The loops of a unit that contain no entry points.
#[derive(Debug, Default)]
pub(super) struct Loops {
    /// For each leader, the loops that contain it, from the outermost to the innermost. A loop is identified by its
    /// first leader.
    around: FxHashMap<u64, Vec<u64>>,
    /// Assignments of the loops. Assignments of an outer loop take precedence.
    assignment: FxHashMap<u64, RegisterAssignment>,
}

/// The control-flow graph of leaders.
struct Graph {
    leaders: Vec<u64>,
    edges: Vec<Vec<usize>>,
}

impl Loops {
    /// Finds the loops among leaders that are not entry points.
    pub fn of(reachable: &ReachableCode) -> Self {
        let leaders: Vec<u64> = reachable
            .leaders
            .iter()
            .copied()
            .filter(|leader| !reachable.entry_points.contains(leader))
            .collect();
        let index: FxHashMap<u64, usize> = leaders.iter().copied().zip(0..).collect();
        let edges = leaders
            .iter()
            .map(|leader| {
                reachable
                    .internal_successors(*leader)
                    .iter()
                    .filter_map(|to| index.get(to).copied())
                    .collect()
            })
            .collect();
        let graph = Graph { leaders, edges };
        let mut loops = Self::default();
        let all: Vec<usize> = (0..graph.leaders.len()).collect();
        loops.find_nested(&graph, &all, &mut Vec::new());
        loops.assign_registers(reachable);
        loops
    }

    /// Finds the loops among the given leaders, recursively.
    fn find_nested(&mut self, graph: &Graph, among: &[usize], around: &mut Vec<u64>) {
        for part in graph.components(among) {
            let inside: FxHashSet<usize> = part.iter().copied().collect();
            let first = *part.iter().min().unwrap_or(&0);
            if part.len() == 1 && !graph.edges[first].contains(&first) {
                continue;
            }
            around.push(graph.leaders[first]);
            for index in &part {
                self.around.insert(graph.leaders[*index], around.clone());
            }
            if part.len() > 1 && around.len() < MAX_DEPTH {
                // The remaining leaders without the loop entry.
                let from_outside = |to: &usize| {
                    among.iter().any(|from| !inside.contains(from) && graph.edges[*from].contains(to))
                };
                let entry = part.iter().copied().find(from_outside).unwrap_or(first);
                let rest: Vec<usize> = part.iter().copied().filter(|index| *index != entry).collect();
                self.find_nested(graph, &rest, around);
            }
            around.pop();
        }
    }

    /// The leaders of each loop that contains no other loop, in address order.
    pub fn innermost(&self) -> Vec<Vec<u64>> {
        let mut loops: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let outer: FxHashSet<u64> =
            self.around.values().flat_map(|around| around[..around.len() - 1].iter().copied()).collect();
        let innermost = self.around.iter().filter_map(|(leader, around)| Some((*leader, *around.last()?)));
        for (leader, first) in innermost.filter(|(_, first)| !outer.contains(first)) {
            loops.entry(first).or_default().push(leader);
        }
        loops.values_mut().for_each(|leaders| leaders.sort_unstable());
        loops.into_values().collect()
    }

    /// Whether two leaders have the same innermost loop.
    pub fn share(&self, from: u64, to: u64) -> bool {
        let inner = |leader| self.around.get(&source(leader)).and_then(|around| around.last());
        inner(to).is_some() && inner(from) == inner(to)
    }

    /// Whether a jump between two leaders stays in the innermost loop of the first.
    pub fn stays(&self, from: u64, to: u64) -> bool {
        let around = |leader| self.around.get(&source(leader)).map_or(&[][..], Vec::as_slice);
        around(from).last().is_none_or(|inner| around(to).contains(inner))
    }

    /// The register assignment at a leader.
    pub fn assignment(&self, leader: u64) -> RegisterAssignment {
        let around = self.around.get(&source(leader)).map_or(&[][..], Vec::as_slice);
        around.iter().find_map(|first| self.assignment.get(first)).copied().unwrap_or(OUTSIDE)
    }

    /// Assigns registers: source registers in memory take over the LoongArch registers of source registers that the
    /// loop does not use. Prefers the outermost loop in which everything fits.
    fn assign_registers(&mut self, reachable: &ReachableCode) {
        let mut counts: FxHashMap<u64, RegisterCounts> = FxHashMap::default();
        for (leader, around) in &self.around {
            let block = reachable.block(*leader).0;
            for (depth, first) in around.iter().enumerate() {
                let named = counts.entry(*first).or_default();
                named.has_inner |= depth + 1 < around.len();
                for (pc, i) in &block {
                    named.count(reachable.used_by(*pc), *i, around.len());
                }
            }
        }
        self.assignment = counts
            .into_iter()
            .map(|(first, named)| (first, named.assignment()))
            .filter(|(_, assignment)| *assignment != OUTSIDE)
            .collect();
    }
}

/// Register use within a loop.
#[derive(Default)]
struct RegisterCounts {
    /// Weighted number of uses of each general-purpose register.
    general: [u64; 31],
    vectors: u32,
    needs_vector: bool,
    /// The loop contains other loops.
    has_inner: bool,
    /// The loop retries an exclusive store, which is rarely necessary.
    tries: bool,
}

impl RegisterCounts {
    fn count(&mut self, uses: Uses, i: Option<Instruction>, depth: usize) {
        for (number, count) in self.general.iter_mut().enumerate() {
            let times = (uses.read >> number & 1) + (uses.written >> number & 1);
            *count += u64::from(times) << (3 * depth);
        }
        self.vectors |= uses.vectors;
        self.needs_vector |= i.is_some_and(borrows);
        self.tries |= i.is_some_and(|i| {
            ["stxr", "stlxr", "stxp", "stlxp"].iter().any(|name| i.mnemonic().starts_with(name))
        });
    }

    fn assignment(&self) -> RegisterAssignment {
        if self.tries {
            return OUTSIDE;
        }
        let is_in_memory = |number: &usize| !matches!(OUTSIDE.general[*number], Location::Register(_));
        let mut in_memory: Vec<usize> =
            (0..31).filter(is_in_memory).filter(|number| self.general[*number] != 0).collect();
        in_memory.sort_by_key(|number| (std::cmp::Reverse(self.general[*number]), *number));
        let unused: Vec<usize> =
            (0..31).filter(|number| !is_in_memory(number) && self.general[*number] == 0).collect();
        let spilled_vector =
            (0..32).rev().find(|number| self.needs_vector && self.vectors >> number & 1 == 0);
        if self.has_inner && (unused.len() < in_memory.len() || self.needs_vector && spilled_vector.is_none())
        {
            return OUTSIDE;
        }
        let mut assignment = RegisterAssignment { spilled_vector, ..OUTSIDE };
        for (number, other) in in_memory.into_iter().zip(unused) {
            assignment.general[number] = OUTSIDE.general[other];
            assignment.general[other] = slot(other as u8);
        }
        assignment
    }
}

impl Graph {
    /// Returns the strongly connected components of the subgraph of `among`.
    fn components(&self, among: &[usize]) -> Vec<Vec<usize>> {
        let mut search =
            Search { order: FxHashMap::default(), open: Vec::new(), assigned: FxHashSet::default() };
        let among: FxHashSet<usize> = among.iter().copied().collect();
        let mut sorted: Vec<usize> = among.iter().copied().collect();
        sorted.sort_unstable();
        let mut components = Vec::new();
        for start in sorted {
            if !search.order.contains_key(&start) {
                search.from(self, &among, start, &mut components);
            }
        }
        components
    }
}

/// State of the depth-first search: discovery order, and the nodes that are not in a component yet.
struct Search {
    order: FxHashMap<usize, usize>,
    open: Vec<usize>,
    assigned: FxHashSet<usize>,
}

impl Search {
    fn from(
        &mut self,
        graph: &Graph,
        among: &FxHashSet<usize>,
        start: usize,
        components: &mut Vec<Vec<usize>>,
    ) {
        // The nodes on the current path, each with its next edge and the earliest node that it reaches.
        let mut path: Vec<(usize, usize, usize)> = Vec::new();
        let mut enter = Some(start);
        loop {
            if let Some(index) = enter.take() {
                let order = self.order.len();
                self.order.insert(index, order);
                self.open.push(index);
                path.push((index, 0, order));
            }
            let Some((index, next_edge, earliest)) = path.last_mut() else { return };
            if let Some(&to) = graph.edges[*index].get(*next_edge) {
                *next_edge += 1;
                match self.order.get(&to) {
                    _ if !among.contains(&to) || self.assigned.contains(&to) => {}
                    Some(order) => *earliest = (*earliest).min(*order),
                    None => enter = Some(to),
                }
                continue;
            }
            let (index, _, earliest) = path.pop().unwrap_or_default();
            if let Some((_, _, before)) = path.last_mut() {
                *before = (*before).min(earliest);
            }
            if self.order[&index] == earliest {
                let at = self.open.iter().rposition(|open| *open == index).unwrap_or(0);
                let group = self.open.split_off(at);
                self.assigned.extend(group.iter().copied());
                components.push(group);
            }
        }
    }
}
