//! Copies arrive byte for byte, with any events in between.

use crate::machine::*;
use longma_devices::idma::Idma;
use proptest::prelude::*;
use std::collections::HashSet;

const MEMORY_BYTES: usize = 1 << 16;

/// A copy from memory to memory through the store.
#[derive(Clone, Debug)]
struct Copy {
    reader: usize,
    from_far: bool,
    to_far: bool,
    through_far_store: bool,
    source: u64,
    destination: u64,
    length: u64,
    block: u64,
    count: u64,
    source_stride: i64,
    destination_stride: i64,
    source_row: i64,
    destination_row: i64,
    piece: u64,
    ring: u64,
    first: u64,
}

impl Copy {
    fn address(&self, base: u64, stride: i64, row: i64, byte: u64) -> u64 {
        if self.block == 0 {
            return base + byte;
        }
        let (block, inside) = (byte / self.block, byte % self.block);
        let line = block.checked_div(self.count).unwrap_or(0);
        let column = block - line * self.count;
        (base as i64 + line as i64 * row + column as i64 * stride + inside as i64) as u64
    }

    fn source_of(&self, byte: u64) -> u64 {
        self.address(self.source, self.source_stride, self.source_row, byte)
    }

    fn destination_of(&self, byte: u64) -> u64 {
        self.address(self.destination, self.destination_stride, self.destination_row, byte)
    }

    /// Returns whether every address is in its area, and source and destination do not overlap. Block copies may leave
    /// their area or overlap.
    fn fits(&self) -> bool {
        let inside = |address: u64, base: u64| (base..base + MEMORY_BYTES as u64).contains(&address);
        let base = |far| if far { FAR_MEMORY } else { MEMORY };
        let sources: HashSet<u64> = (0..self.length).map(|byte| self.source_of(byte)).collect();
        (0..self.length).all(|byte| {
            inside(self.source_of(byte), base(self.from_far))
                && inside(self.destination_of(byte), base(self.to_far))
                && !sources.contains(&self.destination_of(byte))
        })
    }

    fn start(&self, machine: &mut Machine) {
        let pair = |low: i64, high: i64| low as u32 as u64 | (high as u32 as u64) << 32;
        let store = if self.through_far_store { FAR_STORE } else { STORE };
        let tag = self.first | self.ring << 8 | self.piece << 16;
        let start = field("CONTROL", "START").mask() | field("CONTROL", "GIVE").mask();
        // The reader's pieces are packed in the store: its destination stride is the block length.
        let packed = pair(self.source_stride, self.block as i64);
        let packed_row = pair(self.source_row, (self.block * self.count) as i64);
        for (channel, setup) in [
            (self.reader, [self.source, store, packed, packed_row, start]),
            (
                3,
                [
                    0,
                    self.destination,
                    pair(0, self.destination_stride),
                    pair(0, self.destination_row),
                    start
                        | field("CONTROL", "FEED").with(self.reader as u64 + 1)
                        | field("CONTROL", "RECYCLE").mask(),
                ],
            ),
        ] {
            let [source, destination, stride, row_stride, control] = setup;
            for (register, value) in [
                ("SOURCE", source),
                ("DESTINATION", destination),
                ("LENGTH", self.length),
                ("BLOCK", self.block | self.count << 32),
                ("STRIDE", stride),
                ("ROW_STRIDE", row_stride),
                ("TAG", tag),
                ("CONTROL", control),
            ] {
                machine.set(channel, register, value);
            }
        }
    }
}

fn copy() -> impl Strategy<Value = Copy> {
    let places = (0usize..3, any::<bool>(), any::<bool>(), any::<bool>());
    let ends = (0u64..20_000, 0u64..20_000, 0u64..3000);
    let blocks = (0u64..80, 0u64..6);
    let strides = (-100i64..200, -100i64..200, -900i64..900, -900i64..900);
    let tags =
        (1u64..=32, 0u64..128).prop_flat_map(|(piece, first)| (Just(piece), Just(first), 1..=128 - first));
    (places, ends, blocks, strides, tags).prop_map(|(places, ends, blocks, strides, tags)| {
        let (reader, from_far, to_far, through_far_store) = places;
        let base = |far| if far { FAR_MEMORY } else { MEMORY };
        Copy {
            reader,
            from_far,
            to_far,
            through_far_store,
            // From the middle of the area, to leave room for negative strides; never overlapping on one chip.
            source: base(from_far) + 4000 + ends.0 / 4,
            destination: base(to_far) + 40_000 + ends.1 / 4,
            length: ends.2,
            block: blocks.0,
            count: blocks.1,
            source_stride: strides.0,
            destination_stride: strides.1,
            source_row: strides.2,
            destination_row: strides.3,
            piece: tags.0,
            first: tags.1,
            ring: tags.2,
        }
    })
}

/// Events during a copy.
#[derive(Clone, Debug)]
enum Event {
    Pass(u64),
    Stop(usize),
    Resume(usize),
    Take(u32),
    Give(u32),
    SaveRegisters,
    SaveState,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (0u64..4_000_000).prop_map(Event::Pass),
        1 => (0usize..2).prop_map(Event::Stop),
        1 => (0usize..2).prop_map(Event::Resume),
        1 => (0u32..128).prop_map(Event::Take),
        1 => (0u32..128).prop_map(Event::Give),
        1 => Just(Event::SaveRegisters),
        1 => Just(Event::SaveState),
    ];
    proptest::collection::vec(event, 0..24)
}

fn fill(machine: &mut Machine) {
    for area in &mut machine.bus.areas {
        for (index, byte) in area.bytes.iter_mut().enumerate() {
            *byte = machine.bus.random.below(256) as u8 ^ index as u8;
        }
    }
}

/// Tags of the writer pause it. Giving away a reader's tag would release a piece that has not arrived.
fn apply_event(machine: &mut Machine, copy: &Copy, event: &Event) {
    let channels = [copy.reader, 3];
    match *event {
        Event::Pass(ps) => machine.pass(ps),
        Event::Stop(which) => {
            let control = machine.get(channels[which], "CONTROL");
            machine.set(channels[which], "CONTROL", control | field("CONTROL", "STOP").mask());
        }
        Event::Resume(which) => {
            let control = machine.get(channels[which], "CONTROL");
            machine.set(channels[which], "CONTROL", control | field("CONTROL", "RESUME").mask());
        }
        Event::Take(tag) => machine.set(3, &format!("TAKE{}", tag / 64), 1 << (tag % 64)),
        Event::Give(tag) => machine.set(3, &format!("GIVE{}", tag / 64), 1 << (tag % 64)),
        Event::SaveRegisters => machine.move_to_another_engine(&channels),
        Event::SaveState => {
            let text = serde_json::to_string(machine.idma.state()).unwrap();
            let state = serde_json::from_str(&text).unwrap();
            machine.idma = Idma::restore(spec(), state).unwrap();
        }
    }
}

/// Ends all pauses until both channels are done.
fn finish(machine: &mut Machine, copy: &Copy) {
    for turn in 0.. {
        assert!(turn < 50, "the copy ends: {:?}", machine.idma.state());
        machine.run();
        if machine.flag(copy.reader, "DONE") && machine.flag(3, "DONE") {
            return;
        }
        machine.set(3, "GIVE0", u64::MAX);
        machine.set(3, "GIVE1", u64::MAX);
        for channel in [copy.reader, 3] {
            let control = machine.get(channel, "CONTROL");
            machine.set(channel, "CONTROL", control | field("CONTROL", "RESUME").mask());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_copy_matches_a_loop_over_its_bytes(copy in copy(), events in events(), seed in any::<u64>()) {
        prop_assume!(copy.fits());
        let mut machine = Machine::new(MEMORY_BYTES, seed);
        fill(&mut machine);
        let before = machine.bus.clone();
        copy.start(&mut machine);
        events.iter().for_each(|event| apply_event(&mut machine, &copy, event));
        finish(&mut machine, &copy);
        let mut expected = before;
        // If destination blocks overlap, the later piece of the stream wins.
        for byte in 0..copy.length {
            let value = expected.peek(copy.source_of(byte), 1, machine.now);
            expected.poke(copy.destination_of(byte), &value, machine.now);
        }
        let destinations: HashSet<u64> = (0..copy.length).map(|b| copy.destination_of(b)).collect();
        let ambiguous = destinations.len() < copy.length as usize;
        for area in [0, 2] {
            let base = expected.areas[area].base;
            for (index, want) in expected.areas[area].bytes.iter().enumerate() {
                let unsure = ambiguous && destinations.contains(&(base + index as u64));
                prop_assert!(unsure || machine.bus.areas[area].bytes[index] == *want, "byte {index} of area {area}");
            }
        }
    }

    #[test]
    fn an_overlapping_copy_to_lower_addresses_is_memmove(
        length in 1u64..6000, distance in 1u64..3000, piece in 1u64..=32, ring in 1u64..=128, seed in any::<u64>(),
    ) {
        let copy = plain(MEMORY + 8000, MEMORY + 8000 - distance, length, piece, ring);
        same_as_memmove(&copy, seed)?;
    }

    #[test]
    fn an_overlapping_copy_to_higher_addresses_is_memmove_when_it_runs_downwards(
        blocks in 1u64..300, block in 1u64..=32, distance in 32u64..3000, ring in 1u64..=128, seed in any::<u64>(),
    ) {
        let last = MEMORY + 8000 + (blocks - 1) * block;
        let stride = -(block as i64);
        let mut copy = plain(last, last + distance, blocks * block, block, ring);
        (copy.block, copy.source_stride, copy.destination_stride) = (block, stride, stride);
        same_as_memmove(&copy, seed)?;
    }

    #[test]
    fn an_overlapping_copy_in_the_wrong_direction_yields_bytes_of_source_or_copy(
        length in 1u64..2000, distance in 1u64..200, piece in 1u64..=32, ring in 1u64..=128, seed in any::<u64>(),
    ) {
        let copy = plain(MEMORY + 8000, MEMORY + 8000 + distance, length, piece, ring);
        let mut machine = Machine::new(MEMORY_BYTES, seed);
        fill(&mut machine);
        let before = machine.bus.areas[0].bytes.clone();
        copy.start(&mut machine);
        finish(&mut machine, &copy);
        for byte in 0..length {
            let mut possible = (0..).map(|turn| 8000i64 + byte as i64 - turn * distance as i64).take_while(|at| *at >= 8000);
            let actual = machine.bus.areas[0].bytes[(8000 + distance + byte) as usize];
            prop_assert!(possible.any(|at| before[at as usize] == actual), "byte {byte}");
        }
    }
}

fn plain(source: u64, destination: u64, length: u64, piece: u64, ring: u64) -> Copy {
    Copy {
        reader: 0,
        from_far: false,
        to_far: false,
        through_far_store: false,
        source,
        destination,
        length,
        block: 0,
        count: 0,
        source_stride: 0,
        destination_stride: 0,
        source_row: 0,
        destination_row: 0,
        piece,
        ring,
        first: 0,
    }
}

fn same_as_memmove(copy: &Copy, seed: u64) -> Result<(), TestCaseError> {
    let mut machine = Machine::new(MEMORY_BYTES, seed);
    fill(&mut machine);
    let before = machine.bus.areas[0].bytes.clone();
    copy.start(&mut machine);
    finish(&mut machine, copy);
    let mut expected = before.clone();
    for byte in 0..copy.length {
        let at = |address: u64| (address - MEMORY) as usize;
        expected[at(copy.destination_of(byte))] = before[at(copy.source_of(byte))];
    }
    prop_assert!(machine.bus.areas[0].bytes == expected);
    Ok(())
}
