//! Turns a machine into boxes: which parts are drawn, their text, and their nesting. `boxes` lays them out.

use super::boxes::{Element, Kind};
use crate::layout::HostInstance;
use crate::machine::Machine;
use crate::parts::*;
use crate::units::{BitRate, Size};

/// Which identical parts are drawn once; each level adds parts to the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Collapse {
    Nothing,
    Hosts,
    Cores,
    Nodes,
    Chips,
}

/// The numbers of the next core and node to be drawn.
struct Numbers {
    core: usize,
    node: usize,
}

struct Renderer<'a> {
    machine: &'a Machine,
    collapse: Collapse,
}

pub(super) fn picture(machine: &Machine, collapse: Collapse) -> Element {
    let artist = Renderer { machine, collapse };
    let mut hosts = Vec::new();
    for (index, host) in machine.hosts.iter().enumerate() {
        let copies: Vec<_> = machine.layout().hosts.iter().filter(|h| h.of == index).collect();
        if collapse >= Collapse::Hosts && copies.len() > 1 {
            let name =
                format!("{} to {} ({} alike)", copies[0].name, copies[copies.len() - 1].name, copies.len());
            hosts.push(artist.host(host, copies[0], &name));
        } else {
            hosts.extend(copies.iter().map(|copy| artist.host(host, copy, &copy.name)));
        }
    }
    let mut inside = vec![Element::Flow(hosts)];
    inside.extend(artist.network());
    Element::Box { kind: Kind::Machine, lines: vec![machine.title.clone()], inside }
}

fn cache_text(cache: &Cache) -> String {
    format!("{} {}", cache.short_name(), cache.size)
}

fn join(words: &[Option<String>]) -> String {
    words.iter().flatten().cloned().collect::<Vec<_>>().join(" · ")
}

/// A data rate in the units of networks.
fn bits(rate: BitRate) -> String {
    let mb = rate.bits_per_second() as f64 / 1e6;
    if mb >= 1000.0 { format!("{} Gb/s", mb / 1000.0) } else { format!("{mb} Mb/s") }
}

/// The width and speed of a port, link or bus.
fn wires(
    width: Option<crate::units::Width>,
    rate: Option<crate::units::TransferRate>,
    bandwidth: Option<crate::units::Bandwidth>,
) -> String {
    match (bandwidth, width, rate) {
        (Some(bandwidth), _, _) => bandwidth.to_string(),
        (None, Some(width), Some(rate)) => format!("{} x {rate}", width.bits()),
        (None, Some(width), None) => width.to_string(),
        (None, None, rate) => rate.map(|r| r.to_string()).unwrap_or_default(),
    }
}

impl Renderer<'_> {
    fn host(&self, host: &Host, copy: &HostInstance, name: &str) -> Element {
        let mut numbers = Numbers { core: 0, node: 0 };
        let alike = host.chips.len() > 1 && host.chips.iter().all(|c| *c == host.chips[0]);
        let drawn = if self.collapse >= Collapse::Chips && alike { 1 } else { host.chips.len() };
        let chips = host.chips.iter().take(drawn).enumerate();
        let label = |index| match drawn < host.chips.len() {
            true => format!("chip0 to chip{} ({} alike)", host.chips.len() - 1, host.chips.len()),
            false => format!("chip{index}"),
        };
        let chips = chips.filter_map(|(index, chip)| {
            Some(self.chip(self.machine.chips.get(&**chip)?, &label(index), &mut numbers))
        });
        let mut inside = vec![Element::Flow(chips.collect())];
        let io: Vec<_> = self.io(host);
        if !io.is_empty() {
            inside.push(Element::Flow(io));
        }
        let mut notes: Vec<Element> = Vec::new();
        notes.extend(distances(host));
        notes.extend(links(host));
        if !notes.is_empty() {
            inside.push(Element::Flow(notes));
        }
        let cores = copy.cores.len();
        let cpus: usize = copy
            .cores
            .iter()
            .filter_map(|c| self.machine.cores.get(&c.core))
            .map(|c| c.threads as usize)
            .sum();
        let memory: u64 = copy.nodes.iter().filter_map(|n| n.memory_bytes).sum();
        let line = join(&[
            Some(name.to_string()),
            Some(format!("{cores} core{}", if cores == 1 { "" } else { "s" })),
            (cpus != cores).then(|| format!("{cpus} threads")),
            (memory > 0).then(|| Size::new(memory).to_string()),
            host.os.as_ref().and_then(|o| o.kernel.clone()),
        ]);
        Element::Box { kind: Kind::Host, lines: vec![line], inside }
    }

    fn chip(&self, chip: &Chip, name: &str, numbers: &mut Numbers) -> Element {
        let mut inside = Vec::new();
        let towards_cores = |x: &&Crossbar| x.masters.iter().any(|m| &**m == "cores");
        inside.extend(chip.crossbars.iter().filter(|x| !towards_cores(x)).map(crossbar));
        inside.extend(self.shared(&chip.caches, 1));
        inside.extend(chip.crossbars.iter().filter(towards_cores).map(crossbar));
        let mut nodes = Vec::new();
        for node in &chip.nodes {
            let copies = node.count as usize;
            if self.collapse >= Collapse::Nodes && copies > 1 {
                let first = numbers.node;
                nodes.push(self.node(
                    node,
                    &format!("NUMA nodes {first} to {} ({copies} alike)", first + copies - 1),
                    numbers,
                ));
                let each: usize = node.clusters.iter().map(|c| (c.count * c.cores) as usize).sum();
                numbers.core += each * (copies - 1);
                numbers.node += copies;
            } else {
                for _ in 0..copies {
                    let name = format!("NUMA node {}", numbers.node);
                    nodes.push(self.node(node, &name, numbers));
                    numbers.node += 1;
                }
            }
        }
        inside.push(Element::Flow(nodes));
        if !chip.ports.is_empty() {
            let port = |p: &Port| {
                let name = if p.count > 1 { format!("{} x {}", p.count, p.name) } else { p.name.clone() };
                Element::leaf(Kind::Port, &[name, wires(p.width, p.rate, p.bandwidth)])
            };
            inside.push(Element::Flow(chip.ports.iter().map(port).collect()));
        }
        Element::Box { kind: Kind::Chip, lines: vec![join(&[Some(name.into()), chip.title.clone()])], inside }
    }

    /// The caches shared by all parts below, largest level first, each in one or two lines of text.
    fn shared(&self, names: &[crate::read::Name], lines: usize) -> Vec<Element> {
        let mut caches: Vec<_> = names.iter().filter_map(|n| self.machine.caches.get(&**n)).collect();
        caches.sort_by_key(|c| std::cmp::Reverse(c.level));
        let text = |c: &&Cache| {
            let facts = join(&[
                c.ways.map(|w| format!("{w} ways")),
                (c.banks > 1).then(|| format!("{} banks", c.banks)),
                c.latency.map(|l| l.to_string()),
                c.lock.as_ref().map(|l| format!("lock x{}", l.windows)),
                c.dca.as_ref().map(|d| format!("DCA {} ways", d.ways)),
            ]);
            match (facts.is_empty(), lines) {
                (true, _) => vec![cache_text(c)],
                (false, 1) => vec![format!("{} · {facts}", cache_text(c))],
                (false, _) => vec![cache_text(c), facts],
            }
        };
        caches.iter().map(|c| Element::leaf(Kind::Cache, &text(c))).collect()
    }

    fn node(&self, node: &ChipNode, name: &str, numbers: &mut Numbers) -> Element {
        let mut inside = Vec::new();
        for used in &node.memory {
            let Some(memory) = self.machine.memories.get(&*used.memory) else { continue };
            let kind = memory.technology.word().to_uppercase();
            let technology = match memory.rate {
                Some(rate) => format!("{kind}-{}", rate.per_second() / 1_000_000),
                None => kind.replace("UNKNOWN", "memory"),
            };
            let channels = used.count * memory.channels;
            let line = join(&[
                used.capacity.map(|c| c.to_string()),
                Some(if channels > 1 { format!("{channels} x {technology}") } else { technology }),
                memory.latency.map(|l| l.to_string()),
            ]);
            inside.push(Element::leaf(Kind::Memory, &[line]));
        }
        inside.extend(self.shared(&node.caches, 1));
        let mut clusters = Vec::new();
        for cluster in &node.clusters {
            for _ in 0..cluster.count {
                clusters.push(self.cluster(cluster, numbers));
            }
        }
        if !clusters.is_empty() {
            inside.push(Element::Flow(clusters));
        }
        Element::Box { kind: Kind::Node, lines: vec![name.into()], inside }
    }

    fn cluster(&self, cluster: &Cluster, numbers: &mut Numbers) -> Element {
        let Some(core) = self.machine.cores.get(&*cluster.core) else { return Element::Stack(Vec::new()) };
        let first = numbers.core;
        numbers.core += cluster.cores as usize;
        let cores = if self.collapse >= Collapse::Cores && cluster.cores > 1 {
            let name = format!("cores {first} to {}", numbers.core - 1);
            vec![self.core(core, &name)]
        } else {
            (first..numbers.core).map(|n| self.core(core, &format!("core {n}"))).collect()
        };
        let mut inside = self.shared(&cluster.caches, 2);
        inside.push(Element::Flow(cores));
        if cluster.caches.is_empty() {
            return Element::Stack(inside);
        }
        Element::Box { kind: Kind::Cluster, lines: vec![], inside }
    }

    fn core(&self, core: &Core, name: &str) -> Element {
        let mut caches: Vec<_> = core.caches.iter().filter_map(|n| self.machine.caches.get(&**n)).collect();
        caches.sort_by_key(|c| (std::cmp::Reverse(c.level), c.kind));
        let mut stack: Vec<_> = caches.iter().map(|c| Element::leaf(Kind::Cache, &[cache_text(c)])).collect();
        let mut lines = vec![name.to_string()];
        lines.extend(
            core.title.as_ref().map(|t| t.split(" (").next().unwrap_or(t).chars().take(24).collect()),
        );
        lines.push(join(&[
            Some(core.clock.to_string()),
            (core.threads > 1).then(|| format!("{} thr", core.threads)),
        ]));
        lines.extend(core.store.as_ref().map(|s| format!("store {}", s.size())));
        lines.extend(core.idma.as_ref().map(|i| format!("IDMA {}r {}w", i.read_channels, i.write_channels)));
        lines.extend(core.cam.as_ref().map(|c| format!("CAM {}", c.entries)));
        stack.push(Element::leaf(Kind::Core, &lines));
        Element::Stack(stack)
    }

    /// Buses with the devices attached to them, then the devices attached to a chip.
    fn io(&self, host: &Host) -> Vec<Element> {
        let is_bus = |name: &str| host.buses.iter().any(|b| b.name == name);
        let roots = host.buses.iter().filter(|b| !is_bus(&b.on)).map(|b| self.bus(host, b));
        let direct = host.devices.iter().filter(|d| !is_bus(&d.on)).map(|d| self.device(d, true));
        roots.chain(direct).collect()
    }

    fn bus(&self, host: &Host, bus: &Bus) -> Element {
        let below = host.buses.iter().filter(|b| *b.on == *bus.name).map(|b| self.bus(host, b));
        let devices = host.devices.iter().filter(|d| *d.on == *bus.name).map(|d| self.device(d, false));
        let inside: Vec<_> = below.chain(devices).collect();
        let on = (!host.buses.iter().any(|b| *b.name == *bus.on)).then(|| format!("on {}", bus.on));
        let line = join(&[
            Some(bus.name.clone()),
            Some(bus.protocol.word().into()),
            Some(wires(bus.width, bus.rate, bus.bandwidth)),
            on,
        ]);
        let inside = if inside.is_empty() { inside } else { vec![Element::Flow(inside)] };
        Element::Box { kind: Kind::Bus, lines: vec![line], inside }
    }

    fn device(&self, placed: &crate::parts::Placed, say_where: bool) -> Element {
        let Some(device) = self.machine.devices.get(&*placed.device) else {
            return Element::Stack(Vec::new());
        };
        let first =
            if say_where { format!("{} · on {}", placed.name, placed.on) } else { placed.name.clone() };
        let facts = match (&device.ethernet, &device.myrinet, &device.zoned, &device.block) {
            (Some(e), ..) => join(&[e.rate.map(bits), e.mtu.map(|m| format!("MTU {}", m.bytes()))]),
            (_, Some(m), ..) => {
                join(&[Some(bits(m.rate)), Some(m.clock.to_string()), Some(format!("{} SRAM", m.sram))])
            }
            (_, _, Some(z), _) => {
                join(&[Some(format!("{} zones of {}", z.zones + z.conventional_zones, z.zone_size))])
            }
            (_, _, _, Some(b)) => {
                b.capacity.map(|c| format!("{:.1} GB", c.bytes() as f64 / 1e9)).unwrap_or_default()
            }
            _ => String::new(),
        };
        let mut lines = vec![first, device.title.clone()];
        lines.extend((!facts.is_empty()).then_some(facts));
        Element::leaf(Kind::Device, &lines)
    }

    /// Switches and cables.
    fn network(&self) -> Vec<Element> {
        let switch = |s: &Switch| {
            let line = join(&[
                Some(s.name.clone()),
                s.title.clone(),
                Some(bits(s.rate)),
                s.latency.map(|l| l.to_string()),
            ]);
            let cables = self.machine.cables.iter().filter(|c| c.between.iter().any(|e| **e == *s.name));
            let ends: Vec<_> = cables
                .flat_map(|c| c.between.iter().filter(|e| ***e != *s.name).map(|e| e.to_string()))
                .collect();
            Element::leaf(Kind::Switch, &[line, format!("cabled to {}", ends.join(", "))])
        };
        let mut parts: Vec<_> = self.machine.switches.iter().map(switch).collect();
        let is_switch = |end: &str| self.machine.switches.iter().any(|s| s.name == end);
        let direct = self.machine.cables.iter().filter(|c| !c.between.iter().any(|e| is_switch(e)));
        let lines: Vec<_> = direct
            .map(|c| c.between.iter().map(|e| e.to_string()).collect::<Vec<_>>().join(" ── "))
            .collect();
        if !lines.is_empty() {
            parts.push(Element::leaf(Kind::Switch, &lines));
        }
        if parts.is_empty() { parts } else { vec![Element::Flow(parts)] }
    }
}

fn crossbar(crossbar: &Crossbar) -> Element {
    let list =
        |names: &[crate::read::Name]| names.iter().map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
    let line = join(&[
        Some(crossbar.name.clone()),
        (crossbar.name != crossbar.kind.word()).then(|| crossbar.kind.word().to_string()),
        Some(format!("{} → {}", list(&crossbar.masters), list(&crossbar.slaves))),
        crossbar.width.map(|w| w.to_string()),
    ]);
    Element::leaf(Kind::Crossbar, &[line])
}

/// The memory latencies between nodes as a table, or the relative distances if those are not known.
fn distances(host: &Host) -> Option<Element> {
    let distances = host.distances.as_ref()?;
    let (title, rows): (_, Vec<Vec<String>>) = if let Some(latency) = &distances.latency {
        let text = |row: &Vec<crate::units::Time>| {
            row.iter().map(|t| t.to_string().trim_end_matches(" ns").into()).collect()
        };
        ("memory latency, ns", latency.rows.iter().map(text).collect())
    } else {
        let slit = distances.slit.as_ref()?;
        (
            "relative distance",
            slit.rows.iter().map(|row| row.iter().map(|d| d.to_string()).collect()).collect(),
        )
    };
    if rows.len() < 2 {
        return None;
    }
    let width = rows.iter().flatten().map(|c| c.chars().count()).max().unwrap_or(1).max(2);
    let cells = |row: &[String]| row.iter().map(|c| format!("{c:>width$}")).collect::<Vec<_>>().join(" ");
    let heads: Vec<String> = (0..rows.len()).map(|n| n.to_string()).collect();
    let mut lines = vec![title.to_string(), format!("node {}", cells(&heads))];
    lines.extend(rows.iter().enumerate().map(|(n, row)| format!("{n:>4} {}", cells(row))));
    Some(Element::leaf(Kind::Note, &lines))
}

/// Links between chips and nodes; identical ones share a line.
fn links(host: &Host) -> Option<Element> {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for link in &host.links {
        let key = format!("{} {}", link.protocol.word(), wires(link.width, link.rate, link.bandwidth));
        let ends = link
            .between
            .iter()
            .map(|e| e.replace("node", "").replace("chip", ""))
            .collect::<Vec<_>>()
            .join("-");
        match groups.iter_mut().find(|g| g.0 == key) {
            Some(group) => group.1.push(ends),
            None => groups.push((key, vec![ends])),
        }
    }
    let what = if host.links.iter().any(|l| l.between.iter().any(|e| e.starts_with("node"))) {
        "nodes"
    } else {
        "chips"
    };
    let mut lines = vec![format!("links between {what}")];
    for (key, ends) in &groups {
        lines.push(format!("{} x {key}", ends.len()));
        lines.extend(ends.chunks(8).map(|some| format!("  {}", some.join(" "))));
    }
    (!groups.is_empty()).then(|| Element::leaf(Kind::Note, &lines))
}
