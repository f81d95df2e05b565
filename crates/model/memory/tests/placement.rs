//! Pages are placed according to their policy, and every physical address belongs to one controller.

use longma_memory::placement::{AddressSpaces, FrameOrder, PhysicalMap, Policy, PolicyError, SpaceId};
use longma_topology::{BUILTIN, Machine};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const PAGE: u64 = 16 << 10;
const ONE: SpaceId = SpaceId(0);
const OTHER: SpaceId = SpaceId(1);

fn hygon() -> AddressSpaces {
    let machine = Machine::open("hygon-8node").unwrap();
    AddressSpaces::new(&machine, 0, 4096, FrameOrder::Shuffled { seed: 1 }).unwrap()
}

/// Two nodes of 64 MiB, 4096 pages of 16 KiB each.
fn small() -> AddressSpaces {
    let (file, text) = Machine::text("sandybridge-2x6").unwrap();
    let text = text.replace("capacity = \"32 GiB\"", "capacity = \"64 MiB\"");
    let machine = Machine::parse(&file, &text).unwrap();
    AddressSpaces::new(&machine, 0, PAGE, FrameOrder::Sequential).unwrap()
}

/// Touches `pages` pages from `first` on from node `touching` and returns the node of each.
fn nodes(spaces: &mut AddressSpaces, space: SpaceId, first: u64, pages: u64, touching: usize) -> Vec<usize> {
    let page_bytes = spaces.page_bytes();
    let touch = |page| spaces.translate(space, page, touching).0 * page_bytes;
    let addresses: Vec<u64> = (first..first + pages).map(touch).collect();
    addresses.into_iter().map(|a| spaces.node_of(a)).collect()
}

#[test]
fn a_page_stays_on_the_node_that_touches_it_first() {
    let mut spaces = hygon();
    assert_eq!(nodes(&mut spaces, ONE, 0, 3, 5), [5, 5, 5]);
    assert_eq!(nodes(&mut spaces, ONE, 0, 4, 2), [5, 5, 5, 2]);
}

#[test]
fn policies_place_pages_as_linux_does() {
    let mut spaces = hygon();
    spaces.set_policy(ONE, Policy::Interleave(vec![1, 4, 6])).unwrap();
    assert_eq!(nodes(&mut spaces, ONE, 9, 4, 0), [1, 4, 6, 1]);
    spaces.set_policy(ONE, Policy::Preferred(7)).unwrap();
    assert_eq!(nodes(&mut spaces, ONE, 20, 2, 0), [7, 7]);
    spaces.set_policy(ONE, Policy::Bind(vec![2, 6])).unwrap();
    // The nearest of the bound nodes: 2 is on the package of 0, 6 on that of 7.
    assert_eq!(nodes(&mut spaces, ONE, 30, 1, 0), [2]);
    assert_eq!(nodes(&mut spaces, ONE, 31, 1, 7), [6]);
    // Another process has its own policy.
    assert_eq!(nodes(&mut spaces, OTHER, 30, 1, 3), [3]);
}

#[test]
fn pages_of_a_full_node_go_to_others_and_a_full_machine_counts_them() {
    let mut spaces = small();
    let pages = 64 * 1024 / 16;
    let placed = nodes(&mut spaces, ONE, 0, 2 * pages + 10, 1);
    let on = |node| placed.iter().filter(|n| **n == node).count() as u64;
    // Page tables, one for every 2048 pages, take frames too.
    assert!(placed[..(pages - 8) as usize].iter().all(|node| *node == 1));
    assert!(on(1) > pages - 8 && on(0) > pages - 8);
    let counts = spaces.counts();
    assert_eq!(counts.touched, 2 * pages + 10);
    assert_eq!(counts.beyond_capacity, 10 + 5);
    assert!(counts.elsewhere >= pages);
}

#[test]
fn a_policy_that_names_no_memory_is_an_error() {
    let mut spaces = small();
    assert_eq!(spaces.set_policy(ONE, Policy::Bind(vec![])), Err(PolicyError::NoNode));
    let error = spaces.set_policy(ONE, Policy::Interleave(vec![0, 2])).unwrap_err();
    assert_eq!(error.to_string(), "a memory policy names node 2: nodes with memory are [0, 1]");
}

#[test]
fn frames_of_unmapped_pages_are_reused() {
    let mut spaces = small();
    nodes(&mut spaces, ONE, 100, 3000, 0);
    let used: Vec<u64> = spaces.used_frames().collect();
    spaces.unmap(ONE, 100, 3000);
    assert_eq!(spaces.lookup(ONE, 100), None);
    nodes(&mut spaces, ONE, 100, 3000, 0);
    assert_eq!(spaces.used_frames().collect::<Vec<_>>(), used);
}

#[test]
fn a_page_walk_loads_the_entry_of_the_page_from_the_tables_own_frame() {
    let mut spaces = small();
    assert_eq!(spaces.entry_address(ONE, 5), None);
    let page = spaces.translate(ONE, 5, 0);
    spaces.translate(ONE, 6, 0);
    let entry = spaces.entry_address(ONE, 5).unwrap();
    assert_eq!(spaces.entry_address(ONE, 6), Some(entry + 8));
    assert_ne!(entry / PAGE, page.0);
    // A table maps 2048 pages of 16 KiB.
    spaces.translate(ONE, 2048 + 5, 0);
    assert_ne!(spaces.entry_address(ONE, 2048 + 5).unwrap() / PAGE, entry / PAGE);
}

#[test]
fn the_chip_is_in_the_top_bits_of_a_loongsons_addresses() {
    let machine = Machine::open("loongson-3a5000").unwrap();
    let chip = "chips = [\"3a5000\"]";
    let (file, text) = Machine::text("loongson-3a5000").unwrap();
    let two = Machine::parse(&file, &text.replace(chip, "chips = [\"3a5000\", \"3a5000\"]")).unwrap();
    assert_eq!(PhysicalMap::new(&machine, 0).unwrap().base_of(0), 0);
    let map = PhysicalMap::new(&two, 0).unwrap();
    assert_eq!(map.base_of(1), 1 << 44);
    assert_eq!(map.node_of((1 << 44) + 77), 1);
    assert_eq!(map.controller_of((1 << 44) + 77), (2, 77));
}

#[test]
fn adjacent_interleave_units_are_at_different_controllers() {
    let map = PhysicalMap::new(&Machine::open("loongson-3a5000").unwrap(), 0).unwrap();
    let at = |address| map.controller_of(address);
    assert_eq!([at(0), at(255), at(256), at(512)], [(0, 0), (0, 255), (1, 0), (0, 256)]);
}

#[test]
fn an_invalid_page_size_is_rejected() {
    let machine = Machine::open("loongson-3a5000").unwrap();
    for bytes in [0, 1024, 5000, 1 << 31] {
        assert!(AddressSpaces::new(&machine, 0, bytes, FrameOrder::Sequential).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_page_has_its_own_frame_and_keeps_it(
        touches in proptest::collection::vec((0u16..3, prop_oneof![0u64..64, 2000u64..2100, any::<u64>()], 0usize..2), 1..300),
        shuffled in any::<bool>(),
    ) {
        let order = if shuffled { FrameOrder::Shuffled { seed: 3 } } else { FrameOrder::Sequential };
        let machine = Machine::open("sandybridge-2x6").unwrap();
        let mut spaces = AddressSpaces::new(&machine, 0, PAGE, order).unwrap();
        let mut pages = BTreeMap::new();
        for (space, page, node) in touches {
            let frame = spaces.translate(SpaceId(space), page, node);
            let first_frame = *pages.entry((space, page)).or_insert(frame);
            prop_assert_eq!(frame, first_frame);
            prop_assert_eq!(spaces.lookup(SpaceId(space), page), Some(frame));
        }
        let frames: BTreeSet<_> = pages.values().collect();
        prop_assert_eq!(frames.len(), pages.len());
        let tables: BTreeSet<u64> = pages
            .keys()
            .map(|(space, page)| spaces.entry_address(SpaceId(*space), *page).unwrap())
            .collect();
        prop_assert_eq!(tables.len(), pages.len());
        prop_assert!(tables.iter().all(|t| !frames.iter().any(|f| f.0 == t / PAGE)));
    }

    #[test]
    fn no_two_addresses_share_a_location_in_a_controller(machine in 0..BUILTIN.len(), seed in any::<u64>()) {
        let machine = Machine::open(BUILTIN[machine].name).unwrap();
        let map = PhysicalMap::new(&machine, 0).unwrap();
        let nodes = machine.layout().hosts[0].nodes.len();
        let mut pages_seen = BTreeMap::new();
        for turn in 0..200u64 {
            let node = (seed.wrapping_add(turn) % nodes as u64) as usize;
            let offset = seed.rotate_left(turn as u32 % 64) % (1 << 30) + turn;
            let address = map.base_of(node) + offset;
            prop_assert_eq!(map.node_of(address), node);
            let (controller, local) = map.controller_of(address);
            let before = *pages_seen.entry((controller, local)).or_insert(address);
            prop_assert_eq!(before, address);
        }
    }
}

#[test]
fn tables_of_large_pages_only_take_the_host_memory_they_use() {
    let resident_kib = || -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    let machine = Machine::open("hygon-8node").unwrap();
    let before = resident_kib();
    let mut spaces = AddressSpaces::new(&machine, 0, 1 << 30, FrameOrder::Sequential).unwrap();
    // The last page of 46 bits of addresses, and the first.
    let last = (1 << 16) - 1;
    let pages = [last, 0].map(|page| spaces.translate(ONE, page, 0));
    assert_ne!(pages[0], pages[1]);
    assert_eq!([last, 0].map(|page| spaces.lookup(ONE, page)), pages.map(Some));
    assert_eq!(spaces.lookup(ONE, 1 << 20), None);
    let entries = [last, 0].map(|page| spaces.entry_address(ONE, page).unwrap());
    assert_eq!(entries[0] - entries[1], 8 * last, "both entries are in one table, as in a real page table");
    spaces.unmap(ONE, 0, 1 << 20);
    assert_eq!((spaces.lookup(ONE, last), spaces.lookup(ONE, 0)), (None, None));
    // Concurrent tests may free memory meanwhile.
    let more = resident_kib().saturating_sub(before);
    assert!(more < 64 << 10, "{more} KiB");
}
