//! Transfers take the number of cycles that follows from the configuration.
//!
//! Source: Su et al., 2012: one beat in and one beat out per cycle, no cost to switch between channels.

use crate::machine::*;

/// A machine whose memory answers immediately.
fn machine_with_fast_memory() -> Machine {
    let mut machine = Machine::new(1 << 14, 3);
    machine.bus.areas.iter_mut().for_each(|area| area.latency_ps = 0);
    machine
}

/// Starts a transfer from memory to the in-core store.
fn read(machine: &mut Machine, channel: usize, source: u64, store: u64, length: u64, tags: (u64, u64)) {
    for (register, value) in [
        ("SOURCE", source),
        ("DESTINATION", store),
        ("LENGTH", length),
        ("TAG", tags.0 | tags.1 << 8),
        ("CONTROL", field("CONTROL", "START").mask()),
    ] {
        machine.set(channel, register, value);
    }
}

/// The cycles since a time.
fn cycles(machine: &Machine, since: longma_sim::Time) -> u64 {
    machine.now.checked_since(since).unwrap().ps() / CYCLE_PS
}

#[test]
fn one_beat_per_cycle_with_fast_memory() {
    let mut machine = machine_with_fast_memory();
    let since = machine.now;
    read(&mut machine, 0, MEMORY, STORE, 4096, (0, 0));
    machine.run();
    // 128 beats, the start, and the arrival of the last beat.
    let took = cycles(&machine, since);
    assert!((128..=128 + 4 + 2).contains(&took), "{took}");
}

#[test]
fn three_channels_share_the_full_rate() {
    let mut machine = machine_with_fast_memory();
    let since = machine.now;
    read(&mut machine, 0, MEMORY, STORE, 1024, (0, 32));
    read(&mut machine, 1, MEMORY, STORE + 1024, 1024, (0, 32));
    read(&mut machine, 2, MEMORY, STORE + 2048, 2048, (0, 64));
    machine.run();
    let took = cycles(&machine, since);
    assert!((128..=128 + 4 + 2).contains(&took), "{took}");
}

#[test]
fn each_piece_of_an_unaligned_transfer_takes_one_additional_beat() {
    let mut machine = machine_with_fast_memory();
    let since = machine.now;
    read(&mut machine, 0, MEMORY + 1, STORE, 4096, (0, 0));
    machine.run();
    let took = cycles(&machine, since);
    assert!((256..=256 + 4 + 2).contains(&took), "{took}");
}

#[test]
fn requests_in_flight_bound_the_rate_when_memory_is_slow() {
    let mut machine = machine_with_fast_memory();
    // A request takes 0.5 to 1.5 times the latency, 64 cycles on average.
    machine.bus.areas[0].latency_ps = 64 * CYCLE_PS;
    let since = machine.now;
    read(&mut machine, 0, MEMORY, STORE, 4096, (0, 0));
    machine.run();
    let took = cycles(&machine, since);
    // 128 beats, 8 at a time.
    assert!((128 / 8 * 32..=128 / 8 * 96 + 10).contains(&took), "{took}");
}

#[test]
fn reads_and_writes_overlap() {
    let mut machine = machine_with_fast_memory();
    let since = machine.now;
    read(&mut machine, 0, MEMORY, STORE, 4096, (0, 0));
    let start = field("CONTROL", "START").mask() | field("CONTROL", "FEED").with(1);
    for (register, value) in
        [("DESTINATION", MEMORY + 8192), ("LENGTH", 4096), ("TAG", 0), ("CONTROL", start)]
    {
        machine.set(3, register, value);
    }
    machine.run();
    let took = cycles(&machine, since);
    assert!((129..=128 + 4 + 6).contains(&took), "{took}");
    assert_eq!(machine.bus.areas[0].bytes[8192..12288], machine.bus.areas[0].bytes[..4096]);
}
