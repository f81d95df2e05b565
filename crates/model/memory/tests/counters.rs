//! The counts in the statistics of caches.

use longma_memory::placement::SpaceId;
use longma_memory::{Detail, MemoryPort, MemorySystem};
use longma_sim::{Cycle, Duration, Statistics};
use longma_topology::Machine;

const PAGE: u64 = 16 << 10;

fn system(machine: &str) -> MemorySystem {
    MemorySystem::new(&Machine::open(machine).unwrap(), 0, Detail::Timing, 1).unwrap()
}

/// The value of the statistic `name`; 0 if it is not reported.
fn count(system: &MemorySystem, name: &str) -> u64 {
    let mut statistics = Statistics::default();
    system.report(&mut statistics, Duration::from_ps(1_000_000_000)).unwrap();
    let text = statistics.to_text();
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
    line.and_then(|line| line.split_whitespace().nth(1)).map_or(0, |value| value.parse().unwrap())
}

#[test]
fn an_access_to_two_lines_is_one_access_and_at_most_one_miss() {
    let mut system = system("loongson-3a5000");
    let mut at = 0;
    let mut access = |system: &mut MemorySystem, address: u64, store: bool| {
        at += 1000;
        let mut port = system.port(0);
        port.set_space(SpaceId(0));
        if store {
            port.store(address, 8, 0x1000, Cycle(at))
        } else {
            port.load(address, 8, 0x1000, Cycle(at))
        };
    };
    // Translate the page first: a page walk loads through the data cache.
    access(&mut system, PAGE + 0x2000, false);
    let loads = count(&system, "core0.l1d.loads");
    let misses = count(&system, "core0.l1d.load_misses");
    for _ in 0..10 {
        access(&mut system, PAGE + 60, false);
    }
    assert_eq!(count(&system, "core0.l1d.loads") - loads, 10);
    assert_eq!(count(&system, "core0.l1d.load_misses") - misses, 1, "both lines miss in the first access");
    assert_eq!(count(&system, "core0.l1d.line_crossings"), 10);
    for _ in 0..10 {
        access(&mut system, PAGE + 124, true);
        access(&mut system, PAGE + 64, true);
    }
    assert_eq!(count(&system, "core0.l1d.stores"), 20);
    assert_eq!(count(&system, "core0.l1d.store_misses"), 1, "the second line of the first store misses");
    assert_eq!(count(&system, "core0.l1d.line_crossings"), 20);
}

#[test]
fn prefetched_lines_are_used_or_removed_or_present_also_after_a_region_begins() {
    let mut system = system("loongson-3a5000");
    let run = |system: &mut MemorySystem, from: u64| {
        let mut at = from;
        for round in 0..4 {
            // Streams of 24 lines; the other prefetched lines remain unused.
            for line in 0..24 {
                let mut port = system.port(0);
                port.set_space(SpaceId(0));
                let address = (from / 1000 + round * 7 + 1) * PAGE + line * 64;
                at = port.load(address, 8, 0x1000, Cycle(at)).ready.0;
                let mut port = system.port(1);
                port.set_space(SpaceId(0));
                port.store(address + 512, 8, 0x1000, Cycle(at));
            }
        }
    };
    run(&mut system, 1_000_000);
    system.check().unwrap();
    assert!(count(&system, "l3.prefetched") > 0);
    system.clear_statistics();
    run(&mut system, 2_000_000);
    system.check().unwrap();
    let [issued, earlier, useful, useless, unused] =
        ["prefetched", "earlier_prefetches", "useful_prefetches", "useless_prefetches", "unused_prefetches"]
            .map(|name| count(&system, &format!("l3.{name}")));
    assert_eq!(issued + earlier, useful + useless + unused);
    assert!(earlier > 0 && unused > 0);
}
