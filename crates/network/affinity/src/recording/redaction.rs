//! Selects the parts of a host that a recording contains, and replaces data that identifies machines and programs.

use crate::preflight::MOVERS;
use crate::watch::Observation;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Files, or folders ending with a slash, whose texts are recorded.
const KEPT: [&str; 14] = [
    "proc/interrupts",
    "proc/stat",
    "proc/softirqs",
    "proc/loadavg",
    "proc/net/softnet_stat",
    "proc/net/vlan/",
    "proc/irq/",
    "proc/sys/net/core/",
    "proc/sys/kernel/osrelease",
    "proc/sys/kernel/perf_event_paranoid",
    "proc/sys/kernel/sched_autogroup_enabled",
    "sys/devices/system/",
    "sys/class/net/",
    "sys/kernel/irq/",
];

/// Files of an interface that identify the machine or are texts of its owner.
const IDENTIFYING: [&str; 7] =
    ["address", "broadcast", "ifalias", "phys_port_id", "phys_port_name", "phys_switch_id", "serial"];

/// Files of which only the lines with these beginnings are recorded.
const LINES: [(&str, &str); 2] = [("proc/self/status", "Cpus_allowed_list:"), ("proc/cpuinfo", "model name")];

/// The file whose line `btime` is the time of the boot, which identifies the machine.
const STATISTICS: &str = "proc/stat";

/// The part of a file's text to record; `None` if the file is left out.
pub fn text(path: &str, text: &str) -> Option<String> {
    if let Some((_, start)) = LINES.iter().find(|(file, _)| *file == path) {
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(start)).collect();
        return Some(lines.join("\n"));
    }
    if path.starts_with("proc/") && path.ends_with("/comm") {
        // Only the names of programs that move interrupts matter. The first process shows that processes are visible; in
        // a container it is the application, so its name is replaced.
        return match MOVERS.contains(&text) {
            true => Some(text.into()),
            false => (path == "proc/1/comm").then(|| "program".into()),
        };
    }
    if path == STATISTICS {
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("btime")).collect();
        return Some(lines.join("\n"));
    }
    is_kept(path).then(|| text.into())
}

/// Returns whether the path's entries or target may be recorded.
pub fn is_kept(path: &str) -> bool {
    let is_below = |kept: &&str| match kept.strip_suffix('/') {
        Some(folder) => path == folder || path.starts_with(*kept),
        None => path == *kept,
    };
    let last = path.rsplit('/').next().unwrap_or_default();
    let identifies = path.starts_with("sys/class/net/") && IDENTIFYING.contains(&last);
    !identifies && KEPT.iter().any(is_below)
}

/// Replaces addresses, and names and numbers of programs. Equal ones stay equal.
pub fn anonymised(mut observation: Observation) -> Observation {
    let mut addresses: BTreeMap<IpAddr, IpAddr> = BTreeMap::new();
    let mut replaced = |end: SocketAddr| {
        let ip = end.ip().to_canonical();
        let number = addresses.len() as u32 + 1;
        let new = || match ip {
            // RFC 2544 and RFC 3849: addresses for benchmarks and documentation.
            IpAddr::V4(_) => Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 0, 0).to_bits() + number).into(),
            IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number as u16).into(),
        };
        SocketAddr::new(*addresses.entry(ip).or_insert_with(new), end.port())
    };
    for flow in &mut observation.flows {
        (flow.local, flow.remote) = (replaced(flow.local), replaced(flow.remote));
    }
    let mut processes: BTreeMap<u32, u32> = BTreeMap::new();
    for (index, thread) in observation.threads.iter_mut().enumerate() {
        let number = processes.len() as u32 + 1;
        let number = *processes.entry(thread.process).or_insert(number);
        let name = format!("program-{number}");
        (thread.process, thread.thread, thread.started) = (number, index as u32 + 1, 0);
        (thread.names, thread.name) = (BTreeSet::from([name.clone()]), name);
    }
    observation
}
