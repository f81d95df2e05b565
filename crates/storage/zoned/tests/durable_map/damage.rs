//! Damage to completely written data: flipped bits in the journal, lost writes, a panic in the middle of a batch.
//! Acknowledged data is present, or an error reports its loss.

use crate::support::{Model, busy, memory, open, rows};
use longma_zoned::device::{Block, DeviceError, Geometry, MemoryDevice, Zone, ZoneNumber};
use longma_zoned::testing::{Header, Kind};
use longma_zoned::{Error, Store, ZonedDevice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const OPTIONS: longma_zoned::Options = busy(100_000, 100_000);

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// A map of 80 keys in a checkpoint and 80 batches of one key each in the journal. Returns the device, the first block
/// of the journal, and the number of journal blocks.
fn journaled() -> (MemoryDevice, u64, u64) {
    let device = Store::format(Arc::new(memory(128, 2, 14)), Some(512), 1).unwrap();
    let store = open(Arc::clone(&device), OPTIONS);
    store.load((0..80).map(|number| (key(2 * number), b"loaded.."))).unwrap();
    drop(store);
    let journal = ZoneNumber(device.geometry().conventional_zones);
    let first = device.zone(journal).unwrap().write_pointer;
    let store = open(Arc::clone(&device), OPTIONS);
    for number in 0..80 {
        assert!(store.put(&key(2 * number + 1), b"put.....").unwrap());
    }
    drop(store);
    let end = device.zone(journal).unwrap().write_pointer;
    (device.snapshot(), device.geometry().start(journal).0 + first, end - first)
}

#[test]
fn a_flipped_bit_in_the_journal_stops_opening_wherever_it_is() {
    let (pristine, first, blocks) = journaled();
    assert_eq!(blocks, 80);
    for block in 0..blocks {
        // Bits of the header and of the fragment.
        for bit in [3, 70, 130, 200, 8 * 24 + 1, 8 * 33, 8 * 38, 8 * 60, 8 * 90] {
            let image = Arc::new(pristine.snapshot());
            image.flip_bit(Block(first + block), bit).unwrap();
            let Err(error) = Store::open(Arc::clone(&image), OPTIONS) else {
                panic!("block {block}, bit {bit}: it opened");
            };
            let message = error.to_string();
            assert!(message.contains(&format!("block {}", first + block)), "{message}");
            let problems = Store::check(image).unwrap().problems;
            assert!(problems.iter().any(|problem| problem.block == Some(first + block)), "{problems:?}");
        }
        // Damage in the padding of the block is harmless.
        let image = Arc::new(pristine.snapshot());
        image.flip_bit(Block(first + block), 8 * 500).unwrap();
        assert_eq!(open(image, OPTIONS).len(), 160);
    }
}

#[test]
fn reading_a_reused_slot_after_a_lost_write_is_an_error() {
    let device = Store::format(Arc::new(memory(64, 1, 20)), Some(512), 1).unwrap();
    let store = open(Arc::clone(&device), OPTIONS);
    let mut model = Model::new();
    for number in 0..600u64 {
        model.insert(key(number * 7 % 600).to_vec(), key(number).to_vec());
        store.put(&key(number * 7 % 600), &key(number)).unwrap();
    }
    store.checkpoint().unwrap();
    let before = device.snapshot();
    // Enough rounds to reuse the slots of the first checkpoint.
    for round in 0..8u64 {
        for number in (0..600).step_by(3) {
            let (key, value) = (key(number), key(number * 3 + round));
            store.put(&key, &value).unwrap();
            model.insert(key.to_vec(), value.to_vec());
        }
        store.checkpoint().unwrap();
    }
    drop(store);
    let block_bytes = device.geometry().block_bytes as usize;
    let (mut old, mut new) = (vec![0; block_bytes], vec![0; block_bytes]);
    let (mut seen, mut used_again) = (0, 0);
    for block in 2..device.geometry().zone_blocks - 2 {
        before.read(Block(block), &mut old).unwrap();
        device.read(Block(block), &mut new).unwrap();
        let was_node = old.iter().any(|&byte| byte != 0);
        if old == new || !was_node {
            continue;
        }
        used_again += 1;
        let image = Arc::new(device.snapshot());
        image.write(Block(block), &old).unwrap();
        let Ok(store) = Store::open(Arc::clone(&image), OPTIONS) else {
            seen += 1;
            continue;
        };
        let mut errors = 0;
        for (key, value) in &model {
            match store.get(key) {
                Ok(found) => assert_eq!(found.as_ref(), Some(value), "the write of block {block} was lost"),
                Err(Error::Damaged { .. }) => errors += 1,
                Err(error) => panic!("block {block}: {error}"),
            }
        }
        let scanned = store.iter().any(|row| row.is_err());
        assert_eq!(scanned, errors > 0, "block {block}");
        seen += u32::from(errors > 0);
        drop(store);
        let sound = Store::check(image).unwrap().problems.is_empty();
        assert_eq!(sound, errors == 0, "block {block}: {errors} keys cannot be read");
    }
    assert!(
        used_again > 30 && seen > 20,
        "{used_again} blocks were reused, and damage was detected in {seen}"
    );
}

#[test]
fn one_lost_copy_of_the_newest_superblock_loses_nothing() {
    let device = Store::format(Arc::new(memory(64, 2, 10)), Some(512), 1).unwrap();
    let store = open(Arc::clone(&device), OPTIONS);
    let mut images = vec![device.snapshot()];
    for number in 0..40 {
        // A load bypasses the journal.
        store.load([(key(number), b"loaded..")]).unwrap();
        images.push(device.snapshot());
    }
    drop(store);
    let mut copy = [0; 512];
    for (checkpoint, image) in images.iter().enumerate().skip(3) {
        let end = image.geometry().zone_blocks;
        for (lost, other) in [(0, end - 2), (end - 2, 0), (1, end - 1), (end - 1, 1)] {
            let device = Arc::new(image.snapshot());
            // Restore the contents from two checkpoints before, as if the last write to the copy had been lost.
            images[checkpoint - 2].read(Block(lost), &mut copy).unwrap();
            device.write(Block(lost), &copy).unwrap();
            let store = open(Arc::clone(&device), OPTIONS);
            assert_eq!(store.len(), checkpoint as u64, "copy {lost}");
            drop(store);
            // Opening has repaired the copy, so the other one may fail now.
            device.write(Block(other), &[0; 512]).unwrap();
            assert_eq!(open(device, OPTIONS).len(), checkpoint as u64, "copy {lost}, and then the other");
        }
    }
}

#[test]
fn the_loss_of_both_copies_of_a_superblock_is_detected() {
    let device = Store::format(Arc::new(memory(16, 4, 24)), Some(512), 1).unwrap();
    let store = open(Arc::clone(&device), OPTIONS);
    let mut images = vec![device.snapshot()];
    for number in 0..60 {
        store.load([(key(number), b"loaded..")]).unwrap();
        store.put(&key(number), b"again...").unwrap();
        images.push(device.snapshot());
    }
    drop(store);
    let mut copy = [0; 512];
    for (checkpoint, image) in images.iter().enumerate().skip(3) {
        let device = Arc::new(image.snapshot());
        let newest = (checkpoint as u64 + 1) % 2;
        for block in [newest, device.geometry().zone_blocks - 2 + newest] {
            images[checkpoint - 2].read(Block(block), &mut copy).unwrap();
            device.write(Block(block), &copy).unwrap();
        }
        match Store::open(Arc::clone(&device), OPTIONS) {
            Ok(_) => panic!("checkpoint {checkpoint}: the one before was opened"),
            Err(error) => assert!(matches!(error, Error::Damaged { .. }), "{error}"),
        }
    }
}

/// A device that panics on request and does not count resets.
struct Moody {
    inner: Arc<MemoryDevice>,
    panics: AtomicBool,
}

impl Moody {
    fn new(inner: Arc<MemoryDevice>) -> Arc<Self> {
        Arc::new(Self { inner, panics: AtomicBool::new(false) })
    }

    fn mood(&self) {
        assert!(!self.panics.swap(false, Ordering::Relaxed), "a panic that the test wants");
    }
}

impl ZonedDevice for Moody {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn zone(&self, zone: ZoneNumber) -> Result<Zone, DeviceError> {
        Ok(Zone { resets: None, ..self.inner.zone(zone)? })
    }
    fn read(&self, block: Block, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.mood();
        self.inner.read(block, buffer)
    }
    fn write(&self, block: Block, data: &[u8]) -> Result<(), DeviceError> {
        self.mood();
        self.inner.write(block, data)
    }
    fn append(&self, zone: ZoneNumber, data: &[u8]) -> Result<Block, DeviceError> {
        self.inner.append(zone, data)
    }
    fn reset(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.inner.reset(zone)
    }
    fn finish(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.inner.finish(zone)
    }
    fn open(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.inner.open(zone)
    }
    fn close(&self, zone: ZoneNumber) -> Result<(), DeviceError> {
        self.inner.close(zone)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn name(&self) -> String {
        "moody".into()
    }
}

#[test]
fn a_panic_inside_the_writer_stops_the_map_until_it_is_opened_again() {
    let device = Moody::new(Store::format(Arc::new(memory(64, 2, 10)), Some(512), 1).unwrap());
    let store = open(Arc::clone(&device), OPTIONS);
    store.put(b"before", b"the panic").unwrap();
    device.panics.store(true, Ordering::Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(|| store.put(b"in", b"the panic"))).is_err());
    let results = [
        store.put(b"after", b"it").map(|_| ()),
        store.sync(),
        store.checkpoint(),
        store.delete(b"before").map(|_| ()),
    ];
    for (number, result) in results.into_iter().enumerate() {
        assert!(matches!(result, Err(Error::Stopped { .. })), "{number}: {result:?}");
    }
    drop(store);
    let store = open(device, OPTIONS);
    let content = rows(&store.snapshot(), longma_zoned::KeyRange::ALL, longma_zoned::Direction::Ascending);
    assert_eq!(content, [(b"before".to_vec(), b"the panic".to_vec())]);
    store.put(b"after", b"it").unwrap();
}

#[test]
fn wear_is_remembered_where_the_device_does_not_count_resets() {
    let device = Moody::new(Store::format(Arc::new(memory(32, 2, 12)), Some(512), 1).unwrap());
    let mut worn = (0, 0);
    for _ in 0..20 {
        let store = open(Arc::clone(&device), busy(20_000, 6_000));
        let before = store.statistics();
        assert!((before.most_resets, before.fewest_resets) >= worn, "{worn:?} before, and now {before:?}");
        for number in 0..200u64 {
            store.put(&key(number % 100), &[number as u8; 40]).unwrap();
        }
        store.checkpoint().unwrap();
        let after = store.statistics();
        worn = (after.most_resets, after.fewest_resets);
        store.close().unwrap();
    }
    assert!(worn.0 > 5, "{worn:?}");
}

/// Changes the version in both copies of the first superblock. Returns the old version.
fn set_version(device: &MemoryDevice, version: u32) -> u32 {
    let mut old = 0;
    for block in [1, device.geometry().zone_blocks - 1] {
        let mut node = [0; 512];
        device.read(Block(block), &mut node).unwrap();
        let header = Header::open(&node, Kind::Superblock, block).unwrap();
        old = header.word;
        Header { word: version, ..header }.seal(&mut node);
        device.write(Block(block), &node).unwrap();
    }
    old
}

#[test]
fn a_map_of_version_2_is_read_and_converted() {
    let device = Store::format(Arc::new(memory(64, 2, 10)), Some(512), 1).unwrap();
    let store = open(Arc::clone(&device), OPTIONS);
    store.put(b"key", b"value").unwrap();
    store.close().unwrap();
    // Two more checkpoints bring the next one back to the first superblock.
    assert_eq!(set_version(&device, 2), 3);
    let store = open(Arc::clone(&device), OPTIONS);
    for value in [b"1", b"2"] {
        assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
        store.put(b"other", value).unwrap();
        store.checkpoint().unwrap();
    }
    store.close().unwrap();
    assert_eq!(set_version(&device, 3), 3);
}

#[test]
fn a_map_of_another_version_is_refused_with_advice() {
    let device = Store::format(Arc::new(memory(64, 2, 10)), Some(512), 1).unwrap();
    for (version, says) in
        [(1, "version 1, written by an older longma"), (4, "version 4, written by a newer longma")]
    {
        set_version(&device, version);
        let error = Store::open(Arc::clone(&device), OPTIONS).err().unwrap();
        let message = error.to_string();
        assert!(matches!(error, Error::Unsuitable { .. }) && message.contains(says), "{message}");
        assert!(message.contains("`longma zoned load --hex`"), "{message}");
    }
}
