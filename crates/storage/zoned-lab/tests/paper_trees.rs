//! The published trees behave like a `BTreeMap`, with any node size, in all states and with both kinds of Sync.

use longma_zoned::device::{Counted, Geometry, MemoryDevice, NullDevice};
use longma_zoned::{Direction, KeyRange, NodeStates, OrderedMap};
use longma_zoned_lab::paper::{CachedNodes, CowTree, Fanout, NodeKind, PaperCounts, ZbTree};
use longma_zoned_lab::ycsb::Rng;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

/// The number of operations per run: a tenth of `LONGMA_ZONED_OPERATIONS`, or of 200,000 if it is not set.
fn operations() -> u64 {
    let all = std::env::var("LONGMA_ZONED_OPERATIONS").ok().and_then(|text| text.parse().ok());
    all.unwrap_or(200_000_u64) / 10
}

fn device(block_bytes: u32, zone_blocks: u64, zones: u32) -> MemoryDevice {
    let geometry = Geometry {
        block_bytes,
        zone_blocks,
        zone_capacity_blocks: zone_blocks - zone_blocks / 4,
        conventional_zones: 16,
        sequential_zones: zones,
        max_open_zones: 2,
        max_active_zones: 3,
    };
    MemoryDevice::new(geometry).unwrap()
}

fn scanned(tree: &mut dyn OrderedMap, first: u64, last: u64, direction: Direction) -> Vec<(u64, u64)> {
    let mut rows = Vec::new();
    let (first, last) = (first.to_be_bytes(), last.to_be_bytes());
    let range = KeyRange { start: Bound::Included(&first), end: Bound::Excluded(&last) };
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
    tree.scan(range, direction, &mut |key, value| {
        rows.push((number(key), number(value)));
        ControlFlow::Continue(())
    })
    .unwrap();
    rows
}

/// Random operations whose mix changes, so that the tree grows, is updated, shrinks and becomes empty.
fn behaves_like_a_btree_map(tree: &mut dyn OrderedMap, check: fn(&mut dyn OrderedMap), keys: u64, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut model = BTreeMap::new();
    let operations = operations();
    let phase = (operations / 12).max(1);
    for number in 0..operations {
        // Percentages: puts of any key, puts of a present key, deletions of a present key.
        let (put, update, delete) =
            [(70, 10, 5), (5, 80, 5), (5, 30, 50), (30, 30, 30), (5, 5, 85), (20, 40, 35)]
                [(number / phase % 6) as usize];
        let any = rng.below(keys);
        let near = model.range(any..).next().map_or(any, |(&key, _): (&u64, &u64)| key);
        let kind = rng.below(100);
        let value = rng.below(u64::MAX);
        if kind < put + update {
            let key = if kind < put { any } else { near };
            let new = tree.put(&key.to_be_bytes(), &value.to_be_bytes()).unwrap();
            assert_eq!(new, model.insert(key, value).is_none(), "put {key}, operation {number}");
        } else if kind < put + update + delete {
            let key = if rng.below(10) == 0 { any } else { near };
            assert_eq!(
                tree.delete(&key.to_be_bytes()).unwrap(),
                model.remove(&key).is_some(),
                "delete {key}"
            );
        } else {
            let key = if rng.below(2) == 0 { any } else { near };
            let found = tree.get(&key.to_be_bytes()).unwrap();
            assert_eq!(
                found,
                model.get(&key).map(|value| value.to_be_bytes().to_vec()),
                "get {key}, operation {number}"
            );
        }
        if number % 997 == 0 {
            let (first, last) = (rng.below(keys), rng.below(keys));
            let mut expected: Vec<_> = match first < last {
                true => model.range(first..last).map(|(&key, &value)| (key, value)).collect(),
                false => Vec::new(),
            };
            assert_eq!(scanned(tree, first, last, Direction::Ascending), expected);
            expected.reverse();
            assert_eq!(scanned(tree, first, last, Direction::Descending), expected);
            check(tree);
        }
        assert_eq!(tree.len(), model.len() as u64);
    }
    let all: Vec<_> = model.into_iter().collect();
    assert_eq!(scanned(tree, 0, u64::MAX, Direction::Ascending), all);
}

/// A ZB+-tree that is checked at intervals.
struct Checked {
    tree: ZbTree<MemoryDevice>,
    puts: u64,
    /// The nodes found by the checks, by state.
    states: NodeStates,
}

impl OrderedMap for Checked {
    fn name(&self) -> &'static str {
        self.tree.name()
    }
    fn get(&mut self, key: &[u8]) -> longma_zoned::Result<Option<Vec<u8>>> {
        self.tree.get(key)
    }
    fn put(&mut self, key: &[u8], value: &[u8]) -> longma_zoned::Result<bool> {
        self.puts += 1;
        if self.puts.is_multiple_of(499) {
            self.states += self.tree.check()?;
        }
        self.tree.put(key, value)
    }
    fn delete(&mut self, key: &[u8]) -> longma_zoned::Result<bool> {
        self.tree.delete(key)
    }
    fn scan(
        &mut self,
        range: KeyRange<'_>,
        direction: Direction,
        visit: &mut longma_zoned::map::Visit<'_>,
    ) -> longma_zoned::Result<()> {
        self.tree.scan(range, direction, visit)
    }
    fn len(&self) -> u64 {
        self.tree.len()
    }
    fn sync(&mut self) -> longma_zoned::Result<()> {
        self.tree.sync()
    }
}

/// The events that a run must cover: name, number of occurrences, and whether they must occur with every node size.
fn coverage(counts: &PaperCounts, states: &NodeStates) -> [(&'static str, u64, bool); 21] {
    [
        ("leaves in state change", states.change_leaves, true),
        ("interior nodes in state change", states.change_interiors, true),
        ("leaves in state steady-hot", states.steady_hot, true),
        ("interior nodes in state steady-cold", states.steady_cold, false),
        ("leaves in state after", states.after_leaves, true),
        ("interior nodes in state after", states.after_interiors, false),
        ("inserts in place", counts.changed_in_place, true),
        ("moves of full nodes", counts.moved_when_full, true),
        ("logged changes", counts.logged, true),
        ("splits", counts.split, true),
        ("normal applies, steady", counts.normal_apply_steady, true),
        ("normal applies, after", counts.normal_apply_after, true),
        ("switch applies, steady", counts.switch_apply_steady, false),
        ("switch applies, after", counts.switch_apply_after, false),
        ("merges", counts.merged, true),
        ("emptied nodes", counts.emptied, true),
        ("head splits", counts.heads_split, false),
        ("head merges", counts.heads_merged, false),
        ("heads evened out", counts.heads_evened, false),
        ("zones reset", counts.resets, false),
        ("nodes read by garbage collection", counts.reads.of(NodeKind::Collected), false),
    ]
}

#[test]
fn a_zb_tree_behaves_like_a_btree_map_in_every_state_and_by_both_ways_of_sync() {
    let mut all: Vec<(&str, [u64; 6])> = Vec::new();
    // The smallest nodes cover all events.
    let runs = [
        (4, 4, 300, 2),
        (4, 4, 6_000, 12),
        (5, 7, 2_000, 3),
        (8, 4, 4_000, 4),
        (13, 20, 20_000, 6),
        (31, 20, 30_000, 6),
    ];
    for (run, (body, head, keys, zones)) in runs.into_iter().enumerate() {
        let device = device(512, 256, zones);
        let fanout = Fanout::of(&longma_zoned::ZonedDevice::geometry(&device)).at_most(body, head);
        let tree = ZbTree::new(device, fanout).unwrap();
        let mut checked = Checked { tree, puts: 0, states: NodeStates::default() };
        // With these seeds, few operations cover all events.
        behaves_like_a_btree_map(&mut checked, |_| (), keys, run as u64 + 3);
        checked.states += checked.tree.check().unwrap();
        let NodeStates { heads, small_heads, .. } = checked.states;
        println!("{body} entries per node: of {heads} heads {small_heads} are small");
        assert!(small_heads * 50 <= heads, "{small_heads} of {heads} heads are less than half full");
        for (at, (what, count, always)) in
            coverage(checked.tree.counts(), &checked.states).into_iter().enumerate()
        {
            assert!(count > 0 || !always, "no {what} with {body} entries per node");
            match all.get_mut(at) {
                Some(row) => row.1[run] = count,
                None => all.push((what, [count, 0, 0, 0, 0, 0])),
            }
        }
    }
    println!("{:36} {:?}", "entries per node", runs.map(|run| run.0));
    for (what, counts) in all {
        println!("{what:36} {counts:?}");
        assert!(counts[..3].iter().any(|&count| count > 0), "no {what} with small nodes");
    }
}

#[test]
fn a_copy_on_write_tree_behaves_like_a_btree_map() {
    for (body, keys, seed) in [(4, 300, 7), (5, 3_000, 8), (13, 10_000, 9), (31, 30_000, 10)] {
        let device = device(512, 2048, 6);
        let fanout = Fanout::of(&longma_zoned::ZonedDevice::geometry(&device)).at_most(body, 20);
        let mut tree = CowTree::new(device, fanout).unwrap();
        behaves_like_a_btree_map(&mut tree, |_| (), keys, seed);
        let counts = tree.counts();
        assert!(counts.split > 0 && counts.merged > 0 && counts.heads_evened > 0 && counts.resets > 0);
    }
}

#[test]
fn a_tree_of_tiny_nodes_grows_two_layers_at_a_time_and_shrinks_again() {
    let device = device(512, 4096, 6);
    let fanout = Fanout::of(&longma_zoned::ZonedDevice::geometry(&device)).at_most(4, 4);
    let mut tree = ZbTree::new(device, fanout).unwrap();
    assert_eq!(tree.layers(), 4);
    let mut seen = vec![4];
    for key in 0..3_000u64 {
        tree.insert(key.reverse_bits() >> 50, key).unwrap();
        if tree.layers() != *seen.last().unwrap() {
            seen.push(tree.layers());
        }
    }
    assert!(seen.len() > 2 && seen.is_sorted() && seen.iter().all(|layers| layers % 2 == 0), "{seen:?}");
    tree.check().unwrap();
    for key in 0..3_000u64 {
        tree.remove(key.reverse_bits() >> 50).unwrap();
    }
    tree.check().unwrap();
    assert_eq!((tree.len(), tree.layers()), (0, 4));
    let (used, _) = tree.conventional_used();
    assert_eq!(used, 4, "an empty tree is one node a layer");
}

#[test]
fn a_full_device_is_reported_as_full() {
    let device = device(512, 8, 2);
    let fanout = Fanout::of(&longma_zoned::ZonedDevice::geometry(&device)).at_most(4, 4);
    let mut tree = ZbTree::new(device, fanout).unwrap();
    let error = (0..100_000).map(|key| tree.insert(key, key)).find_map(Result::err).unwrap();
    assert!(matches!(error, longma_zoned::Error::Full { .. }), "{error}");
}

/// Applies random operations to two trees, which must give the same results.
fn both(trees: [&mut dyn OrderedMap; 2]) {
    let mut rng = Rng::new(11);
    let [one, other] = trees;
    for number in 0..operations() {
        let key = rng.below(3_000).to_be_bytes();
        match rng.below(10) {
            0..6 => {
                let value = number.to_be_bytes();
                assert_eq!(one.put(&key, &value).unwrap(), other.put(&key, &value).unwrap());
            }
            6..9 => assert_eq!(one.delete(&key).unwrap(), other.delete(&key).unwrap()),
            _ => assert_eq!(one.get(&key).unwrap(), other.get(&key).unwrap()),
        }
    }
    assert_eq!(one.len(), other.len());
}

#[test]
fn counts_are_the_same_with_and_without_stored_contents() {
    let bytes = |zones| Counted::new(device(512, 256, zones));
    let null = |zones| {
        let geometry = longma_zoned::ZonedDevice::geometry(&bytes(zones));
        Counted::new(NullDevice::new(geometry).unwrap())
    };
    let fanout = Fanout { body: 5, head: 7 };
    let mut with = ZbTree::new(bytes(3), fanout).unwrap();
    let mut without = ZbTree::counting(null(3), fanout, CachedNodes::Nothing).unwrap();
    both([&mut with, &mut without]);
    assert!(with.counts().resets > 0, "no zone was reset");
    assert_eq!(with.counts(), without.counts());
    assert_eq!(with.device().counts(), without.device().counts());
    without.check().unwrap();
    let mut with = CowTree::new(bytes(16), fanout).unwrap();
    let mut without = CowTree::counting(null(16), fanout, CachedNodes::Nothing).unwrap();
    both([&mut with, &mut without]);
    assert!(with.counts().resets > 0);
    assert_eq!(with.counts(), without.counts());
    assert_eq!(with.device().counts(), without.device().counts());
}

#[test]
fn cached_nodes_are_written_but_not_read() {
    let null = || {
        let geometry = longma_zoned::ZonedDevice::geometry(&device(512, 4096, 6));
        Counted::new(NullDevice::new(geometry).unwrap())
    };
    let fanout = Fanout { body: 8, head: 8 };
    let run = |kept| {
        let mut zb = ZbTree::counting(null(), fanout, kept).unwrap();
        let mut cow = CowTree::counting(null(), fanout, kept).unwrap();
        both([&mut zb, &mut cow]);
        assert_eq!(zb.device().counts().blocks_read, zb.counts().reads.total());
        (*zb.counts(), *cow.counts(), zb.layers())
    };
    let ((all, all_cow, layers), (no_root, no_root_cow, _), (leaves, leaves_cow, _)) =
        (run(CachedNodes::Nothing), run(CachedNodes::Root), run(CachedNodes::Inner));
    for (kept, kept_cow) in [(no_root, no_root_cow), (leaves, leaves_cow)] {
        assert_eq!((kept.writes(), kept_cow.writes()), (all.writes(), all_cow.writes()));
    }
    assert!(no_root.reads.total() < all.reads.total() && leaves.reads.total() < no_root.reads.total());
    assert!(no_root_cow.reads.total() < all_cow.reads.total());
    if layers == 4 {
        assert_eq!(no_root.reads.of(NodeKind::InteriorHead), 0);
    }
    assert_eq!(leaves.reads.total(), all.reads.of(NodeKind::Leaf) + all.reads.of(NodeKind::LeafLog));
    assert_eq!(leaves_cow.reads.of(NodeKind::Interior), 0);
}
