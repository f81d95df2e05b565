//! Opening creates a map on a blank device, and a backup copies it while it is in use.

mod support;

use longma_zoned::device::{AlignedBuffer, Block, FileDevice, Geometry, MemoryDevice, ZonedDevice};
use longma_zoned::{Error, Options, Store};
use longma_zoned_lab::ycsb::Rng;
use std::sync::Arc;
use support::{Model, Records, assert_same, batch, busy, memory, open};

#[test]
fn a_blank_device_gets_a_map_and_a_map_is_opened() {
    let device = Arc::new(MemoryDevice::new(Geometry::with_capacity(32 << 20)).unwrap());
    for expected in [0, 1, 2] {
        let map = Store::open_or_create(Arc::clone(&device), Options::with_cache(1 << 20)).unwrap();
        assert_eq!(map.len(), expected);
        map.put(&[expected as u8], b"value").unwrap();
        map.close().unwrap();
    }
}

#[test]
fn a_file_is_made_once_and_then_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("map");
    for expected in [0, 1] {
        let device = FileDevice::open_or_create(&path, Geometry::with_capacity(32 << 20)).unwrap();
        let map = Store::open_or_create(device, Options::with_cache(1 << 20)).unwrap();
        assert_eq!(map.len(), expected);
        map.put(b"key", b"value").unwrap();
    }
}

#[test]
fn a_device_with_foreign_data_is_refused_and_not_changed() {
    let geometry = Geometry::with_capacity(32 << 20);
    let mut block = AlignedBuffer::new(4096);
    block.fill(7);
    // The blocks of a superblock, of a node, and of a sequential zone.
    for at in [0, 200, u64::from(geometry.conventional_zones) * geometry.zone_blocks] {
        let device = Arc::new(MemoryDevice::new(geometry).unwrap());
        device.write(Block(at), &block).unwrap();
        let refused = Store::open_or_create(Arc::clone(&device), Options::default()).map(drop);
        assert!(matches!(refused, Err(Error::NotFormatted { .. })), "{refused:?}");
        let mut read = AlignedBuffer::new(4096);
        device.read(Block(at), &mut read).unwrap();
        assert!(read[..] == block[..]);
    }
}

#[test]
fn an_interrupted_format_is_begun_again() {
    let device = Store::format(Arc::new(memory(64, 2, 16)), None, 1).unwrap();
    let geometry = device.geometry();
    for block in [0, 1, geometry.zone_blocks - 2, geometry.zone_blocks - 1] {
        device.write(Block(block), &AlignedBuffer::new(512)).unwrap();
    }
    assert!(Store::open_or_create(device, Options::with_cache(1 << 20)).unwrap().is_empty());
}

#[test]
fn a_backup_is_the_map_of_its_moment() {
    let folder = tempfile::tempdir().unwrap();
    let device = Store::format(Arc::new(memory(256, 2, 40)), Some(1024), 77).unwrap();
    let map = open(device, busy(60_000, 60_000));
    let (mut rng, mut model) = (Rng::new(5), Model::new());
    for _ in 0..300 {
        map.apply(&batch(&mut rng, Records::Large, 500, 20, 30, &mut model)).unwrap();
    }
    let snapshot = map.snapshot();
    let then = model.clone();
    let path = folder.path().join("backup");
    // The remains of an interrupted backup.
    std::fs::write(folder.path().join("backup.part"), "partial").unwrap();
    let keys = std::thread::scope(|scope| {
        let backup = scope.spawn(|| snapshot.backup(&path));
        for _ in 0..100 {
            map.apply(&batch(&mut rng, Records::Large, 500, 20, 30, &mut model)).unwrap();
        }
        backup.join().unwrap().unwrap()
    });
    assert_eq!(keys, then.len() as u64);
    assert!(Store::check(FileDevice::open(&path).unwrap()).unwrap().problems.is_empty());
    let info = Store::info(&FileDevice::open(&path).unwrap()).unwrap();
    assert_eq!((info.id, info.node_bytes), (77, 1024));
    let restored = Store::open(FileDevice::open(&path).unwrap(), busy(60_000, 60_000)).unwrap();
    assert_same(&restored.snapshot(), &then, "the backup");
    restored.put(b"new", b"value").unwrap();
    assert_same(&map.snapshot(), &model, "the map");
    // A file is never replaced.
    assert!(matches!(map.backup(&path), Err(Error::Device(_))));
    let names: Vec<_> = folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["backup"]);
}

#[test]
fn a_backup_that_cannot_read_a_leaf_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let device = Store::format(Arc::new(memory(256, 2, 24)), Some(512), 1).unwrap();
    let map = open(Arc::clone(&device), busy(20_000, 20_000));
    map.load((0..2000u64).map(|number| (number.to_be_bytes(), number.to_be_bytes()))).unwrap();
    map.close().unwrap();
    let geometry = device.geometry();
    // A leaf in the first sequential zone that has data.
    let zones = device.zones().unwrap();
    let zone = zones
        .iter()
        .skip(geometry.conventional_zones as usize)
        .rfind(|zone| zone.write_pointer > 20)
        .unwrap();
    device.flip_bit(Block(u64::from(zone.number.0) * geometry.zone_blocks + 5), 999).unwrap();
    let map = open(device, busy(20_000, 20_000));
    let path = folder.path().join("backup");
    assert!(matches!(map.backup(&path), Err(Error::Damaged { .. })));
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}
