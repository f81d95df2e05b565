//! Flow control: no frame is lost however slow the receiver is, and a MAC obeys PAUSE frames. Unit tests check the
//! layout of the frames.
//!
//! Source: IEEE 802.3-2018, annex 31B.

use crate::driver::*;
use longma_devices::ethernet::mac::MacSpec;
use longma_devices::ethernet::{Frame, PauseState, Wire, pause_frame, pause_quanta};
use longma_sim::{Duration, Time};

/// 10 Gb/s: a frame of 1518 bytes takes 1.2 us.
const RATE: u64 = 10_000_000_000;

fn spec(pause: bool) -> MacSpec {
    MacSpec { rate: RATE, pause, rx_fifo_bytes: 32_768, ..gigabit() }
}

/// Runs a sender at line rate that obeys PAUSE, with a driver that needs 10 us per frame and has a ring of four.
/// Returns how many of 300 frames were received, the driver with its MAC, and the sender's pause state.
fn overrun(spec: MacSpec) -> (u64, Driver, PauseState) {
    let mut driver = Driver::new(spec);
    driver.receive_ring(4, 2048);
    let frame = |number: u64| Frame::new(&content(STATION, 1514, number));
    let (mut wire, mut paused) = (Wire::new(RATE, Duration::from_ps(50_000)), PauseState::default());
    let (mut sent, mut accepted, mut next) = (0, 0, 0);
    let mut asked: Vec<(Time, u16)> = Vec::new();
    for _ in 0..400 {
        // The driver needs 10 us per frame, while sender and MAC continue.
        let end = driver.now.ps() + 10_000_000;
        while driver.now.ps() < end {
            if let Some((_, quanta)) = asked.iter().find(|(at, _)| *at <= driver.now) {
                paused.apply(*quanta, RATE, driver.now);
                asked.remove(0);
            }
            if sent < 300 && wire.free() <= driver.now && paused.until() <= driver.now {
                let transmission = wire.send(&frame(sent), driver.now);
                driver.mac.deliver(frame(sent), transmission.arrival);
                sent += 1;
            }
            driver.pass(10_000);
            while let Some((at, frame)) = driver.mac.take_sent() {
                asked.push((at, pause_quanta(&frame).expect("it only sends PAUSE frames")));
            }
        }
        if driver.status(RX_RING, next) & OWN == 0 {
            accepted += 1;
            driver.put(RX_RING, next, BUFFERS + next * 2048, 2048, OWN);
            driver.set("RX_POLL", 1);
            next = (next + 1) % 4;
        }
    }
    (accepted, driver, paused)
}

#[test]
fn a_slow_receiver_loses_frames_only_without_flow_control() {
    let (accepted, mut driver, _) = overrun(spec(false));
    assert!(driver.get("RX_MISSED") > 100, "{}", driver.get("RX_MISSED"));
    assert_eq!(accepted + driver.get("RX_MISSED"), 300);
    assert_eq!(driver.get("TX_PAUSE"), 0);

    let (accepted, mut driver, paused) = overrun(spec(true));
    assert_eq!((accepted, driver.get("RX_MISSED")), (300, 0));
    let requested = driver.get("TX_PAUSE");
    assert!(requested >= 2 && requested.is_multiple_of(2), "each pause must be ended: {requested}");
    // The driver needs 3 ms for 300 frames, which take 0.37 ms on the wire.
    assert!(paused.total(driver.now).ps() > 2_000_000_000, "{:?}", paused);
    assert!(paused.until() <= driver.now, "the sender may continue");
}

#[test]
fn with_flow_control_a_queue_without_descriptors_loses_no_frames() {
    let run = |pause| {
        let mut driver = Driver::new(MacSpec { queues: 2, pause, ..gigabit() });
        driver.receive_ring(1, 2048);
        driver.set("CONTROL", 1 | 1 << 5);
        for number in 0..3 {
            driver.mac.deliver(segment(1, &[number; 60]), Time::from_ps(u64::from(number) * 5_000_000));
        }
        driver.pass(100_000_000);
        let held = driver.get("STATUS") >> 32;
        (driver.get("RX_GOOD"), held)
    };
    assert_eq!(run(false), (1, 0));
    let (good, held) = run(true);
    assert_eq!(good, 1);
    assert!(held >= 2 * 100, "the others wait: {held}");
}

#[test]
fn a_pause_is_renewed_before_it_ends() {
    let mut driver = Driver::new(spec(true));
    driver.receive_ring(1, 2048);
    for number in 0..25u64 {
        driver.mac.deliver(Frame::new(&content(STATION, 1514, number)), Time::from_ps(number * 1_300_000));
    }
    // 65535 quanta are 3.36 ms.
    driver.pass(10_000_000_000);
    let sent: Vec<(Time, Frame)> = std::iter::from_fn(|| driver.mac.take_sent()).collect();
    assert!(sent.len() >= 5, "{}", sent.len());
    assert!(sent.iter().all(|(_, frame)| pause_quanta(frame) == Some(u16::MAX)));
    let apart = sent.windows(2).map(|two| two[1].0.ps() - two[0].0.ps());
    assert!(apart.into_iter().all(|apart| apart < 3_355_000_000), "the pause must be renewed before it ends");
}

#[test]
fn a_paused_mac_sends_no_data_but_still_sends_pause_frames() {
    let mut driver = Driver::new(MacSpec { rx_fifo_bytes: 2048, ..spec(true) });
    driver.receive_ring(1, 2048);
    driver.set("CONTROL", 3);
    driver.mac.deliver(pause_frame([2; 6], 1000), driver.now);
    driver.pass(1000);
    let frame = content([4; 6], 200, 1);
    driver.bus.bytes_mut(BUFFERS + 0x8000, 200).unwrap().copy_from_slice(&frame);
    driver.put(TX_RING, 0, BUFFERS + 0x8000, 200 | 3 << 30, OWN);
    driver.set("TX_BASE", TX_RING);
    driver.set("TX_COUNT", 1);
    driver.set("TX_POLL", 1);
    // 1000 quanta are 51.2 us.
    driver.pass(50_000_000);
    assert!(driver.mac.take_sent().is_none(), "it pauses");
    let paused_at = driver.now;
    driver.mac.deliver(Frame::new(&content(STATION, 1000, 1)), paused_at);
    driver.mac.deliver(Frame::new(&content(STATION, 1000, 2)), paused_at);
    driver.pass(500_000);
    let (_, sent_pause) = driver.mac.take_sent().expect("a paused MAC still sends PAUSE frames");
    assert_eq!(pause_quanta(&sent_pause), Some(u16::MAX));
    driver.mac.deliver(pause_frame([2; 6], 0), driver.now);
    driver.pass(500_000);
    let (_, sent) = driver.mac.take_sent().expect("a PAUSE frame with 0 quanta ends the pause");
    assert_eq!(sent.payload().unwrap(), frame);
    assert_eq!(
        (driver.get("RX_PAUSE"), driver.get("RX_GOOD")),
        (2, 1),
        "PAUSE frames are not passed to software"
    );
}

#[test]
fn without_flow_control_a_pause_frame_is_filtered_by_its_address() {
    let mut driver = Driver::new(spec(false));
    driver.receive_ring(1, 2048);
    driver.mac.deliver(pause_frame([2; 6], 1000), driver.now);
    driver.run();
    assert_eq!((driver.get("RX_FILTERED"), driver.get("RX_PAUSE")), (1, 0));
}
