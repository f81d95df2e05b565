//! Accesses that wait for each other: for miss registers, for translations, and for lines in flight to another core.

use longma_memory::placement::SpaceId;
use longma_memory::{Answer, Detail, MemoryPort, MemorySystem};
use longma_sim::{Cycle, Time};
use longma_topology::Machine;

const SPACE: SpaceId = SpaceId(0);
const PAGE: u64 = 16 << 10;

/// The 3A5000 with each `(from, to)` replaced once in its machine file.
fn system(changes: &[(&str, &str)]) -> MemorySystem {
    let (_, mut text) = Machine::text("loongson-3a5000").unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "the machine file has no `{from}`");
        text = text.replacen(from, to, 1);
    }
    let machine = Machine::parse("test.toml", &text).unwrap_or_else(|report| panic!("{report}"));
    MemorySystem::new(&machine, 0, Detail::Timing, 1).unwrap()
}

fn load(system: &mut MemorySystem, address: u64, at: u64) -> Answer {
    let mut port = system.port(0);
    port.set_space(SPACE);
    port.load(address, 8, 0x1000, Cycle(at))
}

/// Addresses of `count` lines of one page, in an order that no prefetcher recognizes.
fn scattered(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(|index| PAGE + (index * 37 + 11) % 251 * 64)
}

#[test]
fn one_miss_register_sustains_one_miss() {
    for count in [1, 4, 16, 24] {
        let mut system = system(&[("mshrs = 16 ", "mshrs = 1 ")]);
        let warm = load(&mut system, PAGE, 0).ready.0;
        let start = warm + 1000;
        let ready: Vec<u64> =
            scattered(count).map(|address| load(&mut system, address, start).ready.0 - start).collect();
        let (first, last) = (ready[0], ready.iter().max().unwrap());
        assert!(first > 100, "the lines are in memory: {first}");
        // Open rows shorten some of the misses.
        assert!(*last >= count * first * 8 / 10, "{count} misses of {first} cycles take {last}: {ready:?}");
    }
}

#[test]
fn sixteen_miss_registers_sustain_sixteen_misses() {
    let mut system = system(&[]);
    let start = load(&mut system, PAGE, 0).ready.0 + 1000;
    let ready: Vec<u64> =
        scattered(48).map(|address| load(&mut system, address, start).ready.0 - start).collect();
    let first = ready[0];
    assert!(ready[15] < 2 * first, "sixteen overlap: {ready:?}");
    let last = ready.iter().max().unwrap();
    assert!((2 * first..5 * first).contains(last), "three times sixteen: {ready:?}");
}

#[test]
fn a_second_access_to_a_page_waits_for_the_refill_started_by_the_first() {
    let mut system = system(&[]);
    let first = load(&mut system, PAGE, 1000);
    assert!(first.translation_cycles > 50, "no TLB has the page: {first:?}");
    let refilled = 1000 + u64::from(first.translation_cycles);
    let second = load(&mut system, PAGE + 64, 1010);
    assert_eq!(1010 + u64::from(second.translation_cycles), refilled);
    let third = load(&mut system, PAGE + 64, refilled);
    assert_eq!(third.translation_cycles, 0);
    // An access with an earlier time than the first one would have started the refill itself.
    let early = load(&mut system, PAGE + 128, 500);
    assert_eq!(early.translation_cycles, first.translation_cycles);
}

#[test]
fn a_core_refills_one_translation_at_a_time() {
    let mut system = system(&[]);
    let waits: Vec<u32> =
        (1..9).map(|page| load(&mut system, page * PAGE, 1000).translation_cycles).collect();
    // Adjacent pages share an entry.
    let walks: Vec<u32> = waits.iter().copied().step_by(2).collect();
    let shortest = 10;
    for (index, wait) in (1..).zip(&walks) {
        assert!(*wait >= index * shortest, "{waits:?}");
    }
    assert!(walks.is_sorted_by(|a, b| a + shortest <= *b), "{waits:?}");
}

#[test]
fn a_line_moves_on_only_after_it_has_arrived() {
    let mut system = system(&[]);
    let store = |system: &mut MemorySystem, core: usize, at: u64| {
        let mut port = system.port(core);
        port.set_space(SPACE);
        port.store(PAGE, 8, 0x1000, Cycle(at)).ready.0
    };
    // The time of a single transfer.
    for core in 0..4 {
        store(&mut system, core, 10_000 * core as u64);
    }
    let unloaded = store(&mut system, 0, 50_000) - 50_000;
    assert!(unloaded > 30, "{unloaded}");
    // All requests are made at the same time: each waits for the previous one, and only the times of the requests
    // overlap.
    let ready: Vec<u64> = (0..4).map(|core| store(&mut system, (core + 1) % 4, 100_000) - 100_000).collect();
    assert!((ready[0] as i64 - unloaded as i64).abs() <= 3, "{ready:?}, alone {unloaded}");
    assert!(ready.is_sorted_by(|a, b| a + unloaded / 2 <= *b), "{ready:?}, alone {unloaded}");
}

#[test]
fn cores_that_take_a_line_from_each_other_every_turn_contend() {
    let mut system = system(&[]);
    let mut now = 0;
    let mut turn = |system: &mut MemorySystem, core: usize, address: u64| {
        now += 1000;
        // The 3A5000 runs at 2.5 GHz.
        let contends = system.begin_turn(core, Time::from_ps(now * 400));
        let mut port = system.port(core);
        port.set_space(SPACE);
        port.store(address, 8, 0x1000, Cycle(now));
        (contends, system.took_line(core))
    };
    for index in 0..10 {
        let core = index % 2;
        assert_eq!(turn(&mut system, core, PAGE + 4096 * core as u64), (false, false), "separate lines");
    }
    let shared: Vec<_> = (0..6).map(|index| turn(&mut system, index % 2, PAGE + 64)).collect();
    assert_eq!(shared[0], (false, false));
    assert!(shared[1..].iter().all(|(_, took)| *took), "{shared:?}");
    assert!(shared[3..].iter().all(|(contends, _)| *contends), "{shared:?}");
    // A microsecond later, the contention is over.
    for index in 0..6 {
        turn(&mut system, index % 2, PAGE + 4096 * (index as u64 % 2));
    }
    assert_eq!(turn(&mut system, 0, PAGE), (false, false));
}

#[test]
fn an_access_across_two_lines_completes_a_cycle_later() {
    let mut system = system(&[]);
    load(&mut system, PAGE, 0);
    load(&mut system, PAGE + 64, 5000);
    assert_eq!(load(&mut system, PAGE + 56, 10_000).ready.0, 10_004);
    assert_eq!(load(&mut system, PAGE + 60, 10_000).ready.0, 10_005);
}

#[test]
fn a_hit_does_not_wait_for_a_later_access_to_its_line_that_was_simulated_first() {
    let mut system = system(&[]);
    let mut port = system.port(0);
    port.set_space(SPACE);
    // Two lines in one set of the first level, whose ways are 16 KiB.
    let lines = [PAGE, PAGE + (16 << 10)];
    for line in lines {
        port.store(line, 8, 0x1000, Cycle(0));
    }
    let start = 100_000;
    // The two lines alternate as the most recently used line of the set. Program order is not time order: a store
    // accesses the cache after it retires, a load when its address is known.
    for round in 0..4 {
        let late_store = port.store(lines[0], 8, 0x1000, Cycle(start + 1000 + round));
        assert_eq!(late_store.ready.0, start + 1000 + round + 4, "a hit");
        for nth in 0..3 {
            let early = port.load(lines[0] + 8 * nth, 8, 0x1000, Cycle(start + nth));
            assert_eq!(early.ready.0, start + nth + 4, "round {round}: the store is a thousand cycles later");
        }
        assert_eq!(port.load(lines[1], 8, 0x1000, Cycle(start + 5000)).ready.0, start + 5004);
        assert_eq!(port.load(lines[1], 8, 0x1000, Cycle(start)).ready.0, start + 4, "round {round}");
    }
}

#[test]
fn a_core_reads_its_copy_of_a_line_while_write_permission_is_pending() {
    let mut system = system(&[]);
    for core in [0, 1] {
        let mut port = system.port(core);
        port.set_space(SPACE);
        port.load(PAGE, 8, 0x1000, Cycle(1000 * core as u64));
    }
    let start = 100_000;
    let mut port = system.port(0);
    let right = port.store(PAGE, 8, 0x1000, Cycle(start)).ready.0;
    assert!(right > start + 40, "the other copy must be invalidated first: {right}");
    assert_eq!(port.load(PAGE + 8, 8, 0x1000, Cycle(start + 1)).ready.0, start + 5);
    // Another store waits for the write permission, and other cores get the line no earlier.
    assert_eq!(port.store(PAGE + 8, 8, 0x1000, Cycle(start + 2)).ready.0, right);
    assert_eq!(port.store(PAGE + 8, 8, 0x1000, Cycle(right)).ready.0, right + 4);
    let load_ready = system.port(1).load(PAGE, 8, 0x1000, Cycle(start + 3)).ready.0;
    assert!(load_ready > right, "{load_ready} and {right}");
}
