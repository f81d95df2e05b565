//! Shortest paths between endpoints, computed once per source on first use.
//!
//! Source: Dijkstra's algorithm. Ties go to the lower vertex numbers, so that routes are reproducible.

use super::graph::{Graph, Vertex};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A channel on a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hop {
    pub(super) channel: u32,
}

/// The route to one endpoint: a range of hops in the arena, and the total latency.
#[derive(Clone, Copy, Debug, Default)]
struct Route {
    first: u32,
    hops: u32,
    latency_ps: u64,
}

/// Routes computed so far.
#[derive(Clone, Debug)]
pub(super) struct Routes {
    graph: Graph,
    /// Number of vertices that are endpoints; they come first.
    endpoints: usize,
    /// Whether routes may pass through each vertex.
    passes: Vec<bool>,
    /// The NUMA node of each endpoint.
    node: Vec<u32>,
    /// Additional latency between two nodes, picoseconds: row = from, column = to.
    pub(super) between_nodes_ps: Vec<Vec<u64>>,
    rows: Vec<Option<Box<[Route]>>>,
    hops: Vec<Hop>,
}

impl Routes {
    pub(super) fn new(
        graph: Graph,
        endpoints: usize,
        passes: Vec<bool>,
        node: Vec<u32>,
        nodes: usize,
    ) -> Self {
        Self {
            graph,
            endpoints,
            passes,
            node,
            between_nodes_ps: vec![vec![0; nodes]; nodes],
            rows: vec![None; endpoints],
            hops: Vec::new(),
        }
    }

    /// Returns the hops and the latency in picoseconds of the route between two endpoints.
    #[inline]
    pub(super) fn find(&mut self, from: Vertex, to: Vertex) -> (&[Hop], u64) {
        if self.rows[from].is_none() {
            self.compute_row(from);
        }
        let route = self.rows[from].as_ref().map_or(Route::default(), |row| row[to]);
        let hops = &self.hops[route.first as usize..(route.first + route.hops) as usize];
        (hops, route.latency_ps)
    }

    /// Discards all routes after latencies have changed.
    pub(super) fn forget(&mut self) {
        self.rows.fill(None);
        self.hops.clear();
    }

    #[cold]
    fn compute_row(&mut self, from: Vertex) {
        let before = self.shortest(from);
        let mut row = vec![Route::default(); self.endpoints];
        for (to, route) in row.iter_mut().enumerate() {
            let first = self.hops.len();
            // The path is followed from its end, so each edge adds its hops in reverse.
            let mut at = to;
            while let Some((vertex, step)) = before[at].filter(|_| at != from) {
                let edge = &self.graph.edges[vertex][step];
                route.latency_ps += edge.latency_ps;
                self.hops.extend(edge.hops.iter().rev().flatten());
                at = vertex;
            }
            self.hops[first..].reverse();
            (route.first, route.hops) = (first as u32, (self.hops.len() - first) as u32);
            route.latency_ps += self.between_nodes_ps[self.node[from] as usize][self.node[to] as usize];
        }
        self.rows[from] = Some(row.into());
    }

    /// For each vertex, its predecessor on the shortest path from `from` and the index of the edge.
    fn shortest(&self, from: Vertex) -> Vec<Option<(Vertex, usize)>> {
        let mut before = vec![None; self.graph.edges.len()];
        let mut length = vec![u64::MAX; self.graph.edges.len()];
        let mut next = BinaryHeap::from([Reverse((0u64, from))]);
        length[from] = 0;
        while let Some(Reverse((so_far, vertex))) = next.pop() {
            if so_far > length[vertex] || (vertex != from && !self.passes[vertex]) {
                continue;
            }
            for (step, edge) in self.graph.edges[vertex].iter().enumerate() {
                let distance = so_far + u64::from(edge.weight);
                if distance < length[edge.to] {
                    length[edge.to] = distance;
                    before[edge.to] = Some((vertex, step));
                    next.push(Reverse((distance, edge.to)));
                }
            }
        }
        before
    }
}
