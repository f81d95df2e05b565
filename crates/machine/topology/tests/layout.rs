//! Expansion of a machine into instances: numbers of cores, nodes and caches, and sharing.

use longma_topology::Machine;

#[test]
fn eight_nodes_of_two_complexes_are_numbered_over_both_sockets() {
    let machine = Machine::open("hygon-8node").unwrap();
    let host = &machine.layout().hosts[0];
    assert_eq!((host.nodes.len(), host.cores.len()), (8, 64));
    // Three private caches per core, and one L3 for every four cores.
    assert_eq!(host.caches.len(), 64 * 3 + 16);
    let last = &host.cores[63];
    assert_eq!((last.chip, last.node, last.cluster), (1, 7, 15));
    let l3 = &host.caches[*last.caches.last().unwrap()];
    assert_eq!((l3.cache.as_str(), l3.cores.as_slice()), ("l3", &[60, 61, 62, 63][..]));
    assert_eq!(host.nodes[7].memory_bytes, Some(32 << 30));
}

#[test]
fn copies_of_a_host_have_separate_names_and_parts() {
    let machine = Machine::open("piii-myrinet").unwrap();
    let names: Vec<_> = machine.layout().hosts.iter().map(|h| h.name.as_str()).collect();
    assert_eq!(names, ["host0", "host1"]);
    assert_eq!(machine.layout().hosts[0].cores, machine.layout().hosts[1].cores);
}

#[test]
fn the_improved_chip_differs_from_the_conventional_one_as_in_the_paper() {
    let improved = Machine::open("godson3").unwrap();
    let conventional = Machine::open("godson3-conventional").unwrap();
    let (new, old) = (&improved.cores["gs464"], &conventional.cores["gs464"]);
    assert_eq!(new.store.as_ref().unwrap().size().bytes(), 4096);
    assert_eq!(new.idma.as_ref().map(|i| (i.read_channels, i.write_channels)), Some((3, 1)));
    assert!(old.store.is_none() && old.idma.is_none() && old.cam.is_none());
    assert!(conventional.caches["l2"].lock.is_none() && conventional.caches["l2"].dca.is_none());
    // The rest of the core is the same, so that a comparison isolates the data path.
    let mut same = new.clone();
    (same.store, same.idma, same.cam) = (None, None, None);
    assert_eq!(&same, old);
}
