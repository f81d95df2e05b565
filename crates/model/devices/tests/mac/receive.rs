//! Every frame on the wire is either received completely and in order, or counted by the reason of its loss.

use crate::driver::*;
use longma_devices::ethernet::{Frame, Wire};
use longma_devices::{Device, Placement};
use longma_sim::{Duration, Time};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Good,
    Damaged,
    Short,
    Long,
    Elsewhere,
    Broadcast,
    Group,
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        8 => Just(Kind::Good),
        1 => Just(Kind::Damaged),
        1 => Just(Kind::Short),
        1 => Just(Kind::Long),
        1 => Just(Kind::Elsewhere),
        1 => Just(Kind::Broadcast),
        1 => Just(Kind::Group),
    ]
}

fn frame(kind: Kind, length: usize, seed: u64) -> Frame {
    let to = match kind {
        Kind::Elsewhere => [4; 6],
        Kind::Broadcast => [0xff; 6],
        Kind::Group => [1, 0, 0x5e, 0, 0, 1],
        _ => STATION,
    };
    match kind {
        Kind::Short => Frame::from_wire(content(to, 14 + length % 50, seed)[..14 + length % 50].to_vec()),
        Kind::Long => Frame::new(&content(to, 1515 + length, seed)),
        Kind::Damaged => {
            let mut frame = Frame::new(&content(to, length, seed));
            let at = seed as usize % frame.len();
            frame.bytes_mut()[at] ^= 0x10;
            frame
        }
        _ => Frame::new(&content(to, length, seed)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn no_frame_is_lost_uncounted_or_changed(
        frames in proptest::collection::vec((kind(), 14usize..1500, 0u64..200_000_000), 1..60),
        ring in 1u64..20, size in 40u64..2000, fifo in 2000u32..20_000, lazy in 1u64..60, batch in 1u32..9,
    ) {
        let mut spec = gigabit();
        (spec.rx_fifo_bytes, spec.descriptor_batch) = (fifo, batch);
        let mut driver = Driver::new(spec);
        driver.receive_ring(ring, size);
        let mut wire = Wire::new(spec.rate, Duration::ZERO);
        let mut at = Time::ZERO;
        let mut sent = Vec::new();
        for (number, (kind, length, gap)) in frames.iter().enumerate() {
            let frame = frame(*kind, *length, number as u64);
            at = Time::from_ps(at.ps() + gap / 100);
            let arrival = wire.send(&frame, at).arrival;
            sent.push((*kind, frame.bytes()[..frame.len() - 4].to_vec()));
            driver.mac.deliver(frame, arrival);
        }
        // The driver polls at intervals, takes received frames and returns the buffers.
        let mut received: Vec<Vec<u8>> = Vec::new();
        let (mut next, mut open, mut idle) = (0, Vec::new(), 0);
        while idle < 10 {
            driver.pass(lazy * 1_000_000);
            idle += u32::from(driver.mac.next_event().is_none());
            while driver.status(RX_RING, next) & OWN == 0 {
                idle = 0;
                let status = driver.status(RX_RING, next);
                prop_assert_eq!(status & 1 << 28, 0, "frames with errors must not be received");
                let (first, last) = (status & 1 << 30 != 0, status & 1 << 29 != 0);
                prop_assert_eq!(first, open.is_empty());
                let length = (status & 0xffff) as usize;
                let bytes = if last { length - open.len() } else { length };
                open.extend_from_slice(driver.bus.bytes(BUFFERS + next * size, bytes).unwrap());
                if last {
                    received.push(std::mem::take(&mut open));
                }
                driver.put(RX_RING, next, BUFFERS + next * size, size as u32, OWN);
                next = (next + 1) % ring;
            }
            driver.set("RX_POLL", 1);
        }
        let count = |kinds: &[Kind]| sent.iter().filter(|s| kinds.contains(&s.0)).count() as u64;
        let counters = *driver.mac.counters();
        prop_assert_eq!(counters.rx_crc, count(&[Kind::Damaged]));
        prop_assert_eq!(counters.rx_short, count(&[Kind::Short]));
        prop_assert_eq!(counters.rx_long, count(&[Kind::Long]));
        prop_assert_eq!(counters.rx_filtered, count(&[Kind::Elsewhere, Kind::Group]));
        prop_assert_eq!(counters.rx_good, received.len() as u64);
        prop_assert_eq!(counters.rx_good + counters.rx_missed, count(&[Kind::Good, Kind::Broadcast]));
        // The received frames are a subsequence of the sent ones.
        let mut sent = sent.iter().filter(|s| matches!(s.0, Kind::Good | Kind::Broadcast));
        for frame in &received {
            prop_assert!(sent.any(|s| s.1 == *frame), "a frame that was not sent, or out of order");
        }
    }
}

#[test]
fn a_full_fifo_drops_frames_and_an_empty_ring_waits() {
    let mut driver = Driver::new(gigabit());
    driver.receive_ring(2, 2000);
    for number in 0..20 {
        driver.mac.deliver(Frame::new(&content(STATION, 1514, number)), Time::from_ps(number * 20_000_000));
    }
    driver.run();
    let counters = *driver.mac.counters();
    // Two frames are in buffers; the FIFO of 16384 bytes holds ten more of 1518.
    assert_eq!((counters.rx_good, counters.rx_missed), (2, 8));
    assert!(counters.rx_starved > 0 && driver.get("STATUS") & 1 == 1);
    assert_eq!(driver.get("STATUS") >> 32, 10 * 1518);
    driver.put(RX_RING, 0, BUFFERS, 2000, OWN);
    driver.set("RX_POLL", 1);
    driver.run();
    assert_eq!(driver.mac.counters().rx_good, 3);
    assert_eq!(driver.bus.bytes(BUFFERS, 1514).unwrap(), content(STATION, 1514, 2));
}

#[test]
fn header_payload_and_descriptors_are_placed_according_to_the_dca_register() {
    let mut driver = Driver::new(gigabit());
    // Data to memory, 64 bytes of header to the shared cache, descriptors to locked lines; two ways.
    driver.set("DCA", 1 << 2 | 2 << 4 | 2 << 8 | 64 << 16);
    driver.receive_ring(2, 2000);
    driver.mac.deliver(Frame::new(&content(STATION, 200, 1)), Time::from_ps(1000));
    driver.run();
    let to =
        |placement| -> usize { driver.bus.writes.iter().filter(|w| w.2 == placement).map(|w| w.1).sum() };
    assert_eq!(to(Placement::SharedCache { ways: Some(2) }), 64);
    assert_eq!(to(Placement::Memory), 136);
    assert_eq!(to(Placement::LockedLines), 4);
}

#[test]
fn a_damaged_frame_is_received_and_marked_if_enabled() {
    let mut driver = Driver::new(gigabit());
    driver.receive_ring(1, 2000);
    driver.set("CONTROL", 1 | 1 << 4);
    driver.mac.deliver(frame(Kind::Damaged, 100, 50), Time::from_ps(1000));
    driver.run();
    assert_eq!(driver.status(RX_RING, 0), 1 << 30 | 1 << 29 | 1 << 28 | 1 << 16 | 100);
    assert_eq!((driver.mac.counters().rx_good, driver.mac.counters().rx_crc), (0, 1));
}

#[test]
fn minimum_size_frames_are_received_without_loss_at_every_rate() {
    for (gbit, batch) in [(1, 1), (10, 8), (40, 32)] {
        let mut spec = gigabit();
        (spec.rate, spec.descriptor_batch, spec.rx_fifo_bytes) = (gbit * 1_000_000_000, batch, 1 << 17);
        let mut driver = Driver::new(spec);
        driver.bus.areas[0].latency = Duration::from_ps(1000);
        driver.receive_ring(512, 128);
        let mut wire = Wire::new(spec.rate, Duration::ZERO);
        for number in 0..512 {
            let frame = Frame::new(&content(STATION, 60, number));
            let arrival = wire.send(&frame, Time::ZERO).arrival;
            driver.mac.deliver(frame, arrival);
        }
        driver.run();
        assert_eq!(driver.mac.counters().rx_good, 512, "{gbit} Gb/s");
    }
}
