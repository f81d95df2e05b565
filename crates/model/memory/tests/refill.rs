//! TLB refills by exception and by hardware walkers.

use longma_memory::placement::SpaceId;
use longma_memory::translation::Side;
use longma_memory::{Answer, Detail, MemoryPort, MemorySystem, Source};
use longma_sim::Cycle;
use longma_topology::Machine;

const SPACE: SpaceId = SpaceId(0);
const PAGE: u64 = 16 << 10;
/// Cost of a miss in the machine file.
const MISS: u32 = 60;
const WALKER: (&str, &str) = ("tlb_refill = \"exception\"", "tlb_refill = \"walker\"");

/// The 3A5000 with each `(from, to)` replaced once in its machine file.
fn system(detail: Detail, changes: &[(&str, &str)]) -> MemorySystem {
    let (_, mut text) = Machine::text("loongson-3a5000").unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "the machine file has no `{from}`");
        text = text.replacen(from, to, 1);
    }
    let machine = Machine::parse("test.toml", &text).unwrap_or_else(|report| panic!("{report}"));
    MemorySystem::new(&machine, 0, detail, 1).unwrap()
}

fn refill(system: &mut MemorySystem, side: Side, address: u64, bytes: u32) -> u32 {
    let mut port = system.port(0);
    port.set_space(SPACE);
    port.refill(side, address, bytes)
}

fn load(system: &mut MemorySystem, address: u64, at: u64) -> Answer {
    let mut port = system.port(0);
    port.set_space(SPACE);
    port.load(address, 8, 0x1000, Cycle(at))
}

#[test]
fn a_page_in_no_tlb_raises_one_exception() {
    let mut system = system(Detail::Timing, &[]);
    assert_eq!(refill(&mut system, Side::Data, 10 * PAGE + 8, 8), MISS);
    assert_eq!(refill(&mut system, Side::Data, 10 * PAGE + 8, 8), 0, "the handler has inserted the entry");
    assert_eq!(load(&mut system, 10 * PAGE + 8, 1000).translation_cycles, 0);
    assert_eq!(refill(&mut system, Side::Data, 11 * PAGE, 8), 0, "an entry holds two pages");
    // Instructions have a separate first level; the second level holds the page.
    assert_eq!(refill(&mut system, Side::Instruction, 10 * PAGE, 4), 0);
    assert_eq!(refill(&mut system, Side::Instruction, 20 * PAGE, 4), MISS);
    // An access across a page boundary needs both pages.
    assert_eq!(refill(&mut system, Side::Data, 32 * PAGE - 4, 8), 2 * MISS);
    assert_eq!(refill(&mut system, Side::Data, 34 * PAGE - 4, 8), MISS);
}

#[test]
fn a_prefetch_raises_no_exception_and_has_no_effect_without_a_translation() {
    for (is_mapped, source) in [(false, Source::LocalMemory), (true, Source::Level1)] {
        let mut system = system(Detail::Timing, &[]);
        if is_mapped {
            refill(&mut system, Side::Data, PAGE, 8);
        }
        let mut port = system.port(0);
        port.set_space(SPACE);
        port.prefetch(PAGE + 640, 0x1000, Cycle(1000));
        assert_eq!(refill(&mut system, Side::Data, PAGE + 640, 8), if is_mapped { 0 } else { MISS });
        assert_eq!(load(&mut system, PAGE + 640, 9000).source, source);
    }
}

#[test]
fn neither_a_walker_nor_a_model_without_times_raises_an_exception() {
    for mut system in [system(Detail::Timing, &[WALKER]), system(Detail::Counts, &[])] {
        assert_eq!(refill(&mut system, Side::Data, PAGE, 8), 0);
        assert_eq!(refill(&mut system, Side::Instruction, PAGE, 4), 0);
    }
}

#[test]
fn as_many_walks_overlap_as_there_are_walkers() {
    for walkers in [1u64, 2, 4] {
        let how_many = format!("tlb_refill = \"walker\"\npage_walkers = {walkers}");
        let mut system = system(Detail::Timing, &[(WALKER.0, &how_many)]);
        // Adjacent pages share an entry, hence every other page.
        let waits: Vec<u64> =
            (1..9).map(|page| load(&mut system, 2 * page * PAGE, 1000).translation_cycles.into()).collect();
        let expected: Vec<u64> = (0..8).map(|index| (index / walkers + 1) * u64::from(MISS)).collect();
        assert_eq!(waits, expected, "{walkers} walkers");
    }
}

#[test]
fn a_machine_with_refill_exceptions_must_state_their_cost() {
    let (_, text) = Machine::text("loongson-3a5000").unwrap();
    let without = text.replacen("miss = \"60 cycles\"", "", 1);
    let report = Machine::parse("test.toml", &without).unwrap_err().render(100, false);
    assert!(report.contains("the cost of the refill exception is missing"), "{report}");
}

/// Cycles for `pairs` pairs of a load and a store, all to new pages, in a window of `window` pairs. Loads are issued
/// when they enter the window, stores when all earlier instructions have retired.
fn loads_with_stores(registers: u32, window: usize, pairs: u64) -> u64 {
    let (_, text) = Machine::text("zns-host").unwrap();
    let level1 = text.find("[caches.l1d]").unwrap();
    let (before, cache) = text.split_at(level1);
    let cache = cache.replacen("level = 1\n", &format!("level = 1\nmshrs = {registers}\n"), 1);
    let machine =
        Machine::parse("test.toml", &format!("{before}{cache}")).unwrap_or_else(|report| panic!("{report}"));
    let mut system = MemorySystem::new(&machine, 0, Detail::Timing, 1).unwrap();
    let mut port = system.port(0);
    port.set_space(SpaceId(0));
    let page = 4096;
    let (mut retired, mut now) = (vec![0; window], 0);
    for pair in 0..pairs {
        let slot = pair as usize % window;
        // The load takes the window entry of the pair `window` pairs earlier.
        let load = port.load((1000 + pair) * page, 8, 0x1000, Cycle(retired[slot].max(pair))).ready.0;
        now = now.max(load) + 1;
        let store = port.store((5000 + pair) * page, 8, 0x1004, Cycle(now)).ready.0;
        retired[slot] = now.max(store);
    }
    now
}

#[test]
fn page_walks_of_loads_and_stores_take_no_longer_than_serial_execution() {
    for (registers, window) in [(1, 50), (2, 50), (4, 50), (8, 100), (16, 100)] {
        // A line from memory and one from the page table, one after the other, take at most 120 ns each, which is 500
        // cycles at 4.1 GHz.
        let (pairs, max_cycles) = (60, 60 * 4 * 500);
        let took = loads_with_stores(registers, window, pairs);
        println!("{registers} registers, a window of {window}: {took} cycles, at most {max_cycles}");
        assert!(took <= max_cycles, "{registers} registers, a window of {window}: {took} cycles");
    }
}
