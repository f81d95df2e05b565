//! What cannot be along one way to memory: a level that must hold all of a larger one, or that answers before the one in front of it.
//! Not a level's own shape: see `sizes`.
//! Source: inclusion after Baer and Wang, "On the inclusion properties for multi-level cache hierarchies" (ISCA 1988).

use crate::parts::{Cache, ChipNode, Core, Inclusion, MachineFile, Memory};
use crate::read::Problems;
use crate::units::{Frequency, Latency};

pub(super) fn check(file: &MachineFile, problems: &mut Problems) {
    file.caches.iter().for_each(|(name, cache)| holds_all_above(file, name, cache, problems));
    for node in file.chips.values().flat_map(|c| &c.nodes) {
        let cores = node.clusters.iter().filter_map(|c| file.cores.get(&*c.core));
        cores.for_each(|core| grows_slower(file, node, core, problems));
    }
    for (name, memory) in &file.memories {
        if memory.latency.is_none() && memory.marks.sound(&["latency"]) {
            let message = format!("memory `{name}` has no `latency`, and a model takes one of its own");
            let help =
                "give the load-to-use latency of an idle machine; `longma machine measure` finds a host's";
            problems.warn(memory.marks.at(), message, "defined here", help.into());
        }
    }
}

/// The caches that a miss of `cache` comes to, nearest first; none if the way never ends, which `cycles` reports.
fn behind<'a>(file: &'a MachineFile, cache: &'a Cache) -> Vec<(&'a str, &'a Cache)> {
    let next = |cache: &'a Cache| Some((&*cache.next, file.caches.get(&*cache.next)?));
    let most = file.caches.len();
    let way: Vec<_> = std::iter::successors(next(cache), |found| next(found.1)).take(most).collect();
    if way.len() < most { way } else { Vec::new() }
}

fn holds_all_above(file: &MachineFile, name: &str, cache: &Cache, problems: &mut Problems) {
    let smaller = |lower: &Cache| {
        lower.inclusion == Inclusion::Inclusive
            && lower.size < cache.size
            && lower.marks.sound(&["size", "inclusion"])
            && cache.marks.sound(&["size", "next"])
    };
    if let Some((below, lower)) = behind(file, cache).into_iter().find(|(_, lower)| smaller(lower)) {
        let message = format!(
            "cache `{name}` of {} is larger than `{below}` of {}, which holds all that it holds",
            cache.size, lower.size
        );
        let help = format!("correct a size, or say that `{below}` is not inclusive");
        problems.error(cache.marks.key("size"), message, "more than the inclusive cache behind it", help);
    }
}

/// Each level that a load of `core` comes to must answer later than the level in front of it.
fn grows_slower(file: &MachineFile, node: &ChipNode, core: &Core, problems: &mut Problems) {
    let of_cache = |name: &str, cache: &Cache| -> Option<(String, u64, Latency)> {
        let latency = cache.latency.filter(|_| cache.marks.sound(&["latency", "next"]))?;
        Some((format!("cache `{name}`"), latency.ps(core.clock), latency))
    };
    for name in &core.caches {
        let Some(first) = file.caches.get(&**name) else { continue };
        let way = std::iter::once((&**name, first)).chain(behind(file, first));
        let mut before = None;
        for (name, cache) in way {
            let found = of_cache(name, cache);
            if let Some(found) = &found {
                later(&before, found, || cache.marks.key("latency"), problems);
            }
            before = found.or(before);
        }
        let memories = node.memory.iter().filter_map(|m| Some((&*m.memory, file.memories.get(&*m.memory)?)));
        for (name, memory) in memories {
            if let Some(found) = of_memory(name, memory, core.clock) {
                later(&before, &found, || memory.marks.key("latency"), problems);
            }
        }
    }
}

fn of_memory(name: &str, memory: &Memory, clock: Frequency) -> Option<(String, u64, Latency)> {
    let latency = memory.latency.filter(|_| memory.marks.sound(&["latency"]))?;
    Some((format!("memory `{name}`"), latency.ps(clock), latency))
}

/// Notes that `found` answers before the level that was asked first.
fn later(
    before: &Option<(String, u64, Latency)>,
    found: &(String, u64, Latency),
    at: impl Fn() -> std::ops::Range<usize>,
    problems: &mut Problems,
) {
    let Some(before) = before.as_ref().filter(|before| before.1 > found.1) else { return };
    let message = format!("{} answers in {}, {} in front of it in {}", found.0, found.2, before.0, before.2);
    let help = "a latency is from a load's issue to its use, the levels in front of it included".into();
    problems.error(at(), message, "quicker than what is asked before", help);
}
