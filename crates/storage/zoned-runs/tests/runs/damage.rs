//! A damaged block is an error, never a wrong answer and never a panic.

use crate::support::{Model, batch, busy, geometry, open};
use longma_random::SplitMix64;
use longma_zoned_runs::device::{Block, Fault, FaultyDevice, MemoryDevice, ZonedDevice};
use longma_zoned_runs::{Durability, Error, Options, Store};
use std::sync::Arc;

fn filled(close: bool) -> (Arc<MemoryDevice>, Model) {
    let device = Arc::new(Store::format(MemoryDevice::new(geometry(40)).unwrap(), 7).unwrap());
    let store = open(Arc::clone(&device), busy(60_000));
    let (mut rng, mut model) = (SplitMix64::new(5), Model::new());
    for _ in 0..200 {
        store.apply(&batch(&mut rng, 600, 12, 10, &mut model)).unwrap();
    }
    if close {
        store.close().unwrap();
    }
    (device, model)
}

/// Reads everything. Returns whether an error was reported; a wrong answer fails the test.
fn read_all(device: Arc<MemoryDevice>, model: &Model, what: &str) -> bool {
    let store = match Store::open(device, busy(60_000)) {
        Ok(store) => store,
        Err(
            Error::Damaged { .. }
            | Error::LogDamaged { .. }
            | Error::NotFormatted { .. }
            | Error::Unsuitable { .. }
            | Error::Stopped { .. },
        ) => {
            return true;
        }
        Err(error) => panic!("{what}: {error}"),
    };
    let mut failed = false;
    for (key, value) in model {
        match store.get(key) {
            Ok(found) => assert_eq!(found.as_ref(), Some(value), "{what}"),
            Err(Error::Damaged { .. }) => failed = true,
            Err(error) => panic!("{what}: {error}"),
        }
    }
    let mut expected = model.iter();
    for row in store.iter() {
        match row {
            Ok(row) => assert_eq!(expected.next(), Some((&row.0, &row.1)), "{what}"),
            Err(_) => {
                failed = true;
                break;
            }
        }
    }
    if !failed {
        assert_eq!(expected.next(), None, "{what}");
    }
    if failed {
        assert!(!store.check().unwrap().problems.is_empty(), "{what}: a check finds it too");
    }
    failed
}

#[test]
fn a_flipped_bit_anywhere_is_reported_or_harmless() {
    for close in [true, false] {
        let (pristine, model) = filled(close);
        let written: Vec<Block> = pristine
            .zones()
            .unwrap()
            .iter()
            .flat_map(|zone| {
                let blocks = if zone.number.0 < 2 { 64 } else { zone.write_pointer };
                (zone.start.0..zone.start.0 + blocks).map(Block)
            })
            .collect();
        let mut rng = SplitMix64::new(6);
        let mut reported = 0;
        for round in 0..250 {
            let image = Arc::new(pristine.snapshot());
            let block = written[(rng.next_u64() % written.len() as u64) as usize];
            // In every other round, flip a bit in the front of the block, where the header is.
            let bits = if round % 2 == 0 { 64 * 8 } else { 4096 * 8 };
            image.flip_bit(block, rng.next_u64() % bits).unwrap();
            reported +=
                u32::from(read_all(image, &model, &format!("closed {close}, round {round}, {block}")));
        }
        assert!(reported > 25, "{reported}");
    }
}

#[test]
fn a_zeroed_or_old_block_is_reported_or_harmless() {
    for close in [true, false] {
        let (pristine, model) = filled(close);
        for zone in pristine.zones().unwrap() {
            let blocks = if zone.number.0 < 2 { 64 } else { zone.write_pointer };
            for block in (zone.start.0..zone.start.0 + blocks).step_by(7) {
                let image = Arc::new(pristine.snapshot());
                for bit in 0..4096 * 8 {
                    if bit % 37 == 0 {
                        image.flip_bit(Block(block), bit).unwrap();
                    }
                }
                read_all(image, &model, &format!("closed {close}, block {block}"));
            }
        }
    }
}

/// Opening must not fall back to the state of an older manifest: the log zone of the newest manifest contains batches
/// after its first block.
#[test]
fn losing_the_newest_manifest_and_the_front_of_its_log_is_reported() {
    let device = Arc::new(Store::format(MemoryDevice::new(geometry(40)).unwrap(), 7).unwrap());
    let store = open(Arc::clone(&device), busy(1 << 20));
    let log =
        || device.zones().unwrap().into_iter().filter(|zone| zone.write_pointer > 0).collect::<Vec<_>>();
    let mut model = Model::new();
    let mut put = || {
        let (key, value) = (model.len().to_be_bytes().to_vec(), b"value".to_vec());
        store.put(&key, &value).unwrap();
        model.insert(key, value);
    };
    // Each batch takes a page, so that the first zone of the log is full.
    while log().len() < 2 {
        put();
    }
    put();
    put();
    // Closing would flush the log.
    let killed = Arc::new(device.snapshot());
    let second_zone = log()[1].start.0;
    // Two conventional zones of 64 blocks hold two copies of even and of odd manifests.
    let first = if Store::info(&killed).unwrap().generation.is_multiple_of(2) { 0 } else { 32 };
    let image = |lost: &[u64]| {
        let image = Arc::new(killed.snapshot());
        for (block, bit) in
            lost.iter().flat_map(|block| (0..4096 * 8).step_by(3).map(move |bit| (block, bit)))
        {
            image.flip_bit(Block(*block), bit).unwrap();
        }
        image
    };
    assert!(!read_all(image(&[]), &model, "intact"));
    assert!(read_all(image(&[second_zone]), &model, "the front of the log"));
    assert!(read_all(image(&[first, first + 64]), &model, "the newest manifest"));
    assert!(read_all(image(&[first, first + 64, second_zone]), &model, "both"));
}

#[test]
fn a_lost_torn_or_misdirected_write_is_reported_or_harmless() {
    let (mut reported, mut harmless) = (0, 0);
    for round in 0..120u64 {
        let device = Arc::new(FaultyDevice::new(geometry(40)).unwrap());
        let device = Store::format(device, 7).unwrap();
        let store = open(Arc::clone(&device), busy(60_000));
        let after = device.changes() + round * 5;
        device.inject(match round % 3 {
            0 => Fault::TornWrite { after, sectors: 0 },
            1 => Fault::TornWrite { after, sectors: 1 + round % 40 },
            _ => Fault::MisdirectedWrite { after, to: Block(round * 37 % (42 * 64)) },
        });
        let (mut rng, mut model) = (SplitMix64::new(round), Model::new());
        for _ in 0..200 {
            let mut attempted = model.clone();
            if store.apply(&batch(&mut rng, 600, 12, 10, &mut attempted)).is_err() {
                break;
            }
            model = attempted;
        }
        drop(store);
        device.clear_faults();
        let image = Arc::new(device.cut().image_with_all());
        if read_all(image, &model, &format!("round {round}")) { reported += 1 } else { harmless += 1 }
    }
    assert!(reported > 10 && harmless > 20, "{reported} reported, {harmless} harmless");
}

#[test]
fn a_wrong_header_at_the_end_of_a_zone_of_the_log_is_reported_although_the_next_zone_is_empty() {
    let device = Store::format(Arc::new(FaultyDevice::new(geometry(40)).unwrap()), 7).unwrap();
    let options = Options { durability: Durability::Relaxed, ..busy(8 << 20) };
    let store = open(Arc::clone(&device), options);
    let log =
        || device.zones().unwrap().into_iter().filter(|zone| zone.write_pointer > 0).collect::<Vec<_>>();
    // Each batch takes a page. The last batch is the first in a new zone, and a power cut loses it.
    let batches = (1..).find(|number: &u64| {
        store.put(&number.to_be_bytes(), b"value").unwrap();
        log().len() > 1
    });
    let kept = batches.unwrap() - 1;
    let last = log()[0].start.0 + kept - 1;
    drop(store);
    let image = |flipped: Option<u64>| {
        let image = device.cut().image_with_none();
        flipped.into_iter().for_each(|bit| image.flip_bit(Block(last), bit).unwrap());
        Store::open(image, options)
    };
    assert_eq!(image(None).unwrap().iter().count() as u64, kept);
    for bit in 0..44 * 8 {
        match image(Some(bit)).map(|_| ()) {
            Err(Error::LogDamaged { lost, .. }) => {
                assert_eq!((lost.len(), lost[0].first, lost[0].block), (1, kept, last), "bit {bit}");
            }
            other => panic!("bit {bit}: {other:?}"),
        }
    }
}

proptest::proptest! {
    /// Decoders reject meaningless bytes with a correct checksum, and do not panic.
    #[test]
    fn no_decoder_panics(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200), small in proptest::collection::vec(0u8..4, 0..60)) {
        longma_zoned_runs::testing::decode(&bytes, &geometry(16), b"key");
        longma_zoned_runs::testing::decode(&small, &geometry(16), &bytes);
    }
}
