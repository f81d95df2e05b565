//! Memory is bounded by the cache and the write buffer, regardless of the size of the data.
//!
//! Source: proc(5), RssAnon. It is the only test of its program, so that no other test uses memory.

use longma_random::SplitMix64;
use longma_zoned_runs::device::{FileDevice, Geometry};
use longma_zoned_runs::{Batch, Durability, Options, Store};

const MIB: u64 = 1 << 20;

/// Anonymous memory of the process, bytes.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

#[test]
fn memory_is_bounded_by_the_cache_and_the_write_buffer() {
    const RECORDS: u64 = 600_000;
    let folder = tempfile::tempdir().unwrap();
    let device =
        FileDevice::create(&folder.path().join("device"), Geometry::with_capacity(512 * MIB), false).unwrap();
    let options =
        Options { cache_bytes: 4 * MIB, write_buffer_bytes: 8 * MIB, durability: Durability::Relaxed };
    let store = Store::open(Store::format(device, 7).unwrap(), options).unwrap();
    let (before, mut most) = (memory(), 0);
    let key = |number: u64| [SplitMix64::new(number).next_u64().to_be_bytes(), number.to_be_bytes()].concat();
    for start in (0..RECORDS).step_by(1000) {
        let mut batch = Batch::new();
        (start..start + 1000).for_each(|number| batch.put(&key(number), &[1; 100]));
        store.apply(&batch).unwrap();
        for number in 0..50 {
            assert!(store.contains_key(&key((start + number * 7_919) % (start + 1))).unwrap());
        }
        most = most.max(memory().saturating_sub(before));
    }
    assert_eq!(store.iter().map(Result::unwrap).count() as u64, RECORDS);
    most = most.max(memory().saturating_sub(before));
    // 70 MB of records. The promise is 64 MiB beside the cache and the write buffer; a third of that suffices.
    assert!(most < (4 + 8 + 20) * MIB, "{most} bytes");
    assert!(most > 2 * MIB, "{most} bytes");
}
