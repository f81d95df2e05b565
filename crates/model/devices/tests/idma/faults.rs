//! An unmapped address stops a channel, with an error code, an interrupt, and no transfer beyond it.

use crate::machine::*;
use proptest::prelude::*;

const LENGTH: u64 = 4000;

fn copy(machine: &mut Machine, source: u64, destination: u64, piece: u64) {
    let start = field("CONTROL", "START").mask() | field("CONTROL", "GIVE").mask();
    let feed = field("CONTROL", "FEED").with(1) | field("CONTROL", "RECYCLE").mask();
    for (channel, source, destination, control) in
        [(0, source, STORE, start), (3, 0, destination, start | feed)]
    {
        for (register, value) in [
            ("SOURCE", source),
            ("DESTINATION", destination),
            ("LENGTH", LENGTH),
            ("TAG", piece << 16),
            ("CONTROL", control),
        ] {
            machine.set(channel, register, value);
        }
    }
    machine.run();
}

fn machine(seed: u64) -> Machine {
    let mut machine = Machine::new(1 << 14, seed);
    for (index, byte) in machine.bus.areas[0].bytes.iter_mut().enumerate() {
        *byte = 1 + (index % 251) as u8;
    }
    machine
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_hole_at_the_destination(seed in any::<u64>(), at in 0..LENGTH, piece in 1u64..=32, sealed in any::<bool>()) {
        let mut machine = machine(seed);
        let (source, destination) = (MEMORY, FAR_MEMORY);
        let hole = destination + at..destination + at + 1;
        if sealed { machine.bus.sealed = Some(hole) } else { machine.bus.hole = Some(hole) }
        copy(&mut machine, source, destination, piece);
        prop_assert!(machine.flag(3, "FAULTED") && !machine.flag(3, "BUSY") && !machine.flag(3, "RUNNING"));
        prop_assert!(machine.bus.asserted);
        prop_assert_eq!(machine.engine("INTERRUPT"), field("INTERRUPT", "FAULT").with(1 << 3));
        prop_assert_eq!(machine.get(3, "FAULT"), destination + at);
        let error = machine.get(3, "STATUS");
        prop_assert_eq!(field("STATUS", "ERROR").of(error), if sealed { 4 } else { 3 });
        let moved = machine.get(3, "POSITION");
        prop_assert!(moved * piece <= at, "the piece with the hole must not be counted");
        // Complete pieces before the hole are written; nothing after it is.
        for byte in 0..LENGTH {
            let actual = machine.bus.areas[2].bytes[byte as usize];
            let want = machine.bus.areas[0].bytes[byte as usize];
            prop_assert!(byte >= moved * piece || actual == want, "byte {byte}");
            prop_assert!(byte < at || actual == 0, "byte {byte} is beyond the hole");
            prop_assert!(actual == 0 || actual == want);
        }
        prop_assert!((at - moved * piece) < piece, "all complete pieces must be moved");

        // Without the hole, the transfer continues where it stopped.
        (machine.bus.hole, machine.bus.sealed) = (None, None);
        let control = machine.get(3, "CONTROL");
        machine.set(3, "CONTROL", control | field("CONTROL", "RESUME").mask());
        machine.run();
        prop_assert!(machine.flag(3, "DONE"));
        let copied = machine.bus.areas[2].bytes[..LENGTH as usize] == machine.bus.areas[0].bytes[..LENGTH as usize];
        prop_assert!(copied);
    }

    #[test]
    fn a_hole_at_the_source(seed in any::<u64>(), at in 0..LENGTH, piece in 1u64..=32) {
        let mut machine = machine(seed);
        machine.bus.hole = Some(MEMORY + at..MEMORY + at + 1);
        copy(&mut machine, MEMORY, FAR_MEMORY, piece);
        prop_assert!(machine.flag(0, "FAULTED") && machine.flag(3, "FAULTED") && machine.bus.asserted);
        prop_assert_eq!(machine.get(0, "FAULT"), MEMORY + at);
        let reader = machine.get(0, "STATUS");
        let writer = machine.get(3, "STATUS");
        prop_assert_eq!((field("STATUS", "ERROR").of(reader), field("STATUS", "ERROR").of(writer)), (2, 6));
        let moved = machine.get(3, "POSITION") * piece;
        prop_assert!(moved <= at && at - moved < piece, "all pieces before the hole must arrive");
        for byte in 0..LENGTH {
            let actual = machine.bus.areas[2].bytes[byte as usize];
            let want = if byte < moved { machine.bus.areas[0].bytes[byte as usize] } else { 0 };
            prop_assert_eq!(actual, want, "byte {}", byte);
        }
        // The engine still owns the tag of the piece with the hole.
        let tag = moved / piece % 128;
        prop_assert_eq!(machine.get(0, &format!("TAGS{}", tag / 64)) >> (tag % 64) & 1, 0);

        // Without the hole, both channels continue where they stopped.
        machine.bus.hole = None;
        for channel in [0, 3] {
            let control = machine.get(channel, "CONTROL");
            machine.set(channel, "CONTROL", control | field("CONTROL", "RESUME").mask());
        }
        machine.run();
        prop_assert!(machine.flag(0, "DONE") && machine.flag(3, "DONE"));
        let copied = machine.bus.areas[2].bytes[..LENGTH as usize] == machine.bus.areas[0].bytes[..LENGTH as usize];
        prop_assert!(copied);
    }

    #[test]
    fn a_hole_in_the_store(seed in any::<u64>(), at in 0u64..4000) {
        let mut machine = machine(seed);
        machine.bus.hole = Some(FAR_STORE + at..FAR_STORE + at + 1);
        for (register, value) in [
            ("SOURCE", MEMORY),
            ("DESTINATION", FAR_STORE),
            ("LENGTH", LENGTH),
            ("CONTROL", field("CONTROL", "START").mask()),
        ] {
            machine.set(0, register, value);
        }
        machine.run();
        prop_assert!(machine.flag(0, "FAULTED") && !machine.flag(0, "BUSY"));
        prop_assert_eq!(machine.get(0, "FAULT"), FAR_STORE + at);
        prop_assert_eq!(machine.get(0, "POSITION"), at / 32);
        for byte in 0..LENGTH {
            let actual = machine.bus.areas[3].bytes[byte as usize];
            let want = if byte < at / 32 * 32 { machine.bus.areas[0].bytes[byte as usize] } else { 0 };
            prop_assert_eq!(actual, want, "byte {}", byte);
        }
    }
}

#[test]
fn a_read_channel_fills_stores_only_and_a_write_channel_empties_stores_only() {
    let mut machine = machine(1);
    for (channel, source, destination) in [(0, MEMORY, MEMORY + 4096), (3, MEMORY, MEMORY + 4096)] {
        machine.set(channel, "SOURCE", source);
        machine.set(channel, "DESTINATION", destination);
        machine.set(channel, "LENGTH", 64);
        machine.set(channel, "CONTROL", field("CONTROL", "START").mask());
        machine.run();
        let status = machine.get(channel, "STATUS");
        assert_eq!(field("STATUS", "ERROR").of(status), 5, "channel {channel}");
    }
    let untouched = machine.bus.areas[0].bytes.iter().enumerate().all(|(i, b)| *b == 1 + (i % 251) as u8);
    assert!(untouched);
}

#[test]
fn an_inconsistent_setup_faults_at_once() {
    let feed = field("CONTROL", "FEED");
    let placement = field("CONTROL", "PLACEMENT");
    for (channel, tag, control) in [
        (0, 128, 0),
        (0, 100 | 29 << 8, 0),
        (0, 33 << 16, 0),
        (0, 0, feed.with(1)),
        (3, 0, feed.with(4)),
        (3, 0, placement.with(3)),
    ] {
        let mut machine = machine(1);
        machine.set(channel, "LENGTH", 64);
        machine.set(channel, "TAG", tag);
        machine.set(channel, "CONTROL", control | field("CONTROL", "START").mask());
        let status = machine.get(channel, "STATUS");
        assert_eq!(field("STATUS", "ERROR").of(status), 1, "{channel} {tag:#x} {control:#x}");
        assert!(machine.bus.asserted);
    }
}
