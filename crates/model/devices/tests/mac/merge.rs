//! Large receive offload: software receives the data that was sent, in fewer frames. Unit tests check which segments
//! can be merged.
//!
//! Source: Intel's 82599 data sheet, 7.11, for the conditions that end a large frame.

use crate::driver::*;
use longma_devices::ethernet::Frame;
use longma_devices::ethernet::mac::MacSpec;
use longma_devices::ethernet::tcp::{Endpoint, Segment};
use longma_sim::Time;
use proptest::prelude::*;

const CONTROL: u64 = 1 | 1 << 6 | 1 << 7;
const FIRST: u32 = 1 << 30;
const LAST: u32 = 1 << 29;
const HEADERS: usize = 54;
const SIZE: u64 = 2048;
const COUNT: u64 = 200;

fn lro() -> Driver {
    let mut driver = Driver::new(MacSpec { rate: 10_000_000_000, ..gigabit() });
    driver.receive_ring(COUNT, SIZE);
    driver.set("RX_DELAY", 20_000);
    driver.set("ENABLE", 1);
    driver.set("CONTROL", CONTROL);
    driver
}

fn data(port: u16, sequence: u32, bytes: &[u8], push: bool) -> Frame {
    let from = Endpoint { station: [2; 6], address: [10, 0, 0, 1], port };
    let to = Endpoint { station: STATION, address: [10, 0, 0, 2], port: 5001 };
    let data = bytes.to_vec();
    let segment = Segment { sequence, acknowledgement: Some(sequence + 3), push, data, ..Segment::default() };
    segment.frame(&from, &to).expect("it fits")
}

/// The received frames: headers, data, and number of buffers of each. A frame is visible only as a whole.
fn frames(driver: &Driver) -> Vec<(Vec<u8>, Vec<u8>, usize)> {
    let (mut frames, mut number) = (Vec::new(), 0);
    while number < COUNT && driver.status(RX_RING, number) & OWN == 0 {
        assert_ne!(driver.status(RX_RING, number) & FIRST, 0, "a frame begins at {number}");
        let (mut bytes, mut buffers) = (Vec::new(), 0);
        loop {
            let status = driver.status(RX_RING, number);
            assert_eq!(status & OWN, 0, "a frame is complete");
            let total = (status & 0xffff) as usize;
            let length = if status & LAST != 0 { total - bytes.len() } else { total };
            bytes.extend_from_slice(driver.bus.bytes(BUFFERS + number * SIZE, length).unwrap());
            (buffers, number) = (buffers + 1, number + 1);
            if status & LAST != 0 {
                break;
            }
        }
        frames.push((bytes[..HEADERS].to_vec(), bytes[HEADERS..].to_vec(), buffers));
    }
    frames
}

#[test]
fn consecutive_segments_become_one_frame_with_updated_headers() {
    let mut driver = lro();
    let sent: Vec<u8> = (0..5000u32).map(|at| at as u8).collect();
    for (number, part) in sent.chunks(1000).enumerate() {
        let frame = data(7, 100 + number as u32 * 1000, part, number == 4);
        driver.mac.deliver(frame, Time::from_ps(number as u64 * 1_000_000));
    }
    driver.run();
    let received = frames(&driver);
    let (header, bytes, buffers) = &received[0];
    assert_eq!((received.len(), buffers, bytes), (1, &5, &sent));
    let packet = header.iter().chain(bytes).copied().collect::<Vec<u8>>();
    let length = u16::from_be_bytes([packet[16], packet[17]]);
    assert_eq!(usize::from(length), packet.len() - 14);
    // The checksum over an IPv4 header including its checksum is all ones (RFC 1071).
    let words = packet[14..34].chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
    let sum: u32 = words.sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    let field = |at: usize| u32::from_be_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]]);
    assert_eq!(
        (field(38), field(42)),
        (100, 4103),
        "the sequence number of the first segment, the acknowledgement of the latest"
    );
    assert_ne!(packet[47] & 8, 0, "one of the segments had PSH set");
    assert_eq!((driver.get("RX_GOOD"), driver.get("RX_MERGED"), driver.get("INTERRUPTS")), (5, 4, 1));
}

#[test]
fn a_large_frame_ends_after_the_interrupt_delay() {
    let mut driver = lro();
    driver.mac.deliver(data(7, 1, &[1; 500], false), Time::from_ps(1_000_000));
    driver.mac.deliver(data(7, 501, &[2; 500], false), Time::from_ps(5_000_000));
    driver.pass(18_000_000);
    assert!(frames(&driver).is_empty(), "the frame may still be continued");
    driver.pass(6_000_000);
    assert_eq!(frames(&driver).len(), 1);
    assert_eq!(driver.get("INTERRUPTS"), 1);
    driver.mac.deliver(data(7, 1001, &[3; 500], true), Time::from_ps(30_000_000));
    driver.run();
    assert_eq!(frames(&driver).len(), 2, "a segment after the end of the frame starts another frame");
}

#[test]
fn without_the_lro_bit_every_segment_is_a_frame() {
    let mut driver = lro();
    driver.set("CONTROL", CONTROL & !(1 << 7));
    for number in 0..4 {
        driver.mac.deliver(data(7, number * 100, &[0; 100], false), Time::from_ps(1));
    }
    driver.run();
    assert_eq!((frames(&driver).len(), driver.get("RX_MERGED")), (4, 0));
}

#[test]
fn a_ring_shorter_than_a_frame_receives_the_part_that_fits() {
    let mut driver = lro();
    driver.receive_ring(3, SIZE);
    driver.set("CONTROL", CONTROL);
    for number in 0..4 {
        driver.mac.deliver(data(7, number * 100, &[0; 100], false), Time::from_ps(1));
    }
    driver.run();
    let status: Vec<u32> = (0..3).map(|number| driver.status(RX_RING, number)).collect();
    assert!(status.iter().all(|status| status & OWN == 0), "software gets all three: {status:x?}");
    assert_eq!(status[2] & 0xffff, (HEADERS + 300) as u32);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn software_receives_the_sent_data_in_order_merged_or_not(
        sent in proptest::collection::vec((0u16..3, 1usize..1400, any::<bool>(), any::<bool>(), 1u64..9_000_000), 1..60),
    ) {
        let mut driver = lro();
        let (mut next, mut at) = ([1u32; 3], 0);
        let mut expected: [Vec<u8>; 3] = Default::default();
        for (number, (port, bytes, push, gap, apart)) in sent.iter().enumerate() {
            let connection = usize::from(*port);
            // A gap in the sequence numbers ends the large frame.
            next[connection] += u32::from(*gap && number % 5 == 0) * 7;
            let part: Vec<u8> = (0..*bytes).map(|byte| (byte * 3 + number) as u8).collect();
            expected[connection].extend(&part);
            at += apart;
            driver.mac.deliver(data(*port, next[connection], &part, *push), Time::from_ps(at));
            next[connection] += *bytes as u32;
        }
        driver.run();
        let mut payloads: [Vec<u8>; 3] = Default::default();
        for (header, bytes, buffers) in frames(&driver) {
            prop_assert!(buffers <= 16);
            let length = usize::from(u16::from_be_bytes([header[16], header[17]])) - 40;
            payloads[usize::from(header[35])].extend(&bytes[..length]);
        }
        prop_assert_eq!(payloads, expected);
        prop_assert_eq!(driver.get("RX_GOOD"), sent.len() as u64);
    }
}
