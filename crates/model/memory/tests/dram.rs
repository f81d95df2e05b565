//! Timing of the memory controllers: latency, bandwidth and refresh.

use longma_memory::BuildError;
use longma_memory::dram::{Controllers, overhead};
use longma_random::SplitMix64;
use longma_sim::Time;
use longma_topology::{BUILTIN, Machine};
use proptest::prelude::*;

fn controllers(name: &str) -> Controllers {
    Controllers::new(&Machine::open(name).unwrap(), 0).unwrap()
}

/// The controllers of a built-in machine with `from` replaced by `to` in its machine file.
fn changed(name: &str, from: &str, to: &str) -> Controllers {
    let (file, text) = Machine::text(name).unwrap();
    assert!(text.contains(from), "{name} has no `{from}`");
    let machine = Machine::parse(&file, &text.replace(from, to)).unwrap_or_else(|report| panic!("{report}"));
    Controllers::new(&machine, 0).unwrap()
}

const NS: u64 = 1000;

/// DDR4-3200 at CL 22: 13.75 ns for each of CL, tRCD and tRP, 2.5 ns for 64 bytes.
const STEP: u64 = 13_750;
const BURST: u64 = 2_500;

#[test]
fn a_row_hit_costs_cl_a_closed_row_adds_trcd_and_a_conflict_adds_trp() {
    let mut controllers = controllers("loongson-3a5000");
    let mut read =
        |address: u64, at: u64| controllers.access(0, address, 64, false, Time::from_ps(at)).ps() - at;
    assert_eq!(read(0, 1_000 * NS), 2 * STEP + BURST);
    assert_eq!(read(64, 2_000 * NS), STEP + BURST);
    // The next row of the same bank is 16 banks of 8 KiB further, and one more because row bits are XORed into the bank
    // number.
    let same_bank = (16 + 1) * 8192;
    assert_eq!(read(same_bank, 3_000 * NS), 3 * STEP + BURST);
    assert_eq!(read(8192, 4_000 * NS), 2 * STEP + BURST);
    let counts = controllers.counts(0).next().unwrap();
    assert_eq!((counts.row_hits, counts.rows_closed, counts.row_conflicts), (1, 2, 1));
}

#[test]
fn a_row_stays_open_for_at_least_tras() {
    let mut controllers = controllers("loongson-3a5000");
    let opened = 1_000 * NS;
    controllers.access(0, 0, 64, false, Time::from_ps(opened));
    let end = controllers.access(0, 17 * 8192, 64, false, Time::from_ps(opened + 1)).ps();
    // tRAS is 52 cycles of 625 ps.
    assert_eq!(end, opened + 52 * 625 + 3 * STEP + BURST);
}

#[test]
fn a_closed_page_policy_opens_a_row_for_every_access() {
    let policy = "row_buffer = \"8 KiB\"";
    let mut controllers = changed("loongson-3a5000", policy, &format!("{policy}\npage_policy = \"closed\""));
    for turn in 1..5 {
        let at = turn * 1_000 * NS;
        let end = controllers.access(0, turn * 64, 64, false, Time::from_ps(at)).ps();
        assert_eq!(end - at, 2 * STEP + BURST);
    }
}

#[test]
fn a_refresh_delays_an_access_and_closes_the_rows() {
    let mut controllers = controllers("loongson-3a5000");
    controllers.access(0, 0, 64, false, Time::from_ps(7_000 * NS));
    // The rank is idle when the refresh is due. It takes 350 ns.
    let at = 7_900 * NS;
    let end = controllers.access(0, 0, 64, false, Time::from_ps(at)).ps();
    assert_eq!(end, 8_150 * NS + 2 * STEP + BURST);
    assert_eq!(controllers.counts(0).next().unwrap().refresh_waits, 1);
}

#[test]
fn a_busy_rank_postpones_eight_refreshes() {
    let mut controllers = controllers("loongson-3a5000");
    let mut at = 0;
    let mut waits = Vec::new();
    while at < 9 * 7_800 * NS + 1_000 * NS {
        let end = controllers.access(0, 0, 64, false, Time::from_ps(at)).ps();
        let wait = end - at - STEP - BURST;
        if wait > 100 * NS {
            waits.push(at);
        }
        at = end + 10 * NS;
    }
    assert!(waits[0] >= 8 * 7_800 * NS, "eight refreshes are postponed: {waits:?}");
    assert!((1..=2).contains(&waits.len()), "the ninth is not: {waits:?}");
    // Once the rank is idle, it makes up for the others.
    let later = at + 9 * 350 * NS;
    let end = controllers.access(0, 0, 64, false, Time::from_ps(later)).ps();
    assert_eq!(end - later, 2 * STEP + BURST);
}

#[test]
fn a_same_bank_refresh_leaves_the_other_banks_usable() {
    let ddr5 = "technology = \"ddr5\"\nrefresh = \"same-bank\"\nwidth = \"32 bit\"";
    let (file, text) = Machine::text("loongson-3a5000").unwrap();
    let text = text.replace("technology = \"ddr4\"", ddr5).replace("width = \"64 bit\"\nbanks", "banks");
    let text = text.replace("trfc = \"350 ns\"", "trfc = \"130 ns\"");
    let machine = Machine::parse(&file, &text).unwrap_or_else(|report| panic!("{report}"));
    let mut controllers = Controllers::new(&machine, 0).unwrap();
    let waits = |controllers: &mut Controllers, bank: u64| {
        let before = controllers.counts(0).next().unwrap().refresh_waits;
        controllers.access(0, bank * 8192, 64, false, Time::from_ps(7_850 * NS));
        controllers.counts(0).next().unwrap().refresh_waits - before
    };
    // 16 banks in four groups: four adjacent banks are refreshed together.
    assert_eq!((0..16).map(|bank| waits(&mut controllers, bank)).collect::<Vec<_>>()[..5], [1, 1, 1, 1, 0]);
}

/// Mean time of line reads by a pointer chase over the controllers of node 0. Each read begins `rest` after the
/// previous one has returned.
fn chase(controllers: &mut Controllers, line: u32, rest: u64, turns: u64) -> f64 {
    let local_controllers = (0..controllers.len()).filter(|c| controllers.node_of(*c) == 0).count() as u64;
    let (mut random, mut at, mut sum) = (SplitMix64::new(1), 0, 0);
    for _ in 0..turns {
        let place = random.next_u64();
        let address = (random.next_u64() % (1 << 32)) / 64 * 64;
        let end = controllers
            .access((place % local_controllers) as usize, address, line, false, Time::from_ps(at))
            .ps();
        sum += end - at;
        at = end + rest;
    }
    sum as f64 / turns as f64
}

#[test]
fn a_pointer_chase_takes_the_stated_latency_on_every_machine() {
    for builtin in BUILTIN {
        let mut controllers = controllers(builtin.name);
        let machine = Machine::open(builtin.name).unwrap();
        let line = machine.caches.values().next().unwrap().line.bytes() as u32;
        let stated = controllers.stated_ps(0).unwrap();
        let path = 20 * NS;
        let mean = controllers.mean_random_ps(0);
        let fixed = overhead::fixed_ps(stated, path, mean);
        let rest = (path as i64 + fixed).max(0) as u64;
        let actual = chase(&mut controllers, line, rest, 100_000) + rest as f64;
        let expected = stated as f64;
        assert!(
            (actual / expected - 1.0).abs() < 0.01,
            "{}: {actual} ps, stated {expected} ps",
            builtin.name
        );
    }
}

/// Bandwidth of `streams` interleaved streams that read or write as fast as possible, 256 KiB apart, bytes per second.
fn bandwidth(controllers: &mut Controllers, streams: u64, write: bool) -> f64 {
    let (lines, mut end) = (40_000u64, 0);
    // As many outstanding requests as a controller can hold.
    let mut window = std::collections::VecDeque::from(vec![0; 32]);
    for line in 0..lines {
        let address = (line % streams) * (256 << 10) * 1001 + line / streams * 64;
        let at = window.pop_front().unwrap();
        let completed = controllers.access(0, address, 64, write, Time::from_ps(at)).ps();
        window.push_back(completed.max(at));
        end = end.max(completed);
    }
    (lines * 64) as f64 / (end as f64 * 1e-12)
}

#[test]
fn a_stream_approaches_the_peak_and_never_exceeds_it() {
    let peak = 25.6e9;
    let ungrouped = || changed("loongson-3a5000", "bank_groups = 4 ", "bank_groups = 1 ");
    for streams in [1, 3] {
        let actual = bandwidth(&mut ungrouped(), streams, false);
        assert!((0.8 * peak..peak).contains(&actual), "{streams} streams: {actual} bytes per second");
    }
    let actual = bandwidth(&mut ungrouped(), 1, true);
    assert!((0.6 * peak..peak).contains(&actual), "{actual} bytes per second of writes");
}

#[test]
fn a_stream_in_one_bank_group_gets_half_the_bandwidth_of_streams_in_several() {
    // A line every 5 ns is 12.8 GB/s; at the end of a row, the next row's bank group overlaps.
    let one = bandwidth(&mut controllers("loongson-3a5000"), 1, false);
    assert!((12.8e9..16.0e9).contains(&one), "{one} bytes per second");
    let four = bandwidth(&mut controllers("loongson-3a5000"), 4, false);
    assert!((1.3..2.0).contains(&(four / one)), "{four} against {one} bytes per second");
}

#[test]
fn a_rank_activates_at_most_four_rows_in_tfaw() {
    let mut controllers = controllers("loongson-3a5000");
    let at = Time::from_ps(1_000 * NS);
    let ends: Vec<u64> =
        (0..16).map(|bank| controllers.access(0, bank * 8192, 64, false, at).ps() - at.ps()).collect();
    // Sixteen banks at once: the last activate is about 15 quarters of 21 ns after the first.
    let last = *ends.iter().max().unwrap();
    assert!((2 * STEP + BURST + 70 * NS..2 * STEP + BURST + 90 * NS).contains(&last), "{last} ps");
}

#[test]
fn four_channels_carry_four_times_as_much() {
    let one = bandwidth(&mut changed("sandybridge-2x6", "channels = 4", "channels = 1"), 1, false);
    let four = bandwidth(&mut controllers("sandybridge-2x6"), 1, false);
    assert!((3.0..4.2).contains(&(four / one)), "{four} against {one} bytes per second");
}

#[test]
fn a_measured_bandwidth_below_the_peak_limits_the_channels() {
    let width = "width = \"64 bit\"\nbanks = 16";
    let mut slow = changed("loongson-3a5000", width, &format!("bandwidth = \"10 GB/s\"\n{width}"));
    let actual = bandwidth(&mut slow, 1, false);
    assert!((8.5e9..10e9).contains(&actual), "{actual} bytes per second");
}

#[test]
fn a_write_does_not_wait_until_the_queue_is_full() {
    let mut controllers = controllers("loongson-3a5000");
    let write = |controllers: &mut Controllers, line: u64| {
        controllers.access(0, line * 64, 64, true, Time::from_ps(NS)).ps() - NS
    };
    assert!((0..16).all(|line| write(&mut controllers, line) == 0));
    assert!((16..400).any(|line| write(&mut controllers, line) > 0));
}

#[test]
fn a_core_simulated_a_quantum_later_does_not_wait_for_later_accesses_of_the_first() {
    let mut controllers = controllers("loongson-3a5000");
    // Core A reads for 2 us, then core B reads in the same 2 us, from other rows.
    let mut read = |core: u64, turn: u64| {
        let at = 10_000 * NS + turn * 50 * NS;
        controllers.access(0, (core << 24) + turn * 8192, 64, false, Time::from_ps(at)).ps() - at
    };
    (0..40).for_each(|turn| {
        read(0, turn);
    });
    let worst = (0..40).map(|turn| read(1, turn)).max().unwrap();
    assert!(worst < 200 * NS, "{worst} ps");
}

#[test]
fn a_machine_without_timing_parameters_gets_those_of_the_standard() {
    let keys = "cl = \"13.75 ns\"\ntrcd = \"13.75 ns\"\ntrp = \"13.75 ns\"\ntras = \"32.5 ns\"\n";
    let silent = changed("loongson-3a5000", keys, "");
    let stated = controllers("loongson-3a5000");
    let (silent, stated) = (silent.timing(0), stated.timing(0));
    assert_eq!((silent.cl_ps, silent.trcd_ps, silent.trp_ps), (stated.cl_ps, stated.trcd_ps, stated.trp_ps));
    // SDRAM transfers once a clock: 3 cycles at 133 MHz.
    assert_eq!(controllers("piii-myrinet").timing(0).cl_ps, 22_556);
}

#[test]
fn too_many_banks_are_rejected() {
    let (file, text) = Machine::text("loongson-3a5000").unwrap();
    // Each number alone passes the check of the machine file.
    let machine = Machine::parse(&file, &text.replace("banks = 16", "banks = 4096\nranks = 64")).unwrap();
    let error = Controllers::new(&machine, 0).unwrap_err();
    assert!(matches!(error, BuildError::Impossible { .. }) && error.to_string().contains("ddr4-3200"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_access_takes_at_least_its_fixed_latency_and_no_channel_exceeds_its_rate(
        accesses in proptest::collection::vec((any::<u64>(), 1u32..600, any::<bool>(), 0u64..4_000_000), 1..200),
    ) {
        let mut controllers = controllers("hygon-8node");
        let (mut bytes, mut end) = (0, 0);
        for (address, size, write, at) in accesses {
            let completed = controllers.access(3, address >> 16, size, write, Time::from_ps(at)).ps();
            let timing = controllers.timing(3);
            prop_assert!(completed >= at);
            if !write {
                prop_assert!(completed >= at + timing.cl_ps);
                (bytes, end) = (bytes + u64::from(size), end.max(completed));
            }
        }
        prop_assert!(bytes as f64 <= end as f64 * 42.656e9 / 1e12 + 64.0);
    }
}
