//! Tests of `rss_table`.

use super::*;

/// The key from "Verifying the RSS hash calculation".
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
    0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
    0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// From the same document, for each address family: destination, source, hash of the addresses, hash including the
/// ports. `longma-rss` tests all of its values.
const PUBLISHED: [(&str, &str, u32, u32); 2] = [
    ("161.142.100.80:1766", "66.9.149.187:2794", 0x323e_8fc2, 0x51cc_c178),
    ("[3ffe:2501:200:3::1]:1766", "[3ffe:2501:200:1fff::7]:2794", 0x2cc1_8cd5, 0x4020_7d3d),
];

fn ends(to: &str, from: &str) -> (SocketAddr, SocketAddr) {
    (to.parse().unwrap(), from.parse().unwrap())
}

/// A table with 2^16 entries, so that the queue equals the low 16 bits of the hash.
fn rss_table(ports: bool) -> RssTable {
    let datagram_ports = [Some(ports), None];
    RssTable { key: KEY.to_vec(), table: (0..1 << 16).collect(), ports: [ports; 2], datagram_ports }
}

#[test]
fn the_queue_is_that_of_the_published_hashes() {
    for (to, from, addresses, all) in PUBLISHED {
        let (local, remote) = ends(to, from);
        assert_eq!(rss_table(true).queue_of(local, remote), Some(all & 0xffff), "{to}");
        assert_eq!(rss_table(false).queue_of(local, remote), Some(addresses & 0xffff), "{to}");
        let datagrams = |ports| rss_table(ports).queue_of_datagrams(local, remote);
        let is_reported = local.is_ipv4();
        assert_eq!(datagrams(true), is_reported.then_some(all & 0xffff), "{to}");
        assert_eq!(datagrams(false), is_reported.then_some(addresses & 0xffff), "{to}");
    }
    let (local, remote) = ends("[::ffff:161.142.100.80]:1766", "[::ffff:66.9.149.187]:2794");
    assert_eq!(rss_table(true).queue_of(local, remote), Some(0x51cc_c178 & 0xffff), "as the packets have it");
}

#[test]
fn without_a_key_a_table_or_one_family_no_queue_is_predicted() {
    let (local, remote) = ends(PUBLISHED[0].0, PUBLISHED[0].1);
    let (six, _) = ends(PUBLISHED[1].0, PUBLISHED[1].1);
    assert_eq!(RssTable { key: KEY[..15].to_vec(), ..rss_table(true) }.queue_of(local, remote), None);
    assert_eq!(RssTable { table: Vec::new(), ..rss_table(true) }.queue_of(local, remote), None);
    assert_eq!(rss_table(true).queue_of(six, remote), None);
}

#[test]
fn a_driver_with_another_hash_function_or_other_fields_has_no_prediction() {
    let words = |function: u8, transformed: u8| {
        let mut words = vec![GET_HASH, 0, 2, 8, u32::from_ne_bytes([function, transformed, 0, 0]), 0, 7, 9];
        words.extend([u32::from_ne_bytes([1, 2, 3, 4]), u32::from_ne_bytes([5, 6, 7, 8])]);
        words
    };
    let found = read(&words(1, 0), [None, Some(ADDRESSES)]).unwrap();
    assert_eq!((found.table, found.ports), (vec![7, 9], [true, false]));
    assert_eq!(found.key, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert!(read(&words(2, 0), [None; 2]).is_err(), "exclusive or");
    assert!(read(&words(1, 1), [None; 2]).is_err(), "made symmetric");
    assert!(read(&words(1, 0), [Some(0x20), None]).is_err(), "one address alone");
    assert!(read(&[], [None; 2]).is_err());
}

#[test]
fn interrupts_say_which_receive_queue_they_are_of() {
    for (name, queue) in [
        ("eth0-TxRx-3", Some(3)),
        ("i40e-ens1f0-TxRx-11", Some(11)),
        ("ens5-Tx-Rx-2", Some(2)),
        ("eth0-rx-0", Some(0)),
        ("virtio0-input.1", Some(1)),
        ("mlx5_comp7@pci:0000:01:00.0", Some(7)),
        ("virtio0-output.1", None),
        ("eth0-tx-1", None),
        ("mlx5_async0@pci:0000:01:00.0", None),
        ("eth0", None),
        ("", None),
    ] {
        assert_eq!(queue_of_irq(name), queue, "{name}");
    }
}

#[test]
fn an_interface_without_a_hash_is_reported() {
    for name in ["lo", "no-such-interface-at-all", ""] {
        assert!(get(name).is_err(), "{name}");
    }
}
