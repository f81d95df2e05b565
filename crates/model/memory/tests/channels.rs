//! More memory channels, or faster ones, are no slower. The machine file states the whole latency of a random load, so
//! that fewer row conflicts leave a larger remainder for a stream: at most tRP a line, a few per cent.

use longma_memory::placement::SpaceId;
use longma_memory::{Detail, MemoryPort, MemorySystem};
use longma_sim::Cycle;
use longma_topology::Machine;
use std::collections::VecDeque;

/// Loads in flight of a core.
const WINDOW: usize = 16;
const LINES: u64 = 16_000;

/// The 3A5000 with each `(from, to)` replaced once in its machine file.
fn system(changes: &[(&str, String)]) -> MemorySystem {
    let (_, mut text) = Machine::text("loongson-3a5000").unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "the machine file has no `{from}`");
        text = text.replacen(from, to, 1);
    }
    let machine = Machine::parse("test.toml", &text).unwrap_or_else(|report| panic!("{report}"));
    MemorySystem::new(&machine, 0, Detail::Timing, 1).unwrap()
}

fn with_channels(channels: u32, others: &[(&str, String)]) -> MemorySystem {
    let mut changes = others.to_vec();
    changes.push(("queue_entries = 32", format!("queue_entries = 32\nchannels = {channels}")));
    system(&changes)
}

/// Cycles in which each of `cores` cores reads its own stream of lines, always with the earliest core first.
fn streams(system: &mut MemorySystem, cores: usize) -> u64 {
    let mut windows = vec![VecDeque::from(vec![0u64; WINDOW]); cores];
    let mut clocks = vec![0u64; cores];
    let mut lines = vec![0u64; cores];
    while let Some(core) = (0..cores).filter(|core| lines[*core] < LINES).min_by_key(|core| clocks[*core]) {
        let at = windows[core].pop_front().unwrap().max(clocks[core] + 1);
        let address = (core as u64 + 1) * (64 << 20) + lines[core] * 64;
        let mut port = system.port(core);
        port.set_space(SpaceId(0));
        windows[core].push_back(port.load(address, 8, 0x1000 + core as u64, Cycle(at)).ready.0);
        (clocks[core], lines[core]) = (at, lines[core] + 1);
    }
    windows.into_iter().flatten().max().unwrap_or(0)
}

/// Asserts that no time is more than 5 % above the one before, nor the last one more than 8 % above the first.
fn assert_no_slower(times: &[u64], case: &str) {
    assert!(times.is_sorted_by(|few, many| *many <= few + few / 20), "{case}: {times:?}");
    assert!(times[times.len() - 1] * 100 <= times[0] * 108, "{case}: {times:?}");
}

#[test]
fn more_channels_are_no_slower() {
    for cores in [1, 2, 4] {
        let times: Vec<u64> =
            [1, 2, 4, 8].iter().map(|n| streams(&mut with_channels(*n, &[]), cores)).collect();
        assert_no_slower(&times, &format!("{cores} cores, 1 to 8 channels"));
    }
}

#[test]
fn more_channels_of_ddr5_are_no_slower() {
    let ddr5 = [
        ("technology = \"ddr4\"", "technology = \"ddr5\"".to_owned()),
        ("rate = \"3200 MT/s\"", "rate = \"4800 MT/s\"".to_owned()),
        ("trefi = \"7.8 us\"\ntrfc = \"350 ns\"", "trefi = \"3.9 us\"".to_owned()),
    ];
    for cores in [1, 4] {
        let times: Vec<u64> =
            [1, 2, 4].iter().map(|n| streams(&mut with_channels(*n, &ddr5), cores)).collect();
        assert_no_slower(&times, &format!("{cores} cores, 1 to 4 channels"));
    }
}

#[test]
fn faster_channels_are_no_slower() {
    for cores in [1, 4] {
        let of = |rate| streams(&mut system(&[("3200 MT/s\"", format!("{rate} MT/s\""))]), cores);
        assert_no_slower(&[1600, 2400, 3200, 6400].map(of), &format!("{cores} cores, 1600 to 6400 MT/s"));
    }
}

#[test]
fn any_interleave_uses_all_channels() {
    for interleave in ["64 B", "256 B", "1 KiB", "4 KiB"] {
        let of = |channels| {
            let key = ("queue_entries = 32", format!("queue_entries = 32\ninterleave = \"{interleave}\""));
            streams(&mut with_channels(channels, &[key]), 4)
        };
        assert_no_slower(&[of(1), of(4)], interleave);
    }
}
