//! What is joined to what: places, crossbars and nodes' gates as a graph.
//! Not the shortest ways through it: see `route`. Not how a machine file becomes one: see `build`.

use super::Place;
use super::route::Hop;

/// A vertex of the graph: first all places, then crossbars and gates.
pub(super) type Vertex = usize;

/// How places are numbered: cores, caches, controllers, ports.
#[derive(Clone, Debug)]
pub(super) struct Places {
    pub(super) cores: usize,
    pub(super) caches: usize,
    pub(super) controllers: usize,
    /// For each chip, the number of its first port and its ports' names, copies counted out.
    pub(super) ports: Vec<(usize, Vec<String>)>,
}

impl Places {
    /// The number of a place.
    ///
    /// # Panics
    /// If there is no such place.
    #[inline]
    pub(super) fn index(&self, place: Place) -> Vertex {
        let (index, count, first) = match place {
            Place::Core(core) => (core, self.cores, 0),
            Place::Cache(cache) => (cache, self.caches, self.cores),
            Place::Controller(controller) => (controller, self.controllers, self.cores + self.caches),
            Place::Port { chip, index } => (index, self.ports[chip].1.len(), self.ports[chip].0),
        };
        assert!(index < count, "the host has no {place:?}");
        first + index
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        let ports = self.ports.iter().map(|p| p.1.len()).sum::<usize>();
        self.cores + self.caches + self.controllers + ports
    }

    pub(super) fn port(&self, name: &str) -> Option<Place> {
        let (chip, port) = name.split_once('.')?;
        let chip: usize = chip.strip_prefix("chip")?.parse().ok()?;
        let index = self.ports.get(chip)?.1.iter().position(|p| p == port)?;
        Some(Place::Port { chip, index })
    }

    /// Whether ways may lead through a place: caches and cores pass on, controllers and ports are ends.
    pub(super) fn passes(&self, vertex: Vertex) -> bool {
        vertex < self.cores + self.caches || vertex >= self.count()
    }
}

/// A step from one vertex to a neighbour.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    pub(super) to: Vertex,
    /// What ways are compared by: links first, then crossings.
    pub(super) weight: u32,
    /// Channels on the step, at most two.
    pub(super) hops: [Option<Hop>; 2],
    pub(super) latency_ps: u64,
}

/// Weight of a link between nodes: one link is longer than any way inside a chip.
pub(super) const LINK: u32 = 1_000;
/// Weight of a step into or out of a crossbar.
pub(super) const CROSSING: u32 = 1;

/// The graph.
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

    /// Joins two vertices that are one place as far as data is concerned.
    pub(super) fn join(&mut self, one: Vertex, other: Vertex) {
        for (from, to) in [(one, other), (other, one)] {
            self.add(from, Edge { to, weight: 0, hops: [None, None], latency_ps: 0 });
        }
    }

    pub(super) fn add(&mut self, from: Vertex, edge: Edge) {
        self.edges[from].push(edge);
    }

    /// Which vertices can be reached from `start`.
    pub(super) fn reachable(&self, start: Vertex) -> Vec<bool> {
        let mut seen = vec![false; self.edges.len()];
        let mut next = vec![start];
        seen[start] = true;
        while let Some(vertex) = next.pop() {
            for edge in &self.edges[vertex] {
                if !std::mem::replace(&mut seen[edge.to], true) {
                    next.push(edge.to);
                }
            }
        }
        seen
    }
}
