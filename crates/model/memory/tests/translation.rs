//! TLBs behave like exact LRU lists, and the CAM like a linear search.

use longma_memory::placement::{PhysicalPage, SpaceId};
use longma_memory::translation::{Cam, CamEntry, CamError, CamHit, Found, Side, Tlbs};
use longma_topology::Machine;
use longma_topology::parts::{Core, Tlb, TlbKind};
use longma_topology::units::{Latency, Size};
use proptest::prelude::*;

const PAGE: u64 = 16 << 10;
const SPACE: SpaceId = SpaceId(0);

fn core(machine: &str, name: &str) -> Core {
    Machine::open(machine).unwrap().cores[name].clone()
}

/// A test mapping from pages to distinct frames.
fn frame(page: u64) -> PhysicalPage {
    PhysicalPage(page ^ 0xabcd)
}

fn translate(tlbs: &mut Tlbs, side: Side, page: u64) -> (Found, u32) {
    let translation = tlbs.translate(side, SPACE, page, || frame(page));
    assert_eq!(translation.page, frame(page));
    (translation.found, translation.extra_cycles)
}

#[test]
fn the_la464_pays_for_its_second_level_and_for_missing_both() {
    let mut tlbs = Tlbs::new(&core("loongson-3a5000", "la464"), PAGE);
    assert_eq!(translate(&mut tlbs, Side::Data, 10), (Found::Missed, 60));
    assert_eq!(translate(&mut tlbs, Side::Data, 10), (Found::FirstLevel, 0));
    // An entry holds an even and an odd page.
    assert_eq!(translate(&mut tlbs, Side::Data, 11), (Found::FirstLevel, 0));
    assert_eq!(translate(&mut tlbs, Side::Data, 12), (Found::Missed, 60));
    // 64 entries of two pages: after 64 others the first is in the second level only.
    (20..148).for_each(|page| {
        translate(&mut tlbs, Side::Data, page);
    });
    assert_eq!(translate(&mut tlbs, Side::Data, 10), (Found::FurtherLevel, 7));
    assert_eq!(translate(&mut tlbs, Side::Data, 10), (Found::FirstLevel, 0));
    // Instructions have a separate first level and share the second.
    assert_eq!(translate(&mut tlbs, Side::Instruction, 10), (Found::FurtherLevel, 7));
    let counts = tlbs.counts(Side::Data);
    assert_eq!((counts.lookups, counts.misses), (134, 66));
}

#[test]
fn a_miss_stated_as_a_time_is_counted_in_cycles_of_the_core() {
    let mut tlbs = Tlbs::new(&core("godson3", "gs464"), PAGE);
    // 180 ns at 800 MHz.
    assert_eq!(translate(&mut tlbs, Side::Data, 1), (Found::Missed, 144));
    // The TLB is joint.
    assert_eq!(translate(&mut tlbs, Side::Instruction, 1), (Found::FirstLevel, 0));
}

#[test]
fn a_core_that_states_no_penalty_walks_the_page_table() {
    let mut tlbs = Tlbs::new(&core("hygon-8node", "zen"), 4096);
    assert_eq!(translate(&mut tlbs, Side::Data, 1).0, Found::Walk);
    assert_eq!(translate(&mut tlbs, Side::Data, 1).0, Found::FirstLevel);
}

#[test]
fn tlbs_for_other_page_sizes_are_omitted() {
    // The first levels of Sandy Bridge hold pages of 4 KiB only.
    let mut tlbs = Tlbs::new(&core("sandybridge-2x6", "sandybridge"), PAGE);
    translate(&mut tlbs, Side::Data, 1);
    (2..2000).for_each(|page| {
        translate(&mut tlbs, Side::Instruction, page);
    });
    // There is only one level, and its hits have a cost.
    assert_eq!(translate(&mut tlbs, Side::Instruction, 1999), (Found::FirstLevel, 7));
    assert_eq!(translate(&mut tlbs, Side::Instruction, 1999), (Found::FirstLevel, 7));
    assert_eq!(translate(&mut tlbs, Side::Data, 1).0, Found::Walk);
}

#[test]
fn a_core_without_tlbs_translates_at_no_cost() {
    let mut none = core("hygon-8node", "zen");
    none.tlbs.clear();
    let mut tlbs = Tlbs::new(&none, 4096);
    assert_eq!(translate(&mut tlbs, Side::Data, 1), (Found::FirstLevel, 0));
    tlbs.invalidate(SPACE, 1);
    let moved = tlbs.translate(Side::Data, SPACE, 1, || PhysicalPage(7));
    assert_eq!(moved.page, PhysicalPage(7));
}

#[test]
fn the_same_page_of_another_process_is_another_page() {
    let mut tlbs = Tlbs::new(&core("loongson-3a5000", "la464"), PAGE);
    translate(&mut tlbs, Side::Data, 1);
    let other = tlbs.translate(Side::Data, SpaceId(1), 1, || PhysicalPage(99));
    assert_eq!((other.page, other.found), (PhysicalPage(99), Found::Missed));
    assert_eq!(translate(&mut tlbs, Side::Data, 1).0, Found::FirstLevel);
}

/// A reference TLB: lists of groups, most recently used last.
struct Reference {
    sets: Vec<Vec<u64>>,
    ways: usize,
    pages: u64,
}

impl Reference {
    fn set(&mut self, page: u64) -> (&mut Vec<u64>, u64) {
        let group = page / self.pages;
        let sets = self.sets.len() as u64;
        (&mut self.sets[(group % sets) as usize], group)
    }

    fn hit(&mut self, page: u64) -> bool {
        let (set, group) = self.set(page);
        let Some(at) = set.iter().position(|g| *g == group) else { return false };
        set.remove(at);
        set.push(group);
        true
    }

    fn fill(&mut self, page: u64) {
        let ways = self.ways;
        let (set, group) = self.set(page);
        if set.len() == ways {
            set.remove(0);
        }
        set.push(group);
    }

    fn remove(&mut self, page: u64) {
        let (set, group) = self.set(page);
        set.retain(|g| *g != group);
    }
}

fn tlb(level: u32, entries: u32, ways: Option<u32>, pages_per_entry: u32) -> Tlb {
    let machine = core("loongson-3a5000", "la464");
    let mut tlb = machine.tlbs[1].clone();
    (tlb.level, tlb.entries, tlb.ways, tlb.pages_per_entry) = (level, entries, ways, pages_per_entry);
    (tlb.kind, tlb.page_sizes) = (TlbKind::Joint, vec![Size::new(PAGE)]);
    tlb.miss = Some("10 cycles".parse::<Latency>().unwrap());
    tlb
}

#[derive(Clone, Debug)]
enum Operation {
    Use(bool, u64),
    Invalidate(u64),
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Operation>> {
    let page = prop_oneof![0u64..48, (0u64..12).prop_map(|p| p * 64), 1000u64..1100];
    let step = prop_oneof![
        40 => (any::<bool>(), page.clone()).prop_map(|(side, page)| Operation::Use(side, page)),
        2 => page.prop_map(Operation::Invalidate),
        1 => Just(Operation::Flush),
    ];
    proptest::collection::vec(step, 1..500)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn two_levels_hit_and_miss_like_lru_lists(
        steps in steps(),
        entries in prop_oneof![1u32..9, 17u32..24],
        sets in prop_oneof![Just(1u32), Just(3), Just(4)],
        ways in prop_oneof![1u32..5, Just(17)],
        pages in prop_oneof![Just(1u32), Just(2), Just(4)],
    ) {
        let mut part = core("loongson-3a5000", "la464");
        part.tlbs = vec![tlb(1, entries, None, pages), tlb(2, sets * ways, Some(ways), pages)];
        let mut tlbs = Tlbs::new(&part, PAGE);
        let pages = u64::from(pages);
        let mut first = Reference { sets: vec![vec![]], ways: entries as usize, pages };
        let mut second = Reference { sets: vec![vec![]; sets as usize], ways: ways as usize, pages };
        for step in steps {
            match step {
                Operation::Use(data, page) => {
                    let expected = match (first.hit(page), second.sets.is_empty()) {
                        (true, _) => Found::FirstLevel,
                        (false, _) if second.hit(page) => Found::FurtherLevel,
                        _ => {
                            second.fill(page);
                            Found::Missed
                        }
                    };
                    if expected != Found::FirstLevel {
                        first.fill(page);
                    }
                    let side = if data { Side::Data } else { Side::Instruction };
                    prop_assert_eq!(translate(&mut tlbs, side, page).0, expected);
                }
                Operation::Invalidate(page) => {
                    first.remove(page);
                    second.remove(page);
                    tlbs.invalidate(SPACE, page);
                }
                Operation::Flush => {
                    first.sets.iter_mut().chain(&mut second.sets).for_each(Vec::clear);
                    tlbs.flush();
                }
            }
        }
    }

    #[test]
    fn a_cam_finds_the_first_entry_that_matches(
        entries in proptest::collection::vec((0u32..64, 0u64..16, 0u64..16, any::<u64>(), 0u32..2), 0..100),
        searches in proptest::collection::vec((0u64..16, 0u32..2), 1..30),
    ) {
        let mut cam = cam();
        let mut list: Vec<Option<CamEntry>> = vec![None; 64];
        for (index, key, mask, value, tag) in entries {
            let entry = CamEntry { key, mask, value, tag };
            cam.write(index, entry).unwrap();
            list[index as usize] = Some(entry);
        }
        for (key, tag) in searches {
            let hit = list.iter().flatten().find(|e| e.tag == tag && e.key & e.mask == key & e.mask);
            let index = hit.map(|h| list.iter().position(|e| e.as_ref() == Some(h)).unwrap() as u32);
            let expected = index.map(|index| CamHit { index, value: list[index as usize].unwrap().value });
            prop_assert_eq!(cam.search(key, tag), expected);
        }
        prop_assert_eq!(cam.entries(), &list[..]);
    }
}

fn cam() -> Cam {
    let core = core("godson3", "gs464");
    Cam::new(core.cam.as_ref().unwrap(), core.clock)
}

#[test]
fn a_cam_of_the_godson3_has_its_entries_widths_and_latencies() {
    let mut cam = cam();
    let entry = CamEntry { key: 5, mask: !0, value: 6, tag: 255 };
    assert_eq!(cam.write(64, entry), Err(CamError::NoEntry { index: 64, last: 63 }));
    let error = cam.write(0, CamEntry { tag: 256, ..entry }).unwrap_err();
    assert_eq!(error.to_string(), "tag 0x100 does not fit into the CAM's 8 bits");
    cam.write(63, entry).unwrap();
    assert_eq!(cam.search(5, 255), Some(CamHit { index: 63, value: 6 }));
    cam.clear(63).unwrap();
    assert_eq!(cam.search(5, 255), None);
    // Two cycles at 800 MHz.
    assert_eq!((cam.search_ps(), cam.write_ps()), (2500, 2500));
}
