//! The location of every online CPU: its core, the last cache it shares, its socket and its NUMA node. Callers pin
//! threads and interrupts with these locations, so the numbers are those of the operating system.
//!
//! Source: Linux Documentation/ABI/stable/sysfs-devices-system-cpu.

use super::sysfs::Sysfs;
use crate::parts::CacheKind;
use serde::{Deserialize, Serialize};

/// The location of a CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuLocation {
    /// The system's number of the CPU.
    pub cpu: u32,
    /// The hardware threads of its core, itself included, in ascending order.
    pub core: Vec<u32>,
    /// The CPUs that share its last-level cache, itself included; `None` if the system lists no data or unified cache.
    pub last_cache: Option<Vec<u32>>,
    /// The number of its socket.
    pub socket: u32,
    /// The number of its NUMA node.
    pub node: u32,
}

impl Sysfs {
    /// The locations of all online CPUs, in ascending order.
    pub fn cpu_locations(&self) -> Vec<CpuLocation> {
        let cpus = self.cpus();
        let nodes = self.nodes(&cpus);
        let location = |cpu: super::sysfs::Cpu| {
            let data = cpu.caches.iter().filter(|cache| cache.kind != CacheKind::Instruction);
            let last = data.max_by_key(|cache| cache.level);
            CpuLocation {
                cpu: cpu.id,
                core: cpu.siblings.iter().copied().collect(),
                last_cache: last.map(|cache| cache.shared.iter().copied().collect()),
                socket: u32::try_from(cpu.package).unwrap_or(0),
                node: nodes.iter().find(|node| node.cpus.contains(&cpu.id)).map_or(0, |node| node.id),
            }
        };
        cpus.into_iter().map(location).collect()
    }
}
