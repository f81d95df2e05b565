//! Offloads of the NIC and the kernel, each compared with the same flow without it: which core does the work, and how
//! much is saved. Source: Linux's Documentation/networking/scaling.rst and napi.rst. The guest `flow_receive`
//! implements them.

mod simulator;

use std::path::Path;

use proptest::prelude::*;
use simulator::flow::{self, Run, shipped};

/// Counts two megabytes after the first one; the stream continues for as long again.
const SHORT: [&str; 2] = ["begin=1000000", "bytes=3000000"];

fn receive_on(machine: &Path, wires: &[&str], settings: &[&str]) -> Run {
    flow::receive(machine, wires, &[&SHORT, settings].concat(), &[])
}

/// Interrupts go to core 1, and the reader runs on core 2.
fn receive(settings: &[&str]) -> Run {
    receive_on(&shipped(), &["eth0:6000000"], &[&["flow=1", "application=2"], settings].concat())
}

#[test]
fn busy_polling_takes_no_interrupts_and_no_wake_ups_while_data_is_available() {
    let (asleep, polls) = (receive(&[]), receive(&["busy_us=50"]));
    assert!(asleep.times(1, "interrupt") > 10.0 && asleep.times(2, "wake_up_interrupt") > 3.0);
    for (core, work) in
        [(1, "interrupt"), (1, "softirq"), (1, "wake_up"), (2, "wake_up_interrupt"), (2, "context_switch")]
    {
        assert_eq!(polls.times(core, work), 0.0, "{work} of core {core}");
    }
    assert!(polls.number_before(" looks by programs that read") > 0.0);
    // When data stop arriving, the program sleeps and is woken by interrupts.
    let pauses = receive_on(
        &shipped(),
        &["eth0:3000000"],
        &["flow=1", "application=2", "busy_us=1", "bytes=0", "room=9000"],
    );
    assert!(
        pauses.number_before(" sleeps") > 3.0 && pauses.number_before(" interrupts") > 3.0,
        "{}",
        pauses.printed
    );
}

#[test]
fn rps_moves_protocol_work_to_another_core_by_ipis() {
    let (unsteered, steered) = (receive(&[]), receive(&["rps=3"]));
    assert_eq!(unsteered.count("core3.instructions"), 0.0);
    assert!(steered.times(3, "softirq") > 10.0);
    assert_eq!(
        steered.times(3, "softirq"),
        steered.times(3, "wake_up_interrupt"),
        "an IPI starts each softirq"
    );
    assert_eq!(steered.times(3, "context_switch"), 0.0, "softirqs run without a context switch");
    assert!(unsteered.times(1, "wake_up") > 0.0);
    assert_eq!(steered.times(1, "wake_up"), 0.0, "the protocol's core wakes the program");
    assert!(steered.times(3, "wake_up") > 0.0);
    assert!(steered.count("core1.instructions") < 0.8 * unsteered.count("core1.instructions"));
    assert!(steered.number_before(" to other cores") > 100.0);
}

#[test]
fn steering_to_the_reading_core_transfers_no_sockets() {
    // Per megabyte, because the length of the region varies with its window.
    let transfers =
        |run: &Run| run.count("coherence.transfers") * 1e6 / run.number_before(" bytes of interest");
    let (unsteered, hashed, followed) = (receive(&[]), receive(&["rps=3"]), receive(&["rfs=1"]));
    let (min, middle, max) = (transfers(&followed), transfers(&unsteered), transfers(&hashed));
    println!(
        "cache line transfers per MB: {min:.0} on the reading core, {middle:.0} on the interrupted core, {max:.0} on a third core"
    );
    assert!(min < 0.85 * middle && middle < 0.85 * max);
    assert_eq!(
        followed.times(2, "wake_up_interrupt"),
        followed.times(2, "softirq"),
        "no other core wakes the program"
    );
    assert_eq!(followed.number_before(" send rings taken over"), 0.0, "one core sends");
}

#[test]
fn a_private_send_queue_is_taken_over_by_no_other_core() {
    let (shared, per_core) = (receive(&["send_queues=4"]), receive(&["send_queues=4", "xps=1"]));
    assert!(shared.number_before(" send rings taken over") > 3.0);
    assert_eq!(per_core.number_before(" send rings taken over"), 0.0);
    assert!(per_core.count("coherence.transfers") < shared.count("coherence.transfers"));
    assert_eq!(per_core.number_before(" out of order"), 0.0);
}

#[test]
fn a_thread_that_takes_frames_is_woken_and_switched_to_and_may_be_on_any_core() {
    let (called, thread) = (receive(&[]), receive(&["threaded=1"]));
    assert_eq!((called.times(1, "context_switch"), thread.times(1, "softirq")), (0.0, 0.0));
    assert!(called.times(1, "softirq") > 10.0);
    assert!(thread.times(1, "context_switch") > 10.0);
    assert!(thread.times(1, "wake_up") > thread.times(2, "wake_up_interrupt"), "the interrupt wakes it");
    let elsewhere = receive(&["threaded=1", "napi=4"]);
    assert!(elsewhere.times(1, "interrupt") > 10.0);
    assert_eq!(elsewhere.times(1, "context_switch"), 0.0);
    assert!(elsewhere.count("core4.instructions") > 10.0 * elsewhere.count("core1.instructions"));
    // On the program's core, the NAPI thread and the program alternate.
    let together = receive_on(&shipped(), &["eth0:6000000"], &["flow=1", "application=1", "threaded=1"]);
    assert!(together.times(1, "context_switch") > 3.0);
}

#[test]
fn receive_merging_reduces_frames_and_acknowledgements() {
    let small = ["segment=1460", "delay_ns=16000", "path=500"];
    let receive = |more: &[&str]| {
        let settings = [&["flow=1", "application=2"], &small[..], more].concat();
        receive_on(&shipped(), &["eth0:6000000:1460"], &settings)
    };
    let (each, merged) = (receive(&[]), receive(&["lro=1"]));
    assert_eq!(each.count("devices.eth0.rx_merged"), 0.0);
    assert!(merged.count("devices.eth0.rx_merged") > 0.7 * merged.count("devices.eth0.rx_good"));
    assert!(merged.number_before(" acknowledgements") < 0.4 * each.number_before(" acknowledgements"));
    assert!(merged.count("run.instructions") < 0.7 * each.count("run.instructions"));
    assert_eq!(
        (merged.number_before(" out of order"), merged.count("devices.eth0.sender.retransmitted")),
        (0.0, 0.0)
    );
}

#[test]
fn small_packets_in_large_buffers_find_buffers_enough() {
    // A slow reader, which lets the window fill up.
    let settings = ["flow=1", "application=2", "path=4000"];
    let run = receive_on(&shipped(), &["eth0:6000000:1460"], &settings);
    assert_eq!(run.number_before(" without a buffer"), 0.0, "{}", run.printed);
    assert_eq!(run.count("devices.eth0.sender.retransmitted"), 0.0);
}

/// The shipped machine with flow control on or off.
fn with_pause(pause: bool) -> tempfile::NamedTempFile {
    let text = std::fs::read_to_string(shipped()).unwrap();
    assert_eq!(text.matches("\ndca = true").count(), 1);
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    std::fs::write(file.path(), text.replace("\ndca = true", &format!("\ndca = true\npause = {pause}")))
        .unwrap();
    file
}

#[test]
fn flow_control_prevents_loss_with_a_window_larger_than_the_ring_and_a_slow_core() {
    let receive = |pause| {
        let settings = ["flow=1", "application=2", "ring=64", "before=20000"];
        receive_on(with_pause(pause).path(), &["eth0:6000000"], &settings)
    };
    let (drops, stops) = (receive(false), receive(true));
    assert!(
        drops.number_before(" in the NIC") > 0.0 && drops.number_before(" out of order") > 0.0,
        "{}",
        drops.printed
    );
    assert_eq!(drops.count("devices.eth0.tx_pause"), 0.0);
    assert_eq!(
        (stops.number_before(" in the NIC"), stops.number_before(" out of order")),
        (0.0, 0.0),
        "{}",
        stops.printed
    );
    assert_eq!(stops.count("devices.eth0.sender.retransmitted"), 0.0);
    assert!(stops.count("devices.eth0.tx_pause") >= 2.0);
    // The core processes a quarter of the line rate.
    assert!(stops.count("devices.eth0.sender.paused") * 1e3 > 0.5 * stops.count("run.time"));
}

#[test]
fn a_nic_on_each_socket_is_as_fast_as_two() {
    let machine = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../experiments/machines/sandybridge-2x6-two-nics.toml");
    let settings = ["begin=4000000", "settle=1000000", "bytes=9000000", "flow=1,7", "application=2,8"];
    let run = receive_on(&machine, &["eth0:9000000", "eth1:9000000"], &settings);
    let gbps = run.number_before(" Gb/s");
    assert!((70.0..82.0).contains(&gbps), "{gbps}");
    assert!(run.count("devices.eth0.rx_good") > 100.0 && run.count("devices.eth1.rx_good") > 100.0);
    assert!(run.times(7, "interrupt") > 3.0, "the second one interrupts its own core");
}

/// The goodput at 40 Gb/s: a segment has 40 bytes of headers, and a frame another 18 bytes and a gap of 20.
fn carried(segment: f64) -> f64 {
    40.0 * segment / (segment + 78.0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, ..ProptestConfig::default() })]

    /// Short windows must not count data that arrived before they began.
    #[test]
    fn no_flow_has_more_than_its_line_carries(
        (flow, application) in prop::sample::select(vec![(1, 1), (1, 2), (7, 1)]),
        ring in prop::sample::select(vec![256, 1024]),
        rfs in 0..2,
        kilobytes in 200..1000_u64,
        seed in 1..100_u64,
    ) {
        let [flow, application, ring, rfs] = [("flow", flow), ("application", application), ("ring", ring), ("rfs", rfs)]
            .map(|(name, value)| format!("{name}={value}"));
        let bytes = format!("bytes={}", 1_500_000 + kilobytes * 1000);
        let settings = ["begin=1000000", "settle=500000", &bytes, &flow, &application, &ring, &rfs];
        let run = flow::receive(&shipped(), &["eth0:9000000"], &settings, &["--seed", &seed.to_string()]);
        let gbps = run.number_before(" Gb/s");
        prop_assert!(gbps <= carried(8960.0), "{}", run.printed);
        // Tolerate one frame, and the uncertainty at both ends of the window.
        prop_assert!(gbps > 0.85 * carried(8960.0), "{}", run.printed);
    }
}

#[test]
fn a_slow_program_has_a_full_buffer_at_both_ends_of_the_window() {
    let measure = |application: &str, path: &str| {
        let settings = ["begin=2000000", "settle=1000000", "bytes=5000000", "flow=1", application, path];
        receive_on(&shipped(), &["eth0:20000000"], &settings)
    };
    for (run, fills) in
        [(measure("application=2", "path=0"), 0.0), (measure("application=1", "path=9000"), 1.0)]
    {
        assert_eq!(run.number_before(" times the buffer was filled first"), fills, "{}", run.printed);
        let (arrived, read) = (run.number_before(" bytes arrived and"), run.number_before(" were read in"));
        // The program announces free space once it is two segments (RFC 9293, 3.8.6.2.2).
        assert!((arrived - read).abs() <= 2.0 * 8960.0 + 250.0, "{}", run.printed);
    }
}
