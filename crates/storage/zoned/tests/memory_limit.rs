//! The memory of a map is bounded by the cache size and 64 MiB, whatever the load. Each load runs in its own process, in a
//! control group with that limit, page cache included, if this process can make one. The peak memory of the process
//! (ru_maxrss, getrusage(2)) must be within the limit too; the page cache is not part of it.

#[path = "support/control_group.rs"]
mod control_group;

use control_group::ControlGroup;
use longma_zoned::device::{FileDevice, Geometry};
use longma_zoned::{Batch, Durability, Options, Store};
use longma_zoned_lab::ycsb::Rng;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The memory that a map may take in addition to its cache, bytes.
const BESIDES_BYTES: u64 = 64 << 20;

/// The number of records: LONGMA_ZONED_MEMORY_RECORDS, by default a million.
fn records() -> u64 {
    let number = std::env::var("LONGMA_ZONED_MEMORY_RECORDS").ok().and_then(|text| text.parse().ok());
    number.unwrap_or(1_000_000)
}

/// A map and its settings.
#[derive(Clone, Copy)]
struct Setting {
    block_bytes: u32,
    cache_bytes: u64,
    durability: Durability,
}

const LARGE: Setting = Setting { block_bytes: 4096, cache_bytes: 32 << 20, durability: Durability::Relaxed };

/// The leaves are so small, and the keys so long, that the references to the leaves take more memory than the limit.
const SMALL_LEAVES: Setting =
    Setting { block_bytes: 512, cache_bytes: 8 << 20, durability: Durability::Relaxed };

impl Setting {
    fn geometry(self) -> Geometry {
        Geometry {
            block_bytes: self.block_bytes,
            zone_blocks: 2048,
            zone_capacity_blocks: 2048,
            conventional_zones: 8,
            // Three times the space of the records.
            sequential_zones: (160.max(records() / 15_000) * 4096 / u64::from(self.block_bytes)) as u32,
            max_open_zones: 0,
            max_active_zones: 0,
        }
    }

    fn options(self) -> Options {
        Options { durability: self.durability, ..Options::with_cache(self.cache_bytes) }
    }
}

fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Puts the keys `numbers` in batches of 1000.
fn put(map: &Store<FileDevice>, numbers: impl Iterator<Item = u64>) {
    let mut batch = Batch::new();
    for number in numbers {
        batch.put(&key(number), &[number as u8; 100]);
        if batch.len() == 1000 {
            map.apply(&batch).unwrap();
            batch.clear();
        }
    }
    map.apply(&batch).unwrap();
}

/// Runs `load` in its own process and asserts that it stays within the limit.
fn within_the_limit(test: &str, setting: Setting, load: impl FnOnce(Store<FileDevice>, &Path)) {
    const PATH: &str = "LONGMA_ZONED_MEMORY_TEST";
    if let Some(path) = std::env::var_os(PATH) {
        let path = PathBuf::from(path);
        let device = FileDevice::create(&path, setting.geometry(), false).unwrap();
        let map =
            Store::open(Store::format(device, Some(setting.block_bytes), 1).unwrap(), setting.options())
                .unwrap();
        return load(map, &path);
    }
    // The file is not in a memory file system, which would count too.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let limit = setting.cache_bytes + BESIDES_BYTES;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(PATH, folder.path().join("device"));
    let group = ControlGroup::new(test, limit);
    match &group {
        Ok(group) => group.hold(&mut command),
        Err(why) => println!("{test}: skipped the control group: {why}"),
    }
    let mut child = command.spawn().unwrap();
    let mut status = 0;
    // SAFETY: all zeros is a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let process = child.id() as libc::pid_t;
    // SAFETY: the process is a child that nothing else waits for, and both pointers are valid.
    assert_eq!(unsafe { libc::wait4(process, &raw mut status, 0, &raw mut usage) }, process);
    let _ = child.try_wait();
    let peak = usage.ru_maxrss as u64 * 1024;
    println!("{test}: {} MiB of {} MiB", peak >> 20, limit >> 20);
    assert_eq!(status, 0, "the load failed, or was killed for lack of memory");
    assert!(peak <= limit, "{} MiB of memory instead of at most {} MiB", peak >> 20, limit >> 20);
}

/// Prints the memory in use after a step.
fn report(map: &Store<FileDevice>, step: &str) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap_or("").to_owned();
    let nodes = map.statistics().resident_bytes >> 20;
    println!("{step}: nodes {nodes} MiB, {}, {}", line("VmRSS"), line("VmHWM"));
}

#[test]
fn synced_inserts_in_random_order_stay_within_the_limit() {
    let test = "synced_inserts_in_random_order_stay_within_the_limit";
    within_the_limit(test, Setting { durability: Durability::EachBatch, ..LARGE }, |map, _| {
        for part in 0..5 {
            put(&map, part * records() / 5..(part + 1) * records() / 5);
            report(&map, "inserted");
        }
        map.close().unwrap();
    });
}

#[test]
fn reads_beside_snapshots_and_iterators_stay_within_the_limit() {
    let test = "reads_beside_snapshots_and_iterators_stay_within_the_limit";
    within_the_limit(test, LARGE, |map, _| {
        map.load((0..records()).map(|number| (number.to_be_bytes(), [1; 100]))).unwrap();
        report(&map, "loaded");
        let mut rng = Rng::new(1);
        let snapshot = map.snapshot();
        let mut scans: Vec<_> = (0..8)
            .map(|part| {
                let mut rows = snapshot.iter();
                rows.seek(&(part * records() / 8).to_be_bytes());
                rows
            })
            .collect();
        let newer: Vec<_> = (0..10)
            .map(|_| {
                let mut batch = Batch::new();
                for _ in 0..5_000 {
                    batch.put(&rng.below(records()).to_be_bytes(), &[2; 100]);
                }
                map.apply(&batch).unwrap();
                let mut rows = map.iter();
                for _ in 0..20_000 {
                    assert!(map.get(&rng.below(records()).to_be_bytes()).unwrap().is_some());
                    assert!(rows.next_back().unwrap().is_ok());
                }
                for scan in &mut scans {
                    assert!((0..2_500).all(|_| scan.next().unwrap().unwrap().value() == [1; 100]));
                }
                report(&map, "updated and read");
                rows
            })
            .collect();
        drop(newer);
    });
}

#[test]
fn opening_after_a_kill_stays_within_the_limit() {
    within_the_limit("opening_after_a_kill_stays_within_the_limit", LARGE, |map, path| {
        put(&map, 0..records() / 4);
        report(&map, "inserted");
        let image = path.with_extension("image");
        std::fs::copy(path, &image).unwrap();
        drop(map);
        let map = Store::open(FileDevice::open(&image).unwrap(), LARGE.options()).unwrap();
        assert_eq!(map.len(), records() / 4);
        report(&map, "opened");
    });
}

#[test]
fn an_index_larger_than_the_cache_stays_within_the_limit() {
    let test = "an_index_larger_than_the_cache_stays_within_the_limit";
    within_the_limit(test, SMALL_LEAVES, |map, _| {
        let all = records();
        let key = |number: u64| {
            let mut key = [7; 56];
            key[..8].copy_from_slice(&number.to_be_bytes());
            key
        };
        for part in 0..30 {
            let numbers = part * all / 30..(part + 1) * all / 30;
            map.load(numbers.map(|number| (key(number), [1; 160]))).unwrap();
        }
        report(&map, "loaded");
        let mut rng = Rng::new(1);
        let mut read = |count: u64| {
            for _ in 0..count {
                assert!(map.get(&key(rng.below(all))).unwrap().is_some());
            }
        };
        read(all / 30);
        report(&map, "read at random");
        let snapshot = map.snapshot();
        let mut rng = Rng::new(2);
        for _ in 0..10 {
            let mut batch = Batch::new();
            for _ in 0..1000 {
                batch.put(&key(rng.below(all)), &[2; 160]);
            }
            map.apply(&batch).unwrap();
        }
        report(&map, "updated");
        assert_eq!(
            snapshot.iter().filter(|row| row.as_ref().unwrap().value() == [1; 160]).count() as u64,
            all
        );
        report(&map, "scanned the snapshot");
        drop(snapshot);
        assert_eq!(map.iter().rev().map(Result::unwrap).count() as u64, all);
        read(all / 30);
        report(&map, "scanned and read");
        map.close().unwrap();
    });
}
