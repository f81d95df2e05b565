//! Power-cut images fulfil the guarantees of `ZonedDevice`, and together cover all images that it allows.

use longma_zoned_device::{
    Block, Condition, DeviceError, Fate, Fault, FaultyDevice, Geometry, MemoryDevice, ZoneNumber, ZonedDevice,
};
use proptest::prelude::*;
use std::collections::BTreeSet;

const BLOCK: usize = 1024;
const CONVENTIONAL: Block = Block(0);
const ZONE: ZoneNumber = ZoneNumber(1);

fn geometry() -> Geometry {
    Geometry {
        block_bytes: BLOCK as u32,
        zone_blocks: 8,
        zone_capacity_blocks: 6,
        conventional_zones: 1,
        sequential_zones: 4,
        max_open_zones: 2,
        max_active_zones: 3,
    }
}

fn device() -> FaultyDevice {
    FaultyDevice::new(geometry()).unwrap()
}

fn block(byte: u8) -> [u8; BLOCK] {
    [byte; BLOCK]
}

fn first_byte(device: &MemoryDevice, block: Block) -> u8 {
    let mut bytes = [0; BLOCK];
    device.read(block, &mut bytes).unwrap();
    bytes[0]
}

#[test]
fn flushed_data_survives_and_unflushed_data_may() {
    let device = device();
    device.write(CONVENTIONAL, &block(1)).unwrap();
    device.flush().unwrap();
    device.write(CONVENTIONAL, &block(2)).unwrap();
    let cut = device.cut();
    assert_eq!(cut.pending_writes(), 1);
    assert_eq!(first_byte(&cut.image_with_none(), CONVENTIONAL), 1);
    assert_eq!(first_byte(&cut.image_with_all(), CONVENTIONAL), 2);
}

#[test]
fn conventional_writes_are_lost_in_any_order_and_torn_in_sectors() {
    let device = device();
    device.write(Block(0), &block(1)).unwrap();
    device.write(Block(1), &block(2)).unwrap();
    let cut = device.cut();
    let seen: BTreeSet<_> = cut
        .images(100, 7)
        .map(|image| (first_byte(&image, Block(0)), first_byte(&image, Block(1))))
        .collect();
    assert_eq!(seen, [(0, 0), (0, 2), (1, 0), (1, 2)].into());

    let mut torn = BTreeSet::new();
    for which in 0..64 {
        let image = cut.image(|i| if i == 0 { Fate::Torn(which) } else { Fate::Lost });
        let mut bytes = block(9);
        image.read(Block(0), &mut bytes).unwrap();
        assert!(bytes[..512].iter().all(|b| *b == bytes[0]) && bytes[512..].iter().all(|b| *b == bytes[512]));
        torn.insert((bytes[0], bytes[512]));
    }
    assert!(torn.contains(&(1, 0)) && torn.contains(&(0, 1)), "both halves alone: {torn:?}");
}

#[test]
fn a_sequential_zone_loses_its_last_writes_and_the_pointer_moves_back() {
    let device = device();
    for byte in 1..=3 {
        device.append(ZONE, &block(byte)).unwrap();
    }
    device.append(ZoneNumber(2), &block(9)).unwrap();
    let cut = device.cut();
    let pointers: BTreeSet<_> = cut
        .images(200, 3)
        .map(|image| {
            let pointer = image.zone(ZONE).unwrap().write_pointer;
            for written in 0..pointer {
                assert_eq!(first_byte(&image, Block(8 + written)), written as u8 + 1);
            }
            assert!(!image.zones().unwrap().iter().any(|zone| zone.condition.is_open()));
            (pointer, image.zone(ZoneNumber(2)).unwrap().write_pointer)
        })
        .collect();
    let every = (0..=3).flat_map(|first| [(first, 0), (first, 1)]).collect();
    assert_eq!(pointers, every);
}

#[test]
fn a_reset_and_a_finish_outlast_the_cut() {
    let device = device();
    device.append(ZONE, &block(1)).unwrap();
    device.flush().unwrap();
    device.reset(ZONE).unwrap();
    device.append(ZoneNumber(2), &block(2)).unwrap();
    device.finish(ZoneNumber(2)).unwrap();
    let image = device.cut().image_with_none();
    assert_eq!(image.zone(ZONE).unwrap().condition, Condition::Empty);
    assert_eq!(image.zone(ZoneNumber(2)).unwrap().condition, Condition::Full);
    assert_eq!(first_byte(&image, Block(16)), 2);
}

#[test]
fn operations_fail_after_a_power_cut() {
    let device = device();
    device.inject(Fault::PowerCut { after: 1 });
    device.append(ZONE, &block(1)).unwrap();
    assert!(matches!(device.append(ZONE, &block(2)), Err(DeviceError::PowerCut)));
    device.clear_faults();
    assert!(matches!(device.read(Block(8), &mut block(0)), Err(DeviceError::PowerCut)));
    assert!(matches!(device.flush(), Err(DeviceError::PowerCut)));
    assert_eq!(device.cut().image_with_all().zone(ZONE).unwrap().write_pointer, 1);
}

#[test]
fn faults_occur_when_they_are_due() {
    let device = device();
    device.append(ZONE, &[block(1), block(2)].concat()).unwrap();
    device.inject(Fault::ReadError { block: Block(9) });
    device.inject(Fault::WriteError { after: 1 });
    assert!(device.read(Block(8), &mut block(0)).is_ok());
    assert!(matches!(device.read(Block(9), &mut block(0)), Err(DeviceError::Media { .. })));
    let failed = device.append(ZONE, &[block(3), block(4)].concat());
    assert!(matches!(failed, Err(DeviceError::Media { .. })));
    assert_eq!(device.zone(ZONE).unwrap().write_pointer, 3, "half of the write was done");
    device.inject(Fault::WornOut { after: 2, zone: ZONE, condition: Condition::ReadOnly });
    assert!(matches!(device.append(ZONE, &block(5)), Err(DeviceError::Unusable { .. })));
    assert!(device.read(Block(8), &mut block(0)).is_ok());
    device.flip_bit(Block(8), 8 * 10 + 1).unwrap();
    let mut bytes = block(0);
    device.read(Block(8), &mut bytes).unwrap();
    assert_eq!((bytes[9], bytes[10]), (1, 3));
}

#[test]
fn a_later_flush_does_not_undo_a_failed_one() {
    let device = device();
    device.write(CONVENTIONAL, &block(1)).unwrap();
    device.inject(Fault::FlushError { after: 0 });
    assert!(device.flush().is_err());
    device.flush().unwrap();
    assert_eq!(first_byte(&device.cut().image_with_all(), CONVENTIONAL), 0);
}

/// A step of a random test.
#[derive(Clone, Debug)]
enum DeviceOperation {
    Write(u64, u8),
    Append(u32, u8),
    Reset(u32),
    Finish(u32),
    Flush,
}

fn step() -> impl Strategy<Value = DeviceOperation> {
    prop_oneof![
        4 => (0..8u64, any::<u8>()).prop_map(|(block, byte)| DeviceOperation::Write(block, byte)),
        8 => (1..5u32, any::<u8>()).prop_map(|(zone, byte)| DeviceOperation::Append(zone, byte)),
        2 => (1..5u32).prop_map(DeviceOperation::Reset),
        1 => (1..5u32).prop_map(DeviceOperation::Finish),
        2 => Just(DeviceOperation::Flush),
    ]
}

fn content(device: &MemoryDevice) -> Vec<u8> {
    (0..device.geometry().blocks()).map(|block| first_byte(device, Block(block))).collect()
}

proptest! {
    #[test]
    fn after_every_change_a_cut_leaves_no_less_than_the_last_flush_and_no_more_than_was_written(
        steps in prop::collection::vec(step(), 1..40), seed in any::<u64>(),
    ) {
        let device = device();
        device.record();
        for step in steps {
            // Steps rejected by the zone rules change nothing.
            let _ = match step {
                DeviceOperation::Write(at, byte) => device.write(Block(at), &block(byte)),
                DeviceOperation::Append(zone, byte) => device.append(ZoneNumber(zone), &block(byte)).map(|_| ()),
                DeviceOperation::Reset(zone) => device.reset(ZoneNumber(zone)),
                DeviceOperation::Finish(zone) => device.finish(ZoneNumber(zone)),
                DeviceOperation::Flush => device.flush(),
            };
        }
        let now = device.cut();
        let changes = device.changes();
        let mut last = None;
        for (number, cut) in device.recording().unwrap().cuts() {
            let (all, none) = (cut.image_with_all(), cut.image_with_none());
            let (limit, pending) = (geometry().max_active_zones as usize, cut.pending_writes());
            for image in cut.images(12, seed ^ number) {
                let zones = image.zones().unwrap();
                prop_assert!(zones.iter().filter(|zone| zone.condition.is_active()).count() <= limit);
                for zone in &zones[1..] {
                    let max = all.zone(zone.number).unwrap().write_pointer;
                    let min = none.zone(zone.number).unwrap().write_pointer;
                    prop_assert!((min..=max).contains(&zone.write_pointer));
                }
                if pending == 0 {
                    prop_assert_eq!(content(&image), content(&all));
                }
            }
            last = Some((number, all));
        }
        let (number, all) = last.unwrap();
        prop_assert_eq!(number, changes);
        prop_assert_eq!(content(&all), content(&now.image_with_all()));
    }
}
