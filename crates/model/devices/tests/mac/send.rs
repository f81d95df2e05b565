//! The frames in the send ring are put on the wire completely, in order and at the wire's rate. Invalid descriptors are
//! returned with a reason.

use crate::driver::*;
use proptest::prelude::*;

const FIRST: u32 = 1 << 30;
const LAST: u32 = 1 << 31;
const ERROR: u32 = 1 << 28;
const MALFORMED: u32 = 1 << 18;

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn frames_in_several_buffers_are_sent_complete(frames in proptest::collection::vec(proptest::collection::vec(1usize..400, 1..4), 1..20), batch in 1u32..9) {
        let mut spec = gigabit();
        spec.descriptor_batch = batch;
        let mut driver = Driver::new(spec);
        let (mut number, mut address) = (0, BUFFERS);
        let mut expected = Vec::new();
        for (index, parts) in frames.iter().enumerate() {
            let total = parts.iter().sum::<usize>().max(14);
            let bytes = content(STATION, total, index as u64);
            let mut begin = 0;
            for (part, size) in parts.iter().enumerate() {
                let last = part + 1 == parts.len();
                let end = if last { total } else { begin + size };
                driver.bus.bytes_mut(address, end - begin).unwrap().copy_from_slice(&bytes[begin..end]);
                let flags = (u32::from(part == 0) * FIRST) | (u32::from(last) * LAST);
                driver.put(TX_RING, number, address, (end - begin) as u32 | flags, OWN);
                (number, address, begin) = (number + 1, address + 1024, end);
            }
            expected.push(bytes);
        }
        driver.set("TX_BASE", TX_RING);
        driver.set("TX_COUNT", number + 1);
        driver.set("CONTROL", 2);
        driver.set("TX_POLL", 1);
        driver.run();
        let mut before = 0;
        for mut want in expected {
            let (at, frame) = driver.mac.take_sent().unwrap();
            want.resize(want.len().max(60), 0);
            prop_assert_eq!(frame.payload().unwrap(), &want[..]);
            let gap = (at.ps() - before) / 8000;
            prop_assert!(gap >= frame.len() as u64 + 8, "{gap} byte times for {} bytes", frame.len());
            before = at.ps();
        }
        prop_assert!(driver.mac.take_sent().is_none());
        for descriptor in 0..number {
            prop_assert_eq!(driver.status(TX_RING, descriptor), 0);
        }
    }
}

#[test]
fn an_invalid_descriptor_is_returned_with_the_reason_and_the_next_frame_is_sent() {
    let bus_error = 1 << 19;
    let too_long = 1 << 17;
    for (control, buffer, reason) in [
        (FIRST | LAST, BUFFERS, MALFORMED),
        (LAST | 100, BUFFERS, MALFORMED),
        (FIRST | LAST | 5, BUFFERS, MALFORMED),
        (FIRST | LAST | 100, 0x40, bus_error),
        (FIRST | LAST | 100, MEMORY + MEMORY_BYTES as u64 - 50, bus_error),
        (FIRST | LAST | 1515, BUFFERS, too_long),
        (FIRST | LAST | 0xffff, BUFFERS, too_long),
    ] {
        let mut driver = Driver::new(gigabit());
        driver.bus.bytes_mut(BUFFERS, 100).unwrap().copy_from_slice(&content(STATION, 100, 1));
        driver.put(TX_RING, 0, buffer, control, OWN);
        driver.put(TX_RING, 1, BUFFERS, FIRST | LAST | 100, OWN);
        driver.set("TX_BASE", TX_RING);
        driver.set("TX_COUNT", 3);
        driver.set("CONTROL", 2);
        driver.set("TX_POLL", 1);
        driver.run();
        assert_eq!(driver.status(TX_RING, 0), ERROR | reason, "{control:#x}");
        assert_eq!(driver.status(TX_RING, 1), 0);
        assert_eq!((driver.mac.counters().tx_good, driver.mac.counters().tx_bad), (1, 1), "{control:#x}");
    }
}

#[test]
fn a_new_frame_discards_an_incomplete_one_and_parts_of_a_bad_frame_count_once() {
    let mut driver = Driver::new(gigabit());
    for (number, control) in
        [FIRST | 100, FIRST | LAST | 100, 100, 100, LAST | 100, FIRST | LAST | 100].into_iter().enumerate()
    {
        driver.put(TX_RING, number as u64, BUFFERS, control, OWN);
    }
    driver.set("TX_BASE", TX_RING);
    driver.set("TX_COUNT", 7);
    driver.set("CONTROL", 2);
    driver.set("TX_POLL", 1);
    driver.run();
    assert_eq!((driver.mac.counters().tx_good, driver.mac.counters().tx_bad), (2, 2));
}
