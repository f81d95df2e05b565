//! Describes this host as a machine file, from Linux's sysfs and procfs. It does not use hwloc, because sysfs has all
//! the information, needs no C library, and can be replaced by a recorded tree in tests.
//!
//! Source: Linux Documentation/ABI/stable/sysfs-devices-system-cpu, sysfs-devices-node, testing/sysfs-class-net.

mod assemble;
mod cpu_locations;
mod devices;
mod processors;
mod root;
mod sysfs;

use crate::machine::check;
use crate::parts::*;
use crate::read::{Cited, Map, Matrix, Name, SourcePositions};
use crate::units::{Frequency, Size};
pub use cpu_locations::CpuLocation;
pub use root::{HostRoot, UnreadableFile};
pub use sysfs::Sysfs;

/// Why a host could not be described.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    /// The tree describes no CPU.
    #[error("no CPU is described under {0}/sys/devices/system/cpu: is sysfs mounted?")]
    NoCpu(std::path::PathBuf),
    /// A recorded tree has something other than a file at the path of a file.
    #[error(transparent)]
    Unreadable(#[from] UnreadableFile),
    /// The description is not a valid machine file.
    #[error("the description of this host is inconsistent:\n{0}")]
    Inconsistent(String),
}

/// Describes the host whose sysfs and procfs `sysfs` reads.
///
/// # Errors
/// If there is no CPU, or if the description is inconsistent even without caches and devices.
pub fn discover(sysfs: &Sysfs) -> Result<MachineFile, DiscoverError> {
    let cpus = sysfs.cpus();
    if let Some(file) = sysfs.unreadable() {
        return Err(file.clone().into());
    }
    if cpus.is_empty() {
        return Err(DiscoverError::NoCpu(sysfs.root().into()));
    }
    let mut notes = sysfs.notes();
    let machine = describe(sysfs, &cpus, notes.clone());
    if let Some(file) = sysfs.unreadable() {
        return Err(file.clone().into());
    }
    if check("discovered", &machine.to_toml()).report.errors() == 0 {
        return Ok(machine);
    }
    // Virtual machines may report impossible caches; the rest of the description is still useful.
    let bare: Vec<_> = cpus.into_iter().map(|cpu| sysfs::Cpu { caches: Vec::new(), ..cpu }).collect();
    notes.push("caches omitted: the system's description of them is inconsistent".into());
    let bare = describe(sysfs, &bare, notes);
    let checked = check("discovered", &bare.to_toml());
    match checked.report.errors() {
        0 => Ok(bare),
        _ => Err(DiscoverError::Inconsistent(checked.report.render(100, false))),
    }
}

fn describe(sysfs: &Sysfs, cpus: &[sysfs::Cpu], mut notes: Vec<String>) -> MachineFile {
    let nodes = sysfs.nodes(cpus);
    let assembled = assemble::assemble(cpus, &nodes, &mut notes);
    let (devices, placed) = devices::devices(sysfs, &assembled);
    let mut sources = Map::new();
    sources.insert("sysfs".into(), source(SourceKind::System, "Linux sysfs and procfs of this host", None));
    if assembled.clock_guessed {
        let reasoning = "Neither cpufreq nor /proc/cpuinfo states the clock; 1 GHz is assumed, so that a cycle is a nanosecond.";
        sources.insert("guess".into(), source(SourceKind::Estimate, "Clock", Some(reasoning)));
    }
    let host = Host {
        name: "host".into(),
        count: 1,
        chips: assembled.sockets.iter().map(Name::new).collect(),
        links: Vec::new(),
        distances: distances(&nodes, &assembled.node_order, &mut notes),
        buses: Vec::new(),
        devices: placed,
        os: os(sysfs),
        core_to_core: None,
        bandwidths: Vec::new(),
        source: Cited::one("sysfs"),
        marks: SourcePositions::default(),
    };
    let count = cpus.len();
    let model = cpus.iter().find_map(|c| c.model.clone()).unwrap_or_else(|| "unknown processor".into());
    let mut file = MachineFile {
        format: 1,
        name: "this-host".into(),
        title: format!("{model}, {count} CPU{}", if count == 1 { "" } else { "s" }),
        description: None,
        sources,
        cores: assembled.cores,
        caches: assembled.caches,
        memories: assembled.memories,
        chips: assembled.chips,
        devices,
        hosts: vec![host],
        switches: Vec::new(),
        cables: Vec::new(),
        marks: SourcePositions::default(),
    };
    let identity = cpus.iter().find_map(|c| c.identity.as_ref());
    processors::complete(&mut file, identity, &mut notes);
    file.description = (!notes.is_empty()).then(|| notes.join("; "));
    file
}

fn source(kind: SourceKind, title: &str, reasoning: Option<&str>) -> Source {
    let reasoning = reasoning.map(Into::into);
    Source { kind, title: title.into(), place: None, url: None, reasoning, marks: SourcePositions::default() }
}

fn os(sysfs: &Sysfs) -> Option<Os> {
    let kernel = sysfs.read("proc/sys/kernel/osrelease").map(|r| format!("Linux {r}"));
    let page_size = sysfs.is_live().then(|| Size::new(rustix::param::page_size() as u64));
    kernel.as_ref()?;
    Some(Os {
        kernel,
        page_size,
        interrupt: None,
        softirq: None,
        context_switch: None,
        wake_up: None,
        wake_up_interrupt: None,
        page_fault: None,
        tick: None,
        tick_interval: None,
        system_call: None,
        source: Cited::one("sysfs"),
        source_of: Map::new(),
        marks: SourcePositions::default(),
    })
}

/// The firmware's relative distances, in the order of the machine file's nodes.
fn distances(nodes: &[sysfs::Node], order: &[u32], notes: &mut Vec<String>) -> Option<Distances> {
    if order.len() < 2 {
        return None;
    }
    let row = |id: &u32| {
        let node = nodes.iter().find(|n| n.id == *id)?;
        let column = |to: &u32| node.distances.get(nodes.iter().position(|n| n.id == *to)?).copied();
        order.iter().map(column).collect::<Option<Vec<u32>>>()
    };
    let rows: Vec<Vec<u32>> = order.iter().map(row).collect::<Option<_>>()?;
    let sound = (0..rows.len())
        .all(|i| rows[i][i] == 10 && (0..rows.len()).all(|j| rows[i][j] == rows[j][i] && rows[i][j] >= 10));
    if !sound {
        notes.push(
            "the firmware's node distances were omitted: they are not symmetric, or not 10 for local memory"
                .into(),
        );
        return None;
    }
    Some(Distances {
        latency: None,
        slit: Some(Matrix::new(rows)),
        bandwidth: None,
        symmetric: true,
        source: Cited::one("sysfs"),
        source_of: Map::new(),
        marks: SourcePositions::default(),
    })
}

/// The clock assumed if the system does not state one.
pub(super) const GUESSED_CLOCK: Frequency = Frequency::new(1_000_000_000);

#[cfg(test)]
mod tests;
