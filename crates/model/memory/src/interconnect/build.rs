//! Builds the graph of channels from a machine file's crossbars, ports and links.
//!
//! Source: the meaning of the keys is defined in the book's chapter on machine files.

use super::channel::Channel;
use super::graph::{CROSSING, Edge, Endpoints, Graph, LINK, Vertex};
use super::route::{Hop, Routes};
use super::{Endpoint, Interconnect};
use crate::build_error::{BuildError, host_of};
use longma_topology::parts::{Chip, Crossbar, CrossbarKind, Distances, Link, Port};
use longma_topology::units::{Bandwidth, Frequency, Latency, TransferRate, Width};
use longma_topology::{HostInstance, Machine};

/// Default crossing time of a crossbar, in cycles of its clock: two register stages.
const CROSSING_CYCLES: u64 = 2;

/// Default width of a crossbar port, bits: that of AMD's Infinity Fabric in Zen and of Intel's rings.
const PORT_BITS: u64 = 256;

/// Default rate of a link, bytes per second: two QPI links or one UPI link of a server, 20 GB/s.
const LINK_BYTES_PER_SECOND: u64 = 20_000_000_000;

/// Default one-way latency of a link, picoseconds, if neither the link nor the distances between nodes state one. An
/// estimate: half of the difference between remote and local memory latency on servers with QPI (52 ns) and with the
/// first generation of Zen (55 ns).
const LINK_PS: u64 = 27_000;

pub(super) fn interconnect(machine: &Machine, host: usize) -> Result<Interconnect, BuildError> {
    let instance = host_of(machine, host)?;
    if instance.nodes.iter().all(|n| n.memories.is_empty()) {
        return Err(BuildError::NoMemory { host: instance.name.clone() });
    }
    let mut build = Build::new(machine, instance);
    build.add_crossbars();
    build.join_private_parts();
    build.join_unconnected();
    build.add_links();
    build.add_assumed_links();
    build.finish()
}

/// One instance of a crossbar: one per chip, or one per node.
struct CrossbarInstance<'a> {
    part: &'a Crossbar,
    chip: usize,
    /// Nodes attached to it.
    nodes: Vec<usize>,
    vertex: Vertex,
    name: String,
    clock: Frequency,
    /// The single channel of a bus; `None` for other kinds.
    bus: Option<u32>,
}

struct Build<'a> {
    machine: &'a Machine,
    host: &'a HostInstance,
    endpoints: Endpoints,
    graph: Graph,
    channels: Vec<Channel>,
    /// Each node's gate: the vertex at which links end.
    gates: Vec<Vertex>,
    crossbars: Vec<CrossbarInstance<'a>>,
    /// The node of each controller.
    controller_nodes: Vec<usize>,
    /// For each endpoint, the crossbars it is attached to.
    attached: Vec<Vec<Vertex>>,
}

impl<'a> Build<'a> {
    fn new(machine: &'a Machine, host: &'a HostInstance) -> Self {
        let controller_nodes: Vec<usize> = (host.nodes.iter().enumerate())
            .flat_map(|(node, n)| n.memories.iter().map(move |_| node))
            .collect();
        let mut first = host.cores.len() + host.caches.len() + controller_nodes.len();
        let mut ports = Vec::new();
        for chip in &host.chips {
            let names = machine.chips.get(chip).map_or(Vec::new(), port_names);
            first += names.len();
            ports.push((first - names.len(), names));
        }
        let endpoints = Endpoints {
            cores: host.cores.len(),
            caches: host.caches.len(),
            controllers: controller_nodes.len(),
            ports,
        };
        let mut graph = Graph::with_vertices(endpoints.count());
        let gates = host.nodes.iter().map(|_| graph.add_vertex()).collect();
        let attached = vec![Vec::new(); endpoints.count()];
        let (channels, crossbars) = (Vec::new(), Vec::new());
        Self { machine, host, endpoints, graph, channels, gates, crossbars, controller_nodes, attached }
    }

    fn chip(&self, chip: usize) -> Option<&'a Chip> {
        self.machine.chips.get(&self.host.chips[chip])
    }

    fn nodes_of_chip(&self, chip: usize) -> Vec<usize> {
        (0..self.host.nodes.len()).filter(|n| self.host.nodes[*n].chip == chip).collect()
    }

    /// The clock of a chip's crossbars: the chip's uncore clock, or else that of its first core.
    fn clock(&self, chip: usize) -> Frequency {
        let uncore_clock = self.chip(chip).and_then(|c| c.uncore_clock);
        let core = self.host.cores.iter().find(|c| c.chip == chip).or(self.host.cores.first());
        let core = core.and_then(|c| self.machine.cores.get(&c.core)).map(|c| c.clock);
        uncore_clock.or(core).unwrap_or(Frequency::new(1_000_000_000))
    }

    fn channel(&mut self, name: String, bytes_per_second: u64) -> Hop {
        self.channels.push(Channel::new(name, bytes_per_second));
        Hop { channel: self.channels.len() as u32 - 1 }
    }

    fn links(&self) -> &'a [Link] {
        &self.machine.hosts[self.host.of].links
    }

    /// Instantiates the crossbars: once per node for a chip whose nodes are joined by links, otherwise once per chip.
    fn add_crossbars(&mut self) {
        for chip in 0..self.host.chips.len() {
            let Some(part) = self.chip(chip) else { continue };
            let nodes = self.nodes_of_chip(chip);
            let linked = |node: &usize| {
                let name = format!("node{node}");
                self.links().iter().any(|l| l.between.iter().any(|end| **end == *name))
            };
            let each_node = nodes.len() > 1 && nodes.iter().any(linked);
            let scopes = if each_node { nodes.iter().map(|n| vec![*n]).collect() } else { vec![nodes] };
            for scope in scopes {
                let from = self.crossbars.len();
                for crossbar in &part.crossbars {
                    let above = match each_node {
                        true => format!("chip{chip}.node{}", scope[0]),
                        false => format!("chip{chip}"),
                    };
                    self.add_crossbar(crossbar, chip, scope.clone(), &above);
                }
                for index in from..self.crossbars.len() {
                    self.attach_all(index, from);
                }
            }
        }
    }

    fn add_crossbar(&mut self, part: &'a Crossbar, chip: usize, nodes: Vec<usize>, above: &str) {
        let vertex = self.graph.add_vertex();
        let name = format!("{above}.{}", word(&part.name));
        let clock = part.clock.unwrap_or_else(|| self.clock(chip));
        let bus = (part.kind == CrossbarKind::Bus)
            .then(|| self.channel(format!("{name}.bus"), port_rate(part, clock)).channel);
        let latency_ps = crossing_ps(part, clock);
        for node in &nodes {
            // Between a link and the crossbar only the link's own channel limits the rate.
            let gate = self.gates[*node];
            let hops = [bus.map(|channel| Hop { channel }), None];
            self.graph.add(gate, Edge { to: vertex, weight: CROSSING, hops, latency_ps });
            self.graph.add(vertex, Edge { to: gate, weight: CROSSING, hops: [None, None], latency_ps: 0 });
        }
        self.crossbars.push(CrossbarInstance { part, chip, nodes, vertex, name, clock, bus });
    }

    /// Attaches all parts that crossbar `index` names. Other crossbars of the same scope begin at index `from`.
    fn attach_all(&mut self, index: usize, from: usize) {
        let part = self.crossbars[index].part;
        let mut names: Vec<&str> = Vec::new();
        for name in part.masters.iter().chain(&part.slaves) {
            if !names.contains(&&**name) {
                names.push(name);
            }
        }
        for name in names {
            for (endpoint, label, ports) in self.named(index, name) {
                self.attach(index, endpoint, &label, ports);
            }
            let other = self.crossbars[from..].iter().position(|x| x.part.name == name);
            if let Some(other) = other.map(|o| o + from) {
                let (vertex, label) = (self.crossbars[other].vertex, word(&part.name));
                let (clock, part) = (self.crossbars[other].clock, self.crossbars[other].part);
                self.attach(index, vertex, &word(name), 1);
                // Data from the other crossbar has already been charged for the crossing; data to the other crossbar is
                // charged here.
                let edges = &mut self.graph.edges[self.crossbars[index].vertex];
                if let Some(edge) = edges.iter_mut().find(|e| e.to == vertex) {
                    edge.latency_ps = crossing_ps(part, clock);
                }
                debug_assert!(!label.is_empty());
            }
        }
    }

    /// Resolves `name` at a crossbar: vertices, their labels, and the number of ports of each.
    fn named(&self, index: usize, name: &str) -> Vec<(Vertex, String, u64)> {
        let CrossbarInstance { chip, ref nodes, .. } = self.crossbars[index];
        let mut found = Vec::new();
        let is_on_chip = |core: &usize| {
            let core = &self.host.cores[*core];
            core.chip == chip && nodes.contains(&core.node)
        };
        if name == "cores" {
            let cores = (0..self.host.cores.len()).filter(is_on_chip);
            found.extend(cores.map(|c| (self.endpoints.index(Endpoint::Core(c)), format!("core{c}"), 1)));
        }
        if name == "memory" {
            let local_controllers = self.controller_nodes.iter().enumerate().filter(|c| nodes.contains(c.1));
            found.extend(
                local_controllers
                    .map(|(c, _)| (self.endpoints.index(Endpoint::Controller(c)), format!("memory{c}"), 1)),
            );
        }
        for (number, cache) in self.host.caches.iter().enumerate() {
            if cache.cache == name && cache.cores.iter().any(is_on_chip) {
                let banks = self.machine.caches.get(name).map_or(1, |c| c.banks.max(1));
                let endpoint = self.endpoints.index(Endpoint::Cache(number));
                found.push((endpoint, format!("{}{number}", word(name)), banks.into()));
            }
        }
        let first_node = self.nodes_of_chip(chip).first() == nodes.first();
        let ports = self.chip(chip).map_or(&[][..], |c| &c.ports);
        if let Some(port) = ports.iter().find(|p| p.name == name).filter(|_| first_node) {
            for copy in copies(port) {
                if let Some(endpoint) = self.endpoints.port(&format!("chip{chip}.{copy}")) {
                    found.push((self.endpoints.index(endpoint), word(&copy), 1));
                }
            }
        }
        found
    }

    /// Attaches an endpoint to a crossbar by `ports` ports, which are modelled as one channel with their total rate.
    fn attach(&mut self, index: usize, endpoint: Vertex, label: &str, ports: u64) {
        let CrossbarInstance { part, vertex, ref name, clock, bus, chip, .. } = self.crossbars[index];
        let name = format!("{name}.{label}");
        let rate = port_rate(part, clock).saturating_mul(ports);
        let (into, out) = match bus {
            Some(channel) => (Some(Hop { channel }), None),
            None if part.separate_read_write => {
                let into = self.channel(format!("{name}.in"), rate);
                (Some(into), Some(self.channel(format!("{name}.out"), rate)))
            }
            None => {
                let shared = self.channel(format!("{name}.both"), rate);
                (Some(shared), Some(shared))
            }
        };
        let ([wire_in, wire_out], wire_ps) = self.wires(endpoint, chip);
        let latency_ps = wire_ps + self.through_ps(index);
        let inward = Edge { to: vertex, weight: CROSSING, hops: [wire_in, into], latency_ps };
        self.graph.add(endpoint, inward);
        let outward = Edge { to: endpoint, weight: CROSSING, hops: [out, wire_out], latency_ps: wire_ps };
        self.graph.add(vertex, outward);
        if let Some(attached) = self.attached.get_mut(endpoint) {
            attached.push(vertex);
        }
    }

    /// Time to cross a crossbar. For a ring it is a quarter of its stops: the mean distance when data takes the shorter
    /// direction.
    fn through_ps(&self, index: usize) -> u64 {
        let CrossbarInstance { part, clock, .. } = self.crossbars[index];
        let one = crossing_ps(part, clock);
        if part.kind != CrossbarKind::Ring {
            return one;
        }
        let names = part.masters.iter().chain(part.slaves.iter().filter(|s| !part.masters.contains(s)));
        // Slices of a cache share the ring stops of the cores.
        let stops = names.filter(|n| !self.machine.caches.contains_key(&***n));
        let stops: usize = stops.map(|n| self.named(index, n).len()).sum();
        one * (stops as u64 / 4).max(1)
    }

    /// The wires of a port outside its crossbar, if the machine file states their rate: channels in and out, and
    /// latency.
    fn wires(&mut self, endpoint: Vertex, chip: usize) -> ([Option<Hop>; 2], u64) {
        let (first, ref names) = self.endpoints.ports[chip];
        let Some(copy) = endpoint.checked_sub(first).and_then(|i| names.get(i)).cloned() else {
            return ([None, None], 0);
        };
        let ports = self.chip(chip).map_or(&[][..], |c| &c.ports);
        let Some(port) = ports.iter().find(|p| copies(p).contains(&copy)) else { return ([None, None], 0) };
        let clock = self.clock(chip);
        let latency_ps = port.latency.map_or(0, |l| l.ps(clock));
        let rate = wire_rate(port.bandwidth, port.width, port.rate, clock);
        let hops = match rate {
            Some(rate) => ["in", "out"]
                .map(|way| Some(self.channel(format!("chip{chip}.{}.wires.{way}", word(&copy)), rate))),
            None => [None, None],
        };
        (hops, latency_ps)
    }

    /// Merges each core with the caches it reaches directly, without a crossbar in between.
    fn join_private_parts(&mut self) {
        for (number, core) in self.host.cores.iter().enumerate() {
            let core_vertex = self.endpoints.index(Endpoint::Core(number));
            for cache in &core.caches {
                let cache = self.endpoints.index(Endpoint::Cache(*cache));
                if !self.attached[core_vertex].iter().any(|x| self.attached[cache].contains(x)) {
                    self.graph.join(core_vertex, cache);
                }
            }
        }
    }

    /// Attaches all parts that are on no crossbar to their node's gate: memory controllers, memory-side caches, ports,
    /// and cores without caches.
    fn join_unconnected(&mut self) {
        for (controller, node) in self.controller_nodes.clone().into_iter().enumerate() {
            self.join_if_unconnected(Endpoint::Controller(controller), node);
        }
        for (number, cache) in self.host.caches.iter().enumerate() {
            let before_memory = self.machine.caches.get(&cache.cache).is_some_and(|c| &*c.next == "memory");
            let core = cache.cores.first().map(|c| &self.host.cores[*c]);
            let core_attached = cache
                .cores
                .iter()
                .any(|c| !self.attached[self.endpoints.index(Endpoint::Core(*c))].is_empty());
            if let Some(core) = core.filter(|_| before_memory && !core_attached) {
                self.join_if_unconnected(Endpoint::Cache(number), core.node);
            }
        }
        for (number, core) in self.host.cores.iter().enumerate() {
            if core.caches.is_empty() {
                self.join_if_unconnected(Endpoint::Core(number), core.node);
            }
        }
        for chip in 0..self.endpoints.ports.len() {
            let node = self.nodes_of_chip(chip).first().copied().unwrap_or(0);
            for index in 0..self.endpoints.ports[chip].1.len() {
                self.join_if_unconnected(Endpoint::Port { chip, index }, node);
            }
        }
    }

    fn join_if_unconnected(&mut self, endpoint: Endpoint, node: usize) {
        let endpoint = self.endpoints.index(endpoint);
        if self.attached[endpoint].is_empty() {
            self.graph.join(endpoint, self.gates[node]);
        }
    }

    /// Adds the links between nodes. A link between chips ends at their first nodes. Parallel links between the same
    /// nodes become lanes of one channel in each direction.
    fn add_links(&mut self) {
        let distances = self.distances().is_some_and(|d| d.latency.is_some());
        let mut joined: Vec<([usize; 2], [u32; 2])> = Vec::new();
        for link in self.links() {
            let Some(ends) = self.ends(link) else { continue };
            let clock = self.clock(self.host.nodes[ends[0]].chip);
            let rate = wire_rate(link.bandwidth, link.width, link.rate, clock);
            let rate = rate.unwrap_or(LINK_BYTES_PER_SECOND);
            if let Some((_, channels)) = joined.iter().find(|j| j.0 == ends) {
                channels.iter().for_each(|c| self.channels[*c as usize].add_lane(rate));
                continue;
            }
            // Stated distances already contain the latency of the links.
            let latency_ps = if distances { 0 } else { link.latency.map_or(LINK_PS, |l| l.ps(clock)) };
            joined.push((ends, self.add_link(ends, &word(&link.name), [rate, rate], latency_ps)));
        }
    }

    /// The nodes that a link joins, lower number first.
    fn ends(&self, link: &Link) -> Option<[usize; 2]> {
        let node = |end: &str| {
            let number = |prefix: &str| end.strip_prefix(prefix).and_then(|n| n.parse::<usize>().ok());
            match (number("node"), number("chip")) {
                (Some(node), _) => Some(node).filter(|n| *n < self.host.nodes.len()),
                (_, Some(chip)) => self.nodes_of_chip(chip).first().copied(),
                _ => None,
            }
        };
        let [one, other] = &link.between[..] else { return None };
        let (one, other) = (node(one)?, node(other)?);
        (one != other).then(|| [one.min(other), one.max(other)])
    }

    fn add_link(&mut self, ends: [usize; 2], name: &str, rates: [u64; 2], latency_ps: u64) -> [u32; 2] {
        let [one, other] = ends.map(|node| self.gates[node]);
        let up = self.channel(format!("links.{name}.node{}_to_node{}", ends[0], ends[1]), rates[0]);
        let down = self.channel(format!("links.{name}.node{}_to_node{}", ends[1], ends[0]), rates[1]);
        for (from, to, hop) in [(one, other, up), (other, one, down)] {
            self.graph.add(from, Edge { to, weight: LINK, hops: [Some(hop), None], latency_ps });
        }
        [up.channel, down.channel]
    }

    /// Joins nodes directly if neither a link nor a crossbar connects them, as on a discovered host.
    fn add_assumed_links(&mut self) {
        let distances = self.distances();
        let latency_ps = if distances.is_some_and(|d| d.latency.is_some()) { 0 } else { LINK_PS };
        let rate = |from: usize, to: usize| {
            // The bandwidth is measured as reads by the cores of `to` from the memory of `from`, so data flows from
            // `from` to `to`.
            let stated = distances.and_then(|d| d.bandwidth.as_ref()).and_then(|b| b.rows.get(to)?.get(from));
            stated.map_or(LINK_BYTES_PER_SECOND, |rate| (rate.bits_per_second() / 8).max(1))
        };
        for one in 0..self.gates.len() {
            let reached = self.graph.reachable(self.gates[one]);
            for other in one + 1..self.gates.len() {
                if !reached[self.gates[other]] {
                    let name = format!("assumed{one}_{other}");
                    self.add_link([one, other], &name, [rate(one, other), rate(other, one)], latency_ps);
                }
            }
        }
    }

    fn distances(&self) -> Option<&'a Distances> {
        self.machine.hosts[self.host.of].distances.as_ref()
    }

    fn finish(self) -> Result<Interconnect, BuildError> {
        let count = self.endpoints.count();
        let reached = self.graph.reachable(self.gates[0]);
        if let Some(unreachable) = (0..count).find(|v| !reached[*v]) {
            return Err(BuildError::Impossible {
                what: format!(
                    "{} of host `{}` is joined to nothing",
                    self.name_of(unreachable),
                    self.host.name
                ),
                help: "name it among the masters or slaves of one of the chip's crossbars".into(),
            });
        }
        let passes = (0..self.graph.edges.len()).map(|v| self.endpoints.passes(v)).collect();
        let node = (0..count).map(|v| self.node_of(v) as u32).collect();
        let routes = Routes::new(self.graph, count, passes, node, self.host.nodes.len());
        let mut interconnect = Interconnect { endpoints: self.endpoints, channels: self.channels, routes };
        let distances = self.machine.hosts[self.host.of].distances.as_ref();
        let line = self.machine.line_bytes() as u32;
        let ends = NodeEnds { host: self.host, controller_nodes: &self.controller_nodes, line };
        ends.set_distances(distances, &mut interconnect);
        Ok(interconnect)
    }

    fn node_of(&self, vertex: Vertex) -> usize {
        let Endpoints { cores, caches, controllers, .. } = self.endpoints;
        if vertex < cores {
            self.host.cores[vertex].node
        } else if vertex < cores + caches {
            let core = self.host.caches[vertex - cores].cores.first();
            core.map_or(0, |c| self.host.cores[*c].node)
        } else if vertex < cores + caches + controllers {
            self.controller_nodes[vertex - cores - caches]
        } else {
            let chip = self.endpoints.ports.iter().rposition(|p| p.0 <= vertex && !p.1.is_empty());
            chip.and_then(|c| self.nodes_of_chip(c).first().copied()).unwrap_or(0)
        }
    }

    fn name_of(&self, vertex: Vertex) -> String {
        let Endpoints { cores, caches, controllers, ref ports } = self.endpoints;
        if vertex < cores {
            return format!("core {vertex}");
        }
        if vertex < cores + caches {
            return format!("cache `{}`", self.host.caches[vertex - cores].cache);
        }
        if vertex < cores + caches + controllers {
            return format!("memory controller {}", vertex - cores - caches);
        }
        let of = |(chip, p): (usize, &(usize, Vec<String>))| {
            p.1.get(vertex.checked_sub(p.0)?).map(|name| format!("port `chip{chip}.{name}`"))
        };
        ports.iter().enumerate().find_map(of).unwrap_or_default()
    }
}

/// The host data that `set_distances` needs.
struct NodeEnds<'a> {
    host: &'a HostInstance,
    controller_nodes: &'a [usize],
    line: u32,
}

impl NodeEnds<'_> {
    /// Sets the latency between nodes to the stated distance: a remote read takes longer than a local read of the same
    /// memory by the stated difference. Each direction gets half of that difference, minus what the channels on the
    /// route already add for a line. If the two directions are stated differently, both get the mean, because a route
    /// does not depend on which end issued the request.
    fn set_distances(&self, distances: Option<&Distances>, interconnect: &mut Interconnect) {
        let Some(rows) = distances.and_then(|d| d.latency.as_ref()).map(|l| &l.rows) else { return };
        let stated = |from: usize, to: usize| rows.get(from).and_then(|r| r.get(to)).map(|t| t.ps());
        let nodes = self.host.nodes.len();
        let mut extra = vec![vec![0; nodes]; nodes];
        let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        for (from, to) in pairs.filter(|(from, to)| from != to) {
            let longer = |from: usize, to: usize| Some(stated(from, to)?.saturating_sub(stated(to, to)?));
            let (Some(forth), Some(back)) = (longer(from, to), longer(to, from)) else { continue };
            let channels =
                self.channels_ps(from, to, interconnect) + self.channels_ps(to, from, interconnect);
            extra[from][to] = (forth + back).saturating_sub(channels) / 4;
        }
        interconnect.routes.between_nodes_ps = extra;
        interconnect.routes.forget();
    }

    /// Time that the channels add to a load from another node's memory, compared with a load by a core of that node.
    fn channels_ps(&self, from: usize, to: usize, interconnect: &mut Interconnect) -> u64 {
        let core = |node: usize| self.host.nodes[node].cores.first().map(|c| Endpoint::Core(*c));
        let memory = self.controller_nodes.iter().position(|n| *n == to).map(Endpoint::Controller);
        let (Some(memory), Some(local), Some(remote)) = (memory, core(from), core(to)) else { return 0 };
        let mut both_ways =
            |core| interconnect.idle_ps(core, memory, 0) + interconnect.idle_ps(memory, core, self.line);
        both_ways(local).saturating_sub(both_ways(remote))
    }
}

/// Converts a name into a valid component of a statistic's name.
fn word(name: &str) -> String {
    let letter = |c: char| match c.to_ascii_lowercase() {
        c if c.is_ascii_alphanumeric() || c == '-' || c == '_' => c,
        _ => '_',
    };
    name.chars().map(letter).collect()
}

/// Names of a port's copies, as devices in machine files refer to them.
fn copies(port: &Port) -> Vec<String> {
    match port.count {
        1 => vec![port.name.clone()],
        // At most 256 copies can have a device.
        n => (0..n.min(256)).map(|copy| format!("{}{copy}", port.name)).collect(),
    }
}

fn port_names(chip: &Chip) -> Vec<String> {
    chip.ports.iter().flat_map(copies).collect()
}

fn crossing_ps(part: &Crossbar, clock: Frequency) -> u64 {
    let otherwise = Latency::Cycles(longma_topology::units::Cycles::new(CROSSING_CYCLES));
    part.latency.unwrap_or(otherwise).ps(clock)
}

/// Rate of one port of a crossbar, bytes per second: its width, once a clock.
fn port_rate(part: &Crossbar, clock: Frequency) -> u64 {
    let bits = part.width.map_or(PORT_BITS, Width::bits);
    (bits.saturating_mul(clock.hz()) / 8).max(1)
}

/// Rate of wires, bytes per second, if it is stated or follows from width and transfer rate.
fn wire_rate(
    bandwidth: Option<Bandwidth>,
    width: Option<Width>,
    rate: Option<TransferRate>,
    clock: Frequency,
) -> Option<u64> {
    let product = || Some(width?.bits().saturating_mul(rate?.per_second()) / 8);
    bandwidth.map(|b| b.bytes_per_second(clock)).or_else(product).map(|rate| rate.max(1))
}
