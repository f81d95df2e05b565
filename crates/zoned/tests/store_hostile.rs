//! A device that says anything, with right checksums, is refused or read: nothing panics, hangs or takes memory without end.
//! Not faults of an honest device: see `store_faults`. The fuzz target `zoned_map` does the same for longer.
//! Source: our own.

mod support;

use longma_zoned::device::{Block, MemoryDevice, ZoneNumber};
use longma_zoned::node::{HEADER_BYTES, Header, Kind};
use longma_zoned::ycsb::Chance;
use longma_zoned::{Direction, KeyRange, Store, ZonedDevice};
use std::ops::ControlFlow;
use std::sync::Arc;
use support::{busy, campaign, memory, open};

const KINDS: [Kind; 6] =
    [Kind::Leaf, Kind::Inner, Kind::Journal, Kind::Superblock, Kind::SpaceTable, Kind::Extent];

fn map() -> MemoryDevice {
    let device = Store::format(Arc::new(memory(64, 1, 8)), Some(512), 1).unwrap();
    let store = open(Arc::clone(&device), busy(100_000, 100_000));
    for key in 0..400u64 {
        store.put(&key.to_be_bytes(), &key.to_le_bytes()).unwrap();
    }
    store.put(b"large", &[1; 2000]).unwrap();
    store.checkpoint().unwrap();
    store.put(b"in the journal", b"only").unwrap();
    device.snapshot()
}

/// Changes some bytes of a block that is in use, or appends one to the journal, and makes its checksum right again.
fn damage(device: &MemoryDevice, chance: &mut Chance) {
    let (mut node, mut block) = ([0; 512], chance.below(60));
    let journal = device.zone(ZoneNumber(1)).unwrap();
    let appended = chance.below(4) == 0 && journal.room_blocks() > 0;
    device.read(Block(block), &mut node).unwrap();
    if appended {
        let last = journal.start.0 + journal.write_pointer - 1;
        device.read(Block(last), &mut node).unwrap();
        block = last + 1;
    }
    let Some(header) = KINDS.into_iter().find_map(|kind| Header::peek(&node, kind).ok()) else { return };
    let mut header = Header { block, bytes: header.bytes.min(472), ..header };
    if appended && header.kind == Kind::Journal {
        header.generation = header.generation.wrapping_add(1);
    }
    for _ in 0..chance.below(6) {
        let value = [0, 1, 2, 0xFF, chance.number() as u8][chance.below(5) as usize];
        node[HEADER_BYTES + chance.below(160) as usize] = value;
    }
    match chance.below(8) {
        0 => header.small[chance.below(3) as usize] = chance.below(70) as u16,
        1 => header.word = chance.below(600) as u32,
        2 => header.bytes = chance.below(473) as u32,
        3 => header.generation = [0, 1, 2, u64::MAX][chance.below(4) as usize],
        4 => header.kind = KINDS[chance.below(6) as usize],
        _ => {}
    }
    header.seal(&mut node);
    if appended {
        device.append(ZoneNumber(1), &node).unwrap();
    } else {
        device.write(Block(block), &node).unwrap();
    }
}

#[test]
fn a_map_that_says_anything_is_refused_or_read() {
    let pristine = map();
    let (mut opened, mut refused) = (0, 0);
    for seed in 0..campaign("LONGMA_ZONED_HOSTILE", 3_000) {
        let (device, mut chance) = (Arc::new(pristine.snapshot()), Chance::new(seed));
        for _ in 0..=chance.below(4) {
            damage(&device, &mut chance);
        }
        let _ = Store::check(Arc::clone(&device));
        let Ok(store) = Store::open(device, busy(20_000, 20_000)) else {
            refused += 1;
            continue;
        };
        opened += 1;
        for direction in [Direction::Ascending, Direction::Descending] {
            let _ = store.scan(KeyRange::ALL, direction, &mut |_, _| ControlFlow::Continue(()));
        }
        for key in 0..20u64 {
            let _ = store.put(&(key * 19).to_be_bytes(), b"new");
            let _ = store.delete(&(key * 17).to_be_bytes());
        }
        let _ = store.checkpoint();
    }
    assert!(opened > 100 && refused > 100, "{opened} opened, {refused} refused");
}
