//! After a repair, the map opens, passes `check` and contains all readable data. The repair report lists the rest as
//! lost.

use crate::support::{Model, Records, assert_same, busy, memory, open, rows};
use longma_zoned::device::{Block, Fault, FaultyDevice, MemoryDevice, ZoneNumber};
use longma_zoned::store::RepairReport;
use longma_zoned::testing::{Header, Kind};
use longma_zoned::{Batch, Direction, Error, KeyRange, Store, ZonedDevice};
use longma_zoned_lab::ycsb::Rng;
use std::sync::Arc;

/// The changes of a batch: each key with its new value, or `None` for a deletion.
type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// A map and the batches applied to it, numbered from 1.
fn filled(records: Records) -> (MemoryDevice, Vec<Changes>) {
    let device = Store::format(Arc::new(memory(128, 2, 14)), Some(512), 1).unwrap();
    // At least one checkpoint, and a journal after the last one.
    let store = open(Arc::clone(&device), busy(100_000, 45_000));
    let mut rng = Rng::new(5);
    let mut batches = Vec::new();
    for number in 0..60 {
        if number == 40 {
            store.checkpoint().unwrap();
        }
        let (mut batch, mut changes) = (Batch::new(), Changes::new());
        for _ in 0..=rng.below(24) {
            let key = records.key(rng.below(500));
            if rng.below(10) == 0 {
                batch.delete(&key);
                changes.push((key, None));
            } else {
                let value = records.value(&mut rng);
                batch.put(&key, &value);
                changes.push((key, Some(value)));
            }
        }
        store.apply(&batch).unwrap();
        batches.push(changes);
    }
    drop(store);
    (device.snapshot(), batches)
}

/// The blocks in which a part of the journal begins.
fn journal_blocks(device: &MemoryDevice) -> Vec<Block> {
    let begins_part = |block: &Block| {
        let mut node = [0; 512];
        device.read(*block, &mut node).is_ok() && Header::peek(&node, Kind::Journal).is_ok()
    };
    (0..device.geometry().blocks()).map(Block).filter(begins_part).collect()
}

/// The contents of the map without the batches for which `is_lost` is true.
fn without(batches: &[Changes], is_lost: impl Fn(u64) -> bool) -> Model {
    let mut model = Model::new();
    for (_, changes) in (1..).zip(batches).filter(|&(number, _)| !is_lost(number)) {
        for (key, value) in changes {
            match value {
                Some(value) => _ = model.insert(key.clone(), value.clone()),
                None => _ = model.remove(key),
            }
        }
    }
    model
}

fn is_lost(report: &RepairReport, key: &[u8]) -> bool {
    let ranges = report.lost.iter().chain(&report.lost_changes);
    let inside = |from: &[u8], to: Option<&[u8]>| key >= from && to.is_none_or(|to| key < to);
    ranges.into_iter().any(|lost| inside(&lost.from, lost.to.as_deref()))
        || report.lost_values.iter().any(|lost| lost == key)
}

#[test]
fn a_repair_keeps_readable_data_and_lists_the_rest() {
    for records in [Records::Fixed, Records::Large] {
        let (pristine, batches) = filled(records);
        let (mut rng, mut losses, mut lost_batches) = (Rng::new(9), 0, 0);
        let journal = journal_blocks(&pristine);
        for round in 0..150 {
            let image = Arc::new(pristine.snapshot());
            for _ in 0..=rng.below(3) {
                let zone = ZoneNumber(rng.below(6) as u32);
                let block = match rng.below(8) {
                    0 => journal[rng.below(journal.len() as u64) as usize],
                    _ => Block(image.geometry().start(zone).0 + rng.below(90)),
                };
                image.flip_bit(block, rng.below(512 * 8)).unwrap();
            }
            let report = Store::repair(Arc::clone(&image), busy(50_000, 20_000)).unwrap();
            assert_eq!(Store::check(Arc::clone(&image)).unwrap().problems, [], "round {round}");
            let store = open(image, busy(50_000, 20_000));
            assert_eq!(store.len(), report.keys, "round {round}");
            losses += u32::from(!report.lost.is_empty());
            lost_batches += u32::from(!report.lost_batches.is_empty());
            // The map must hold all batches except those listed as lost, including the later ones.
            let named = |number: u64| {
                report
                    .lost_batches
                    .iter()
                    .any(|lost| number >= lost.first && lost.last.is_none_or(|last| number <= last))
            };
            let expected = without(&batches, named);
            for key in without(&batches, |_| false).keys().chain(expected.keys()) {
                let right = store.get(key).unwrap().as_ref() == expected.get(key);
                assert!(right || is_lost(&report, key), "round {round}, {key:?}: {report:?}");
            }
            store.put(b"and on", b"it goes").unwrap();
        }
        assert!(losses > 5 && lost_batches > 5, "{losses}, {lost_batches}");
    }
}

#[test]
fn a_repair_skips_damaged_batches_and_applies_all_later_ones() {
    let (pristine, batches) = filled(Records::Fixed);
    let opened = |image: &Arc<MemoryDevice>| match Store::open(Arc::clone(image), busy(50_000, 20_000)) {
        Err(Error::JournalDamaged { lost, later, .. }) => (lost, later),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it opened"),
    };
    let journal =
        pristine.zones().unwrap().into_iter().filter(|zone| zone.write_pointer > 0).max_by_key(|zone| {
            let mut first = [0; 512];
            pristine.read(zone.start, &mut first).unwrap();
            Header::peek(&first, Kind::Journal).map_or(0, |header| header.generation + 1)
        });
    let journal = journal.unwrap();
    let (mut middle, mut last) = (0, 0);
    for offset in 0..journal.write_pointer {
        let image = Arc::new(pristine.snapshot());
        image.flip_bit(Block(journal.start.0 + offset), 8 * 100).unwrap();
        if Store::open(Arc::clone(&image), busy(50_000, 20_000)).is_ok() {
            // The block is from before the last checkpoint, or after a record.
            continue;
        }
        let (lost, later) = opened(&image);
        let [only] = &lost[..] else { panic!("{lost:?}") };
        assert_eq!(only.last, Some(only.first));
        middle += u32::from(later > 0);
        last += u32::from(later == 0);
        assert_eq!(later, 60 - only.first, "{lost:?}");
        let report = Store::repair(Arc::clone(&image), busy(50_000, 20_000)).unwrap();
        assert_eq!(report.lost_batches, lost);
        let expected = without(&batches, |number| number == only.first);
        assert_same(&open(image, busy(50_000, 20_000)).snapshot(), &expected, "without a batch");
    }
    assert!(middle > 5 && last > 0, "{middle}, {last}");
}

#[test]
fn repairing_an_intact_map_changes_nothing() {
    let (device, batches) = filled(Records::Variable);
    let model = without(&batches, |_| false);
    let device = Arc::new(device);
    let report = Store::repair(Arc::clone(&device), busy(50_000, 20_000)).unwrap();
    assert_eq!(report, RepairReport { keys: model.len() as u64, ..RepairReport::default() });
    assert_same(&open(device, busy(50_000, 20_000)).snapshot(), &model, "repaired");
}

#[test]
fn a_map_without_superblocks_is_recovered_from_its_leaves() {
    let device = Store::format(Arc::new(memory(128, 2, 14)), Some(512), 1).unwrap();
    let store = open(Arc::clone(&device), busy(50_000, 20_000));
    let model: Model = (0..2_000u64).map(|n| (n.to_be_bytes().to_vec(), n.to_le_bytes().to_vec())).collect();
    store.load(&model).unwrap();
    drop(store);
    let end = device.geometry().zone_blocks;
    for block in [0, 1, end - 2, end - 1] {
        device.write(Block(block), &[0; 512]).unwrap();
    }
    assert!(Store::open(Arc::clone(&device), busy(50_000, 20_000)).is_err());
    let report = Store::repair(Arc::clone(&device), busy(50_000, 20_000)).unwrap();
    assert!(report.superblock_lost && report.older_copies == 2_000, "{report:?}");
    assert_same(&open(device, busy(50_000, 20_000)).snapshot(), &model, "from its leaves");
}

/// The blocks of interior nodes, the newest last.
fn inner_nodes(device: &MemoryDevice) -> Vec<u64> {
    let mut block_bytes = vec![0; device.geometry().block_bytes as usize];
    let mut found = Vec::new();
    for block in 0..device.geometry().blocks() {
        if device.read(Block(block), &mut block_bytes).is_ok()
            && let Ok(header) = Header::open(&block_bytes, Kind::Inner, block)
        {
            found.push((header.generation, block));
        }
    }
    found.sort_unstable();
    found.into_iter().map(|(_, block)| block).collect()
}

/// Large values on a device with space for a few copies of them.
fn with_large_values() -> MemoryDevice {
    let device = Store::format(Arc::new(memory(48, 2, 9)), Some(512), 1).unwrap();
    let store = open(Arc::clone(&device), busy(100_000, 45_000));
    for round in 0..2u8 {
        for key in 0..40u8 {
            store.put(&[key], &vec![round; 700]).unwrap();
        }
        store.checkpoint().unwrap();
    }
    drop(store);
    device.snapshot()
}

/// Interrupted repairs do not use up the space that the next repair needs.
#[test]
fn repairs_that_are_cut_again_and_again_do_not_fill_the_device() {
    let options = busy(100_000, 45_000);
    let pristine = with_large_values();
    let (mut repaired, mut cuts) = (0, 0);
    for block in inner_nodes(&pristine).iter().rev().take(4) {
        let damaged = pristine.snapshot();
        damaged.flip_bit(Block(*block), 8 * 60).unwrap();
        let undisturbed = Arc::new(damaged.snapshot());
        let Ok(report) = Store::repair(Arc::clone(&undisturbed), options) else { continue };
        if report.older_copies == 0 {
            continue;
        }
        repaired += 1;
        let whole = content(undisturbed);
        for after in 0..60 {
            let mut image = damaged.snapshot();
            for _ in 0..6 {
                let device = Arc::new(FaultyDevice::over(image));
                device.inject(Fault::PowerCut { after });
                cuts += u32::from(Store::repair(Arc::clone(&device), options).is_err());
                image = device.cut().image_with_all();
            }
            let image = Arc::new(image);
            Store::repair(Arc::clone(&image), options).unwrap();
            assert!(content(image) == whole, "block {block}, cuts after change {after}");
        }
    }
    assert!(repaired > 0 && cuts > 20, "{repaired}, {cuts}");
}

/// A read that fails once succeeds when repair retries it.
#[test]
fn a_transient_read_error_loses_nothing() {
    let options = busy(100_000, 45_000);
    for records in [Records::Fixed, Records::Large] {
        let (pristine, batches) = filled(records);
        let expected = without(&batches, |_| false);
        for after in (0..).step_by(7).take(60) {
            let device = Arc::new(FaultyDevice::over(pristine.snapshot()));
            device.inject(Fault::TransientReadError { after });
            match Store::repair(Arc::clone(&device), options) {
                Ok(report) => assert_eq!(report.lost, [], "{records:?}, read {after}"),
                // The superblocks are read before the node size is known, and these reads are not retried.
                Err(Error::Device(_)) => continue,
                Err(error) => panic!("{error}"),
            }
            let image = Arc::new(device.cut().image_with_all());
            assert_same(&open(image, options).snapshot(), &expected, "after a read that failed once");
        }
    }
}

/// Formatting does not erase old nodes. A repair must not recover records from them, if a superblock of the new map
/// remains.
#[test]
fn a_repair_with_a_superblock_ignores_an_older_map() {
    let options = busy(100_000, 45_000);
    let device = Arc::new(memory(128, 2, 14));
    for (map, keys, checkpoints) in [(1u8, 0..=250u8, 6), (2, 0..=49, 1)] {
        drop(Store::format(Arc::clone(&device), Some(512), map.into()).unwrap());
        let store = open(Arc::clone(&device), options);
        for _ in 0..checkpoints {
            keys.clone().for_each(|key| _ = store.put(&[key], &[map; 40]).unwrap());
            store.checkpoint().unwrap();
        }
    }
    let end = device.geometry().zone_blocks;
    let root = *inner_nodes(&device).last().unwrap();
    for lost in [vec![root], vec![0, 1, end - 2, end - 1]] {
        let image = Arc::new(device.snapshot());
        for block in &lost {
            image.write(Block(*block), &[0; 512]).unwrap();
        }
        let report = Store::repair(Arc::clone(&image), options).unwrap();
        let rows = content(image);
        // Without a superblock the first generation of the map is unknown, so records of the old map may be recovered;
        // the map's own records must be.
        let own = rows.iter().filter(|(key, _)| key[0] < 50);
        assert!(own.clone().count() == 50 && own.clone().all(|(_, value)| value[0] == 2), "{report:?}");
        assert!(report.superblock_lost || rows.len() == 50, "{report:?}");
    }
}

fn content(device: Arc<MemoryDevice>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let store = open(device, busy(100_000, 45_000));
    rows(&store.snapshot(), KeyRange::ALL, Direction::Ascending)
}

/// A repair that is interrupted by a power cut or a device error at any point can be run again.
#[test]
fn an_interrupted_repair_can_be_repeated() {
    let options = busy(100_000, 45_000);
    for records in [Records::Fixed, Records::Large] {
        let (pristine, _) = filled(records);
        let nodes = inner_nodes(&pristine);
        let mut with_copies = 0;
        for block in nodes.iter().rev().take(6) {
            let damaged = pristine.snapshot();
            damaged.flip_bit(Block(*block), 8 * 60).unwrap();
            if Store::check(Arc::new(damaged.snapshot())).is_ok_and(|report| report.problems.is_empty()) {
                continue;
            }
            let device = Arc::new(FaultyDevice::over(damaged.snapshot()));
            let report = Store::repair(Arc::clone(&device), options).unwrap();
            with_copies += usize::from(report.older_copies > 0);
            let changes = device.changes();
            let whole = content(Arc::new(device.cut().image_with_all()));
            for after in 0..changes {
                let device = Arc::new(FaultyDevice::over(damaged.snapshot()));
                device.inject(Fault::PowerCut { after });
                assert!(Store::repair(Arc::clone(&device), options).is_err());
                for image in [device.cut().image_with_all(), device.cut().image_with_none()] {
                    let image = Arc::new(image);
                    Store::repair(Arc::clone(&image), options).unwrap();
                    let again = content(image);
                    assert!(
                        again == whole,
                        "{records:?}: block {block}, cut after change {after} of {changes}"
                    );
                }
            }
        }
        assert!(with_copies > 0, "{records:?}: no repair used older copies");
    }
}
