//! Damages the batches that a killed process wrote with relaxed durability: bits flip, or a power cut loses some sectors. A flipped bit is reported
//! or harmless; a power cut leaves a prefix of the batches.
//!
//! Source: the promise for `Durability::Relaxed`.

use longma_zoned::device::{Counted, FileDevice, Geometry};
use longma_zoned::{Batch, Durability, Error, Options, Store};
use longma_zoned_lab::ycsb::Rng;
use proptest::prelude::*;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const BATCHES: u32 = 40;
/// The unit in which a power cut loses data, bytes.
const SECTOR_BYTES: u64 = 512;

const OPTIONS: Options =
    Options { durability: Durability::Relaxed, cache_bytes: 1 << 20, journal_bytes: 1 << 20 };

fn geometry(block_bytes: u32) -> Geometry {
    Geometry {
        block_bytes,
        zone_blocks: 256,
        zone_capacity_blocks: 240,
        conventional_zones: 2,
        sequential_zones: 12,
        max_open_zones: 0,
        max_active_zones: 0,
    }
}

/// Batch `number` replaces the value of the key `last`, and adds a new key. Some values are in blocks of their own, and
/// some contain sectors of zeros.
fn batch(number: u32) -> Batch {
    let mut batch = Batch::new();
    batch.put(b"last", &number.to_be_bytes());
    batch.put(&number.to_be_bytes(), &value(number));
    batch
}

fn value(number: u32) -> Vec<u8> {
    let byte = if number.is_multiple_of(7) { 0 } else { number as u8 | 1 };
    vec![byte; [20, 300, 1500, 6000][number as usize % 4]]
}

/// A map as a kill leaves it.
struct Killed {
    _folder: tempfile::TempDir,
    path: PathBuf,
    file: File,
    block_bytes: u32,
    /// Where the zones begin, bytes.
    zones: u64,
    /// The parts of the file that were written after the last flush, bytes.
    tail: Vec<Range<u64>>,
}

impl Killed {
    fn new(block_bytes: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (device, path) = (folder.path().join("device"), folder.path().join("image"));
        let map = Counted::new(FileDevice::create(&device, geometry(block_bytes), false).unwrap());
        let map = Store::open(Store::format(map, Some(block_bytes), 1).unwrap(), OPTIONS).unwrap();
        map.put(b"durable", b"value").unwrap();
        map.sync().unwrap();
        // Finishing a zone makes everything durable, too.
        let flushes =
            |map: &Store<Counted<FileDevice>>| map.device().counts().flushes + map.device().counts().finishes;
        let (before, flushed) = (pointers(&map), flushes(&map));
        for number in 0..BATCHES {
            map.apply(&batch(number)).unwrap();
        }
        let after = pointers(&map);
        assert_eq!(flushes(&map), flushed, "all of it may be lost");
        std::fs::copy(&device, &path).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let all = geometry(block_bytes).blocks() * u64::from(block_bytes);
        // The zones begin at a multiple of 1 MiB. All other parts of the file have only a few pages.
        let zones = (file.metadata().unwrap().len() - all) >> 20 << 20;
        let place = |block: u64| zones + block * u64::from(block_bytes);
        let tail: Vec<_> = before
            .iter()
            .zip(&after)
            .filter(|(before, after)| before < after)
            .map(|(&before, &after)| place(before)..place(after))
            .collect();
        assert!(tail.len() > 1, "a journal and large values");
        drop(map);
        Self { _folder: folder, path, file, block_bytes, zones, tail }
    }

    fn sectors(&self) -> Vec<u64> {
        self.tail.iter().cloned().flat_map(|part| part.step_by(SECTOR_BYTES as usize)).collect()
    }

    fn flip(&self, bit: u64) {
        let mut byte = [0];
        self.file.read_exact_at(&mut byte, bit / 8).unwrap();
        self.file.write_all_at(&[byte[0] ^ 1 << (bit % 8)], bit / 8).unwrap();
    }

    /// Runs `test` on a copy.
    fn copy<T>(&self, test: impl FnOnce(&Path) -> T) -> T {
        let copy = self.path.with_extension("copy");
        std::fs::copy(&self.path, &copy).unwrap();
        test(&copy)
    }
}

fn pointers(map: &Store<Counted<FileDevice>>) -> Vec<u64> {
    use longma_zoned::ZonedDevice;
    map.device().zones().unwrap().iter().map(|zone| zone.start.0 + zone.write_pointer).collect()
}

fn open(path: &Path) -> Result<Store<FileDevice>, Error> {
    Store::open_read_only(FileDevice::open_read_only(path)?, Options::default())
}

/// The number of the last batch in the map, after checking that all batches before it are there, and none after it.
fn last_batch(map: &Store<FileDevice>) -> Option<u32> {
    assert_eq!(map.get(b"durable").unwrap().as_deref(), Some(&b"value"[..]));
    let last = map.get(b"last").unwrap().map(|bytes| u32::from_be_bytes(bytes.try_into().unwrap()));
    for number in 0..BATCHES {
        let expected = last.is_some_and(|last| number <= last).then(|| value(number));
        assert_eq!(map.get(&number.to_be_bytes()).unwrap(), expected, "batch {number} of {last:?}");
    }
    last
}

/// Checks that damage is reported by opening, a check and a repair, or has no effect. Returns whether it was reported.
fn is_reported(path: &Path, what: &str) -> bool {
    let problems = Store::check(FileDevice::open_read_only(path).unwrap()).unwrap().problems;
    match open(path) {
        Ok(map) => {
            let wrong = |number: &u32| match map.get(&number.to_be_bytes()) {
                Ok(found) => {
                    assert_eq!(found, Some(value(*number)), "{what}: batch {number}");
                    false
                }
                Err(_) => true,
            };
            let damaged = (0..BATCHES).filter(wrong).count();
            let last = map.get(b"last").unwrap();
            assert_eq!(last.as_deref(), Some(&(BATCHES - 1).to_be_bytes()[..]), "{what}");
            assert_eq!(damaged > 0, !problems.is_empty(), "{what}: {damaged} values, {problems:?}");
            damaged > 0
        }
        Err(Error::JournalDamaged { lost, .. }) => {
            assert!(!problems.is_empty(), "{what}: a check finds it too");
            let (device, _) = FileDevice::open_to_repair(path).unwrap();
            let report = Store::repair(device, OPTIONS).unwrap();
            assert_eq!(report.lost_batches, lost, "{what}");
            let map = open(path).unwrap();
            // Batch 1 is the durable one.
            let is_lost = |number: u64| {
                lost.iter().any(|lost| (lost.first..=lost.last.unwrap_or(u64::MAX)).contains(&number))
            };
            for number in (0..BATCHES).filter(|&number| !is_lost(u64::from(number) + 2)) {
                assert_eq!(
                    map.get(&number.to_be_bytes()).unwrap(),
                    Some(value(number)),
                    "{what}: batch {number}"
                );
            }
            true
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

#[test]
fn a_flipped_bit_after_a_kill_is_reported_or_harmless() {
    for block_bytes in [512, 4096] {
        let killed = Killed::new(block_bytes);
        assert_eq!(last_batch(&open(&killed.path).unwrap()), Some(BATCHES - 1));
        let mut rng = Rng::new(u64::from(block_bytes));
        let (mut reported, mut harmless) = (0, 0);
        for sector in killed.sectors().into_iter().step_by(3) {
            // The front of a sector may be a header.
            for bits in [60 * 8, SECTOR_BYTES * 8] {
                let bit = sector * 8 + rng.next_u64() % bits;
                killed.flip(bit);
                let what = format!(
                    "bit {} of block {}",
                    bit % 8,
                    (sector - killed.zones) / u64::from(killed.block_bytes)
                );
                if killed.copy(|path| is_reported(path, &what)) {
                    reported += 1
                } else {
                    harmless += 1
                }
                killed.flip(bit);
            }
        }
        // The end of a last block is not used.
        assert!(reported > harmless / 2 && reported > 100, "{reported} reported, {harmless} harmless");
        assert_eq!(last_batch(&open(&killed.path).unwrap()), Some(BATCHES - 1));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// A power cut may lose any subset of the sectors. Lost sectors read as zeros.
    #[test]
    fn a_power_cut_that_loses_any_sectors_leaves_a_prefix_of_the_batches(
        is_small in any::<bool>(), seed in any::<u64>(), percent in prop::sample::select(vec![1, 10, 50, 95, 100]),
        unit in prop::sample::select(vec![1u64, 8]),
    ) {
        let killed = Killed::new(if is_small { 512 } else { 4096 });
        let mut rng = Rng::new(seed);
        for (index, sector) in killed.sectors().into_iter().enumerate() {
            // A page is lost as a whole, or sector by sector.
            let chance = Rng::new(seed ^ (index as u64 / unit)).next_u64() % 100;
            if chance < percent {
                killed.file.write_all_at(&[0; SECTOR_BYTES as usize], sector).unwrap();
            }
        }
        let last = last_batch(&open(&killed.path).unwrap());
        prop_assert!(Store::check(FileDevice::open_read_only(&killed.path).unwrap()).unwrap().problems.is_empty());
        let map = Store::open(FileDevice::open(&killed.path).unwrap(), OPTIONS).unwrap();
        prop_assert_eq!(last_batch(&map), last);
        // The map accepts changes.
        map.put(b"after", &[rng.next_u64() as u8 | 1; 700]).unwrap();
        drop(map);
        let map = open(&killed.path).unwrap();
        prop_assert_eq!(last_batch(&map), last);
        prop_assert!(map.get(b"after").unwrap().is_some());
    }
}
