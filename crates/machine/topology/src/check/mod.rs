//! Checks that the parts of a machine file are consistent. Syntax, keys and units are checked while the file is read.

mod cycles;
mod distances;
mod effects;
mod levels;
mod limits;
mod names;
mod rates;
mod sizes;
mod sources;
mod wiring;

use crate::layout::{Layout, MAX_CORES};
use crate::parts::{Chip, ChipNode, Cluster, MachineFile};
use crate::read::Problems;
pub(crate) use sources::cited;

/// Records every problem of `file`; builds the layout unless errors prevent it.
pub(crate) fn check_parts(file: &MachineFile, problems: &mut Problems) -> Option<Layout> {
    header(file, problems);
    names::check(file, problems);
    sources::check(file, problems);
    sizes::check(file, problems);
    limits::check(file, problems);
    rates::check(file, problems);
    levels::check(file, problems);
    effects::check(file, problems);
    cycles::check(file, problems);
    wiring::check(file, problems);
    if !is_countable(file, problems) {
        return None;
    }
    let layout = Layout::of(file);
    distances::check(file, &layout, problems);
    limits::check_totals(file, &layout, problems);
    Some(layout)
}

fn header(file: &MachineFile, problems: &mut Problems) {
    let marks = &file.marks;
    if marks.sound(&["format"]) && file.format != 1 {
        let help = "write `format = 1`".into();
        problems.error(marks.key("format"), format!("format {} is not supported", file.format), "here", help);
    }
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if marks.sound(&["name"]) && (file.name.is_empty() || !file.name.chars().all(word)) {
        let help = "use lower-case letters, digits and hyphens, such as \"loongson-3a5000\"".into();
        problems.error(
            marks.key("name"),
            format!("\"{}\" is not a valid name of a machine", file.name),
            "here",
            help,
        );
    }
    if marks.sound(&["hosts"]) && file.hosts.is_empty() {
        let help = "add [[hosts]] with a name, a source and the chips of its sockets".into();
        problems.error(marks.key("hosts"), "the machine has no host".into(), "missing", help);
    }
}

/// Whether the machine has few enough parts to build its layout.
fn is_countable(file: &MachineFile, problems: &mut Problems) -> bool {
    let mut total = 0u64;
    for host in &file.hosts {
        let chips = host.chips.iter().filter_map(|c| file.chips.get(&**c));
        let parts = chips.map(|c| chip_parts(file, c)).fold(1, u64::saturating_add);
        total = total.saturating_add(parts.saturating_mul(host.count.into()));
        if total > 16 * MAX_CORES {
            let message = format!("host `{}` has too many parts", host.name);
            let help = format!(
                "a machine has at most {MAX_CORES} cores; check the `count` and `cores` of its chips"
            );
            problems.error(host.marks.at(), message, "defined here", help);
            return false;
        }
    }
    true
}

/// The number of instances in a chip: nodes, controllers, clusters, cores, and references from cores to caches.
fn chip_parts(file: &MachineFile, chip: &Chip) -> u64 {
    let times = |count: u32, parts: u64| u64::from(count).saturating_mul(parts);
    let sum = |parts: &mut dyn Iterator<Item = u64>| parts.fold(1, u64::saturating_add);
    let shared = chip.caches.len() as u64;
    let node_parts = |node: &ChipNode| {
        let cluster_parts = |cluster: &Cluster| {
            let private = file.cores.get(&*cluster.core).map_or(0, |c| c.caches.len() as u64);
            let caches = private + cluster.caches.len() as u64 + node.caches.len() as u64 + shared;
            times(cluster.count, times(cluster.cores, 1 + caches).saturating_add(1))
        };
        let memory = sum(&mut node.memory.iter().map(|m| times(m.count, 1)));
        times(node.count, sum(&mut node.clusters.iter().map(cluster_parts)).saturating_add(memory))
    };
    sum(&mut chip.nodes.iter().map(node_parts))
}
