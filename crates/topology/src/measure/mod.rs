//! Measures the host this program runs on: latency of caches and memory, bandwidth, core-to-core hand-over.
//! Not a benchmark of programs: a few numbers a machine file needs. A busy host shows in them.
//! Source: pointer chase after lmbench's lat_mem_rd; bandwidths count bytes as STREAM does (J. McCalpin).

mod bandwidth;
mod chase;
mod memory;
mod pin;
mod pingpong;

use crate::machine::MachineFile;
use crate::parts::*;
use crate::read::{Cited, Map, Marks, Matrix};
use crate::units::{Bandwidth, BitRate, Latency, Time};
use serde::Serialize;
use std::time::Duration;

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thoroughness {
    /// Within some 20 seconds.
    Quick,
    /// Within a few minutes: larger sets, more repetitions, all pairs of cores.
    Thorough,
}

/// What is being measured, and how much of all is done (0 to 1).
pub type Progress<'a> = &'a mut dyn FnMut(&str, f64);

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The system gave no memory for the test arrays.
    #[error("cannot get {bytes} bytes of memory to measure with: {error}")]
    Memory {
        /// How much was asked for.
        bytes: usize,
        /// What the system said.
        error: std::io::Error,
    },
}

/// Load-to-use latency of a cache.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CacheLatency {
    /// Its name in the machine file.
    pub cache: String,
    /// Bytes that were chased through.
    pub bytes: u64,
    /// Time of one dependent load in picoseconds, the least of several runs.
    pub latency_ps: u64,
}

/// Bandwidths with a number of threads, in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Transfer {
    /// Threads.
    pub threads: u32,
    /// Reading.
    pub read: u64,
    /// Copying, bytes read and written.
    pub copy: u64,
    /// STREAM triad.
    pub triad: u64,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Data caches, nearest first.
    pub caches: Vec<CacheLatency>,
    /// Bytes chased through for the memory latencies.
    pub memory_bytes: u64,
    /// Memory latency in picoseconds: row = the core's node, column = the memory's node.
    pub memory_ps: Vec<Vec<u64>>,
    /// One thread, then all.
    pub bandwidths: Vec<Transfer>,
    /// CPUs of the rows and columns of `core_to_core_ps`.
    pub cpus: Vec<u32>,
    /// One-way hand-over of a cache line in picoseconds.
    pub core_to_core_ps: Vec<Vec<u64>>,
    /// Whether the kernel gave huge pages; without them memory latency includes TLB misses.
    pub huge_pages: bool,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// Sizes and repetitions.
struct Effort {
    repeats: u32,
    run: Duration,
    largest_chase: usize,
    largest_array: usize,
    most_cpus: usize,
    rounds: u32,
}

impl Effort {
    fn of(thoroughness: Thoroughness) -> Self {
        match thoroughness {
            Thoroughness::Quick => Self {
                repeats: 3,
                run: Duration::from_millis(60),
                largest_chase: 768 << 20,
                largest_array: 256 << 20,
                most_cpus: 8,
                rounds: 8,
            },
            Thoroughness::Thorough => Self {
                repeats: 9,
                run: Duration::from_millis(250),
                largest_chase: 4 << 30,
                largest_array: 1 << 30,
                most_cpus: 64,
                rounds: 12,
            },
        }
    }
}

/// Measures the host that `file`, the outcome of `discover`, describes.
///
/// # Errors
/// If the system gives no memory. What else cannot be measured is left out and noted.
pub fn measure(
    file: &MachineFile,
    thoroughness: Thoroughness,
    progress: Progress<'_>,
) -> Result<Measured, MeasureError> {
    let effort = Effort::of(thoroughness);
    let mut notes = Vec::new();
    let cpus = pin::allowed();
    if cpus.is_empty() {
        notes.push(
            "threads could not be pinned to CPUs: everything may have moved while it was measured".into(),
        );
    }
    if let Some(load) = pin::load().filter(|load| *load > 0.5 * cpus.len().max(1) as f64) {
        let cpus = cpus.len().max(1);
        notes.push(format!("the host was busy (load {load} on {cpus} CPUs): an idle one is faster"));
    }
    let caches = data_caches(file);
    let nodes = node_cpus(file, &cpus);
    let spare = memory::available().map_or(usize::MAX, |a| a / 4);
    let llc = caches.last().map_or(32 << 20, |c| c.1) as usize;
    let chase_bytes = (2 * llc).max(256 << 20).min(effort.largest_chase).min(spare).max(1 << 20);
    if chase_bytes < 2 * llc {
        notes.push(format!(
            "memory was measured with {} MiB, less than twice the last cache: part of it hit there",
            chase_bytes >> 20
        ));
    }
    let steps = (caches.len() + nodes.len().max(1).pow(2) + 3) as f64;
    let mut done = 0.0;
    let mut step = |what: &str| {
        progress(what, done / steps);
        done += 1.0;
    };
    let mut area = memory::Area::new(chase_bytes)?;
    let first = cpus.first().copied();
    let mut measured_caches = Vec::new();
    let mut inner = 0;
    for (name, size) in &caches {
        step(&format!("latency of {name}"));
        // Half of the cache, so that it surely fits, but well beyond the one before.
        let bytes = (size / 2).max(inner * 2).min(*size * 3 / 4).min(chase_bytes as u64);
        let latency_ps = pin::on(first, || chase::latency_ps(area.words(bytes as usize), &effort));
        measured_caches.push(CacheLatency { cache: name.clone(), bytes, latency_ps });
        inner = *size;
    }
    let huge_pages = area.huge();
    let mut memory_ps = Vec::new();
    for (from, cpus) in &nodes {
        let mut row = Vec::new();
        for (to, _) in &nodes {
            step(&format!("memory latency from node {from} to node {to}"));
            let bound = (nodes.len() > 1).then_some(*to);
            row.push(memory_latency(chase_bytes, bound, cpus.first().copied(), &mut area, &effort)?);
        }
        memory_ps.push(row);
    }
    drop(area);
    if !huge_pages {
        notes.push("no huge pages: latencies beyond the TLB's reach include page walks".into());
    }
    let array = effort.largest_array.min((2 * llc).max(64 << 20)).min(spare / 3);
    step("memory bandwidth of one thread");
    let mut bandwidths = vec![bandwidth::transfer(array, &cpus[..cpus.len().min(1)], 1, &effort)?];
    let threads = cpus.len().max(1);
    step(&format!("memory bandwidth of {threads} threads"));
    if threads > 1 {
        bandwidths.push(bandwidth::transfer(array, &cpus, threads, &effort)?);
    }
    step("core-to-core latency");
    let chosen = spread(&cpus, effort.most_cpus);
    if chosen.len() < cpus.len() {
        notes.push(format!(
            "core-to-core latency was measured between {} of {} CPUs",
            chosen.len(),
            cpus.len()
        ));
    }
    let (chosen, core_to_core_ps) = match pingpong::matrix_ps(&chosen, &effort) {
        Some(matrix) if chosen.len() > 1 => (chosen, matrix),
        _ => {
            notes.push("core-to-core latency was left out: it needs two CPUs that answer".into());
            (Vec::new(), Vec::new())
        }
    };
    progress("done", 1.0);
    let memory_bytes = chase_bytes as u64;
    Ok(Measured {
        caches: measured_caches,
        memory_bytes,
        memory_ps,
        bandwidths,
        cpus: chosen,
        core_to_core_ps,
        huge_pages,
        notes,
    })
}

fn memory_latency(
    bytes: usize,
    bound: Option<u32>,
    cpu: Option<u32>,
    area: &mut memory::Area,
    effort: &Effort,
) -> Result<u64, MeasureError> {
    let Some(node) = bound else {
        return Ok(pin::on(cpu, || chase::latency_ps(area.words(bytes), effort)));
    };
    let mut area = pin::on(cpu, || memory::Area::on_node(bytes, node))?;
    Ok(pin::on(cpu, || chase::latency_ps(area.words(bytes), effort)))
}

/// Data and unified caches the first core reaches, nearest first, with their sizes.
fn data_caches(file: &MachineFile) -> Vec<(String, u64)> {
    let first = file.cores.values().next();
    let mut name =
        first.and_then(|core| core.caches.iter().find(|c| is_first_data(file, c))).map(|n| n.to_string());
    let mut caches = Vec::new();
    while let Some(cache) = name.as_ref().and_then(|n| file.caches.get(n)) {
        caches.push((name.clone().unwrap_or_default(), cache.size.bytes()));
        name = Some(cache.next.to_string());
    }
    caches
}

fn is_first_data(file: &MachineFile, name: &str) -> bool {
    file.caches.get(name).is_some_and(|c| c.level == 1 && c.kind != CacheKind::Instruction)
}

/// Each NUMA node that has both memory and CPUs we may use, with those CPUs.
fn node_cpus(file: &MachineFile, allowed: &[u32]) -> Vec<(u32, Vec<u32>)> {
    let chips = file.hosts.iter().flat_map(|h| &h.chips).filter_map(|c| file.chips.get(&**c));
    let lists = chips
        .flat_map(|c| &c.nodes)
        .map(|n| n.clusters.iter().filter_map(|c| c.cpus.as_deref()).collect::<Vec<_>>());
    let mut nodes = Vec::new();
    for (index, lists) in lists.enumerate() {
        let cpus: Vec<u32> = lists
            .iter()
            .filter_map(|l| crate::discover::parse_cpu_list(l))
            .flatten()
            .filter(|c| allowed.contains(c))
            .collect();
        if !cpus.is_empty() {
            nodes.push((index as u32, cpus));
        }
    }
    if nodes.is_empty() {
        nodes.push((0, allowed.to_vec()));
    }
    nodes
}

/// At most `most` CPUs, spread evenly.
fn spread(cpus: &[u32], most: usize) -> Vec<u32> {
    let count = cpus.len().min(most);
    (0..count).map(|i| cpus[i * cpus.len() / count]).collect()
}

impl Measured {
    /// Writes what was measured into the description it was measured on.
    pub fn write_into(&self, file: &mut MachineFile) {
        let reasoning = format!(
            "Random pointer chase through {} MiB ({} huge pages), least of several runs; bandwidths as STREAM counts them; a cache line passed between two pinned threads. {}",
            self.memory_bytes >> 20,
            if self.huge_pages { "with" } else { "without" },
            self.notes.join("; ")
        );
        let source = Source {
            kind: SourceKind::Measurement,
            title: "longma machine measure on this host".into(),
            place: None,
            url: None,
            reasoning: Some(reasoning.trim().into()),
            marks: Marks::default(),
        };
        file.sources.insert("measured".into(), source);
        for measured in &self.caches {
            if let Some(cache) = file.caches.get_mut(&measured.cache) {
                cache.latency = Some(Latency::Time(Time::new(measured.latency_ps)));
                cache.source_of.insert("latency".into(), Cited::one("measured"));
            }
        }
        let all = self.bandwidths.last().map(|b| b.read);
        for memory in file.memories.values_mut() {
            let local = self.memory_ps.iter().enumerate().filter_map(|(n, row)| row.get(n)).min();
            memory.latency = local.map(|ps| Latency::Time(Time::new(*ps)));
            memory.bandwidth = all.map(|b| Bandwidth::Rate(rate(b)));
            memory.source_of.insert("latency".into(), Cited::one("measured"));
            memory.source_of.insert("bandwidth".into(), Cited::one("measured"));
        }
        let Some(host) = file.hosts.first_mut() else { return };
        let with = |t: &Transfer| MeasuredBandwidth {
            threads: t.threads,
            read: rate(t.read),
            copy: rate(t.copy),
            triad: rate(t.triad),
            source: Cited::one("measured"),
            marks: Marks::default(),
        };
        host.bandwidths = self.bandwidths.iter().map(with).collect();
        if self.cpus.len() > 1 {
            let rows =
                self.core_to_core_ps.iter().map(|r| r.iter().map(|ps| Time::new(*ps)).collect()).collect();
            let source = Cited::one("measured");
            host.core_to_core = Some(CoreToCore {
                cpus: self.cpus.clone(),
                latency: Matrix::new(rows),
                source,
                marks: Marks::default(),
            });
        }
        let local_is_nearest =
            self.memory_ps.iter().enumerate().all(|(n, row)| row.iter().all(|ps| *ps >= row[n]));
        let nodes: usize =
            host.chips.iter().filter_map(|c| file.chips.get(&**c)).map(|c| c.nodes.len()).sum();
        // A busy host can make remote memory look nearer; such a table would only mislead.
        if nodes > 1 && self.memory_ps.len() == nodes && local_is_nearest {
            let rows = self.memory_ps.iter().map(|r| r.iter().map(|ps| Time::new(*ps)).collect()).collect();
            let slit = host.distances.take();
            let source_of = if slit.is_some() {
                Map::from([("slit".to_string(), Cited::one("sysfs"))])
            } else {
                Map::new()
            };
            host.distances = Some(Distances {
                latency: Some(Matrix::new(rows)),
                slit: slit.and_then(|d| d.slit),
                bandwidth: None,
                symmetric: false,
                source: Cited::one("measured"),
                source_of,
                marks: Marks::default(),
            });
        }
    }
}

/// A rate rounded to three digits after the point of its MB/s, which is more than it is good for.
fn rate(bytes_per_second: u64) -> BitRate {
    BitRate::new(bytes_per_second / 1_000_000 * 8_000_000)
}
