//! Checks the names of parts: every reference resolves, every part is used, no name is used twice. See `wiring` for
//! buses, ports and the ends of cables.

use crate::layout::MAX_CORES;
use crate::parts::{CacheKind, MachineFile};
use crate::read::{Map, Name, Problems, suggestion};
use std::collections::BTreeSet;
use std::ops::Range;

pub(super) fn check(file: &MachineFile, problems: &mut Problems) {
    references(file, problems);
    miss_paths(file, problems);
    first_level(file, problems);
    unused(file, problems);
    let hosts = file
        .hosts
        .iter()
        .flat_map(|h| crate::layout::host_names(h).into_iter().map(|n| (n, h.marks.key("name"))));
    let switches = file.switches.iter().map(|s| (s.name.clone(), s.marks.key("name")));
    unique(hosts.chain(switches).take(MAX_CORES as usize), "host or switch", problems);
    for host in &file.hosts {
        let buses = host.buses.iter().map(|b| (b.name.clone(), b.marks.key("name")));
        let devices = host.devices.iter().map(|d| (d.name.clone(), d.marks.key("name")));
        unique(buses.chain(devices), "bus or device", problems);
        unique(host.links.iter().map(|l| (l.name.clone(), l.marks.key("name"))), "link", problems);
    }
    for chip in file.chips.values() {
        let crossbars = chip.crossbars.iter().map(|x| (x.name.clone(), x.marks.key("name")));
        let ports = chip.ports.iter().map(|p| (p.name.clone(), p.marks.key("name")));
        unique(crossbars.chain(ports), "crossbar or port", problems);
    }
}

fn unique(names: impl Iterator<Item = (String, Range<usize>)>, kind: &str, problems: &mut Problems) {
    let mut names_seen = BTreeSet::new();
    for (name, span) in names.filter(|n| !n.0.is_empty()) {
        if !names_seen.insert(name.clone()) {
            let message = format!("two parts are called `{name}`");
            problems.error(span, message, "second", format!("give each {kind} a different name"));
        }
    }
}

fn exists<T>(name: &Name, map: &Map<T>, kind: &str, problems: &mut Problems) {
    if !name.is_empty() && !map.contains_key(&**name) {
        let help = suggestion(name, map.keys().map(String::as_str), kind);
        problems.error(name.span(), format!("there is no {kind} `{name}`"), "not defined", help);
    }
}

fn references(file: &MachineFile, problems: &mut Problems) {
    for core in file.cores.values() {
        core.caches.iter().for_each(|c| exists(c, &file.caches, "cache", problems));
    }
    for cache in file.caches.values().filter(|c| &*c.next != "memory") {
        if !cache.next.is_empty() && !file.caches.contains_key(&*cache.next) {
            let known = file.caches.keys().map(String::as_str).chain(["memory"]);
            let help = suggestion(&cache.next, known, "cache");
            let message = format!("there is no cache `{}`", cache.next);
            problems.error(cache.next.span(), message, "not defined", help);
        }
    }
    for chip in file.chips.values() {
        chip.caches.iter().for_each(|c| exists(c, &file.caches, "cache", problems));
        for node in &chip.nodes {
            node.caches.iter().for_each(|c| exists(c, &file.caches, "cache", problems));
            node.memory.iter().for_each(|m| exists(&m.memory, &file.memories, "memory", problems));
            for cluster in &node.clusters {
                exists(&cluster.core, &file.cores, "core", problems);
                cluster.caches.iter().for_each(|c| exists(c, &file.caches, "cache", problems));
            }
        }
        if chip.marks.sound(&["nodes"]) && chip.nodes.is_empty() {
            let help = "add [[chips.NAME.nodes]] with clusters of cores and memory".into();
            problems.error(chip.marks.at(), "the chip has no NUMA node".into(), "here", help);
        }
    }
    for host in &file.hosts {
        host.chips.iter().for_each(|c| exists(c, &file.chips, "chip", problems));
        host.devices.iter().for_each(|d| exists(&d.device, &file.devices, "device", problems));
        if host.marks.sound(&["chips"]) && host.chips.is_empty() {
            let help = "add `chips = [\"NAME\"]`, one name per socket".into();
            problems.error(host.marks.at(), format!("host `{}` has no chip", host.name), "here", help);
        }
        let chips = host.chips.iter().filter_map(|c| file.chips.get(&**c));
        let nodes: Vec<_> = chips.flat_map(|c| &c.nodes).collect();
        if !nodes.is_empty() && nodes.iter().all(|n| n.memory.is_empty() && n.marks.sound(&["memory"])) {
            let help = "add [[chips.NAME.nodes.memory]] to a node of one of its chips".into();
            problems.error(host.marks.at(), format!("host `{}` has no memory", host.name), "here", help);
        }
    }
}

/// Every cache's `next` must be in the hierarchy of the core that misses.
fn miss_paths(file: &MachineFile, problems: &mut Problems) {
    let mut reported = BTreeSet::new();
    for chip in file.chips.values() {
        for node in &chip.nodes {
            for cluster in &node.clusters {
                let Some(core) = file.cores.get(&*cluster.core) else { continue };
                let lists = [&core.caches, &cluster.caches, &node.caches, &chip.caches];
                let reach: BTreeSet<&str> = lists.iter().flat_map(|l| l.iter().map(|n| &**n)).collect();
                for name in &reach {
                    let Some(cache) = file.caches.get(*name) else { continue };
                    let next = &*cache.next;
                    let known = file.caches.contains_key(next);
                    if known && !reach.contains(next) && reported.insert((name.to_string(), next.to_string()))
                    {
                        let message = format!(
                            "a miss in cache `{name}` goes to `{next}`, which is not in the hierarchy of core `{}`",
                            cluster.core
                        );
                        let help = format!(
                            "list `{next}` in the `caches` of the core, its cluster, its node or its chip"
                        );
                        problems.error(cache.next.span(), message, "not in this hierarchy", help);
                    }
                }
            }
        }
    }
}

/// A core needs a first-level instruction cache and a first-level data cache.
fn first_level(file: &MachineFile, problems: &mut Problems) {
    for (name, core) in file.cores.iter().filter(|c| c.1.marks.sound(&["caches"]) && !c.1.caches.is_empty()) {
        let caches: Vec<_> = core.caches.iter().filter_map(|c| file.caches.get(&**c)).collect();
        if caches.len() < core.caches.len() {
            continue;
        }
        for (kind, word) in [(CacheKind::Instruction, "instruction"), (CacheKind::Data, "data")] {
            let holds = |k| k == kind || k == CacheKind::Unified;
            if !caches.iter().any(|c| c.level == 1 && holds(c.kind)) {
                let message =
                    format!("core `{name}` has no level-1 cache for {word}s").replace("datas", "data");
                let help = format!("add a cache with `level = 1` and `kind = \"{word}\"` to its `caches`");
                problems.error(core.marks.key("caches"), message, "missing here", help);
            }
        }
    }
}

fn unused(file: &MachineFile, problems: &mut Problems) {
    let nodes = || file.chips.values().flat_map(|c| &c.nodes);
    let clusters = || nodes().flat_map(|n| &n.clusters);
    let caches: BTreeSet<&str> = (file.cores.values().flat_map(|c| &c.caches))
        .chain(clusters().flat_map(|c| &c.caches))
        .chain(nodes().flat_map(|n| &n.caches))
        .chain(file.chips.values().flat_map(|c| &c.caches))
        .map(|n| &**n)
        .collect();
    let cores: BTreeSet<&str> = clusters().map(|c| &*c.core).collect();
    let memories: BTreeSet<&str> = nodes().flat_map(|n| n.memory.iter().map(|m| &*m.memory)).collect();
    let chips: BTreeSet<&str> = file.hosts.iter().flat_map(|h| h.chips.iter().map(|c| &**c)).collect();
    let devices: BTreeSet<&str> =
        file.hosts.iter().flat_map(|h| h.devices.iter().map(|d| &*d.device)).collect();
    let mut warn = |kind: &str, name: &str, span: Range<usize>, used: &BTreeSet<&str>| {
        if !used.contains(name) {
            let used: Vec<_> = used.iter().copied().collect();
            let help = format!("use it or remove it; {kind}s in use are: {}", crate::read::list(&used));
            problems.warn(span, format!("{kind} `{name}` is not used"), "defined here", help);
        }
    };
    file.caches.iter().for_each(|(n, p)| warn("cache", n, p.marks.at(), &caches));
    file.cores.iter().for_each(|(n, p)| warn("core", n, p.marks.at(), &cores));
    file.memories.iter().for_each(|(n, p)| warn("memory", n, p.marks.at(), &memories));
    file.chips.iter().for_each(|(n, p)| warn("chip", n, p.marks.at(), &chips));
    file.devices.iter().for_each(|(n, p)| warn("device", n, p.marks.at(), &devices));
}
