//! The published counts: fewer reads and writes than copy-on-write, and few blocks of the sequential zones used. The
//! sizes are smaller than in the paper's tables.
//!
//! Source: the ZB+-tree paper's evaluation.

use longma_zoned::device::{Geometry, NullDevice};
use longma_zoned_lab::paper::{CachedNodes, CowTree, Fanout, NodeKind, ZbTree};
use longma_zoned_lab::ycsb::{Operation, Workload, scatter};

/// The number of pairs loaded and of operations after that: `LONGMA_ZONED_PAIRS`, or a number small enough for a test.
fn pairs() -> u64 {
    std::env::var("LONGMA_ZONED_PAIRS").ok().and_then(|text| text.parse().ok()).unwrap_or(30_000)
}

/// The paper's device: 40 sequential zones and one conventional zone of 2 GiB each, blocks of 4 KiB.
fn device() -> NullDevice {
    let geometry = Geometry {
        block_bytes: 4096,
        zone_blocks: 524_288,
        zone_capacity_blocks: 524_288,
        conventional_zones: 1,
        sequential_zones: 40,
        max_open_zones: 0,
        max_active_zones: 0,
    };
    NullDevice::new(geometry).unwrap()
}

#[test]
fn the_zb_tree_writes_a_third_or_less_of_what_copy_on_write_does() {
    let pairs = pairs();
    for workload in ["W1", "W2", "W3", "W4", "W5"].map(|name| Workload::named(name).unwrap()) {
        let fanout = Fanout::of(&longma_zoned::ZonedDevice::geometry(&device())).at_most(128, 128);
        let mut zb = ZbTree::counting(device(), fanout, CachedNodes::Nothing).unwrap();
        let mut cow = CowTree::counting(device(), fanout, CachedNodes::Nothing).unwrap();
        let load = (0..pairs).map(Operation::Insert);
        for operation in load.chain(workload.stream(pairs, pairs, 1)) {
            match operation {
                Operation::Insert(record) => {
                    let key = scatter(record);
                    assert_eq!(zb.insert(key, record).unwrap(), cow.insert(key, record).unwrap());
                }
                Operation::Delete(record) => {
                    let key = scatter(record);
                    assert_eq!(zb.remove(key).unwrap(), cow.remove(key).unwrap());
                }
                Operation::Read(record) => {
                    let key = scatter(record);
                    assert_eq!(zb.search(key).unwrap(), cow.search(key).unwrap());
                }
                other => panic!("{other:?} in {}", workload.name),
            }
        }
        zb.check().unwrap();
        let share = |(used, all): (u64, u64)| used as f64 / all as f64;
        println!(
            "{} {pairs} pairs: ZB+ {} reads ({} of the root) {} writes {:.6} of Seq; CoW ({} layers) {} reads {} writes {:.6} of Seq",
            workload.name,
            zb.counts().reads.total(),
            zb.counts().reads.of(NodeKind::InteriorHead),
            zb.counts().writes(),
            share(zb.sequential_used()),
            cow.layers(),
            cow.counts().reads.total(),
            cow.counts().writes(),
            share(cow.sequential_used()),
        );
        let written = zb.counts().writes() as f64 / cow.counts().writes() as f64;
        assert!(written < 0.4, "{}: {written} of the copy-on-write tree's writes", workload.name);
        assert!(share(zb.sequential_used()) * 50.0 < share(cow.sequential_used()));
    }
}
