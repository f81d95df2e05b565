//! Checks the hierarchy from a core to memory: an inclusive level must be at least as large as each level above it, and
//! no level may have a shorter latency than the level above it.
//!
//! Source: inclusion after Baer and Wang, "On the inclusion properties for multi-level cache hierarchies" (ISCA 1988).

use crate::parts::{Cache, ChipNode, Core, Inclusion, MachineFile, Memory};
use crate::read::Problems;
use crate::units::{Frequency, Latency};

pub(super) fn check(file: &MachineFile, problems: &mut Problems) {
    file.caches.iter().for_each(|(name, cache)| check_inclusion(file, name, cache, problems));
    for node in file.chips.values().flat_map(|c| &c.nodes) {
        let cores = node.clusters.iter().filter_map(|c| file.cores.get(&*c.core));
        cores.for_each(|core| check_latencies(file, node, core, problems));
    }
    for (name, memory) in &file.memories {
        if memory.latency.is_none() && memory.marks.sound(&["latency"]) {
            let message = format!("memory `{name}` has no `latency`: models use a default");
            let help = "give the load-to-use latency of an idle machine; `longma machine measure` measures that of a host";
            problems.warn(memory.marks.at(), message, "defined here", help.into());
        }
    }
}

/// The caches below `cache`, nearest first; empty if the chain is circular, which `cycles` reports.
fn levels_below<'a>(file: &'a MachineFile, cache: &'a Cache) -> Vec<(&'a str, &'a Cache)> {
    let next = |cache: &'a Cache| Some((&*cache.next, file.caches.get(&*cache.next)?));
    let limit = file.caches.len();
    let levels: Vec<_> = std::iter::successors(next(cache), |found| next(found.1)).take(limit).collect();
    if levels.len() < limit { levels } else { Vec::new() }
}

fn check_inclusion(file: &MachineFile, name: &str, cache: &Cache, problems: &mut Problems) {
    let smaller = |lower: &Cache| {
        lower.inclusion == Inclusion::Inclusive
            && lower.size < cache.size
            && lower.marks.sound(&["size", "inclusion"])
            && cache.marks.sound(&["size", "next"])
    };
    if let Some((below, lower)) = levels_below(file, cache).into_iter().find(|(_, lower)| smaller(lower)) {
        let message = format!(
            "cache `{name}` of {} is larger than `{below}` of {}, which must contain its lines",
            cache.size, lower.size
        );
        let help = format!("correct one of the sizes, or the `inclusion` of `{below}`");
        problems.error(cache.marks.key("size"), message, "larger than the inclusive cache below", help);
    }
}

/// Checks that no level below `core` has a shorter latency than the level above it.
fn check_latencies(file: &MachineFile, node: &ChipNode, core: &Core, problems: &mut Problems) {
    let of_cache = |name: &str, cache: &Cache| -> Option<(String, u64, Latency)> {
        let latency = cache.latency.filter(|_| cache.marks.sound(&["latency", "next"]))?;
        Some((format!("cache `{name}`"), latency.ps(core.clock), latency))
    };
    for name in &core.caches {
        let Some(first) = file.caches.get(&**name) else { continue };
        let levels = std::iter::once((&**name, first)).chain(levels_below(file, first));
        let mut above = None;
        for (name, cache) in levels {
            let found = of_cache(name, cache);
            if let Some(found) = &found {
                check_slower(&above, found, || cache.marks.key("latency"), problems);
            }
            above = found.or(above);
        }
        let memories = node.memory.iter().filter_map(|m| Some((&*m.memory, file.memories.get(&*m.memory)?)));
        for (name, memory) in memories {
            if let Some(found) = of_memory(name, memory, core.clock) {
                check_slower(&above, &found, || memory.marks.key("latency"), problems);
            }
        }
    }
}

fn of_memory(name: &str, memory: &Memory, clock: Frequency) -> Option<(String, u64, Latency)> {
    let latency = memory.latency.filter(|_| memory.marks.sound(&["latency"]))?;
    Some((format!("memory `{name}`"), latency.ps(clock), latency))
}

/// Records an error if `level` has a shorter latency than the level above it.
fn check_slower(
    above: &Option<(String, u64, Latency)>,
    level: &(String, u64, Latency),
    at: impl Fn() -> std::ops::Range<usize>,
    problems: &mut Problems,
) {
    let Some(above) = above.as_ref().filter(|above| above.1 > level.1) else { return };
    let message =
        format!("{} has a latency of {}, but {} above it has {}", level.0, level.2, above.0, above.2);
    let help = "a latency is the time from a load's issue to its use, with the levels above included".into();
    problems.error(at(), message, "shorter than that of the level above", help);
}
