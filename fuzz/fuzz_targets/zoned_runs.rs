//! Decodes random bytes as a block, an index, a manifest and a batch of a map of sorted runs, as if their checksum were correct, and opens a device
//! with a damaged block. No operation may panic, and no answer may be wrong.

#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_zoned_runs::device::{Block, Geometry, MemoryDevice};
use longma_zoned_runs::{Batch, Options, Store};
use std::sync::{Arc, OnceLock};

const GEOMETRY: Geometry = Geometry {
    block_bytes: 4096,
    zone_blocks: 32,
    zone_capacity_blocks: 32,
    conventional_zones: 1,
    sequential_zones: 24,
    max_open_zones: 0,
    max_active_zones: 0,
};

/// A device with a run and a log.
fn filled() -> &'static MemoryDevice {
    static DEVICE: OnceLock<MemoryDevice> = OnceLock::new();
    DEVICE.get_or_init(|| {
        let device = Arc::new(Store::format(MemoryDevice::new(GEOMETRY).unwrap(), 1).unwrap());
        let store = Store::open(Arc::clone(&device), Options::with_cache(1 << 20)).unwrap();
        for part in 0..2u8 {
            let mut batch = Batch::new();
            (0..100u8).for_each(|number| batch.put(&[number, part], &[number; 40]));
            store.apply(&batch).unwrap();
            if part == 0 {
                store.flush().unwrap();
            }
        }
        device.snapshot()
    })
}

fuzz_target!(|input: &[u8]| {
    longma_zoned_runs::testing::decode(input, &GEOMETRY, &input[..input.len().min(3)]);
    let device = filled().snapshot();
    // More could hit both copies of a manifest and the log that it names.
    for flip in input.chunks_exact(4).take(2) {
        let block = u64::from(flip[0]) * 4 % GEOMETRY.blocks() + u64::from(flip[1] % 4);
        let _ = device.flip_bit(Block(block), u64::from(u16::from_le_bytes([flip[2], flip[3]])));
    }
    let Ok(store) = Store::open(device, Options::with_cache(1 << 20)) else { return };
    for number in 0..100u8 {
        for part in 0..2u8 {
            if let Ok(found) = store.get(&[number, part]) {
                assert_eq!(found.as_deref(), Some(&[number; 40][..]), "a wrong answer");
            }
        }
    }
});
