//! Cores that read the same lines.

use longma_memory::placement::SpaceId;
use longma_memory::{Detail, MemoryPort, MemorySystem};
use longma_sim::{Cycle, Duration, Statistics};
use longma_topology::Machine;

const PAGE: u64 = 16 << 10;
/// More than the private caches hold, less than the shared one.
const PAGES: u64 = (1 << 20) / PAGE;

fn probes(system: &MemorySystem) -> u64 {
    let mut statistics = Statistics::default();
    system.report(&mut statistics, Duration::from_ps(1_000_000_000)).unwrap();
    let text = statistics.to_text();
    let line = text.lines().find(|line| line.starts_with("coherence.probes ")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Lets the first `readers` cores read all pages `rounds` times, a page each in turn. Returns the time of the last round
/// in cycles, and the probes in it.
fn read(system: &mut MemorySystem, readers: usize, rounds: usize) -> (u64, u64) {
    let mut clocks = vec![0; readers];
    let (mut began, mut probed) = (0, 0);
    for _ in 0..rounds {
        (began, probed) = (clocks.iter().copied().max().unwrap_or(0), probes(system));
        clocks.fill(began);
        for step in 0..PAGES {
            for (core, clock) in clocks.iter_mut().enumerate() {
                // Far apart, so that a core has evicted a page when the next one reads it.
                let page = (step + core as u64 * PAGES / readers as u64) % PAGES;
                let mut port = system.port(core);
                port.set_space(SpaceId(0));
                for line in 0..PAGE / 64 {
                    let address = (page + 1) * PAGE + line * 64;
                    *clock = port.load(address, 8, 0x1000, Cycle(*clock)).ready.0;
                }
            }
        }
    }
    (clocks.iter().copied().max().unwrap_or(0) - began, probes(system) - probed)
}

#[test]
fn cores_that_only_read_lines_of_the_shared_cache_do_not_probe_each_other() {
    for name in ["loongson-3a5000", "loongson-3a4000", "sandybridge-2x6"] {
        let machine = Machine::open(name).unwrap();
        let mut times = Vec::new();
        for readers in 1..=4 {
            let mut system = MemorySystem::new(&machine, 0, Detail::Timing, 1).unwrap();
            let (time, probed) = read(&mut system, readers, 3);
            assert_eq!(probed, 0, "{name}: {readers} readers");
            system.check().unwrap();
            times.push(time);
        }
        assert!(times.is_sorted_by(|less, more| *less <= more + more / 20), "{name}: {times:?}");
    }
}
