//! Checks the connections of buses, devices, links, crossbars and cables. See `cycles` for circular ones.

use crate::layout::{MAX_CORES, chip_nodes, host_names};
use crate::parts::{Chip, Host, MachineFile};
use crate::read::{Name, Problems, suggestion};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn check(file: &MachineFile, problems: &mut Problems) {
    for (name, device) in &file.devices {
        let kinds = device.kinds();
        let sound = device.marks.sound(&["ethernet", "myrinet", "zoned", "block", "dma"]);
        if kinds.len() != 1 && sound {
            let message = match kinds.is_empty() {
                true => format!("device `{name}` has no type"),
                false => format!("device `{name}` has more than one type: {}", kinds.join(", ")),
            };
            let help = "give it exactly one of the tables ethernet, myrinet, zoned, block, dma".into();
            problems.error(device.marks.at(), message, "here", help);
        }
    }
    file.chips.values().for_each(|chip| check_crossbars(file, chip, problems));
    file.hosts.iter().for_each(|host| check_host(file, host, problems));
    check_cables(file, problems);
}

fn check_crossbars(file: &MachineFile, chip: &Chip, problems: &mut Problems) {
    let shared = chip.caches.iter().chain(chip.nodes.iter().flat_map(|n| n.caches.iter()));
    let clustered = chip.nodes.iter().flat_map(|n| n.clusters.iter().flat_map(|c| c.caches.iter()));
    let mut known: Vec<&str> = vec!["cores", "memory"];
    known.extend(shared.chain(clustered).map(|n| &**n));
    known.extend(chip.ports.iter().map(|p| p.name.as_str()));
    known.extend(chip.crossbars.iter().map(|x| x.name.as_str()));
    let mut counts: BTreeMap<&str, u64> = known.iter().map(|k| (*k, 1)).collect();
    counts.insert("cores", crate::layout::chip_cores(chip));
    counts.extend(chip.ports.iter().map(|p| (p.name.as_str(), p.count.into())));
    counts.extend(
        file.caches
            .iter()
            .filter(|c| known.contains(&c.0.as_str()))
            .map(|(n, c)| (n.as_str(), c.banks.into())),
    );
    let controllers =
        chip.nodes.iter().flat_map(|n| n.memory.iter().map(move |m| u64::from(m.count) * u64::from(n.count)));
    counts.insert("memory", controllers.fold(0, u64::saturating_add));
    for crossbar in &chip.crossbars {
        let sides = [
            ("masters", &crossbar.masters, crossbar.master_ports),
            ("slaves", &crossbar.slaves, crossbar.slave_ports),
        ];
        for (side, names, ports) in sides {
            for name in names.iter().filter(|n| !known.contains(&&***n)) {
                let help = suggestion(name, known.iter().copied(), "part");
                let message =
                    format!("crossbar `{}` connects `{name}`, which the chip does not have", crossbar.name);
                problems.error(name.span(), message, "not on this chip", help);
            }
            let key = if side == "masters" { "master_ports" } else { "slave_ports" };
            let needed = names.iter().filter_map(|n| counts.get(&**n)).copied().fold(0, u64::saturating_add);
            let fits = ports.is_none_or(|p| u64::from(p) >= needed);
            if !fits && crossbar.marks.sound(&[key, side]) && names.iter().all(|n| known.contains(&&**n)) {
                let message = format!(
                    "crossbar `{}` has {} {key} for {needed} {side}",
                    crossbar.name,
                    ports.unwrap_or(0)
                );
                problems.error(
                    crossbar.marks.key(key),
                    message,
                    "too few",
                    format!("give at least {needed}, or omit the key"),
                );
            }
        }
        if crossbar.marks.sound(&["masters", "slaves"])
            && (crossbar.masters.is_empty() || crossbar.slaves.is_empty())
        {
            let help = "name its `masters` and `slaves`".into();
            problems.error(
                crossbar.marks.at(),
                format!("crossbar `{}` has no connections", crossbar.name),
                "here",
                help,
            );
        }
    }
}

/// The names that buses and devices of a host may be attached to.
fn attachment_points(file: &MachineFile, host: &Host) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (index, name) in host.chips.iter().enumerate().take(1024) {
        names.insert(format!("chip{index}"));
        let ports = file.chips.get(&**name).into_iter().flat_map(|c| &c.ports);
        for port in ports {
            match port.count {
                1 => names.extend([format!("chip{index}.{}", port.name)]),
                n => names.extend((0..n.min(256)).map(|copy| format!("chip{index}.{}{copy}", port.name))),
            }
        }
    }
    names.extend(host.buses.iter().map(|b| b.name.clone()));
    names
}

fn check_host(file: &MachineFile, host: &Host, problems: &mut Problems) {
    let attachment_points = attachment_points(file, host);
    let mut on = |name: &Name, what: String| {
        if !name.is_empty() && !attachment_points.contains(&**name) {
            let help = suggestion(name, attachment_points.iter().map(String::as_str), "place");
            problems.error(
                name.span(),
                format!("{what} is attached to `{name}`, which host `{}` does not have", host.name),
                "does not exist",
                help,
            );
        }
    };
    host.buses.iter().for_each(|b| on(&b.on, format!("bus `{}`", b.name)));
    host.devices.iter().for_each(|d| on(&d.on, format!("device `{}`", d.name)));
    let chips = host.chips.len() as u64;
    let nodes =
        host.chips.iter().filter_map(|c| file.chips.get(&**c)).map(chip_nodes).fold(0, u64::saturating_add);
    for link in &host.links {
        two_ends(&link.between, &link.marks, &format!("link `{}`", link.name), problems);
        for end in &link.between {
            let index = |prefix: &str| end.strip_prefix(prefix).and_then(|n| n.parse::<u64>().ok());
            if !(index("chip").is_some_and(|n| n < chips) || index("node").is_some_and(|n| n < nodes)) {
                let message =
                    format!("link `{}` ends at `{end}`, which host `{}` does not have", link.name, host.name);
                let help = format!(
                    "ends are chip0 to chip{} and node0 to node{}",
                    chips.saturating_sub(1),
                    nodes.saturating_sub(1)
                );
                problems.error(end.span(), message, "does not exist", help);
            }
        }
    }
}

fn two_ends(ends: &[Name], marks: &crate::read::SourcePositions, part: &str, problems: &mut Problems) {
    if marks.sound(&["between"]) && (ends.len() != 2 || ends[0] == ends[1]) {
        let help = "write `between = [\"ONE\", \"OTHER\"]`".into();
        problems.error(
            marks.key("between"),
            format!("{part} does not have two different ends"),
            "here",
            help,
        );
    }
}

fn check_cables(file: &MachineFile, problems: &mut Problems) {
    let mut ends: BTreeMap<String, (u32, &str)> = BTreeMap::new();
    for switch in &file.switches {
        ends.insert(switch.name.clone(), (switch.ports, switch.network.word()));
    }
    for host in &file.hosts {
        for name in host_names(host) {
            if ends.len() > MAX_CORES as usize {
                break;
            }
            for placed in &host.devices {
                let device = file.devices.get(&*placed.device);
                let ports = device.and_then(|d| d.ethernet.as_ref()).map_or(1, |e| e.ports);
                ends.insert(format!("{name}.{}", placed.name), (ports, device.map_or("", |d| d.kind())));
            }
        }
    }
    let mut used: BTreeMap<&str, u32> = BTreeMap::new();
    for cable in &file.cables {
        two_ends(&cable.between, &cable.marks, "the cable", problems);
        let mut networks = Vec::new();
        for end in &cable.between {
            let Some((ports, network)) = ends.get(&**end) else {
                let help = suggestion(end, ends.keys().map(String::as_str), "end");
                problems.error(
                    end.span(),
                    format!("a cable ends at `{end}`, which is neither a switch nor a HOST.DEVICE"),
                    "does not exist",
                    help,
                );
                continue;
            };
            networks.push(*network);
            let used_ports = used.entry(end).or_default();
            *used_ports += 1;
            if *used_ports == *ports + 1 {
                let help = format!("`{end}` has {ports} in total; remove a cable or add ports");
                problems.error(end.span(), format!("`{end}` has no free port"), "one too many", help);
            }
        }
        if let [one, other] = networks[..]
            && one != other
            && !one.is_empty()
            && !other.is_empty()
        {
            let message = format!("a cable connects {one} to {other}");
            problems.error(
                cable.marks.key("between"),
                message,
                "different networks",
                "connect parts of the same network".into(),
            );
        }
    }
}
