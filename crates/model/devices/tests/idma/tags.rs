//! A tag never reports data before it is complete, while the core concurrently writes the source.

use crate::machine::*;
use longma_devices::Device;
use longma_random::SplitMix64;
use longma_sim::Time;
use proptest::prelude::*;

const PIECES: u64 = 200;
const PIECE: u64 = 32;

/// All values of each byte of the source, with the time of each change.
struct History {
    base: u64,
    versions: Vec<Vec<(Time, u8)>>,
}

impl History {
    fn new(base: u64, bytes: u64) -> Self {
        Self { base, versions: vec![vec![(Time::ZERO, 0)]; bytes as usize] }
    }

    fn store(&mut self, machine: &mut Machine, address: u64, value: u8) {
        machine.bus.poke(address, &[value], machine.now);
        self.versions[(address - self.base) as usize].push((machine.now, value));
    }

    /// Returns whether the byte at `address` was `value` at some time from `since` to `until`.
    fn was(&self, address: u64, value: u8, since: Time, until: Time) -> bool {
        let versions = &self.versions[(address - self.base) as usize];
        let ends = versions.iter().skip(1).map(|v| v.0).chain([Time::from_ps(u64::MAX)]);
        versions.iter().zip(ends).any(|(v, end)| v.1 == value && v.0 <= until && end >= since)
    }
}

fn start(machine: &mut Machine, channel: usize, source: u64, destination: u64, ring: u64, control: u64) {
    let start = field("CONTROL", "START").mask();
    for (register, value) in [
        ("SOURCE", source),
        ("DESTINATION", destination),
        ("LENGTH", PIECES * PIECE),
        ("TAG", ring << 8 | PIECE << 16),
        ("CONTROL", start | control),
    ] {
        machine.set(channel, register, value);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_ready_piece_holds_memory_contents_from_while_the_engine_owned_the_tag(
        seed in any::<u64>(), ring in 1u64..=128, far in any::<bool>(), far_store in any::<bool>(),
    ) {
        let mut machine = Machine::new(1 << 14, seed);
        let mut random = SplitMix64::new(seed ^ 0x55aa);
        let source = if far { FAR_MEMORY } else { MEMORY };
        let store = if far_store { FAR_STORE } else { STORE };
        let mut history = History::new(source, PIECES * PIECE);
        let mut given = vec![machine.now; ring as usize];
        start(&mut machine, 1, source, store, ring, 0);
        let mut next = 0;
        for turn in 0.. {
            prop_assert!(turn < 2_000_000, "the transfer must end");
            machine.pass(random.below(30_000));
            for _ in 0..random.below(4) {
                let address = source + random.below(PIECES * PIECE);
                history.store(&mut machine, address, random.below(256) as u8);
            }
            if next == PIECES {
                break;
            }
            let tag = next % ring;
            if machine.get(1, &format!("TAGS{}", tag / 64)) >> (tag % 64) & 1 == 0 {
                continue;
            }
            let piece = machine.bus.peek(store + tag * PIECE, PIECE as usize, machine.now);
            for (index, value) in piece.into_iter().enumerate() {
                let address = source + next * PIECE + index as u64;
                prop_assert!(history.was(address, value, given[tag as usize], machine.now), "byte {index} of {next}");
            }
            // The slot contains garbage until the engine fills it again.
            let rubbish: Vec<u8> = (0..PIECE).map(|_| random.below(256) as u8).collect();
            machine.bus.poke(store + tag * PIECE, &rubbish, machine.now);
            machine.set(1, &format!("GIVE{}", tag / 64), 1 << (tag % 64));
            given[tag as usize] = machine.now;
            next += 1;
        }
        prop_assert!(machine.flag(1, "DONE"));
    }

    #[test]
    fn a_completed_write_has_the_store_contents_at_the_time_the_tag_was_given(
        seed in any::<u64>(), ring in 1u64..=128, far in any::<bool>(),
    ) {
        let mut machine = Machine::new(1 << 14, seed);
        let mut random = SplitMix64::new(seed ^ 0xaa55);
        let destination = if far { FAR_MEMORY } else { MEMORY };
        // The core owns every tag until it has filled the piece.
        machine.set(3, "TAGS0", u64::MAX);
        machine.set(3, "TAGS1", u64::MAX);
        start(&mut machine, 3, STORE, destination, ring, 0);
        let (mut filled, mut observed) = (0, 0);
        let content = |piece: u64| vec![(piece * 7 + 3) as u8; PIECE as usize];
        for turn in 0.. {
            prop_assert!(turn < 2_000_000, "the transfer must end");
            machine.pass(random.below(30_000));
            let tag_of = |piece: u64| piece % ring;
            let tags = [machine.get(3, "TAGS0"), machine.get(3, "TAGS1")];
            let ready = |tag: u64| tags[tag as usize / 64] >> (tag % 64) & 1 != 0;
            if filled < PIECES && filled - observed < ring && ready(tag_of(filled)) {
                let tag = tag_of(filled);
                machine.bus.poke(STORE + tag * PIECE, &content(filled), machine.now);
                machine.set(3, &format!("GIVE{}", tag / 64), 1 << (tag % 64));
                filled += 1;
            } else if observed < filled && ready(tag_of(observed)) {
                let piece = machine.bus.peek(destination + observed * PIECE, PIECE as usize, machine.now);
                prop_assert_eq!(piece, content(observed), "piece {}", observed);
                observed += 1;
            }
            if observed == PIECES {
                break;
            }
        }
        prop_assert!(machine.flag(3, "DONE"));
    }

    #[test]
    fn a_tag_taken_in_flight_is_ready_only_with_its_piece(seed in any::<u64>(), recycle in any::<bool>()) {
        let mut machine = Machine::new(1 << 14, seed);
        machine.bus.areas[0].bytes.fill(9);
        let control = if recycle { field("CONTROL", "RECYCLE").mask() } else { 0 };
        start(&mut machine, 0, MEMORY, STORE, 64, control);
        machine.pass(20 * CYCLE_PS);
        machine.set(0, "TAKE0", u64::MAX);
        for _ in 0..1000 {
            machine.pass(CYCLE_PS);
            let (tags, moved) = (machine.get(0, "TAGS0"), machine.get(0, "POSITION"));
            // At most eight requests are in flight; beyond them the core owns the tags, and no data arrives.
            for tag in 0..8 {
                let piece = machine.bus.peek(STORE + tag * PIECE, PIECE as usize, machine.now);
                prop_assert!(tags >> tag & 1 == 0 || piece == [9; PIECE as usize], "tag {tag}");
                prop_assert!(tags >> tag & 1 == u64::from(moved > tag), "tag {tag} of {moved}");
            }
        }
        prop_assert!(machine.flag(0, "WAITING"));
        prop_assert_eq!(machine.get(0, "POSITION"), 8);
    }
}

#[test]
fn a_stopped_channel_is_idle_until_it_is_resumed() {
    let mut machine = Machine::new(1 << 14, 11);
    machine.bus.areas[0].bytes.fill(7);
    start(&mut machine, 0, MEMORY, STORE, 128, 0);
    machine.pass(200 * CYCLE_PS);
    let control = machine.get(0, "CONTROL");
    machine.set(0, "CONTROL", control | field("CONTROL", "STOP").mask());
    machine.run();
    let moved = machine.get(0, "POSITION");
    assert!(
        machine.flag(0, "STOPPED") && !machine.flag(0, "RUNNING") && (1..128).contains(&moved),
        "{moved}"
    );
    machine.pass(10_000 * CYCLE_PS);
    assert_eq!(machine.get(0, "POSITION"), moved);
    let store = machine.bus.peek(STORE, STORE_BYTES, machine.now);
    let written = store.iter().take_while(|byte| **byte == 7).count() as u64;
    assert_eq!(written, moved * PIECE, "nothing beyond the last complete piece may be written");
    machine.set(0, "CONTROL", control | field("CONTROL", "RESUME").mask());
    machine.run();
    assert_eq!(machine.get(0, "POSITION"), 128, "the ring is full");
    assert!(machine.bus.peek(STORE, STORE_BYTES, machine.now).iter().all(|byte| *byte == 7));
}

#[test]
fn the_tag_pipeline_of_a_parallel_memcpy_overlaps_reading_and_writing() {
    let mut machine = Machine::new(1 << 14, 7);
    for (index, byte) in machine.bus.areas[0].bytes[..4096].iter_mut().enumerate() {
        *byte = index as u8 ^ (index >> 8) as u8;
    }
    let set = |machine: &mut Machine, channel, source, destination| {
        for (register, value) in
            [("SOURCE", source), ("DESTINATION", destination), ("LENGTH", 4096), ("TAG", 0)]
        {
            machine.set(channel, register, value);
        }
    };
    set(&mut machine, 0, MEMORY, STORE);
    set(&mut machine, 3, STORE, MEMORY + 8192);
    machine.set(3, "TAGS0", u64::MAX);
    machine.set(3, "TAGS1", u64::MAX);
    let start = field("CONTROL", "START").mask();
    machine.set(0, "MASK0", u64::MAX);
    machine.set(0, "MASK1", u64::MAX);
    machine.set(0, "CONTROL", start | field("CONTROL", "TAG_INTERRUPT").mask());
    machine.set(3, "CONTROL", start);
    let mut overlapped = false;
    let mut given = [0u64; 2];
    while !machine.flag(3, "DONE") {
        machine.pass(CYCLE_PS);
        if !machine.bus.asserted {
            continue;
        }
        // The interrupt routine gives every piece that has arrived to the write channel.
        machine.idma.write(offset(None, "INTERRUPT"), 8, u64::MAX, machine.now, &mut machine.bus);
        for (word, given) in given.iter_mut().enumerate() {
            let ready = machine.get(0, &format!("TAGS{word}")) & !*given;
            machine.set(3, &format!("GIVE{word}"), ready);
            *given |= ready;
        }
        overlapped |= machine.flag(0, "BUSY") && machine.flag(3, "BUSY");
    }
    assert!(overlapped, "one channel writes while the other reads");
    let copy = machine.bus.peek(MEMORY + 8192, 4096, machine.now);
    assert_eq!(copy, machine.bus.areas[0].bytes[..4096]);
}
