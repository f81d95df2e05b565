//! Keys of private caches act on every machine that states them, and otherwise the machine file is rejected.

use longma_memory::placement::SpaceId;
use longma_memory::{Detail, MemoryPort, MemorySystem};
use longma_sim::{Cycle, Duration, Statistics};
use longma_topology::Machine;

const PAGE: u64 = 16 << 10;

/// A machine with `(from, to)` replaced once in its file.
fn system(name: &str, from: &str, to: &str) -> MemorySystem {
    let (_, text) = Machine::text(name).unwrap();
    assert!(text.contains(from), "{name} has no `{from}`");
    let text = text.replacen(from, to, 1);
    let machine = Machine::parse("test.toml", &text).unwrap_or_else(|report| panic!("{report}"));
    MemorySystem::new(&machine, 0, Detail::Timing, 1).unwrap()
}

fn count(system: &MemorySystem, name: &str) -> u64 {
    let mut statistics = Statistics::default();
    system.report(&mut statistics, Duration::from_ps(1_000_000_000)).unwrap();
    let text = statistics.to_text();
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
    line.and_then(|line| line.split_whitespace().nth(1)).map_or(0, |value| value.parse().unwrap())
}

/// Accesses each of `lines` lines `rounds` times, one access per cycle. Returns the time of the last round, cycles.
fn access(system: &mut MemorySystem, lines: u64, rounds: u64, store: bool) -> u64 {
    let (mut at, mut end, mut took) = (0, 0, 0);
    for _ in 0..rounds {
        let began = end;
        at = at.max(end);
        for line in 0..lines {
            at += 1;
            let mut port = system.port(0);
            port.set_space(SpaceId(0));
            let address = PAGE + line * 64;
            let answer = match store {
                true => port.store(address, 8, 0x1000, Cycle(at)),
                false => port.load(address, 8, 0x1000, Cycle(at)),
            };
            end = end.max(answer.ready.0);
        }
        took = end - began;
    }
    took
}

/// Lines of 96 KiB: more than the first level holds, less than the second.
const LINES: u64 = (96 << 10) / 64;

#[test]
fn the_bandwidth_of_a_second_level_limits_its_hits_and_is_multiplied_by_its_banks() {
    let l2 = "[caches.l2]\n";
    let took =
        |keys: &str| access(&mut system("loongson-3a5000", l2, &format!("{l2}{keys}")), LINES, 3, false);
    let (unlimited, fast, slow) =
        (took(""), took("bandwidth = \"64 B/cycle\"\n"), took("bandwidth = \"1 B/cycle\"\n"));
    assert_eq!(unlimited, fast, "a line each cycle");
    assert!(slow >= LINES * 64, "{slow} cycles for {LINES} lines of 64 B");
    let banked = took("bandwidth = \"1 B/cycle\"\nbanks = 4\n");
    assert!((slow / 5..slow / 3).contains(&banked), "four banks: {banked} instead of {slow}");
}

#[test]
fn a_write_through_first_level_passes_every_store() {
    for name in
        ["loongson-3a5000", "loongson-3a4000", "sandybridge-2x6", "hygon-8node", "zns-host", "godson3"]
    {
        let l1d = "[caches.l1d]\n";
        let mut write_back = system(name, l1d, l1d);
        let mut through = system(name, l1d, &format!("{l1d}write = \"through\"\n"));
        let times = [&mut write_back, &mut through].map(|system| access(system, 16, 100, true));
        assert_eq!(count(&through, "core0.l1d.write_throughs"), 1600, "{name}");
        assert_eq!(count(&through, "core0.l1d.write_backs"), 0, "{name}");
        // On machines with a fast second level, which takes a word each cycle, the times may be equal.
        let is_far = matches!(name, "loongson-3a5000" | "loongson-3a4000" | "godson3");
        assert!(times[1] >= times[0] + u64::from(is_far), "{name}: {times:?}");
        through.check().unwrap();
    }
}

#[test]
fn a_write_through_second_level_holds_no_modified_lines() {
    for name in ["loongson-3a5000", "loongson-3a4000", "sandybridge-2x6", "hygon-8node", "zns-host"] {
        let l2 = "[caches.l2]\n";
        let mut system = system(name, l2, &format!("{l2}write = \"through\"\n"));
        access(&mut system, 4 * LINES, 2, true);
        assert!(count(&system, "core0.l1d.write_backs") > 0, "{name}");
        let passed = count(&system, "core0.l2.write_throughs");
        assert_eq!(passed, count(&system, "core0.l1d.write_backs"), "{name}");
        system.check().unwrap();
    }
}
