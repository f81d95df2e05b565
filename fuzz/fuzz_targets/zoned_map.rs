//! A map whose nodes, journal, space tables and superblocks say anything, with right checksums: opening, checking and reading it ends with
//! a result, never a panic or a hang.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_zoned::device::{Block, Geometry, MemoryDevice, ZoneNumber};
use longma_zoned::node::{HEADER_BYTES, Header, InnerRecord, Kind, Page};
use longma_zoned::{Direction, KeyRange, Options, Store, ZonedDevice};
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

const BLOCK: usize = 512;

fn pristine() -> &'static MemoryDevice {
    static DEVICE: OnceLock<MemoryDevice> = OnceLock::new();
    DEVICE.get_or_init(|| {
        let geometry = Geometry {
            block_bytes: BLOCK as u32,
            zone_blocks: 64,
            zone_capacity_blocks: 60,
            conventional_zones: 1,
            sequential_zones: 8,
            max_open_zones: 0,
            max_active_zones: 0,
        };
        let device = Arc::new(MemoryDevice::new(geometry).expect("a possible geometry"));
        let device = Store::format(device, Some(512), 1).expect("room enough");
        let store = Store::open(Arc::clone(&device), Options::default()).expect("a new map");
        for key in 0..1000u64 {
            store.put(&key.to_be_bytes(), &key.to_le_bytes()).expect("room enough");
        }
        store.put(b"large", &[1; 2000]).expect("room enough");
        store.checkpoint().expect("room enough");
        store.put(b"in the journal", b"only").expect("room enough");
        device.snapshot()
    })
}

/// Overwrites or appends a block with what the input says, sealed.
fn patch(device: &MemoryDevice, input: &[u8]) {
    let kinds = [Kind::Leaf, Kind::Inner, Kind::Journal, Kind::Superblock, Kind::SpaceTable, Kind::Extent];
    let kind = kinds[usize::from(input[0]) % kinds.len()];
    let block = u64::from(input[1] % 64);
    let small = [2, 4, 6].map(|at| u16::from_le_bytes([input[at], input[at + 1]]));
    let generation = u64::from(input[8]);
    let mut node = [0; BLOCK];
    let journal = device.zone(ZoneNumber(1)).expect("it is there");
    let appended = input[9] % 4 == 0 && journal.room_blocks() > 0;
    let block = if appended { journal.start.0 + journal.write_pointer } else { block };
    // What is there stays where the input says nothing.
    let _ = device.read(Block(block), &mut node);
    for (byte, new) in node[HEADER_BYTES..].iter_mut().zip(&input[10..]) {
        *byte = *new;
    }
    let bytes = (BLOCK - HEADER_BYTES) as u32;
    Header { kind, block, generation, bytes, small, word: u32::from(input[8]) }.seal(&mut node);
    let _ = Page::decode(&node, block);
    let _ = InnerRecord::decode(&node, block);
    let _ = if appended { device.append(ZoneNumber(1), &node).map(|_| ()) } else { device.write(Block(block), &node) };
}

fuzz_target!(|input: &[u8]| {
    let device = Arc::new(pristine().snapshot());
    for part in input.chunks(96).filter(|part| part.len() >= 10) {
        patch(&device, part);
    }
    let _ = Store::check(Arc::clone(&device));
    if let Ok(store) = Store::open(Arc::clone(&device), Options::default()) {
        for direction in [Direction::Ascending, Direction::Descending] {
            let _ = store.scan(KeyRange::ALL, direction, &mut |_, _| ControlFlow::Continue(()));
        }
        let _ = store.put(&7u64.to_be_bytes(), b"new");
        let _ = store.delete(&9u64.to_be_bytes());
        let _ = store.checkpoint();
    }
});
