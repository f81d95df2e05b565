//! Tests of `numa`.

use super::*;
use crate::fake::FakeHost;

#[test]
fn nodes_are_sorted_by_distance_and_equal_ones_by_number() {
    let host = FakeHost::with(&[
        ("sys/devices/system/node/node0/distance", "10 32 16 32"),
        ("sys/devices/system/node/node1/distance", "32 10 32 16"),
        ("sys/devices/system/node/node2/cpulist", ""),
        ("sys/devices/system/node/node10/distance", "32 16 32 10"),
        ("sys/devices/system/node/online", "0-2,10"),
    ]);
    let first = NodeDistances::from(&host, 0);
    assert_eq!(first.sorted(0, [10, 2, 1, 0]), [0, 2, 1, 10]);
    assert_eq!(NodeDistances::from(&host, 10).sorted(10, [0, 1, 2]), [1, 0, 2]);
    assert_eq!((first.between(0, 2), first.between(0, 99)), (16, REMOTE));
}

#[test]
fn without_distances_other_nodes_are_equally_far() {
    for text in ["", "10", "10 x", "10 20 30", "10 -1", "20 20"] {
        let host = FakeHost::with(&[
            ("sys/devices/system/node/node0/distance", text),
            ("sys/devices/system/node/node1/distance", text),
        ]);
        let unknown = NodeDistances::from(&host, 0);
        assert!(unknown.is_empty(), "{text}");
        assert!(NodeDistances::from(&host, 7).is_empty(), "there is no such node");
        assert_eq!(unknown.sorted(1, [2, 0, 1]), [1, 0, 2]);
    }
}
