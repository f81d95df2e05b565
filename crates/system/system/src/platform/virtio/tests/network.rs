//! Tests the NIC as a driver uses it. The network returns each frame.

use super::*;
use crate::net::MAX_FRAME_BYTES;

/// The queue of sent frames.
const SEND_DESCRIPTORS: u64 = 0x9000;
const SEND_AVAILABLE: u64 = 0xa000;
const SEND_USED: u64 = 0xb000;
const SENT: u64 = 0xc000;
const HEADER_BYTES: u32 = 12;

/// A NIC whose driver has started both queues.
fn nic() -> Bench {
    let mut bench = Bench::with(Transport::network(Network::echo())).start();
    bench.write(window::MESSAGES + 16, 8, map::MESSAGES);
    bench.write(window::MESSAGES + 24, 8, 41);
    let addresses = [(0x20, 8, SEND_DESCRIPTORS), (0x28, 8, SEND_AVAILABLE), (0x30, 8, SEND_USED)];
    for (offset, bytes, value) in [(0x16, 2, 1), (0x18, 2, 16), (0x1a, 2, 1)].into_iter().chain(addresses) {
        bench.write(offset, bytes, value);
    }
    assert_eq!(bench.host.read(WINDOW + 0x1e, 2), 1, "the number of the notification register");
    bench.write(0x1c, 2, 1);
    bench
}

impl Bench {
    /// Sends `bytes` bytes from [`SENT`] as request number `number`.
    fn send(&mut self, number: u16, bytes: u32) -> Effects {
        let fields = [&SENT.to_le_bytes()[..], &bytes.to_le_bytes(), &[0; 4]];
        self.put(SEND_DESCRIPTORS, &fields.concat());
        self.put(SEND_AVAILABLE + 4 + 2 * u64::from(number % 16), &[0; 2]);
        self.put(SEND_AVAILABLE + 2, &(number + 1).to_le_bytes());
        self.write(window::NOTIFY + 4, 2, 1)
    }

    fn exchange(&mut self) -> Effects {
        let mut effects = Effects::default();
        self.host.exchange(0, Duration::ZERO, &self.memory, &mut effects);
        effects
    }
}

fn contents(effects: &Effects) -> Vec<u32> {
    effects.messages.iter().map(|message| message.content).collect()
}

#[test]
fn a_driver_sends_and_receives_frames() {
    let mut bench = nic();
    let configuration: Vec<u64> =
        (0..8).map(|at| bench.host.read(WINDOW + u64::from(window::DEVICE) + at, 1)).collect();
    assert_eq!(configuration, [0x52, 0x54, 0, 0x12, 0x34, 0x56, 1, 0], "address and link");
    bench.put(SENT + u64::from(HEADER_BYTES), b"a frame");
    assert_eq!(contents(&bench.send(0, HEADER_BYTES + 7)), [41]);
    assert_eq!(bench.get(SEND_USED + 2, 10), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert!(bench.exchange().messages.is_empty(), "the driver has no buffer yet");
    // The driver supplies two buffers, the first for the header.
    bench.descriptor(0, DATA, HEADER_BYTES, WRITABLE | NEXT, 1);
    bench.descriptor(1, DATA + 0x100, 1514, WRITABLE, 0);
    assert_eq!(contents(&bench.notify(0)), [40]);
    assert_eq!(bench.get(DATA, 12), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(bench.get(DATA + 0x100, 8), b"a frame\0");
    assert_eq!(bench.get(USED + 2, 10), [1, 0, 0, 0, 0, 0, 19, 0, 0, 0]);
    // The driver supplies a buffer before the frame arrives.
    bench.descriptor(0, DATA, 2048, WRITABLE, 0);
    assert!(bench.notify(0).messages.is_empty());
    bench.send(1, HEADER_BYTES + MAX_FRAME_BYTES as u32);
    assert_eq!(contents(&bench.exchange()), [40]);
    assert_eq!(bench.get(USED + 2, 2), [2, 0]);
}

#[test]
fn frames_that_are_too_short_or_long_and_buffers_that_are_too_small_are_lost() {
    let mut bench = nic();
    for (number, bytes) in
        [0, 11, HEADER_BYTES + MAX_FRAME_BYTES as u32 + 1, u32::MAX].into_iter().enumerate()
    {
        assert_eq!(contents(&bench.send(number as u16, bytes)), [41], "{bytes}");
    }
    bench.descriptor(0, DATA, 18, WRITABLE, 0);
    bench.notify(0);
    assert!(bench.exchange().messages.is_empty());
    bench.send(4, HEADER_BYTES + 7);
    assert_eq!(contents(&bench.exchange()), [40]);
    assert_eq!(bench.get(USED + 2, 10), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bench.get(DATA, 18), [0; 18]);
    // A reset stops both queues.
    bench.write(0x14, 1, 0);
    assert!(bench.send(5, HEADER_BYTES + 7).messages.is_empty());
    assert!(bench.exchange().messages.is_empty());
}

#[test]
fn frames_are_dropped_if_the_driver_supplies_no_buffers() {
    let mut bench = nic();
    for number in 0..3000 {
        bench.send(number, HEADER_BYTES + 60);
        bench.exchange();
    }
    bench.descriptor(0, DATA, 2048, WRITABLE, 0);
    let mut received = 0;
    while !bench.notify(0).messages.is_empty() {
        received += 1;
        assert!(received < 3000);
    }
    assert_eq!(received, 512);
}

proptest! {
    #[test]
    fn any_ring_of_a_nic_changes_only_the_memory_that_the_device_reports(
        tables in prop::array::uniform2(prop::collection::vec(descriptor(), 16)),
        ring in prop::collection::vec(prop_oneof![4 => 0..16u16, 1 => any::<u16>()], 16),
        indices in prop::array::uniform2(prop_oneof![4 => 0..17u16, 1 => any::<u16>()]),
    ) {
        let mut bench = nic();
        for (number, (address, bytes, flags, next)) in tables[0].iter().copied().enumerate() {
            bench.descriptor(number as u64, address, bytes, flags, next);
        }
        for (number, (address, bytes, flags, next)) in tables[1].iter().copied().enumerate() {
            let (address, flags) = (address.to_le_bytes(), flags & !WRITABLE);
            let fields = [&address[..], &bytes.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()];
            bench.put(SEND_DESCRIPTORS + 16 * number as u64, &fields.concat());
        }
        for (number, head) in ring.into_iter().enumerate() {
            bench.put(AVAILABLE + 4 + 2 * number as u64, &head.to_le_bytes());
            bench.put(SEND_AVAILABLE + 4 + 2 * number as u64, &head.to_le_bytes());
        }
        bench.put(AVAILABLE + 2, &indices[0].to_le_bytes());
        bench.put(SEND_AVAILABLE + 2, &indices[1].to_le_bytes());
        let before = bench.get(0, TEST_BYTES);
        let sent = bench.write(window::NOTIFY + 4, 2, 1);
        let received = bench.exchange();
        let after = bench.get(0, TEST_BYTES);
        let reported: Vec<(u64, u64)> = sent.written.into_iter().chain(received.written).collect();
        for at in (0..TEST_BYTES).filter(|at| before[*at] != after[*at]) {
            prop_assert!(reported.iter().any(|(start, end)| (*start..*end).contains(&(at as u64))), "{at:#x}");
        }
    }
}
