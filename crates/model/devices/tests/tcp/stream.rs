//! Streams arrive completely, losses are repaired as the RFCs specify, the window is obeyed, and invalid
//! acknowledgements are counted.
//!
//! Source: RFC 9293, 5681, 6298, 6582.

use crate::receiver::*;
use longma_devices::ethernet::FaultRates;
use longma_devices::ethernet::tcp::{Phase, Segment};
use longma_sim::Duration;
use proptest::prelude::*;

fn run(line: &mut Line) {
    for turn in 0.. {
        assert!(turn < 3_000_000, "the stream must end: {:?}", line.sender.counters());
        if line.sender.phase() == Phase::Done || !line.step() {
            return;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_stream_arrives_completely_over_an_unreliable_wire(
        total in 0u64..200_000, message in 1u64..20_000, window in 1461u64..200_000, scale in 0u8..8, mss in 100u16..1461,
        faults in (0u32..60_000, 0u32..40_000, 0u32..60_000, 0u32..40_000), odd in (0u32..30_000, 0u32..30_000, 0u32..30_000), seed in any::<u64>(), no_delay in any::<bool>(), delayed in any::<bool>(),
    ) {
        let mut spec = spec();
        (spec.total_bytes, spec.message_bytes, spec.mss, spec.no_delay) = (Some(total), message, mss, no_delay);
        let (lost, damaged, late, doubled) = faults;
        let (corrupted, cut, stretched) = odd;
        let lateness = Duration::from_ps(60_000_000);
        let faults = FaultRates { lost, damaged, corrupted, cut, stretched, late, lateness, doubled };
        let mut receiver = Receiver::new(window, scale);
        receiver.delay_acknowledgements = delayed;
        let mut line = Line::new(spec, receiver, faults, seed);
        run(&mut line);
        prop_assert_eq!(line.sender.phase(), Phase::Done, "{:?}", line.sender.counters());
        prop_assert_eq!((line.receiver.received, line.sender.acknowledged()), (total, total));
        prop_assert!(line.receiver.finished);
        prop_assert_eq!(line.sender.counters().impossible, 0);
    }

    #[test]
    fn the_receivers_window_is_never_overrun(window in 1461u64..60_000, total in 1u64..100_000) {
        let mut spec = spec();
        spec.total_bytes = Some(total);
        let mut line = Line::new(spec, Receiver::new(window, 0), FaultRates::default(), 1);
        run(&mut line);
        // Without losses, only data beyond the window would be dropped and retransmitted.
        prop_assert_eq!(line.sender.counters().retransmitted, 0);
        prop_assert_eq!(line.receiver.received, total);
    }
}

#[test]
fn without_losses_a_long_stream_fills_the_wire() {
    let mut spec = spec();
    spec.total_bytes = Some(20_000_000);
    let mut line = Line::new(spec, Receiver::new(1 << 20, 7), FaultRates::default(), 1);
    run(&mut line);
    let seconds = line.now.ps() as f64 * 1e-12;
    let mbps = 20_000_000.0 * 8.0 / seconds / 1e6;
    // 1460 of 1538 bytes on the wire are data: 949 Mb/s. Connection setup and teardown take a little.
    assert!((900.0..949.3).contains(&mbps), "{mbps}");
    let counters = line.sender.counters();
    assert_eq!((counters.retransmitted, counters.timeouts), (0, 0));
    assert!(counters.delayed * 10 > counters.acknowledgements * 9, "every second segment is acknowledged");
}

#[test]
fn a_single_loss_is_repaired_by_a_fast_retransmission() {
    let mut spec = spec();
    spec.total_bytes = Some(2_000_000);
    // Seeds with few lost frames.
    let mut fast = 0;
    for seed in 0..20 {
        let faults = FaultRates { lost: 500, ..FaultRates::default() };
        let mut line = Line::new(spec, Receiver::new(1 << 18, 4), faults, seed);
        run(&mut line);
        assert_eq!(line.receiver.received, 2_000_000);
        fast += line.sender.counters().fast_retransmits;
    }
    assert!(fast >= 5, "{fast}");
}

#[test]
fn a_closed_window_is_probed_until_it_opens() {
    let mut line = Line::new(spec(), Receiver::new(20_000, 0), FaultRates::default(), 1);
    while line.receiver.received < 20_000 {
        assert!(line.step());
    }
    line.receiver.window = 0;
    let before = line.sender.counters().probes;
    while line.sender.counters().probes < before + 3 {
        assert!(line.step());
    }
    line.receiver.window = 20_000;
    run(&mut line);
    assert_eq!((line.sender.phase(), line.receiver.received), (Phase::Done, 100_000));
}

#[test]
fn small_messages_are_coalesced_while_data_is_unacknowledged_unless_no_delay_is_set() {
    let sizes = |no_delay: bool| {
        let mut spec = spec();
        (spec.message_bytes, spec.no_delay, spec.total_bytes) = (100, no_delay, Some(20_000));
        spec.message_interval = Duration::from_ps(1_000_000);
        let mut receiver = Receiver::new(60_000, 0);
        receiver.delay_acknowledgements = false;
        let mut line = Line::new(spec, receiver, FaultRates::default(), 1);
        run(&mut line);
        assert_eq!(line.receiver.received, 20_000);
        line.receiver.segments.len()
    };
    assert!(sizes(true) > 150 && sizes(false) < 60, "{} {}", sizes(true), sizes(false));
}

#[test]
fn an_acknowledgement_of_unsent_data_is_counted_and_ignored() {
    let mut line = Line::new(spec(), Receiver::new(60_000, 0), FaultRates::default(), 1);
    while line.receiver.received < 10_000 {
        assert!(line.step());
    }
    let lie = Segment {
        sequence: 7001,
        acknowledgement: line.receiver.next().map(|next| next.wrapping_add(90_000)),
        window: 60_000,
        ..Segment::default()
    };
    line.sender.deliver(lie.frame(&RECEIVER, &SENDER).unwrap(), line.now);
    run(&mut line);
    assert_eq!((line.sender.counters().impossible, line.receiver.received), (1, 100_000));
}

#[test]
fn only_a_reset_with_the_expected_sequence_number_ends_the_connection() {
    for (sequence, phase) in [(7001, Phase::Reset), (9999, Phase::Done)] {
        let mut line = Line::new(spec(), Receiver::new(60_000, 0), FaultRates::default(), 1);
        while line.receiver.received < 10_000 {
            assert!(line.step());
        }
        let reset = Segment { sequence, reset: true, ..Segment::default() };
        line.sender.deliver(reset.frame(&RECEIVER, &SENDER).unwrap(), line.now);
        while line.sender.phase() == Phase::Open && line.step() {}
        assert_eq!(line.sender.phase(), phase);
    }
}
