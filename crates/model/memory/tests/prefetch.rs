//! Hardware prefetching across page boundaries, and of instructions.

use longma_memory::placement::SpaceId;
use longma_memory::{Detail, MemoryPort, MemorySystem, Source};
use longma_sim::Cycle;
use longma_topology::Machine;

const SPACE: SpaceId = SpaceId(0);
const PAGE: u64 = 16 << 10;
const LINE: u64 = 64;

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

/// The sources of loads issued one after another, far apart in time.
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
fn a_stream_crosses_pages_only_if_permitted_and_physically_contiguous() {
    let stays = ("kind = \"stream\"", "kind = \"stream\"");
    let crosses = ("kind = \"stream\"", "kind = \"stream\"\ncrosses_pages = true");
    // Frames are allocated in order of first touch: touching another page between two pages separates their frames.
    let (neighbours, apart) = ([64, 65, 90], [64, 90, 65]);
    for (change, order, expected) in [
        (stays, neighbours, Source::LocalMemory),
        (crosses, apart, Source::LocalMemory),
        (crosses, neighbours, Source::Level3),
    ] {
        let (mut system, mut now) = (system(&[change]), 0);
        // Allocate the frames, by touching lines far from those used below.
        sources(&mut system, order.iter().map(|page| page * PAGE + 128 * LINE), &mut now);
        let begin = 65 * PAGE - 20 * LINE;
        let hit_sources = sources(&mut system, (0..21).map(|nth| begin + nth * LINE), &mut now);
        assert_eq!(hit_sources[19], Source::Level3, "the stream runs: {hit_sources:?}");
        assert_eq!(hit_sources[20], expected, "{change:?} {order:?}: {hit_sources:?}");
    }
}

#[test]
fn a_stream_starts_again_after_a_page_boundary_in_either_direction() {
    for (stays, up) in [(true, true), (true, false), (false, true)] {
        let change = if stays { "kind = \"stream\"" } else { "kind = \"stream\"\ncrosses_pages = true" };
        let (mut system, mut now) = (system(&[("kind = \"stream\"", change)]), 0);
        // A stream that may cross pages: the next page has no frame yet when the stream reaches the boundary.
        let there_before: &[u64] = if stays { &[64, 65] } else { &[64] };
        sources(&mut system, there_before.iter().map(|page| page * PAGE + 128 * LINE), &mut now);
        let line = |index: u64| {
            if up { 65 * PAGE - 20 * LINE + index * LINE } else { 65 * PAGE + 19 * LINE - index * LINE }
        };
        let found = sources(&mut system, (0..60).map(line), &mut now);
        let missed = found[20..].iter().filter(|source| **source == Source::LocalMemory).count();
        assert_eq!(missed, 1, "only the first line of the page may miss: {stays} {up} {found:?}");
    }
}

#[test]
fn a_descending_stream_crosses_into_the_previous_page() {
    let (mut system, mut now) =
        (system(&[("kind = \"stream\"", "kind = \"stream\"\ncrosses_pages = true")]), 0);
    sources(&mut system, [64, 65].map(|page| page * PAGE + 128 * LINE).into_iter(), &mut now);
    let begin = 65 * PAGE + 19 * LINE;
    let found = sources(&mut system, (0..21).map(|nth| begin - nth * LINE), &mut now);
    assert_eq!(found[20], Source::Level3, "{found:?}");
}

#[test]
fn an_instruction_miss_prefetches_the_next_line() {
    let prefetcher = "[caches.l1i.prefetcher]\nkind = \"next-line\"\nsource = \"instruction-prefetch\"\n";
    for (change, expected) in [(("", ""), Source::Level1), ((prefetcher, ""), Source::LocalMemory)] {
        let mut system = system(&[change]);
        let mut port = system.port(0);
        port.set_space(SPACE);
        assert_eq!(port.fetch(PAGE, Cycle(1000)).source, Source::LocalMemory);
        let next = port.fetch(PAGE + LINE, Cycle(3000));
        assert_eq!(next.source, expected);
        // Its first use prefetches the next line.
        assert_eq!(port.fetch(PAGE + 2 * LINE, Cycle(5000)).source, expected);
        assert_eq!(port.fetch(PAGE + 200 * LINE, Cycle(7000)).source, Source::LocalMemory);
    }
}

/// Cycles to fetch 2000 consecutive instruction lines for the first time.
fn straight_code(changes: &[(&str, &str)]) -> u64 {
    let mut system = system(changes);
    let mut port = system.port(0);
    port.set_space(SPACE);
    (0..2000u64).fold(1000, |now, line| port.fetch(PAGE + line * LINE, Cycle(now)).ready.0 + 4) - 1000
}

#[test]
fn next_line_prefetches_of_instructions_do_not_break_the_streams_of_the_shared_cache() {
    let prefetcher = "[caches.l1i.prefetcher]\nkind = \"next-line\"\nsource = \"instruction-prefetch\"\n";
    let (with, without) = (straight_code(&[]), straight_code(&[(prefetcher, "")]));
    assert!(with <= without, "{with} cycles with the next-line prefetcher, {without} without");
}
