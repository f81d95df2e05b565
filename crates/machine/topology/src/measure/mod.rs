//! Measures the host this program runs on: latency of caches and memory, bandwidth, core-to-core hand-over.
//! Not a benchmark of programs: a few numbers a machine file needs. A busy host shows in them.
//! Source: pointer chase after lmbench's lat_mem_rd; bandwidths count bytes as STREAM does (J. McCalpin).

mod bandwidth;
mod branches;
mod chase;
mod clock;
mod memory;
mod pin;
mod pingpong;
mod translation;
mod writing;

use crate::parts::{CacheKind, Core, MachineFile};
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

/// What translation costs a load that no TLB helps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Walk {
    /// Bytes that were chased through: 16 times what the last TLB maps.
    pub bytes: u64,
    /// Time of one dependent load with the smallest pages in picoseconds.
    pub small_ps: u64,
    /// The same with huge pages.
    pub huge_ps: u64,
    /// What a page walk adds in picoseconds: the difference, as all but one load in 16 walk.
    pub walk_ps: u64,
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
    /// The type of core that was measured.
    pub core: String,
    /// Its clock while it was measured, in Hz.
    pub clock_hz: u64,
    /// What a mispredicted branch on a loaded value costs in picoseconds, the load included.
    pub mispredict_ps: u64,
    /// Data caches, nearest first.
    pub caches: Vec<CacheLatency>,
    /// Bytes chased through for the memory latencies.
    pub memory_bytes: u64,
    /// Memory latency in picoseconds: row = the core's node, column = the memory's node.
    pub memory_ps: Vec<Vec<u64>>,
    /// The cost of a page walk, where it could be told.
    pub walk: Option<Walk>,
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
    /// Time for all pairs of cores together.
    hand_over: Duration,
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
                rounds: 24,
                hand_over: Duration::from_secs(2),
            },
            Thoroughness::Thorough => Self {
                repeats: 9,
                run: Duration::from_millis(250),
                largest_chase: 4 << 30,
                largest_array: 1 << 30,
                most_cpus: 64,
                rounds: 48,
                hand_over: Duration::from_secs(60),
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
    note_disturbance(&cpus, &mut notes);
    let first = cpus.first().copied();
    let core = core_of(file, first);
    let caches = core.map_or_else(Vec::new, |(_, core)| data_caches(file, core));
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
    let steps = (caches.len() + nodes.len().max(1).pow(2) + 6) as f64;
    let mut done = 0.0;
    let mut step = |what: &str| {
        progress(what, done / steps);
        done += 1.0;
    };
    step("clock");
    // Again at each step: another hardware thread of the core, or a neighbour's heat, slows it for a while.
    let mut clock_hz = pin::on(first, || clock::hz(&effort));
    step("mispredicted branches");
    let mispredict_ps = pin::on(first, || branches::mispredict_ps(&effort));
    let mut area = memory::Area::new(chase_bytes)?;
    let mut chase = Chase { bytes: chase_bytes, area: &mut area, effort: &effort };
    let measured_caches = chase.caches(&caches, first, &mut clock_hz, &mut step);
    let memory_ps = chase.nodes(&nodes, &mut step)?;
    let huge_pages = area.huge();
    drop(area);
    step("page walks");
    let walk = match core {
        Some((_, core)) => translation::walk(core, first, spare / 2, &effort)?,
        None => None,
    };
    if !huge_pages {
        notes.push("no huge pages: latencies beyond the TLB's reach include page walks".into());
    }
    let bandwidths = bandwidths(
        &cpus,
        effort.largest_array.min((2 * llc).max(64 << 20)).min(spare / 3),
        &effort,
        &mut step,
    )?;
    step("core-to-core latency");
    let (cpus, core_to_core_ps) = hand_over(&cpus, &effort, &mut notes);
    progress("done", 1.0);
    Ok(Measured {
        core: core.map_or_else(String::new, |(name, _)| name.into()),
        clock_hz,
        mispredict_ps,
        caches: measured_caches,
        memory_bytes: chase_bytes as u64,
        memory_ps,
        walk,
        bandwidths,
        cpus,
        core_to_core_ps,
        huge_pages,
        notes,
    })
}

/// Loads that each wait for the one before, in an area of so many bytes.
struct Chase<'a> {
    bytes: usize,
    area: &'a mut memory::Area,
    effort: &'a Effort,
}

impl Chase<'_> {
    /// The latencies of caches with their sizes, the first level first. The fastest clock in between is kept.
    fn caches(
        &mut self,
        caches: &[(String, u64)],
        cpu: Option<u32>,
        clock_hz: &mut u64,
        step: &mut impl FnMut(&str),
    ) -> Vec<CacheLatency> {
        let mut inner = 0;
        let mut measured = Vec::new();
        for (name, size) in caches {
            step(&format!("latency of {name}"));
            let bytes = chased_bytes(inner, *size).min(self.bytes as u64);
            let latency_ps = pin::on(cpu, || chase::latency_ps(self.area.words(bytes as usize), self.effort));
            *clock_hz = (*clock_hz).max(pin::on(cpu, || clock::hz(self.effort)));
            measured.push(CacheLatency { cache: name.clone(), bytes, latency_ps });
            inner = *size;
        }
        measured
    }

    /// From each node, the latencies of every node's memory.
    fn nodes(
        &mut self,
        nodes: &[(u32, Vec<u32>)],
        step: &mut impl FnMut(&str),
    ) -> Result<Vec<Vec<u64>>, MeasureError> {
        let mut latencies_ps = Vec::new();
        for (from, cpus) in nodes {
            let mut row = Vec::new();
            for (to, _) in nodes {
                step(&format!("memory latency from node {from} to node {to}"));
                let bound = (nodes.len() > 1).then_some(*to);
                row.push(memory_latency(self.bytes, bound, cpus.first().copied(), self.area, self.effort)?);
            }
            latencies_ps.push(row);
        }
        Ok(latencies_ps)
    }
}

fn note_disturbance(cpus: &[u32], notes: &mut Vec<String>) {
    if cpus.is_empty() {
        notes.push(
            "threads could not be pinned to CPUs: everything may have moved while it was measured".into(),
        );
    }
    if let Some(load) = pin::load().filter(|load| *load > 0.5 * cpus.len().max(1) as f64) {
        let cpus = cpus.len().max(1);
        notes.push(format!("the host was busy (load {load} on {cpus} CPUs): an idle one is faster"));
    }
}

/// How much to chase through for the latency of a cache of `size` bytes behind one of `inner` bytes: their geometric mean, well
/// beyond the inner one, and well below what other cores or other virtual machines leave of a large shared one.
fn chased_bytes(inner: u64, size: u64) -> u64 {
    match inner {
        // A quarter: what shares the core with another hardware thread keeps that much.
        0 => size / 4,
        _ => inner.saturating_mul(size).isqrt().max(inner * 2).min(size * 3 / 4) & !4095,
    }
}

/// Bandwidths of one thread and of all.
fn bandwidths(
    cpus: &[u32],
    array: usize,
    effort: &Effort,
    step: &mut impl FnMut(&str),
) -> Result<Vec<Transfer>, MeasureError> {
    step("memory bandwidth of one thread");
    let mut found = vec![bandwidth::transfer(array, &cpus[..cpus.len().min(1)], 1, effort)?];
    let threads = cpus.len().max(1);
    step(&format!("memory bandwidth of {threads} threads"));
    if threads > 1 {
        found.push(bandwidth::transfer(array, cpus, threads, effort)?);
    }
    Ok(found)
}

/// The CPUs that were chosen, and the time a line takes between each two of them.
fn hand_over(cpus: &[u32], effort: &Effort, notes: &mut Vec<String>) -> (Vec<u32>, Vec<Vec<u64>>) {
    let chosen = spread(cpus, effort.most_cpus);
    if chosen.len() < cpus.len() {
        notes.push(format!(
            "core-to-core latency was measured between {} of {} CPUs",
            chosen.len(),
            cpus.len()
        ));
    }
    match pingpong::matrix_ps(&chosen, effort) {
        Some(matrix) if chosen.len() > 1 => (chosen, matrix),
        _ => {
            notes.push("core-to-core latency was left out: it needs two CPUs that answer".into());
            (Vec::new(), Vec::new())
        }
    }
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

/// The type of core that `cpu` is of, and its name; the first type if the description lists no CPUs.
fn core_of(file: &MachineFile, cpu: Option<u32>) -> Option<(&str, &Core)> {
    let clusters = file.chips.values().flat_map(|c| &c.nodes).flat_map(|n| &n.clusters);
    let holds = |list: &str| {
        crate::cpu_list::parse_cpu_list(list).is_some_and(|l| cpu.is_some_and(|c| l.contains(&c)))
    };
    let named = clusters.filter(|c| c.cpus.as_deref().is_some_and(holds)).map(|c| &*c.core).next();
    let found =
        named.and_then(|name| file.cores.get_key_value(name)).or_else(|| file.cores.first_key_value());
    found.map(|(name, core)| (name.as_str(), core))
}

/// Data and unified caches that `core` reaches, nearest first, with their sizes.
fn data_caches(file: &MachineFile, core: &Core) -> Vec<(String, u64)> {
    let mut name = core.caches.iter().find(|c| is_first_data(file, c)).map(|n| n.to_string());
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
            .filter_map(|l| crate::cpu_list::parse_cpu_list(l))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_chased_through_beyond_the_one_before_and_below_its_own_size() {
        let (kib, mib) = (1 << 10, 1 << 20);
        for (inner, size) in
            [(32 * kib, 512 * kib), (48 * kib, 2 * mib), (2 * mib, 300 * mib), (mib, 3 * mib)]
        {
            let bytes = chased_bytes(inner, size);
            assert!(bytes >= 2 * inner && bytes <= size * 3 / 4, "{inner} {size}: {bytes}");
        }
        assert_eq!(chased_bytes(0, 48 * kib), 12 * kib);
        assert!(chased_bytes(2 * mib, 300 * mib) < 32 * mib, "others leave little of a large shared cache");
    }
}
