//! Arbitrary device contents with valid checksums are rejected or read without a panic, an endless loop or unbounded
//! memory use. The fuzz target `zoned_map` runs longer tests of this kind.

use crate::support::{busy, campaign, memory, open};
use longma_zoned::device::{Block, MemoryDevice, ZoneNumber};
use longma_zoned::testing::{HEADER_BYTES, Header, InnerRecord, Kind, Pointer, checksum};
use longma_zoned::{Batch, Direction, Error, Store, ZonedDevice};
use longma_zoned_lab::ycsb::Rng;
use std::sync::Arc;

const KINDS: [Kind; 6] =
    [Kind::Leaf, Kind::Inner, Kind::Journal, Kind::Superblock, Kind::SpaceTable, Kind::Extent];

fn map() -> MemoryDevice {
    let device = Store::format(Arc::new(memory(64, 1, 8)), Some(512), 1).unwrap();
    let store = open(Arc::clone(&device), busy(100_000, 100_000));
    for key in 0..1000u64 {
        store.put(&key.to_be_bytes(), &key.to_le_bytes()).unwrap();
    }
    store.put(b"large", &[1; 2000]).unwrap();
    store.checkpoint().unwrap();
    store.put(b"in the journal", b"only").unwrap();
    device.snapshot()
}

/// Recomputes the checksums of a block, whatever its contents.
fn seal(node: &mut [u8; 512]) {
    let kind = KINDS.into_iter().find(|&kind| Header::peek(node, kind).is_ok());
    if kind == Some(Kind::Journal) {
        let sum = crc32c::crc32c(&node[8..72]);
        node[72..76].copy_from_slice(&sum.to_le_bytes());
    }
    let bytes = u32::from_le_bytes(node[32..36].try_into().unwrap()) as usize;
    let sum = crc32c::crc32c(&node[8..(HEADER_BYTES + bytes).min(512)]);
    node[4..8].copy_from_slice(&sum.to_le_bytes());
}

/// Writes a block of a conventional zone and updates the checksums in all pointers that lead to it, up to the
/// superblocks.
fn forge(device: &MemoryDevice, block: u64, node: &[u8; 512], levels: u32) {
    let (mut before, mut other) = ([0; 512], [0; 512]);
    device.read(Block(block), &mut before).unwrap();
    device.write(Block(block), node).unwrap();
    let (old, new) = (checksum(&before), checksum(node));
    if old == new || old == 0 || levels == 0 {
        return;
    }
    let conventional = u64::from(device.geometry().conventional_zones) * device.geometry().zone_blocks;
    for at in (0..conventional).filter(|&at| at != block) {
        device.read(Block(at), &mut other).unwrap();
        let Some(place) = (28..508).find(|&place| other[place..place + 4] == old.to_le_bytes()) else {
            continue;
        };
        other[place..place + 4].copy_from_slice(&new.to_le_bytes());
        seal(&mut other);
        forge(device, at, &other, levels - 1);
    }
}

/// Changes some bytes of a block in use, or of a copy appended to the journal, and recomputes its checksum.
fn damage(device: &MemoryDevice, rng: &mut Rng) {
    let (mut node, mut block) = ([0; 512], rng.below(60));
    let journal = device.zone(ZoneNumber(1)).unwrap();
    let appended = rng.below(4) == 0 && journal.room_blocks() > 0;
    device.read(Block(block), &mut node).unwrap();
    if appended {
        let last = journal.start.0 + journal.write_pointer - 1;
        device.read(Block(last), &mut node).unwrap();
        block = last + 1;
    }
    let Some(header) = KINDS.into_iter().find_map(|kind| Header::peek(&node, kind).ok()) else { return };
    let mut header = Header { block, bytes: header.bytes.min(472), ..header };
    if appended && header.kind == Kind::Journal {
        header.base = checksum(&node);
        header.generation = header.generation.wrapping_add(1);
        let batch = u64::from_le_bytes(node[40..48].try_into().unwrap());
        node[40..48].copy_from_slice(&batch.wrapping_add(1).to_le_bytes());
    }
    for _ in 0..rng.below(6) {
        let value = [0, 1, 2, 0xFF, rng.next_u64() as u8][rng.below(5) as usize];
        node[HEADER_BYTES + rng.below(160) as usize] = value;
    }
    match rng.below(8) {
        0 => header.small[rng.below(3) as usize] = rng.below(70) as u16,
        1 => header.word = rng.below(600) as u32,
        2 => header.bytes = rng.below(473) as u32,
        3 => header.generation = [0, 1, 2, u64::MAX][rng.below(4) as usize],
        4 => header.kind = KINDS[rng.below(6) as usize],
        _ => {}
    }
    header.seal(&mut node);
    seal(&mut node);
    if appended {
        device.append(ZoneNumber(1), &node).unwrap();
    } else {
        forge(device, block, &node, 6);
    }
}

fn scan(store: &Store<Arc<MemoryDevice>>, direction: Direction) -> longma_zoned::Result<()> {
    let mut rows = store.iter();
    let mut next = || match direction {
        Direction::Ascending => rows.next(),
        Direction::Descending => rows.next_back(),
    };
    while let Some(row) = next() {
        row?;
    }
    Ok(())
}

/// All inner nodes ever written at a level or above, with their blocks.
fn inner_nodes(device: &MemoryDevice, from_level: u16) -> Vec<(u64, InnerRecord)> {
    let mut node = [0; 512];
    let blocks = 0..device.geometry().blocks();
    let inner = blocks.filter_map(|block| {
        device.read(Block(block), &mut node).ok()?;
        Some((block, InnerRecord::decode(&node, block).ok()?))
    });
    inner.filter(|(_, record)| record.level >= from_level).collect()
}

/// Writes an inner node whose entries all point to the block `home`.
fn write_inner(device: &MemoryDevice, block: u64, level: u16, keys: &[Vec<u8>], home: u64) {
    let mut node = [0; 512];
    device.read(Block(home), &mut node).unwrap();
    let pointer = Pointer { home, log: None, checksum: checksum(&node) };
    InnerRecord::encode(level, keys.iter().map(|key| (&key[..], pointer)), &mut node, block, 1);
    forge(device, block, &node, 6);
}

/// Makes every interior node point only to itself.
fn lead_to_themselves(device: &MemoryDevice) {
    let nodes = inner_nodes(device, 2);
    assert!(!nodes.is_empty());
    for (block, InnerRecord { level, entries }) in nodes {
        let keys: Vec<_> = entries.into_iter().map(|(key, _)| key).collect();
        write_inner(device, block, level, &keys, block);
    }
}

#[test]
fn a_node_that_points_to_itself_is_damage_and_not_an_endless_loop() {
    let device = Arc::new(map());
    lead_to_themselves(&device);
    assert!(!Store::check(Arc::clone(&device)).unwrap().problems.is_empty());
    let damaged = |result: longma_zoned::Result<()>| matches!(result, Err(Error::Damaged { .. }));
    // Opening must apply the journal to the tree, so it fails.
    assert!(damaged(Store::open(Arc::clone(&device), busy(20_000, 20_000)).map(|_| ())));
    let repaired = Store::repair(Arc::clone(&device), busy(20_000, 20_000)).unwrap();
    assert!(!repaired.lost.is_empty());
    let store = open(device, busy(20_000, 20_000));
    assert_eq!(store.get(b"in the journal").unwrap().as_deref(), Some(&b"only"[..]));
}

#[test]
fn every_use_of_a_node_that_leads_to_itself_is_refused() {
    let map = open(Arc::new(map()), busy(20_000, 20_000));
    map.checkpoint().unwrap();
    let device = Arc::new(map.device().snapshot());
    lead_to_themselves(&device);
    let store = open(device, busy(20_000, 20_000));
    let key = 9u64.to_be_bytes();
    let mut batch = Batch::new();
    batch.put(&key, b"new");
    let results = [
        store.get(&key).map(|_| ()),
        store.put(&key, b"new").map(|_| ()),
        store.delete(&key).map(|_| ()),
        store.apply(&batch).map(|_| ()),
        store.load([(key, b"new")]).map(|_| ()),
        scan(&store, Direction::Ascending),
        scan(&store, Direction::Descending),
    ];
    for (use_of, result) in results.into_iter().enumerate() {
        assert!(matches!(result, Err(Error::Damaged { .. })), "use {use_of}: {result:?}");
    }
}

#[test]
fn nodes_with_many_parents_do_not_make_reading_endless() {
    const LEVELS: u16 = 12;
    let map = open(Arc::new(map()), busy(20_000, 20_000));
    map.checkpoint().unwrap();
    let device = Arc::new(map.device().snapshot());
    let head = inner_nodes(&device, 1).into_iter().find(|(_, record)| record.level == 1).unwrap().0;
    let tops: Vec<_> = inner_nodes(&device, 2).into_iter().map(|(block, _)| block).collect();
    let keys: Vec<_> = (0..12u8).map(|key| vec![key; usize::from(key > 0)]).collect();
    let mut node = [0; 512];
    let mut is_unused = |block: &u64| device.read(Block(*block), &mut node).is_ok() && node == [0; 512];
    let unused: Vec<_> = (0..64).filter(&mut is_unused).collect();
    let tower = |level: u16| unused[usize::from(level)];
    write_inner(&device, tower(2), 2, &keys, head);
    for level in 3..LEVELS {
        write_inner(&device, tower(level), level, &keys, tower(level - 1));
    }
    for top in tops {
        write_inner(&device, top, LEVELS, &keys, tower(LEVELS - 1));
    }
    assert!(!Store::check(Arc::clone(&device)).unwrap().problems.is_empty());
    let store = open(device, busy(20_000, 20_000));
    for direction in [Direction::Ascending, Direction::Descending] {
        assert!(matches!(scan(&store, direction), Err(Error::Damaged { .. })));
    }
}

#[test]
fn an_arbitrarily_damaged_map_is_refused_or_read() {
    let pristine = map();
    let (mut opened, mut refused) = (0, 0);
    for seed in 0..campaign("LONGMA_ZONED_HOSTILE", 3_000) {
        let (device, mut rng) = (Arc::new(pristine.snapshot()), Rng::new(seed));
        for _ in 0..=rng.below(4) {
            damage(&device, &mut rng);
        }
        let _ = Store::check(Arc::clone(&device));
        let Ok(store) = Store::open(device, busy(20_000, 20_000)) else {
            refused += 1;
            continue;
        };
        opened += 1;
        for direction in [Direction::Ascending, Direction::Descending] {
            let _ = scan(&store, direction);
        }
        for key in 0..20u64 {
            let _ = store.put(&(key * 19).to_be_bytes(), b"new");
            let _ = store.delete(&(key * 17).to_be_bytes());
        }
        let _ = store.checkpoint();
    }
    assert!(opened > 100 && refused > 100, "{opened} opened, {refused} refused");
}
