//! Damages the batches that a killed process wrote with relaxed durability. A flipped bit is reported or harmless; a power cut leaves a prefix of the
//! batches.
//!
//! Source: the promise for `Durability::Relaxed`.

use longma_random::SplitMix64;
use longma_zoned_runs::device::{Counted, FileDevice, Geometry, ZonedDevice};
use longma_zoned_runs::{Batch, Durability, Error, Options, Store};
use proptest::prelude::*;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const BATCHES: u32 = 40;
/// The unit in which a power cut loses data, bytes.
const SECTOR_BYTES: u64 = 512;

const OPTIONS: Options =
    Options { durability: Durability::Relaxed, cache_bytes: 1 << 20, write_buffer_bytes: 4 << 20 };

/// Zones of 512 KiB.
fn geometry(block_bytes: u32) -> Geometry {
    let zone_blocks = (512 << 10) / u64::from(block_bytes);
    Geometry {
        block_bytes,
        zone_blocks,
        zone_capacity_blocks: zone_blocks,
        conventional_zones: 2,
        sequential_zones: 24,
        max_open_zones: 0,
        max_active_zones: 0,
    }
}

fn value(number: u32) -> Vec<u8> {
    let byte = if number.is_multiple_of(7) { 0 } else { number as u8 | 1 };
    vec![byte; [20, 300, 1500, 6000][number as usize % 4]]
}

/// Batch `number` replaces the value of the key `last`, and adds a new key.
fn batch(number: u32) -> Batch {
    let mut batch = Batch::new();
    batch.put(b"last", &number.to_be_bytes());
    batch.put(&number.to_be_bytes(), &value(number));
    batch
}

/// The file of a map whose process was killed.
struct Killed {
    _folder: tempfile::TempDir,
    path: PathBuf,
    file: File,
    /// The part of the file that was written after the last flush, bytes.
    tail: Range<u64>,
}

impl Killed {
    fn new(block_bytes: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (device, path) = (folder.path().join("device"), folder.path().join("image"));
        let map = Counted::new(FileDevice::create(&device, geometry(block_bytes), false).unwrap());
        let map = Store::open(Store::format(map, 1).unwrap(), OPTIONS).unwrap();
        map.put(b"durable", b"value").unwrap();
        map.sync().unwrap();
        // Finishing a zone makes everything durable, too.
        let flushes =
            |map: &Store<Counted<FileDevice>>| map.device().counts().flushes + map.device().counts().finishes;
        let end = |map: &Store<Counted<FileDevice>>| {
            let zones = map.device().zones().unwrap();
            zones
                .iter()
                .find(|zone| zone.write_pointer > 0)
                .map(|log| log.start.0 + log.write_pointer)
                .unwrap()
        };
        let (before, flushed) = (end(&map), flushes(&map));
        (0..BATCHES).for_each(|number| map.apply(&batch(number)).unwrap());
        assert_eq!(flushes(&map), flushed, "all of it may be lost");
        std::fs::copy(&device, &path).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let all = geometry(block_bytes).blocks() * u64::from(block_bytes);
        // The zones begin at a multiple of 1 MiB. All other parts of the file have only a few pages.
        let zones = (file.metadata().unwrap().len() - all) >> 20 << 20;
        let place = |block: u64| zones + block * u64::from(block_bytes);
        let tail = place(before)..place(end(&map));
        Self { _folder: folder, path, file, tail }
    }

    fn sectors(&self) -> impl Iterator<Item = u64> + use<> {
        self.tail.clone().step_by(SECTOR_BYTES as usize)
    }

    fn flip(&self, bit: u64) {
        let mut byte = [0];
        self.file.read_exact_at(&mut byte, bit / 8).unwrap();
        self.file.write_all_at(&[byte[0] ^ 1 << (bit % 8)], bit / 8).unwrap();
    }
}

fn open(path: &Path) -> Result<Store<FileDevice>, Error> {
    Store::open_read_only(FileDevice::open_read_only(path)?, OPTIONS)
}

/// The number of the last batch in the map, after checking that the map contains all earlier batches and none of the
/// later ones.
fn last_batch(map: &Store<FileDevice>) -> Option<u32> {
    assert_eq!(map.get(b"durable").unwrap().as_deref(), Some(&b"value"[..]));
    let last = map.get(b"last").unwrap().map(|bytes| u32::from_be_bytes(bytes.try_into().unwrap()));
    for number in 0..BATCHES {
        let expected = last.is_some_and(|last| number <= last).then(|| value(number));
        assert_eq!(map.get(&number.to_be_bytes()).unwrap(), expected, "batch {number} of {last:?}");
    }
    last
}

/// Checks that damage is reported by opening and by a repair, or has no effect. Returns whether it was reported.
fn is_reported(path: &Path, what: &str) -> bool {
    let checked = Store::check_device(FileDevice::open_read_only(path).unwrap(), OPTIONS).unwrap();
    let lost = match open(path) {
        Ok(map) => {
            assert_eq!(last_batch(&map), Some(BATCHES - 1), "{what}");
            assert_eq!(checked.problems, [], "{what}");
            return false;
        }
        Err(Error::LogDamaged { lost, .. }) => lost,
        Err(error) => panic!("{what}: {error}"),
    };
    assert_eq!(checked.problems.len(), lost.len(), "{what}");
    let copy = path.with_extension("copy");
    std::fs::copy(path, &copy).unwrap();
    let (device, _) = FileDevice::open_to_repair(&copy).unwrap();
    let report = Store::repair(device, OPTIONS).unwrap();
    assert_eq!(report.lost_batches, lost, "{what}");
    let map = open(&copy).unwrap();
    // Only batch 1 is durable.
    let is_lost =
        |number: u64| lost.iter().any(|lost| (lost.first..=lost.last.unwrap_or(u64::MAX)).contains(&number));
    let kept: Vec<u32> = (0..BATCHES).filter(|&number| !is_lost(u64::from(number) + 2)).collect();
    assert!(kept.len() as u32 + 1 >= BATCHES, "{what}: one batch is damaged: {lost:?}");
    for &number in &kept {
        assert_eq!(map.get(&number.to_be_bytes()).unwrap(), Some(value(number)), "{what}: batch {number}");
    }
    let last = map.get(b"last").unwrap();
    assert_eq!(last.as_deref(), kept.last().map(|last| last.to_be_bytes()).as_ref().map(|last| &last[..]));
    true
}

#[test]
fn a_flipped_bit_after_a_kill_is_reported_or_harmless() {
    for block_bytes in [512, 4096] {
        let killed = Killed::new(block_bytes);
        assert_eq!(last_batch(&open(&killed.path).unwrap()), Some(BATCHES - 1));
        let mut rng = SplitMix64::new(u64::from(block_bytes));
        let (mut reported, mut harmless) = (0, 0);
        for sector in killed.sectors() {
            // Often choose the front of a sector, which may be a header.
            let bits = if rng.next_u64().is_multiple_of(2) { 60 * 8 } else { SECTOR_BYTES * 8 };
            let bit = sector * 8 + rng.next_u64() % bits;
            killed.flip(bit);
            let what =
                format!("bit {} of byte {} after the last flush", bit % 8, bit / 8 - killed.tail.start);
            if is_reported(&killed.path, &what) {
                reported += 1
            } else {
                harmless += 1
            }
            killed.flip(bit);
        }
        // A batch takes whole pages, whose end is not used.
        assert!(reported > 100, "{reported} reported, {harmless} harmless");
        assert_eq!(last_batch(&open(&killed.path).unwrap()), Some(BATCHES - 1));
    }
}

#[test]
fn an_error_for_a_damaged_log_names_what_is_lost() {
    let killed = Killed::new(4096);
    // The first batch takes one page, and the second begins in the next one.
    killed.flip((killed.tail.start + 4096 + 70) * 8);
    let error = open(&killed.path).map(|_| ()).unwrap_err().to_string();
    let expected =
        ["not the effect of a power cut", "Lost: batch 3;", "40 batches of the log are intact", "repair"];
    expected.iter().for_each(|part| assert!(error.contains(part), "{part} in {error}"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Any subset of the sectors that were not flushed before the power failed reads as zeros.
    #[test]
    fn a_power_cut_that_loses_any_sectors_leaves_a_prefix_of_the_batches(
        is_small in any::<bool>(), seed in any::<u64>(), percent in prop::sample::select(vec![1, 10, 50, 95, 100]),
        unit in prop::sample::select(vec![1u64, 8]),
    ) {
        let killed = Killed::new(if is_small { 512 } else { 4096 });
        for (index, sector) in killed.sectors().enumerate() {
            // A page is lost as a whole, or sector by sector.
            let chance = SplitMix64::new(seed ^ (index as u64 / unit)).next_u64() % 100;
            if chance < percent {
                killed.file.write_all_at(&[0; SECTOR_BYTES as usize], sector).unwrap();
            }
        }
        let last = last_batch(&open(&killed.path).unwrap());
        let map = Store::open(FileDevice::open(&killed.path).unwrap(), OPTIONS).unwrap();
        prop_assert_eq!(last_batch(&map), last);
        map.put(b"after", b"value").unwrap();
        map.close().unwrap();
        prop_assert_eq!(last_batch(&open(&killed.path).unwrap()), last);
    }
}
