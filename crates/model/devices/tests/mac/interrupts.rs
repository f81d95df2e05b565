//! Tests of interrupt moderation (delay, frame count, minimum interval) and of masked causes.

use crate::driver::*;
use longma_devices::Device;
use longma_devices::ethernet::Frame;
use longma_sim::Time;

/// Times of the line's assertions, in microseconds, for a frame every ten microseconds; software acknowledges
/// immediately.
fn assertions(settings: &[(&str, u64)], frames: u64) -> Vec<u64> {
    let mut driver = Driver::new(gigabit());
    driver.receive_ring(64, 200);
    driver.set("ENABLE", 1);
    for (name, value) in settings {
        driver.set(name, *value);
    }
    for number in 0..frames {
        driver
            .mac
            .deliver(Frame::new(&content(STATION, 60, number)), Time::from_ps((number + 1) * 10_000_000));
    }
    let mut times = Vec::new();
    while let Some(at) = driver.mac.next_event() {
        driver.now = driver.now.max(at);
        driver.pass(0);
        if driver.bus.asserted(0) {
            times.push(driver.now.ps() / 1_000_000);
            driver.set("INTERRUPT", 1);
            assert!(!driver.bus.asserted(0));
        }
    }
    times
}

#[test]
fn without_moderation_every_frame_interrupts() {
    assert_eq!(assertions(&[], 5), [10, 20, 30, 40, 50]);
}

#[test]
fn a_delay_coalesces_the_interrupts_of_several_frames() {
    assert_eq!(assertions(&[("RX_DELAY", 25_000)], 8), [35, 65, 95]);
}

#[test]
fn the_frame_count_ends_the_delay() {
    assert_eq!(assertions(&[("RX_DELAY", 1_000_000), ("RX_FRAMES", 3)], 7), [30, 60, 1070]);
}

#[test]
fn the_interval_is_the_minimum_time_between_assertions() {
    assert_eq!(
        assertions(&[("INTERVAL", 35_000)], 8),
        [10, 45, 80, 115],
        "the interval delays the last interrupt too"
    );
}

#[test]
fn a_disabled_cause_is_recorded_without_asserting_the_line() {
    let mut driver = Driver::new(gigabit());
    driver.receive_ring(4, 200);
    driver.mac.deliver(Frame::new(&content(STATION, 60, 1)), Time::from_ps(1000));
    driver.run();
    assert!(!driver.bus.asserted(0) && driver.get("INTERRUPT") == 1);
    driver.set("ENABLE", 1);
    assert!(driver.bus.asserted(0));
}
