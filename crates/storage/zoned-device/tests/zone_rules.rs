//! The zone rules on every type of device, which must all behave alike. LONGMA_ZONED_DEVICE adds a zoned block device,
//! whose contents are overwritten.
//!
//! Source: NVMe Zoned Namespace Command Set 1.1, section 2.1.1; null_blk of the Linux kernel.

use longma_zoned_device::{
    AlignedBuffer, Block, Condition, DeviceError, FaultyDevice, FileDevice, Geometry, MemoryDevice, Read,
    Write, ZoneNumber, ZonedDevice,
};

fn geometry() -> Geometry {
    Geometry {
        block_bytes: 4096,
        zone_blocks: 16,
        zone_capacity_blocks: 12,
        conventional_zones: 2,
        sequential_zones: 8,
        max_open_zones: 3,
        max_active_zones: 5,
    }
}

/// Runs `test` with a new device of every type.
fn on_every_device(test: impl Fn(&dyn ZonedDevice)) {
    test(&MemoryDevice::new(geometry()).unwrap());
    test(&FaultyDevice::new(geometry()).unwrap());
    let folder = tempfile::tempdir().unwrap();
    test(&FileDevice::create(&folder.path().join("device"), geometry(), false).unwrap());
    if let Some(path) = std::env::var_os("LONGMA_ZONED_DEVICE") {
        let device = longma_zoned_device::KernelDevice::open(path.as_ref(), None).unwrap();
        for zone in device.geometry().sequential() {
            device.reset(zone).unwrap();
        }
        test(&device);
    }
}

fn blocks(device: &dyn ZonedDevice, count: u64, byte: u8) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::new(count as usize * device.geometry().block_bytes as usize);
    buffer.fill(byte);
    buffer
}

/// The sequential zone with the given index, counted from 0.
fn zone(device: &dyn ZonedDevice, index: u32) -> ZoneNumber {
    ZoneNumber(device.geometry().conventional_zones + index)
}

fn condition(device: &dyn ZonedDevice, index: u32) -> Condition {
    device.zone(zone(device, index)).unwrap().condition
}

fn append(device: &dyn ZonedDevice, index: u32) -> Result<Block, DeviceError> {
    device.append(zone(device, index), &blocks(device, 1, 1))
}

#[test]
fn conventional_zones_are_written_in_place() {
    on_every_device(|device| {
        for byte in [1, 2] {
            device.write(Block(3), &blocks(device, 2, byte)).unwrap();
            let mut read = blocks(device, 1, 0);
            device.read(Block(4), &mut read).unwrap();
            assert!(read.iter().all(|b| *b == byte));
        }
        assert_eq!(device.zone(ZoneNumber(0)).unwrap().condition, Condition::Conventional);
        for refused in [device.reset(ZoneNumber(0)), device.finish(ZoneNumber(0)), device.open(ZoneNumber(0))]
        {
            assert!(matches!(refused, Err(DeviceError::NotSequential { .. })), "{refused:?}");
        }
    });
}

#[test]
fn a_sequential_zone_is_written_at_its_write_pointer_only() {
    on_every_device(|device| {
        let (zone, start) = (zone(device, 0), device.geometry().start(zone(device, 0)).0);
        device.write(Block(start), &blocks(device, 2, 1)).unwrap();
        for wrong in [start, start + 1, start + 3] {
            let refused = device.write(Block(wrong), &blocks(device, 1, 9));
            assert!(
                matches!(refused, Err(DeviceError::NotAtWritePointer { write_pointer: 2, .. })),
                "{refused:?}"
            );
        }
        device.write(Block(start + 2), &blocks(device, 1, 2)).unwrap();
        assert_eq!(device.append(zone, &blocks(device, 1, 3)).unwrap(), Block(start + 3));
        let report = device.zone(zone).unwrap();
        assert_eq!((report.write_pointer, report.condition), (4, Condition::ImplicitlyOpen));
        for (offset, byte) in [(0, 1), (1, 1), (2, 2), (3, 3)] {
            let mut read = blocks(device, 1, 0);
            device.read(Block(start + offset), &mut read).unwrap();
            assert!(read.iter().all(|b| *b == byte), "block {offset}");
        }
    });
}

#[test]
fn a_zone_is_full_at_its_capacity() {
    on_every_device(|device| {
        let capacity = device.geometry().zone_capacity_blocks;
        let start = device.geometry().start(zone(device, 0)).0;
        device.write(Block(start), &blocks(device, capacity - 1, 1)).unwrap();
        let refused = device.write(Block(start + capacity - 1), &blocks(device, 2, 1));
        let expected = if capacity < device.geometry().zone_blocks {
            matches!(refused, Err(DeviceError::BeyondCapacity { .. }))
        } else {
            matches!(refused, Err(DeviceError::AcrossZones { .. } | DeviceError::OutOfRange { .. }))
        };
        assert!(expected, "{refused:?}");
        append(device, 0).unwrap();
        let report = device.zone(zone(device, 0)).unwrap();
        assert_eq!(
            (report.condition, report.write_pointer, report.room_blocks()),
            (Condition::Full, capacity, 0)
        );
        assert!(matches!(append(device, 0), Err(DeviceError::ZoneFull { .. })));
        assert!(matches!(device.open(zone(device, 0)), Err(DeviceError::ZoneFull { .. })));
        device.reset(zone(device, 0)).unwrap();
        assert_eq!(condition(device, 0), Condition::Empty);
        assert_eq!(append(device, 0).unwrap(), Block(start));
    });
}

#[test]
fn an_implicitly_open_zone_is_closed_for_another_and_an_explicitly_open_one_is_not() {
    on_every_device(|device| {
        let limit = device.geometry().max_open_zones;
        if limit == 0 || device.geometry().max_active_zones < limit + 2 {
            return;
        }
        for index in 0..=limit {
            append(device, index).unwrap();
        }
        let closed = (0..=limit).filter(|index| condition(device, *index) == Condition::Closed).count();
        assert_eq!(closed, 1);
        for index in 0..=limit {
            device.reset(zone(device, index)).unwrap();
        }
        for index in 0..limit {
            device.open(zone(device, index)).unwrap();
            assert_eq!(condition(device, index), Condition::ExplicitlyOpen);
        }
        assert!(matches!(append(device, limit), Err(DeviceError::TooManyOpen { .. })));
        assert!(matches!(device.open(zone(device, limit)), Err(DeviceError::TooManyOpen { .. })));
        assert!(matches!(device.finish(zone(device, limit)), Err(DeviceError::TooManyOpen { .. })));
        append(device, 0).unwrap();
        device.close(zone(device, 0)).unwrap();
        assert_eq!(condition(device, 0), Condition::Closed);
        device.close(zone(device, 1)).unwrap();
        assert_eq!(condition(device, 1), Condition::Empty, "it had no content");
        append(device, limit).unwrap();
    });
}

#[test]
fn partly_written_zones_are_limited_in_number() {
    on_every_device(|device| {
        let limit = device.geometry().max_active_zones;
        if limit == 0 || device.geometry().sequential_zones <= limit {
            return;
        }
        for index in 0..limit {
            append(device, index).unwrap();
        }
        assert!(matches!(append(device, limit), Err(DeviceError::TooManyActive { .. })));
        assert!(matches!(device.open(zone(device, limit)), Err(DeviceError::TooManyActive { .. })));
        device.finish(zone(device, 0)).unwrap();
        assert_eq!(condition(device, 0), Condition::Full);
        append(device, limit).unwrap();
        assert!(matches!(device.finish(zone(device, 0)), Ok(())), "finishing a full zone has no effect");
    });
}

#[test]
fn closing_a_zone_that_is_not_open_and_resetting_an_empty_one() {
    on_every_device(|device| {
        assert!(matches!(device.close(zone(device, 0)), Err(DeviceError::NotOpen { .. })));
        device.reset(zone(device, 0)).unwrap();
        append(device, 0).unwrap();
        device.close(zone(device, 0)).unwrap();
        device.close(zone(device, 0)).unwrap();
        device.finish(zone(device, 0)).unwrap();
        assert!(matches!(device.close(zone(device, 0)), Err(DeviceError::NotOpen { .. })));
        let all = device.zones().unwrap();
        assert_eq!(all.len() as u32, device.geometry().zones());
        assert!(all.iter().enumerate().all(|(index, zone)| zone.number.0 as usize == index));
    });
}

#[test]
fn accesses_outside_the_device_are_rejected() {
    on_every_device(|device| {
        let geometry = device.geometry();
        let end = Block(geometry.blocks());
        let mut one = blocks(device, 1, 0);
        assert!(matches!(device.read(end, &mut one), Err(DeviceError::OutOfRange { .. })));
        assert!(matches!(device.write(Block(u64::MAX), &one), Err(DeviceError::OutOfRange { .. })));
        assert!(matches!(device.read(Block(0), &mut one[..100]), Err(DeviceError::Unaligned { .. })));
        assert!(matches!(device.write(Block(0), &[]), Err(DeviceError::Unaligned { .. })));
        let border = Block(geometry.zone_blocks - 1);
        assert!(matches!(
            device.read(border, &mut blocks(device, 2, 0)),
            Err(DeviceError::AcrossZones { .. })
        ));
        let missing = ZoneNumber(geometry.zones());
        assert!(matches!(device.zone(missing), Err(DeviceError::NoSuchZone { .. })));
        assert!(matches!(device.reset(missing), Err(DeviceError::NoSuchZone { .. })));
        assert!(matches!(device.append(ZoneNumber(0), &one), Err(DeviceError::NotSequential { .. })));
    });
}

#[test]
fn several_reads_and_writes_at_once_do_what_single_ones_do() {
    on_every_device(|device| {
        let start = device.geometry().start(zone(device, 0)).0;
        let data: Vec<_> = (0..8).map(|byte| blocks(device, 1, byte + 1)).collect();
        let at = |n: u64| if n.is_multiple_of(2) { Block(start + n / 2) } else { Block(n) };
        let writes: Vec<_> = data.iter().zip(0..).map(|(data, n)| Write { block: at(n), data }).collect();
        device.write_many(&writes).unwrap();
        let mut read: Vec<_> = (0..8).map(|_| blocks(device, 1, 0)).collect();
        let mut reads: Vec<_> =
            read.iter_mut().zip(0..).map(|(buffer, n)| Read { block: at(n), buffer }).collect();
        device.read_many(&mut reads).unwrap();
        assert!(read.iter().zip(1..).all(|(block, byte)| block.iter().all(|b| *b == byte)));
        device.flush().unwrap();
        let wrong = [Write { block: Block(start), data: &data[0] }];
        assert!(matches!(device.write_many(&wrong), Err(DeviceError::NotAtWritePointer { .. })));
    });
}

#[test]
fn buffers_need_no_alignment() {
    on_every_device(|device| {
        let mut odd = blocks(device, 3, 5);
        let block = device.geometry().block_bytes as usize;
        device.write(Block(0), &odd[1..=block]).unwrap();
        device.read(Block(0), &mut odd[block + 7..2 * block + 7]).unwrap();
        append(device, 0).unwrap();
        device.append(zone(device, 0), &odd[3..block + 3]).unwrap();
    });
}

#[test]
fn several_threads_append_to_one_zone() {
    on_every_device(|device| {
        let mut at: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| [(); 3].map(|()| append(device, 0).unwrap().0))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        at.sort_unstable();
        let start = device.geometry().start(zone(device, 0)).0;
        assert_eq!(at, (start..start + 12).collect::<Vec<_>>());
    });
}
