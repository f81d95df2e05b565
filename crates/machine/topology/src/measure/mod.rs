//! Measures the host that a machine file describes, with sizes from that file: latency of caches and memory, bandwidth,
//! core-to-core transfer of a cache line.

mod translation;
mod writing;

use crate::parts::{CacheKind, Core, MachineFile};
use longma_cpu_set::CpuSet;
pub use longma_host_probe::{Bandwidths, MeasureError, Thoroughness};
use longma_host_probe::{Effort, bandwidth, branches, chase, clock, memory, pin, pingpong};
use serde::Serialize;

/// Called with the current measurement and the fraction done (0 to 1).
pub type Progress<'a> = &'a mut dyn FnMut(&str, f64);

/// Load-to-use latency of a cache.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CacheLatency {
    /// Its name in the machine file.
    pub cache: String,
    /// Size of the area that the chain of loads covers, bytes.
    pub bytes: u64,
    /// Time of one dependent load in picoseconds, the minimum of several runs.
    pub latency_ps: u64,
}

/// The cost of address translation for a load that misses in all TLBs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Walk {
    /// Size of the area that the chain of loads covers, bytes: 16 times the reach of the last TLB.
    pub bytes: u64,
    /// Time of one dependent load with the smallest pages in picoseconds.
    pub small_ps: u64,
    /// Time of one dependent load with huge pages in picoseconds.
    pub huge_ps: u64,
    /// The cost of a page walk in picoseconds: `small_ps` minus `huge_ps`, scaled by 16/15 because 15 of 16 loads need
    /// a walk.
    pub walk_ps: u64,
}

/// The results of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasurementResults {
    /// The type of core that was measured.
    pub core: String,
    /// Its clock during the measurement, in Hz.
    pub clock_hz: u64,
    /// Cost of a mispredicted branch on a loaded value in picoseconds, including the load.
    pub mispredict_ps: u64,
    /// Data caches, nearest first.
    pub caches: Vec<CacheLatency>,
    /// Size of the area used for the memory latencies, bytes.
    pub memory_bytes: u64,
    /// Memory latency in picoseconds: row = the core's node, column = the memory's node.
    pub memory_ps: Vec<Vec<u64>>,
    /// The cost of a page walk, if it could be determined.
    pub walk: Option<Walk>,
    /// Bandwidths of one thread, then of all threads.
    pub bandwidths: Vec<Bandwidths>,
    /// CPUs of the rows and columns of `core_to_core_ps`.
    pub cpus: Vec<u32>,
    /// One-way transfer of a cache line between two cores in picoseconds.
    pub core_to_core_ps: Vec<Vec<u64>>,
    /// Whether the area was on huge pages; without them the memory latency includes TLB misses.
    pub huge_pages: bool,
    /// Remarks on how reliable the results are, for display.
    pub notes: Vec<String>,
}

/// Measures the host that `file`, the result of `discover`, describes.
///
/// # Errors
/// If the system cannot provide memory. After any other failure, the affected results are omitted and `notes` states
/// the reasons.
pub fn measure(
    file: &MachineFile,
    thoroughness: Thoroughness,
    progress: Progress<'_>,
) -> Result<MeasurementResults, MeasureError> {
    let effort = Effort::of(thoroughness);
    let mut notes = Vec::new();
    let cpus = pin::allowed();
    note_busy_host(&cpus, &mut notes);
    let first = cpus.first().copied();
    let core = core_of(file, first);
    let caches = core.map_or_else(Vec::new, |(_, core)| data_caches(file, core));
    let nodes = node_cpus(file, &cpus);
    let spare = memory::available().map_or(usize::MAX, |a| a / 4);
    let llc = caches.last().map_or(32 << 20, |c| c.1) as usize;
    let chase_bytes = (2 * llc).max(256 << 20).min(effort.largest_chase).min(spare).max(1 << 20);
    if chase_bytes < 2 * llc {
        notes.push(format!(
            "memory was measured with {} MiB, less than twice the size of the last-level cache: some loads hit that cache",
            chase_bytes >> 20
        ));
    }
    let steps = (caches.len() + nodes.len().max(1).pow(2) + 6) as f64;
    let mut completed = 0.0;
    let mut step = |what: &str| {
        progress(what, completed / steps);
        completed += 1.0;
    };
    step("clock");
    // Measure the clock at each step: another hardware thread of the core or the temperature may lower it for a while.
    let mut clock_hz = pin::on(first, || clock::hz(&effort));
    step("mispredicted branches");
    let mispredict_ps = pin::on(first, || branches::mispredict_ps(&effort));
    let mut area = memory::Area::new(chase_bytes)?;
    let mut chase = PointerChase { bytes: chase_bytes, area: &mut area, effort: &effort };
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
        notes.push("no huge pages: latencies of areas beyond the TLB's reach include page walks".into());
    }
    let bandwidths = bandwidths(
        &cpus,
        effort.largest_array.min((2 * llc).max(64 << 20)).min(spare / 3),
        &effort,
        &mut step,
    )?;
    step("core-to-core latency");
    let (cpus, core_to_core_ps) = core_to_core(&cpus, &effort, &mut notes);
    progress("done", 1.0);
    Ok(MeasurementResults {
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

/// A chain of dependent loads in an area of `bytes` bytes.
struct PointerChase<'a> {
    bytes: usize,
    area: &'a mut memory::Area,
    effort: &'a Effort,
}

impl PointerChase<'_> {
    /// The latencies of `caches`, which are pairs of name and size in bytes, first level first. Raises `clock_hz` to
    /// the fastest clock seen.
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

    /// The latency of every node's memory from each node.
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
                let node = (nodes.len() > 1).then_some(*to);
                row.push(memory_latency(self.bytes, node, cpus.first().copied(), self.area, self.effort)?);
            }
            latencies_ps.push(row);
        }
        Ok(latencies_ps)
    }
}

fn note_busy_host(cpus: &[u32], notes: &mut Vec<String>) {
    if cpus.is_empty() {
        notes.push(
            "threads could not be pinned to CPUs: they may have migrated during the measurement".into(),
        );
    }
    if let Some(load) = pin::load().filter(|load| *load > 0.5 * cpus.len().max(1) as f64) {
        let cpus = cpus.len().max(1);
        notes.push(format!("the host was busy (load {load} on {cpus} CPUs), which makes the results worse"));
    }
}

/// The size of the chain to measure a cache of `size` bytes whose next smaller level has `inner` bytes: their geometric
/// mean. It is well above the size of the inner cache, and small enough for the share of a large cache that other cores
/// and virtual machines leave.
fn chased_bytes(inner: u64, size: u64) -> u64 {
    match inner {
        // A quarter of the first-level cache is left even if another hardware thread shares the core.
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
) -> Result<Vec<Bandwidths>, MeasureError> {
    step("memory bandwidth of one thread");
    let mut results = vec![bandwidth::measure(array, &cpus[..cpus.len().min(1)], 1, effort)?];
    let threads = cpus.len().max(1);
    step(&format!("memory bandwidth of {threads} threads"));
    if threads > 1 {
        results.push(bandwidth::measure(array, cpus, threads, effort)?);
    }
    Ok(results)
}

/// The chosen CPUs, and the transfer time of a line between each pair of them.
fn core_to_core(cpus: &[u32], effort: &Effort, notes: &mut Vec<String>) -> (Vec<u32>, Vec<Vec<u64>>) {
    let sampled = spread(cpus, effort.max_cpus);
    if sampled.len() < cpus.len() {
        notes.push(format!(
            "core-to-core latency was measured between {} of {} CPUs",
            sampled.len(),
            cpus.len()
        ));
    }
    match pingpong::matrix_ps(&sampled, effort) {
        Some(matrix) if sampled.len() > 1 => (sampled, matrix),
        _ => {
            notes.push("core-to-core latency was omitted: it needs two CPUs".into());
            (Vec::new(), Vec::new())
        }
    }
}

/// The latency of memory on `node`, or of `area` if it is `None`.
fn memory_latency(
    bytes: usize,
    node: Option<u32>,
    cpu: Option<u32>,
    area: &mut memory::Area,
    effort: &Effort,
) -> Result<u64, MeasureError> {
    let Some(node) = node else {
        return Ok(pin::on(cpu, || chase::latency_ps(area.words(bytes), effort)));
    };
    let mut area = pin::on(cpu, || memory::Area::on_node(bytes, node))?;
    Ok(pin::on(cpu, || chase::latency_ps(area.words(bytes), effort)))
}

/// The type of core of `cpu` with its name; the first type if no cluster lists this CPU.
fn core_of(file: &MachineFile, cpu: Option<u32>) -> Option<(&str, &Core)> {
    let clusters = file.chips.values().flat_map(|c| &c.nodes).flat_map(|n| &n.clusters);
    let holds = |list: &str| list.parse::<CpuSet>().is_ok_and(|l| cpu.is_some_and(|c| l.contains(c)));
    let named = clusters.filter(|c| c.cpus.as_deref().is_some_and(holds)).map(|c| &*c.core).next();
    let found =
        named.and_then(|name| file.cores.get_key_value(name)).or_else(|| file.cores.first_key_value());
    found.map(|(name, core)| (name.as_str(), core))
}

/// Data and unified caches in the hierarchy of `core`, nearest first, with their sizes.
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

/// Each NUMA node that has both memory and allowed CPUs, with those CPUs.
fn node_cpus(file: &MachineFile, allowed: &[u32]) -> Vec<(u32, Vec<u32>)> {
    let chips = file.hosts.iter().flat_map(|h| &h.chips).filter_map(|c| file.chips.get(&**c));
    let lists = chips
        .flat_map(|c| &c.nodes)
        .map(|n| n.clusters.iter().filter_map(|c| c.cpus.as_deref()).collect::<Vec<_>>());
    let mut nodes = Vec::new();
    for (index, lists) in lists.enumerate() {
        let cpus: Vec<u32> = lists
            .iter()
            .filter_map(|l| l.parse::<CpuSet>().ok())
            .flat_map(|l| l.iter().collect::<Vec<_>>())
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

/// At most `limit` of the CPUs, evenly spaced.
fn spread(cpus: &[u32], limit: usize) -> Vec<u32> {
    let count = cpus.len().min(limit);
    (0..count).map(|i| cpus[i * cpus.len() / count]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_exceeds_the_inner_cache_and_fits_the_measured_one() {
        let (kib, mib) = (1 << 10, 1 << 20);
        for (inner, size) in
            [(32 * kib, 512 * kib), (48 * kib, 2 * mib), (2 * mib, 300 * mib), (mib, 3 * mib)]
        {
            let bytes = chased_bytes(inner, size);
            assert!(bytes >= 2 * inner && bytes <= size * 3 / 4, "{inner} {size}: {bytes}");
        }
        assert_eq!(chased_bytes(0, 48 * kib), 12 * kib);
        assert!(
            chased_bytes(2 * mib, 300 * mib) < 32 * mib,
            "other cores leave little of a large shared cache"
        );
    }
}
