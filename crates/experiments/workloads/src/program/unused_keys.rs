//! Keys of a machine that cannot affect a run of a program, whatever the program does.
//!
//! Source: docs/src/reference/levels.md, and runs in which each key of the machine files was varied.

use longma_topology::Machine;
use longma_topology::parts::Core;

/// Keys of a core with an effect at level `cache`, where an instruction takes one cycle.
const OF_CORE_AT_CACHE: [&str; 10] = [
    "isa",
    "extensions",
    "clock",
    "threads",
    "caches",
    "page_size",
    "tlbs",
    "tlb_refill",
    "vector_width",
    "idma",
];
/// Keys of a cache that only affect time.
const TIMES_OF_CACHE: [&str; 4] = ["latency", "bandwidth", "mshrs", "banks"];

/// Why the key at `path` has no effect on a run at `level` on `machine`; `None` if it may have one.
pub(super) fn why(path: &str, level: &str, machine: &Machine) -> Option<&'static str> {
    let segments: Vec<_> = path.split('.').collect();
    let described = ["title", "description", "kernel", "source", "source_of", "reasoning"];
    if segments[0] == "sources" || segments.iter().any(|segment| described.contains(segment)) {
        return Some("it only describes the machine");
    }
    match segments[..] {
        ["switches" | "cables", ..] => return Some("a program runs on the machine's first host"),
        ["hosts", host, ..] if host != "0" => return Some("a program runs on the machine's first host"),
        ["hosts", _, "count"] => return Some("a program runs on the machine's first host"),
        ["hosts", _, "core_to_core" | "bandwidths", ..] => return Some("it is a measurement, not modelled"),
        ["hosts", _, "os", "page_size"] if cores(machine).all(|core| core.page_size.is_some()) => {
            return Some("the cores' own `page_size` takes precedence");
        }
        [.., "crossbars", _, "master_ports" | "slave_ports"] => {
            return Some("only `longma machine check` uses it");
        }
        _ => {}
    }
    // Devices are modelled with their times at every level.
    let has_devices = cores(machine)
        .any(|core| core.store.is_some() || core.idma.is_some() || core.cam.is_some())
        || machine.parts().hosts.first().is_some_and(|host| !host.devices.is_empty());
    match level {
        "timing" => None,
        _ if has_devices => None,
        "functional" => match segments[..] {
            ["cores", _, key, ..] => (!["isa", "extensions"].contains(&key))
                .then_some("at level `functional` there is no timing model"),
            ["caches" | "memories", ..] | ["hosts", _, "os", ..] => {
                Some("at level `functional` there is no timing model")
            }
            _ => None,
        },
        _ => {
            let timed = match segments[..] {
                ["cores", _, key, ..] => !OF_CORE_AT_CACHE.contains(&key),
                ["caches", _, key, ..] => TIMES_OF_CACHE.contains(&key),
                ["memories", ..] | ["chips", _, "crossbars" | "uncore_clock" | "ports", ..] => true,
                _ => false,
            };
            timed.then_some("at level `cache` an instruction takes one cycle")
        }
    }
}

/// The types of the cores of the first host.
fn cores(machine: &Machine) -> impl Iterator<Item = &Core> {
    let placed = machine.layout().hosts.first().map_or(&[][..], |host| &host.cores);
    let names: std::collections::BTreeSet<_> = placed.iter().map(|core| core.core.clone()).collect();
    names.into_iter().filter_map(|name| machine.cores.get(&name))
}
