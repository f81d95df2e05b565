//! Hosts from hwloc's XML (`lstopo host.xml`), version 2: cores, hardware threads, the memory of nodes with huge pages,
//! and distances.

use super::Fault;
use super::lscpu::shortened;
use longma_placement::CpuSet;
use longma_placement::cpus::MAX_CPU;
use longma_placement::host::{Host, MAX_NODES, Node, Pool, uniform_distances};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use std::collections::BTreeMap;

/// Maximum nesting of elements.
const MAX_DEPTH: usize = 64;
/// Maximum number of a CPU or node.
const MAX_NUMBER: u32 = 1 << 16;

/// An open element.
#[derive(Default)]
struct OpenElement {
    /// For an `object`, its attribute `type`; otherwise the element's name.
    kind: String,
    /// CPUs of the hardware threads in it.
    cpus: CpuSet,
}

/// A NUMA node, with the CPUs that its `cpuset` lists.
struct FoundNode {
    id: u32,
    cpus: CpuSet,
    pools: Vec<Pool>,
    /// Whether its first page size, that of ordinary pages, has been read.
    has_pages: bool,
    line: u64,
}

/// The topology read so far.
#[derive(Default)]
struct Topology {
    /// All hardware threads.
    cpus: CpuSet,
    nodes: Vec<FoundNode>,
    cores: Vec<CpuSet>,
    indexes: Vec<u32>,
    values: Vec<u32>,
}

/// The attributes of an element, with the line for messages.
struct Attributes<'a> {
    element: &'a str,
    line: u64,
    all: BTreeMap<String, String>,
}

impl Attributes<'_> {
    fn fault(&self, key: &str, problem: String) -> Fault {
        Fault::at(Some(self.line), format!("{}: {key}", self.element), problem)
    }

    fn text(&self, key: &str) -> Result<&str, Fault> {
        self.all.get(key).map(String::as_str).ok_or_else(|| self.fault(key, "is missing".into()))
    }

    fn number(&self, key: &str, max: u64) -> Result<u64, Fault> {
        let text = self.text(key)?;
        text.parse()
            .ok()
            .filter(|number| *number <= max)
            .ok_or_else(|| self.fault(key, format!("{:?} is not a number up to {max}", shortened(text))))
    }
}

/// Parses hwloc's XML.
///
/// # Errors
/// The line and attribute at fault.
pub fn parse(text: &str, name: &str) -> Result<Host, Fault> {
    let mut reader = Reader::from_str(text);
    let (mut found, mut open) = (Topology::default(), Vec::<OpenElement>::new());
    // Counts lines once instead of from the start for each element.
    let (mut line, mut counted) = (1u64, 0usize);
    loop {
        let event = reader.read_event();
        let at = (reader.buffer_position() as usize).min(text.len());
        line += text.as_bytes()[counted..at].iter().filter(|byte| **byte == b'\n').count() as u64;
        counted = at;
        match event.map_err(|error| Fault::at(Some(line), "", error))? {
            Event::Start(start) => {
                if open.len() >= MAX_DEPTH {
                    return Err(Fault::at(Some(line), "", "is nested too deeply"));
                }
                let element = found.begin(&start, line, open.last())?;
                open.push(element);
            }
            Event::Empty(start) => {
                let element = found.begin(&start, line, open.last())?;
                found.end(element, open.last_mut());
            }
            Event::End(_) => {
                if let Some(element) = open.pop() {
                    found.end(element, open.last_mut());
                }
            }
            Event::Text(bytes) => {
                let inner = open.last().map_or("", |element| &*element.kind);
                found.numbers(inner, &String::from_utf8_lossy(&bytes), line)?;
            }
            Event::Eof if open.is_empty() => break,
            Event::Eof => return Err(Fault::at(Some(line), "", "ends within an element")),
            _ => {}
        }
    }
    found.host(name)
}

impl Topology {
    fn begin(
        &mut self,
        start: &BytesStart<'_>,
        line: u64,
        parent: Option<&OpenElement>,
    ) -> Result<OpenElement, Fault> {
        let element = String::from_utf8_lossy(start.name().as_ref()).into_owned();
        let mut all = BTreeMap::new();
        // The reader's own check for duplicate attributes takes quadratic time.
        for attribute in start.attributes().with_checks(false) {
            let wrong = |error: &dyn std::fmt::Display| Fault::at(Some(line), element.clone(), error);
            let attribute = attribute.map_err(|error| wrong(&error))?;
            let value = attribute.unescape_value().map_err(|error| wrong(&error))?.into_owned();
            let key = String::from_utf8_lossy(attribute.key.as_ref()).into_owned();
            if all.insert(key.clone(), value).is_some() {
                return Err(Fault::at(
                    Some(line),
                    format!("{element}: {}", shortened(&key)),
                    "is given twice",
                ));
            }
        }
        let attributes = Attributes { element: &element, line, all };
        let kind = if element == "object" { attributes.text("type")?.to_string() } else { element.clone() };
        let mut opened = OpenElement { kind, ..OpenElement::default() };
        match &*opened.kind {
            "topology" if !attributes.all.get("version").is_some_and(|version| version.starts_with("2.")) => {
                return Err(attributes
                    .fault("version", "expected hwloc's XML of version 2; write it with hwloc 2".into()));
            }
            "PU" => {
                let cpu = attributes.number("os_index", (MAX_CPU - 1).into())? as u32;
                if !self.cpus.insert(cpu) {
                    return Err(attributes.fault("os_index", format!("CPU {cpu} is listed twice")));
                }
                opened.cpus.insert(cpu);
            }
            "NUMANode" => self.node(&attributes)?,
            "page_type" if parent.is_some_and(|parent| parent.kind == "NUMANode") => {
                self.pages(&attributes)?
            }
            _ => {}
        }
        Ok(opened)
    }

    fn node(&mut self, attributes: &Attributes<'_>) -> Result<(), Fault> {
        let id = attributes.number("os_index", MAX_NUMBER.into())? as u32;
        let cpus = CpuSet::from_mask(&plain_mask(attributes.text("cpuset")?));
        let cpus = cpus.map_err(|error| attributes.fault("cpuset", error.to_string()))?;
        let mib = attributes.number("local_memory", u64::MAX)? >> 20;
        if self.nodes.len() >= MAX_NODES || self.nodes.iter().any(|node| node.id == id) {
            return Err(attributes.fault(
                "os_index",
                format!("node {id} is listed twice, or there are more than {MAX_NODES}"),
            ));
        }
        self.nodes.push(FoundNode {
            id,
            cpus,
            pools: vec![Pool { page_kib: 4, mib }],
            has_pages: false,
            line: attributes.line,
        });
        Ok(())
    }

    /// Moves huge pages from the node's ordinary memory to a separate pool.
    fn pages(&mut self, attributes: &Attributes<'_>) -> Result<(), Fault> {
        let (size, count) = (attributes.number("size", 1 << 40)?, attributes.number("count", u64::MAX)?);
        let Some(node) = self.nodes.last_mut() else { return Ok(()) };
        let mib = u64::try_from((u128::from(size) * u128::from(count)) >> 20).unwrap_or(u64::MAX);
        let page_kib = (size >> 10) as u32;
        if !std::mem::replace(&mut node.has_pages, true) {
            node.pools[0].page_kib = page_kib;
            return Ok(());
        }
        if count > 0 {
            let left = node.pools[0].mib.checked_sub(mib);
            node.pools[0].mib =
                left.ok_or_else(|| attributes.fault("count", "huge pages exceed the node's memory".into()))?;
            node.pools.push(Pool { page_kib, mib });
        }
        Ok(())
    }

    fn end(&mut self, element: OpenElement, parent: Option<&mut OpenElement>) {
        match (&*element.kind, parent) {
            ("Core", _) if !element.cpus.is_empty() => self.cores.push(element.cpus),
            // Without core elements, each hardware thread is treated as a core.
            ("PU", None) => self.cores.push(element.cpus),
            ("PU", Some(parent)) if parent.kind != "Core" => self.cores.push(element.cpus),
            ("PU", Some(parent)) => parent.cpus = parent.cpus.iter().chain(element.cpus.iter()).collect(),
            _ => {}
        }
    }

    /// Reads the lists of a matrix of distances.
    fn numbers(&mut self, element: &str, text: &str, line: u64) -> Result<(), Fault> {
        let list = match element {
            "indexes" => &mut self.indexes,
            "u64values" => &mut self.values,
            _ => return Ok(()),
        };
        for word in text.split_whitespace() {
            // Other matrices, such as bandwidths, have values beyond distances. They are not used.
            let number = word.parse::<u64>().map_err(|_| {
                Fault::at(Some(line), element, format!("{:?} is not a number", shortened(word)))
            })?;
            if list.len() >= MAX_NODES * MAX_NODES * 4 {
                return Err(Fault::at(Some(line), element, "has too many numbers"));
            }
            list.push(u32::try_from(number).unwrap_or(u32::MAX));
        }
        Ok(())
    }

    fn host(mut self, name: &str) -> Result<Host, Fault> {
        if self.nodes.is_empty() {
            return Err(Fault::at(None, "NUMANode", "there is none"));
        }
        self.nodes.sort_by_key(|node| node.id);
        let mut nodes: Vec<Node> = Vec::new();
        for node in &self.nodes {
            let cores = self.cores.iter().filter(|core| core.intersects(&node.cpus)).cloned().collect();
            let node_of = Node { id: node.id, cores, memory: node.pools.clone() };
            let twice = nodes.iter().any(|other| other.cores.iter().any(|core| node_of.cores.contains(core)));
            if twice {
                // Memory attached beside another node, such as high-bandwidth memory: a node without CPUs.
                nodes.push(Node { cores: Vec::new(), ..node_of });
            } else {
                nodes.push(node_of);
            }
        }
        let host = Host {
            name: name.into(),
            distances: self.distances().unwrap_or_else(|| uniform_distances(nodes.len())),
            nodes,
            devices: Vec::new(),
            reserved: CpuSet::new(),
            gone: CpuSet::new(),
            foreign: Default::default(),
        };
        let line = self.nodes.first().map(|node| node.line);
        host.check().map_err(|error| Fault::at(line, "NUMANode", error.problem))?;
        Ok(host)
    }

    /// The distance matrix, if the file has exactly one that covers all nodes and looks like the firmware's.
    fn distances(&self) -> Option<Vec<Vec<u32>>> {
        let count = self.nodes.len();
        let order: Vec<usize> = self
            .nodes
            .iter()
            .map(|node| self.indexes.iter().position(|id| *id == node.id))
            .collect::<Option<_>>()?;
        if self.indexes.len() != count || self.values.len() != count * count {
            return None;
        }
        let row = |from: &usize| order.iter().map(|to| self.values[from * count + to]).collect::<Vec<_>>();
        let rows: Vec<Vec<u32>> = order.iter().map(row).collect();
        let is_slit = rows
            .iter()
            .enumerate()
            .all(|(at, row)| row[at] == 10 && row.iter().all(|distance| (10..=255).contains(distance)));
        is_slit.then_some(rows)
    }
}

/// Rewrites hwloc's mask, such as `0x1,,0x000000f0`, without prefixes and with eight digits in each part.
fn plain_mask(text: &str) -> String {
    text.split(',').map(|part| format!("{:0>8}", part.trim_start_matches("0x"))).collect::<Vec<_>>().join(",")
}
