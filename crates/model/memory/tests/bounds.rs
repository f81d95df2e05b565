//! Limits that hold for any accesses in any order: outstanding misses never exceed the miss registers, traffic never
//! exceeds a channel's rate, and additional accesses never make others faster.

use std::collections::HashMap;

use longma_memory::placement::SpaceId;
use longma_memory::{Answer, Detail, MemoryPort, MemorySystem, Source};
use longma_sim::{Cycle, Duration, Time};
use longma_topology::Machine;
use proptest::prelude::*;

const PAGE: u64 = 16 << 10;
const LINE: u64 = 64;

/// Number of random programs per test; `LONGMA_MEMORY_CASES=100000` runs more.
fn cases(few: u32) -> ProptestConfig {
    let asked = std::env::var("LONGMA_MEMORY_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig::with_cases(asked.unwrap_or(few))
}

/// Like [`prefetching`], without a prefetcher.
fn system(changes: &[(&str, &str, &str)]) -> MemorySystem {
    let (_, text) = Machine::text("loongson-3a5000").unwrap();
    let begin = text.find("[caches.l3.prefetcher]").unwrap();
    let end = begin + text[begin..].find("\n\n").unwrap();
    let prefetcher = text[begin..end].to_owned();
    prefetching(&[&[("", prefetcher.as_str(), "")], changes].concat())
}

/// The 3A5000 with a closed-page policy, so that one access does not save another the activate. Each `(after, from,
/// to)` replaces the first `from` after `after` in the machine file.
fn prefetching(changes: &[(&str, &str, &str)]) -> MemorySystem {
    let (_, mut text) = Machine::text("loongson-3a5000").unwrap();
    let row = "row_buffer = \"8 KiB\"";
    assert!(text.contains(row), "the machine file has no `{row}`");
    text = text.replacen(row, &format!("{row}\npage_policy = \"closed\""), 1);
    for (after, from, to) in changes {
        let position = text.find(after).unwrap_or_else(|| panic!("no `{after}`"));
        let position =
            position + text[position..].find(from).unwrap_or_else(|| panic!("no `{from}` behind `{after}`"));
        text.replace_range(position..position + from.len(), to);
    }
    let machine = Machine::parse("test.toml", &text).unwrap_or_else(|report| panic!("{report}"));
    MemorySystem::new(&machine, 0, Detail::Timing, 1).unwrap()
}

fn load(system: &mut MemorySystem, address: u64, at: u64) -> Answer {
    let mut port = system.port(0);
    port.set_space(SpaceId(0));
    port.load(address, 8, 0x1000, Cycle(at))
}

/// A level and its number of miss registers.
fn registers() -> impl Strategy<Value = (&'static str, u64)> {
    (prop_oneof![Just("[caches.l1d]"), Just("[caches.l2]")], 1u64..9)
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn no_more_misses_are_outstanding_than_a_level_has_registers(
        (level, count) in registers(),
        accesses in prop::collection::vec((0u64..30, 0u64..300, 0u64..8, 0u64..256), 1..300),
    ) {
        let few = format!("mshrs = {count}");
        let other_level = if level == "[caches.l2]" { "[caches.l1d]" } else { "[caches.l2]" };
        // The other level has enough registers: waiting for one there would delay lines after this level supplied them.
        let mut system = system(&[(level, "mshrs = 16", few.as_str()), (other_level, "mshrs = 16", "mshrs = 512")]);
        // The pages are in the TLB, so that no translation is loaded. `unloaded` is the time of a single miss.
        let mut now = (0..8).fold(1000, |now, page| load(&mut system, page * PAGE + 255 * LINE, now).ready.0 + 1000);
        let unloaded = load(&mut system, 7 * PAGE + 254 * LINE, now).ready.0 - now;
        now += 10_000;
        let mut ready = Vec::new();
        for (later, back, page, line) in accesses {
            now += later;
            let answer = load(&mut system, page * PAGE + line * LINE, now - back);
            if answer.source == Source::LocalMemory {
                ready.push(answer.ready.0);
            }
        }
        // Latency varies between accesses.
        let takes = unloaded * 8 / 10;
        for &until in &ready {
            let outstanding = ready.iter().filter(|ready_at| until - takes < **ready_at && **ready_at <= until).count() as u64;
            prop_assert!(outstanding <= count, "{outstanding} misses, each of at least {takes} cycles, end within {takes} cycles");
        }
    }

    #[test]
    fn no_channel_transfers_more_in_a_window_than_its_rate_allows(
        accesses in prop::collection::vec((0usize..4, 0u64..60, 0u64..6, 0u64..256, any::<bool>()), 200..2000),
    ) {
        // Memory slower than the total demand of the cores, with a longer latency.
        let mut system = system(&[
            ("[memories.ddr4-3200]", "3200 MT/s", "400 MT/s"),
            ("[memories.ddr4-3200]", "latency = \"140 ns\"", "latency = \"400 ns\""),
        ]);
        let window = Duration::from_ps(500_000);
        system.watch_traffic(Time::ZERO, window);
        let mut now = [1000; 4];
        for (core, later, page, line, writes) in accesses {
            // Each core has its own pages. All issue accesses as early as allowed, and none falls far behind.
            let oldest = now.iter().max().unwrap() - 2000.min(*now.iter().max().unwrap());
            now[core] = (now[core] + later).max(oldest);
            let mut port = system.port(core);
            port.set_space(SpaceId(0));
            let address = (8 * core as u64 + page) * PAGE + line * LINE;
            match writes {
                true => port.store(address, 8, 0x1000, Cycle(now[core])),
                false => port.load(address, 8, 0x1000, Cycle(now[core])),
            };
        }
        let peaks: HashMap<_, _> = system.traffic().into_iter().map(|traffic| (traffic.name, (traffic.peak_bytes_per_second, traffic.bytes))).collect();
        for (name, windows) in system.take_windows(Time::from_ps(1_000_000_000)) {
            let Some((rate, bytes)) = peaks.get(&name) else { continue };
            let max_bytes = *rate as f64 * window.ps() as f64 / 1e12 + LINE as f64;
            for (begin, moved) in &windows {
                prop_assert!(*moved <= max_bytes, "{name}: {moved} bytes from {begin:?} on, {max_bytes} at most");
            }
            let moved: f64 = windows.iter().map(|window| window.1).sum();
            prop_assert!((moved - *bytes as f64).abs() <= 0.01 * *bytes as f64 + LINE as f64, "{name}: {moved} of {bytes}");
        }
    }

    #[test]
    fn a_stream_on_other_pages_never_makes_a_prefetched_chain_faster(
        chain in prop::collection::vec((1u64..13, prop::option::weighted(0.05, 0u64..8000)), 100..400),
        stream in prop::collection::vec(1u64..4, 100..800),
        begin in 0u64..4000,
        each in 1usize..3,
    ) {
        let takes = |each: usize| {
            let (mut system, mut at, mut line) = (prefetching(&[]), 1000, 0);
            let (mut stream, mut loaded) = (stream.iter(), begin);
            for (step, jump) in &chain {
                line = (jump.unwrap_or(line) + step) % 8000;
                let next = load(&mut system, line * LINE, at).ready.0;
                for step in stream.by_ref().take(each) {
                    loaded += step;
                    load(&mut system, (8192 + loaded) * LINE, at);
                }
                at = next;
            }
            at
        };
        let (unloaded, loaded) = (takes(0), takes(each));
        // Streams started by chance fetch useless lines and evict useful ones.
        prop_assert!(loaded + loaded / 20 >= unloaded, "{loaded} cycles with a concurrent stream, {unloaded} without");
        if loaded < unloaded {
            println!("a concurrent stream made the chain {} cycles faster, of {loaded}", unloaded - loaded);
        }
    }

    #[test]
    fn additional_loads_never_make_a_dependent_chain_faster(
        chain in prop::collection::vec((0u64..200, 0u64..128, prop::option::of((128u64..256, any::<bool>()))), 1..60),
    ) {
        let takes = |with: bool| {
            let (mut system, mut at) = (system(&[]), 1000);
            for &(page, line, loaded) in &chain {
                let loaded = loaded.filter(|_| with);
                // The additional load is on the same page as the chain's but on another line.
                let before = loaded.filter(|(_, before)| *before);
                before.map(|(line, _)| load(&mut system, page * PAGE + line * LINE, at));
                let next = load(&mut system, page * PAGE + line * LINE, at).ready.0;
                let later = loaded.filter(|(_, before)| !before);
                later.map(|(line, _)| load(&mut system, page * PAGE + line * LINE, at));
                at = next;
            }
            at
        };
        let (unloaded, loaded) = (takes(false), takes(true));
        // The additional accesses may postpone a refresh of 350 ns, which is due every 7.8 us.
        let postponed = (unloaded / 19_500 + 1) * 875;
        prop_assert!(loaded + postponed >= unloaded, "{loaded} cycles with more loads, {unloaded} without");
    }
}
