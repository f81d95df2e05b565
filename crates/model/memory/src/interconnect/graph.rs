//! The interconnect graph: endpoints, crossbars and node gates. `build` creates it from a machine file, and `route`
//! finds the shortest paths.

use super::Endpoint;
use super::route::Hop;

/// A vertex number: endpoints come first, then crossbars and gates.
pub(super) type Vertex = usize;

/// Numbering of the endpoints: cores, caches, controllers, ports.
#[derive(Clone, Debug)]
pub(super) struct Endpoints {
    pub(super) cores: usize,
    pub(super) caches: usize,
    pub(super) controllers: usize,
    /// For each chip, the number of its first port and the names of its ports, one per copy.
    pub(super) ports: Vec<(usize, Vec<String>)>,
}

impl Endpoints {
    /// The vertex of an endpoint.
    ///
    /// # Panics
    /// If there is no such endpoint.
    #[inline]
    pub(super) fn index(&self, endpoint: Endpoint) -> Vertex {
        let (index, count, first) = match endpoint {
            Endpoint::Core(core) => (core, self.cores, 0),
            Endpoint::Cache(cache) => (cache, self.caches, self.cores),
            Endpoint::Controller(controller) => (controller, self.controllers, self.cores + self.caches),
            Endpoint::Port { chip, index } => (index, self.ports[chip].1.len(), self.ports[chip].0),
        };
        assert!(index < count, "the host has no {endpoint:?}");
        first + index
    }

    /// Number of endpoints.
    pub(super) fn count(&self) -> usize {
        let ports = self.ports.iter().map(|p| p.1.len()).sum::<usize>();
        self.cores + self.caches + self.controllers + ports
    }

    pub(super) fn port(&self, name: &str) -> Option<Endpoint> {
        let (chip, port) = name.split_once('.')?;
        let chip: usize = chip.strip_prefix("chip")?.parse().ok()?;
        let index = self.ports.get(chip)?.1.iter().position(|p| p == port)?;
        Some(Endpoint::Port { chip, index })
    }

    /// Returns whether a route may pass through a vertex. Controllers and ports are always endpoints.
    pub(super) fn passes(&self, vertex: Vertex) -> bool {
        vertex < self.cores + self.caches || vertex >= self.count()
    }
}

/// An edge from one vertex to a neighbour.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    pub(super) to: Vertex,
    /// Weight for the shortest-path search: links count first, then crossings.
    pub(super) weight: u32,
    /// Channels on the edge, at most two.
    pub(super) hops: [Option<Hop>; 2],
    pub(super) latency_ps: u64,
}

/// Weight of a link between nodes, larger than that of any path inside a chip.
pub(super) const LINK: u32 = 1_000;
/// Weight of an edge into or out of a crossbar.
pub(super) const CROSSING: u32 = 1;

/// Adjacency lists of the graph.
#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    pub(super) edges: Vec<Vec<Edge>>,
}

impl Graph {
    pub(super) fn with_vertices(count: usize) -> Self {
        Self { edges: vec![Vec::new(); count] }
    }

    pub(super) fn add_vertex(&mut self) -> Vertex {
        self.edges.push(Vec::new());
        self.edges.len() - 1
    }

    /// Joins two vertices by edges without cost.
    pub(super) fn join(&mut self, one: Vertex, other: Vertex) {
        for (from, to) in [(one, other), (other, one)] {
            self.add(from, Edge { to, weight: 0, hops: [None, None], latency_ps: 0 });
        }
    }

    pub(super) fn add(&mut self, from: Vertex, edge: Edge) {
        self.edges[from].push(edge);
    }

    /// Returns for each vertex whether it is reachable from `start`.
    pub(super) fn reachable(&self, start: Vertex) -> Vec<bool> {
        let mut visited = vec![false; self.edges.len()];
        let mut next = vec![start];
        visited[start] = true;
        while let Some(vertex) = next.pop() {
            for edge in &self.edges[vertex] {
                if !std::mem::replace(&mut visited[edge.to], true) {
                    next.push(edge.to);
                }
            }
        }
        visited
    }
}
