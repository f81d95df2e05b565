//! Power-cut tests of file devices: with any subset of the file's unsynced writes, the device must keep the contract of
//! [`ZonedDevice`]. The zone rules are tested in tests/zone_rules.rs.

use super::backing::Backing;
use super::*;
use crate::{FaultyDevice, MemoryDevice};
use proptest::prelude::*;
use std::sync::Arc;

const BLOCK: usize = 512;

fn geometry() -> Geometry {
    Geometry {
        block_bytes: BLOCK as u32,
        zone_blocks: 8,
        zone_capacity_blocks: 6,
        conventional_zones: 1,
        sequential_zones: 3,
        max_open_zones: 2,
        max_active_zones: 2,
    }
}

/// An operation on a device. Each one either has an effect or is rejected.
#[derive(Clone, Copy, Debug)]
enum DeviceOperation {
    Append(u32, u64),
    Reset(u32),
    Finish(u32),
    Flush,
}

fn step() -> impl Strategy<Value = DeviceOperation> {
    prop_oneof![
        8 => (1..4u32, 1..4u64).prop_map(|(zone, blocks)| DeviceOperation::Append(zone, blocks)),
        2 => (1..4u32).prop_map(DeviceOperation::Reset),
        1 => (1..4u32).prop_map(DeviceOperation::Finish),
        3 => Just(DeviceOperation::Flush),
    ]
}

/// The expected state of a zone: its resets, the blocks written since the last one, and how many of these are durable.
#[derive(Clone, Debug, Default)]
struct Expected {
    resets: u64,
    written: Vec<u8>,
    safe: usize,
    finished: bool,
}

/// A file as large as the device needs, whose power can be cut.
fn store() -> Arc<FaultyDevice> {
    store_of(&geometry())
}

fn store_of(geometry: &Geometry) -> Arc<FaultyDevice> {
    let blocks = FileLayout::of(geometry, VERSION).end / BLOCK as u64;
    let one_zone = Geometry {
        zone_blocks: blocks,
        zone_capacity_blocks: blocks,
        sequential_zones: 0,
        max_open_zones: 0,
        max_active_zones: 0,
        ..*geometry
    };
    Arc::new(FaultyDevice::new(one_zone).unwrap())
}

fn check(image: MemoryDevice, expected: &[Expected; 4]) -> Result<(), TestCaseError> {
    let device = FileDevice::open_in(Backing::faulty(Arc::new(FaultyDevice::over(image)))).unwrap();
    let zones = device.zones().unwrap();
    let active = zones.iter().filter(|zone| zone.condition.is_active()).count();
    prop_assert!(active <= geometry().max_active_zones as usize);
    for zone in &zones[1..] {
        let expected = &expected[zone.number.0 as usize];
        let pointer = zone.write_pointer as usize;
        prop_assert_eq!(zone.resets, Some(expected.resets));
        if expected.finished {
            prop_assert_eq!(zone.condition, Condition::Full);
        } else {
            prop_assert!(
                (expected.safe..=expected.written.len()).contains(&pointer),
                "{} {:?}",
                pointer,
                expected
            );
        }
        for (offset, byte) in expected.written.iter().enumerate().take(pointer) {
            let mut block = [0; BLOCK];
            device.read(Block(zone.start.0 + offset as u64), &mut block).unwrap();
            prop_assert_eq!(block, [*byte; BLOCK]);
        }
    }
    Ok(())
}

/// Blocks with this content, a fifth of them zero.
fn content(byte: u8, blocks: u64) -> Vec<u8> {
    vec![if byte.is_multiple_of(5) { 0 } else { byte }; blocks as usize * BLOCK]
}

/// Runs a step and applies it to the expected state.
fn run(device: &FileDevice, step: DeviceOperation, byte: u8, expected: &mut [Expected; 4]) {
    match step {
        DeviceOperation::Append(zone, blocks) => {
            let data = content(byte, blocks);
            if device.append(ZoneNumber(zone), &data).is_ok() {
                expected[zone as usize].written.extend(vec![data[0]; blocks as usize]);
            }
        }
        DeviceOperation::Reset(zone) => {
            device.reset(ZoneNumber(zone)).unwrap();
            let resets = device.zone(ZoneNumber(zone)).unwrap().resets.unwrap();
            if resets > expected[zone as usize].resets {
                expected[zone as usize] = Expected { resets, ..Expected::default() };
            }
        }
        DeviceOperation::Finish(zone) => {
            let was_full = device.zone(ZoneNumber(zone)).unwrap().condition == Condition::Full;
            if device.finish(ZoneNumber(zone)).is_ok() && !was_full {
                let zone = &mut expected[zone as usize];
                (zone.finished, zone.safe) = (true, zone.written.len());
            }
        }
        DeviceOperation::Flush => {
            device.flush().unwrap();
            expected.iter_mut().for_each(|zone| zone.safe = zone.written.len());
        }
    }
}

/// The written blocks that a device still has after a power cut. Some of these blocks may be lost in another power cut.
fn found(device: &FileDevice, mut expected: [Expected; 4]) -> [Expected; 4] {
    for (zone, expected) in device.zones().unwrap().iter().zip(&mut expected).skip(1) {
        if !expected.finished {
            expected.written.truncate(zone.write_pointer as usize);
            expected.safe = expected.safe.min(expected.written.len());
        }
    }
    expected
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn the_device_keeps_its_contract_with_any_subset_of_unsynced_writes(
        steps in prop::collection::vec(step(), 1..40), seed in any::<u64>(),
    ) {
        let store = store();
        let device = FileDevice::create_in(Backing::faulty(store.clone()), geometry(), false).unwrap();
        let mut expected: [Expected; 4] = Default::default();
        for (number, step) in steps.into_iter().enumerate() {
            run(&device, step, number as u8 + 1, &mut expected);
            for image in store.cut().images(6, seed ^ number as u64) {
                check(image, &expected)?;
            }
        }
    }

    /// After each power cut, the device continues with the image that the cut left.
    #[test]
    fn the_device_keeps_its_contract_in_one_power_cut_after_another(
        lives in prop::collection::vec(prop::collection::vec(step(), 1..12), 2..5), seed in any::<u64>(),
    ) {
        let mut store = store();
        let mut expected: [Expected; 4] = Default::default();
        drop(FileDevice::create_in(Backing::faulty(store.clone()), geometry(), false).unwrap());
        let mut byte = 0;
        for (life, steps) in lives.into_iter().enumerate() {
            let device = FileDevice::open_in(Backing::faulty(store.clone())).unwrap();
            expected = found(&device, expected);
            for step in steps {
                byte += 1;
                run(&device, step, byte, &mut expected);
                for image in store.cut().images(4, seed ^ u64::from(byte)) {
                    check(image, &expected)?;
                }
            }
            std::mem::forget(device);
            let image = store.cut().images(16, seed ^ life as u64).last().unwrap();
            store = Arc::new(FaultyDevice::over(image));
        }
    }

    /// A process is killed, and then a bit of its data flips. If the device was killed or lost power before, a reset
    /// may or may not have taken effect.
    #[test]
    fn a_flipped_bit_after_a_kill_moves_no_write_pointer(
        steps in prop::collection::vec(step(), 1..30), more in prop::collection::vec(step(), 0..6), which in any::<prop::sample::Index>(),
    ) {
        let store = store();
        let device = FileDevice::create_in(Backing::faulty(store.clone()), geometry(), false).unwrap();
        let mut expected: [Expected; 4] = Default::default();
        for (number, step) in steps.iter().enumerate() {
            run(&device, *step, number as u8 + 1, &mut expected);
        }
        device.flush().unwrap();
        for (number, step) in more.iter().filter(|step| matches!(step, DeviceOperation::Append(..))).enumerate() {
            run(&device, *step, number as u8 + 101, &mut expected);
        }
        std::mem::forget(device);
        let start = FileLayout::of(&geometry(), VERSION).zones / BLOCK as u64;
        let written: Vec<(usize, usize)> = (1..4)
            .flat_map(|zone| (0..expected[zone].written.len()).map(move |offset| (zone, offset)))
            .collect();
        prop_assume!(!written.is_empty());
        let bit = which.index(written.len() * BLOCK * 8);
        let (zone, offset) = written[bit / (BLOCK * 8)];
        let block = geometry().start(ZoneNumber(zone as u32)).0 + offset as u64;
        store.flip_bit(Block(start + block), (bit % (BLOCK * 8)) as u64).unwrap();
        let device = FileDevice::open_in(Backing::faulty(store)).unwrap();
        for zone in &device.zones().unwrap()[1..] {
            let expected = &expected[zone.number.0 as usize];
            let pointer = if expected.finished { 6 } else { expected.written.len() as u64 };
            prop_assert_eq!(zone.write_pointer, pointer, "{}", zone.number);
        }
    }
}

#[test]
fn a_lost_slot_loses_nothing_after_a_kill() {
    let store = store();
    let device = FileDevice::create_in(Backing::faulty(Arc::clone(&store)), geometry(), false).unwrap();
    device.append(ZoneNumber(1), &[1; 2 * BLOCK]).unwrap();
    device.append(ZoneNumber(3), &[3; BLOCK]).unwrap();
    std::mem::forget(device);
    let slots = FileLayout::of(&geometry(), VERSION).pointers.unwrap();
    Backing::faulty(Arc::clone(&store)).write(slots, &[0; BLOCK]).unwrap();
    let device = FileDevice::open_in(Backing::faulty(store)).unwrap();
    let pointers = [1, 2, 3].map(|zone| device.zone(ZoneNumber(zone)).unwrap().write_pointer);
    assert_eq!(pointers, [2, 0, 1]);
}

#[test]
fn a_long_state_log_is_compacted_without_losing_anything() {
    let store = store();
    let device = FileDevice::create_in(Backing::faulty(store.clone()), geometry(), false).unwrap();
    for round in 0..FileLayout::of(&geometry(), VERSION).log_records() + 10 {
        let zone = ZoneNumber(1 + round as u32 % 3);
        if device.append(zone, &[round as u8; BLOCK]).is_err() {
            device.reset(zone).unwrap();
        }
        device.flush().unwrap();
    }
    let before = device.zones().unwrap();
    let image = store.cut().image_with_none();
    let again = FileDevice::open_in(Backing::faulty(Arc::new(FaultyDevice::over(image)))).unwrap();
    for (before, after) in before.iter().zip(again.zones().unwrap()) {
        assert_eq!((before.write_pointer, before.resets), (after.write_pointer, after.resets));
    }
}

#[test]
fn after_a_failed_flush_the_device_accepts_no_writes() {
    let store = store();
    let device = FileDevice::create_in(Backing::faulty(store.clone()), geometry(), false).unwrap();
    device.append(ZoneNumber(1), &[1; BLOCK]).unwrap();
    store.inject(crate::Fault::FlushError { after: 0 });
    assert!(device.flush().is_err());
    let refused = device.append(ZoneNumber(1), &[2; BLOCK]).unwrap_err();
    assert!(refused.to_string().contains("open it again"), "{refused}");
    let mut block = [0; BLOCK];
    device.read(device.geometry().start(ZoneNumber(1)), &mut block).unwrap();
    assert_eq!(block, [1; BLOCK]);
}

#[test]
fn damage_of_the_last_write_is_not_taken_for_a_power_cut_after_another_flush_or_a_close() {
    for closed in [false, true] {
        let store = store();
        let device = FileDevice::create_in(Backing::faulty(Arc::clone(&store)), geometry(), false).unwrap();
        let start = geometry().start(ZoneNumber(1));
        device.write(start, &[7; 2 * BLOCK]).unwrap();
        device.flush().unwrap();
        if closed {
            drop(device);
        } else {
            device.flush().unwrap();
            // Simulates a killed process.
            std::mem::forget(device);
        }
        let place = FileLayout::of(&geometry(), VERSION).zones / BLOCK as u64 + start.0;
        store.flip_bit(Block(place), 5).unwrap();
        let device = FileDevice::open_in(Backing::faulty(store)).unwrap();
        assert_eq!(device.zone(ZoneNumber(1)).unwrap().write_pointer, 2, "closed: {closed}");
        let mut written = [0; 2 * BLOCK];
        device.read(start, &mut written).unwrap();
        assert_eq!(written[..2], [7 ^ 1 << 5, 7]);
    }
}

/// Writes a file of an older version with two blocks in zone 1, covered by a log record.
fn write_version(version: u32, store: &Arc<FaultyDevice>) {
    let backing = Backing::faulty(Arc::clone(store));
    let layout = FileLayout::of(&geometry(), version);
    let header = Header { identity: 5, geometry: geometry(), is_allocated: false };
    let entry = |zone: u32| layout::Entry {
        zone: ZoneNumber(zone),
        condition: Condition::Empty,
        write_pointer: 0,
        resets: 3,
        data_blocks: 0,
        data_crc: 0,
    };
    let checkpoint = layout::Listing { sequence: 8, entries: vec![entry(1), entry(2), entry(3)] };
    let data = [7; 2 * BLOCK];
    let written = layout::Entry {
        condition: Condition::Closed,
        write_pointer: 2,
        data_blocks: 2,
        data_crc: crc32c::crc32c(&data),
        ..entry(1)
    };
    let record = layout::Listing { sequence: 9, entries: vec![written] };
    backing.write(0, &header.encode_version(version)).unwrap();
    let both = layout::two_copies(checkpoint.encode(layout.checkpoint_bytes as usize));
    backing.write(layout.checkpoints[1], &both).unwrap();
    backing.write(layout.log, &record.encode_record(layout.record_bytes)).unwrap();
    backing.write(layout.zones + geometry().start(ZoneNumber(1)).0 * BLOCK as u64, &data).unwrap();
    if let Some(at) = layout.header_copy {
        backing.write(at, &header.encode_version(version)).unwrap();
    }
    backing.sync().unwrap();
}

fn version_of(store: &Arc<FaultyDevice>) -> u32 {
    let page = Backing::faulty(Arc::clone(store)).read_part(0, PAGE_BYTES as u64).unwrap();
    Header::decode(&page).unwrap().1
}

#[test]
fn a_file_of_an_older_version_is_read_and_the_first_flush_converts_it() {
    for version in 3..VERSION {
        let store = store();
        write_version(version, &store);
        let open = || FileDevice::open_in(Backing::faulty(Arc::clone(&store)));
        let check = |device: &FileDevice, blocks: u64| {
            let zone = device.zone(ZoneNumber(1)).unwrap();
            assert_eq!((zone.write_pointer, zone.resets), (blocks, Some(3)));
            let mut read = [0; BLOCK];
            device.read(Block(zone.start.0 + blocks - 1), &mut read).unwrap();
            assert_eq!(read, [5 + blocks as u8; BLOCK]);
        };
        let device = open().unwrap();
        check(&device, 2);
        assert_eq!(version_of(&store), version, "opening writes nothing");
        device.append(ZoneNumber(1), &[8; BLOCK]).unwrap();
        device.flush().unwrap();
        std::mem::forget(device);
        assert_eq!(version_of(&store), VERSION);
        let device = open().unwrap();
        check(&device, 3);
        device.append(ZoneNumber(1), &[9; BLOCK]).unwrap();
        std::mem::forget(device);
        check(&open().unwrap(), 4);
    }
}

#[test]
fn a_power_cut_during_the_conversion_loses_nothing() {
    for version in 3..VERSION {
        let mut versions = std::collections::BTreeSet::new();
        for after in 0..24 {
            let store = store();
            write_version(version, &store);
            let before = store.changes();
            let device = FileDevice::open_in(Backing::faulty(Arc::clone(&store))).unwrap();
            store.inject(crate::Fault::PowerCut { after: before + after });
            let _ = device.flush();
            std::mem::forget(device);
            for image in store.cut().images(8, after) {
                let image = Arc::new(FaultyDevice::over(image));
                versions.insert(version_of(&image));
                let device = FileDevice::open_in(Backing::faulty(image)).unwrap();
                assert_eq!(device.zone(ZoneNumber(1)).unwrap().write_pointer, 2, "cut after {after}");
            }
        }
        assert_eq!(versions.into_iter().collect::<Vec<_>>(), [version, VERSION]);
    }
}

#[test]
fn writes_without_a_flush_survive_a_killed_process() {
    let store = store();
    let open = || FileDevice::open_in(Backing::faulty(Arc::clone(&store))).unwrap();
    let device = FileDevice::create_in(Backing::faulty(Arc::clone(&store)), geometry(), false).unwrap();
    device.append(ZoneNumber(1), &[1; 2 * BLOCK]).unwrap();
    device.append(ZoneNumber(2), &[2; 6 * BLOCK]).unwrap();
    std::mem::forget(device);
    let pointers = |device: &FileDevice| {
        [1, 2, 3].map(|zone| device.zone(ZoneNumber(zone)).map(|zone| zone.write_pointer).unwrap())
    };
    let device = open();
    assert_eq!(pointers(&device), [2, 6, 0]);
    assert_eq!(device.zone(ZoneNumber(2)).unwrap().condition, Condition::Full);
    device.reset(ZoneNumber(2)).unwrap();
    std::mem::forget(device);
    assert_eq!(pointers(&open()), [2, 0, 0], "a slot from before a reset is out of date");
}
