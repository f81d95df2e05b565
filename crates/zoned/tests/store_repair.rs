//! A repaired map opens and checks well, holds all that could be read, and says of the rest that it is lost.
//! Not power cuts: nothing needs repair after one.
//! Source: our own.

mod support;

use longma_zoned::device::{Block, MemoryDevice, ZoneNumber};
use longma_zoned::store::RepairReport;
use longma_zoned::ycsb::Chance;
use longma_zoned::{Store, ZonedDevice};
use std::sync::Arc;
use support::{Model, Records, assert_same, batch, busy, memory, open};

fn filled(records: Records) -> (MemoryDevice, Model) {
    let device = Store::format(Arc::new(memory(128, 2, 14)), Some(512), 1).unwrap();
    let store = open(Arc::clone(&device), busy(50_000, 20_000));
    let (mut chance, mut model) = (Chance::new(5), Model::new());
    for _ in 0..60 {
        store.apply(&batch(&mut chance, records, 500, 24, 10, &mut model)).unwrap();
    }
    drop(store);
    (device.snapshot(), model)
}

fn is_lost(report: &RepairReport, key: &[u8]) -> bool {
    let ranges = report.lost.iter().chain(&report.lost_changes);
    let inside = |from: &[u8], to: Option<&[u8]>| key >= from && to.is_none_or(|to| key < to);
    ranges.into_iter().any(|lost| inside(&lost.from, lost.to.as_deref()))
        || report.lost_values.iter().any(|lost| lost == key)
}

#[test]
fn what_can_be_read_is_kept_and_what_cannot_is_listed() {
    for records in [Records::Fixed, Records::Large] {
        let (pristine, model) = filled(records);
        let (mut chance, mut losses) = (Chance::new(9), 0);
        for round in 0..150 {
            let image = Arc::new(pristine.snapshot());
            for _ in 0..=chance.below(3) {
                let zone = ZoneNumber(chance.below(6) as u32);
                let block = Block(image.geometry().start(zone).0 + chance.below(90));
                image.flip_bit(block, chance.below(512 * 8)).unwrap();
            }
            let report = Store::repair(Arc::clone(&image), busy(50_000, 20_000)).unwrap();
            assert_eq!(Store::check(Arc::clone(&image)).unwrap().problems, [], "round {round}");
            let store = open(image, busy(50_000, 20_000));
            assert_eq!(store.len(), report.keys, "round {round}");
            losses += u32::from(!report.lost.is_empty());
            // A torn journal takes the newest batches with it: then older values are right too.
            let complete = model
                .iter()
                .all(|(key, value)| store.get(key).unwrap().as_ref() == Some(value) || is_lost(&report, key));
            assert!(complete || journal_was_hit(&store, &model, &report), "round {round}: {report:?}");
            store.put(b"and on", b"it goes").unwrap();
        }
        assert!(losses > 5, "{losses}");
    }
}

/// Whether what differs is what the newest batches changed: a flipped bit in the journal ends it, like a torn record.
fn journal_was_hit<D: ZonedDevice>(store: &Store<D>, model: &Model, report: &RepairReport) -> bool {
    let wrong = |(key, value): &(&Vec<u8>, &Vec<u8>)| store.get(key).unwrap().as_ref() != Some(*value);
    let wrong = model.iter().filter(wrong).filter(|(key, _)| !is_lost(report, key)).count();
    wrong <= 24 * 20
}

#[test]
fn a_good_map_is_repaired_to_itself() {
    let (device, model) = filled(Records::Variable);
    let device = Arc::new(device);
    let report = Store::repair(Arc::clone(&device), busy(50_000, 20_000)).unwrap();
    assert_eq!(report, RepairReport { keys: model.len() as u64, ..RepairReport::default() });
    assert_same(&open(device, busy(50_000, 20_000)).snapshot(), &model, "repaired");
}

#[test]
fn a_map_without_superblocks_comes_back_from_its_leaves() {
    let device = Store::format(Arc::new(memory(128, 2, 14)), Some(512), 1).unwrap();
    let store = open(Arc::clone(&device), busy(50_000, 20_000));
    let model: Model = (0..2_000u64).map(|n| (n.to_be_bytes().to_vec(), n.to_le_bytes().to_vec())).collect();
    store.load(&model).unwrap();
    drop(store);
    for block in 0..4 {
        device.write(Block(block), &[0; 512]).unwrap();
    }
    assert!(Store::open(Arc::clone(&device), busy(50_000, 20_000)).is_err());
    let report = Store::repair(Arc::clone(&device), busy(50_000, 20_000)).unwrap();
    assert!(report.superblock_lost && report.older_copies == 2_000, "{report:?}");
    assert_same(&open(device, busy(50_000, 20_000)).snapshot(), &model, "from its leaves");
}
