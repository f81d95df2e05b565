//! What hardware prefetching brings before it is asked for: across pages, and of instructions.
//! Not which lines a prefetcher wants: see its own tests.
//! Source: the sums are in the tests.

use longma_memory::placement::SpaceId;
use longma_memory::{Detail, MemoryPort, MemorySystem, Source};
use longma_sim::Cycle;
use longma_topology::Machine;

const SPACE: SpaceId = SpaceId(0);
const PAGE: u64 = 16 << 10;
const LINE: u64 = 64;

/// The 3A5000 after each `(from, to)` was replaced once in its machine file.
fn system(changes: &[(&str, &str)]) -> MemorySystem {
    let (_, mut text) = Machine::text("loongson-3a5000").unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "the machine file has no `{from}`");
        text = text.replacen(from, to, 1);
    }
    let machine = Machine::parse("test.toml", &text).unwrap_or_else(|report| panic!("{report}"));
    MemorySystem::new(&machine, 0, Detail::Timing, 1).unwrap()
}

/// Where the loads found their data, one long after the other.
fn sources(system: &mut MemorySystem, addresses: impl Iterator<Item = u64>, now: &mut u64) -> Vec<Source> {
    let mut port = system.port(0);
    port.set_space(SPACE);
    let mut load = |address| {
        *now += 2000;
        port.load(address, 8, 0x1000, Cycle(*now)).source
    };
    addresses.map(&mut load).collect()
}

#[test]
fn a_stream_goes_on_into_the_next_page_only_if_it_may_and_that_lies_next_in_memory() {
    let stays = ("kind = \"stream\"", "kind = \"stream\"");
    let crosses = ("kind = \"stream\"", "kind = \"stream\"\ncrosses_pages = true");
    // Frames are given out one after another: a page between the two takes the one between them.
    let (neighbours, apart) = ([64, 65, 90], [64, 90, 65]);
    for (change, order, expected) in [
        (stays, neighbours, Source::LocalMemory),
        (crosses, apart, Source::LocalMemory),
        (crosses, neighbours, Source::Level3),
    ] {
        let (mut system, mut now) = (system(&[change]), 0);
        // The pages get their frames: by lines far from those below.
        sources(&mut system, order.iter().map(|page| page * PAGE + 128 * LINE), &mut now);
        let begin = 65 * PAGE - 20 * LINE;
        let found = sources(&mut system, (0..21).map(|nth| begin + nth * LINE), &mut now);
        assert_eq!(found[19], Source::Level3, "the stream runs: {found:?}");
        assert_eq!(found[20], expected, "{change:?} {order:?}: {found:?}");
    }
}

#[test]
fn a_stream_begins_anew_behind_a_page_whichever_way_it_goes() {
    for (stays, up) in [(true, true), (true, false), (false, true)] {
        let change = if stays { "kind = \"stream\"" } else { "kind = \"stream\"\ncrosses_pages = true" };
        let (mut system, mut now) = (system(&[("kind = \"stream\"", change)]), 0);
        // A stream that may go on has no frame there yet when it comes to the page's end.
        let there_before: &[u64] = if stays { &[64, 65] } else { &[64] };
        sources(&mut system, there_before.iter().map(|page| page * PAGE + 128 * LINE), &mut now);
        let line = |nth: u64| {
            if up { 65 * PAGE - 20 * LINE + nth * LINE } else { 65 * PAGE + 19 * LINE - nth * LINE }
        };
        let found = sources(&mut system, (0..60).map(line), &mut now);
        let missed = found[20..].iter().filter(|source| **source == Source::LocalMemory).count();
        assert_eq!(missed, 1, "the page's first line alone: {stays} {up} {found:?}");
    }
}

#[test]
fn a_stream_goes_down_into_the_page_before_too() {
    let (mut system, mut now) =
        (system(&[("kind = \"stream\"", "kind = \"stream\"\ncrosses_pages = true")]), 0);
    sources(&mut system, [64, 65].map(|page| page * PAGE + 128 * LINE).into_iter(), &mut now);
    let begin = 65 * PAGE + 19 * LINE;
    let found = sources(&mut system, (0..21).map(|nth| begin - nth * LINE), &mut now);
    assert_eq!(found[20], Source::Level3, "{found:?}");
}

#[test]
fn the_next_line_of_instructions_comes_with_a_line_that_was_missed() {
    let prefetcher = "[caches.l1i.prefetcher]\nkind = \"next-line\"\nsource = \"instruction-prefetch\"\n";
    for (change, expected) in [(("", ""), Source::Level1), ((prefetcher, ""), Source::LocalMemory)] {
        let mut system = system(&[change]);
        let mut port = system.port(0);
        port.set_space(SPACE);
        assert_eq!(port.fetch(PAGE, Cycle(1000)).source, Source::LocalMemory);
        let next = port.fetch(PAGE + LINE, Cycle(3000));
        assert_eq!(next.source, expected);
        // The first use of it brings the one behind.
        assert_eq!(port.fetch(PAGE + 2 * LINE, Cycle(5000)).source, expected);
        assert_eq!(port.fetch(PAGE + 200 * LINE, Cycle(7000)).source, Source::LocalMemory);
    }
}

/// Cycles that straight code of so many lines takes whose lines are fetched one after the other, the first time.
fn straight_code(changes: &[(&str, &str)]) -> u64 {
    let mut system = system(changes);
    let mut port = system.port(0);
    port.set_space(SPACE);
    (0..2000u64).fold(1000, |now, line| port.fetch(PAGE + line * LINE, Cycle(now)).ready.0 + 4) - 1000
}

#[test]
fn the_next_line_of_instructions_does_not_take_their_stream_from_the_shared_caches_prefetcher() {
    let prefetcher = "[caches.l1i.prefetcher]\nkind = \"next-line\"\nsource = \"instruction-prefetch\"\n";
    let (with, without) = (straight_code(&[]), straight_code(&[(prefetcher, "")]));
    assert!(with <= without, "{with} cycles with the next line of instructions, {without} without");
}
