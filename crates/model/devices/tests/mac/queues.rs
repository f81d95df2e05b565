//! Multiple queues: the hash selects the queue of a frame, each queue has its own interrupt, and none blocks another.
//! Unit tests compare the hash with published values.

use crate::driver::*;
use longma_devices::Device;
use longma_devices::ethernet::mac::MacSpec;
use longma_sim::Time;

const CONTROL: u64 = 1 | 1 << 1 | 1 << 5 | 1 << 6;
const RX_SUMMED: u32 = 1 << 20 | 1 << 21;
const WHOLE: u32 = 1 << 29 | 1 << 30;

fn ring(queue: u64) -> u64 {
    RX_RING + queue * 0x1000
}

/// Offset of a queue's register, by its name in the queue's block.
fn register_of_queue(queue: u64, name: &str) -> u64 {
    let at = [
        "RX_BASE",
        "RX_COUNT",
        "RX_HEAD",
        "RX_POLL",
        "TX_BASE",
        "TX_COUNT",
        "TX_HEAD",
        "TX_POLL",
        "INTERRUPT",
        "ENABLE",
    ];
    let at = at.iter().position(|counter| *counter == name).unwrap() as u64 * 8;
    match queue {
        0 => register(name),
        _ => 0x1000 + (queue - 1) * 0x80 + at,
    }
}

fn write(driver: &mut Driver, at: u64, value: u64) {
    driver.mac.write(at, 8, value, driver.now, &mut driver.bus);
}

/// Four queues, each with a ring of `count` buffers and an equal part of the indirection table.
fn spreading(count: u64) -> Driver {
    let mut driver = Driver::new(MacSpec { queues: 4, ..gigabit() });
    for queue in 0..4 {
        for number in 0..count {
            driver.put(ring(queue), number, BUFFERS + (queue * count + number) * 256, 256, OWN);
        }
        write(&mut driver, register_of_queue(queue, "RX_BASE"), ring(queue));
        write(&mut driver, register_of_queue(queue, "RX_COUNT"), count);
        write(&mut driver, register_of_queue(queue, "ENABLE"), 1);
    }
    for word in 0..5 {
        write(&mut driver, 0xc00 + word * 8, 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(word + 1));
    }
    for word in 0..16 {
        write(&mut driver, 0xd00 + word * 8, 0x0302_0100_0302_0100);
    }
    driver.set("CONTROL", CONTROL);
    driver
}

fn heads(driver: &mut Driver) -> [u64; 4] {
    [0, 1, 2, 3].map(|queue| {
        driver.mac.read(register_of_queue(queue, "RX_HEAD"), 8, driver.now, &mut driver.bus).value
    })
}

#[test]
fn a_connection_stays_on_its_queue_and_many_are_distributed() {
    let mut driver = spreading(64);
    for number in 0..64u64 {
        driver.mac.deliver(
            segment(1000 + number as u16 % 32, &[number as u8; 60]),
            Time::from_ps(number * 5_000_000),
        );
    }
    driver.run();
    let heads = heads(&mut driver);
    assert_eq!(heads.iter().sum::<u64>(), 64);
    assert!(heads.iter().all(|head| head % 2 == 0 && *head > 0), "each connection has two frames: {heads:?}");
    for queue in 0..4 {
        assert!(driver.bus.asserted(queue as u32));
        for number in 0..heads[queue as usize] {
            assert_eq!(driver.status(ring(queue), number) & !0xffff, WHOLE | RX_SUMMED);
        }
        // The frames of a connection are in order: the data, after 54 bytes of headers, contains the number.
        let kept: Vec<u8> = (0..heads[queue as usize])
            .map(|number| driver.bus.bytes(BUFFERS + (queue * 64 + number) * 256 + 60, 1).unwrap()[0])
            .collect();
        assert!(kept.is_sorted(), "{kept:?}");
        write(&mut driver, register_of_queue(queue, "INTERRUPT"), 1);
        assert!(!driver.bus.asserted(queue as u32));
    }
    assert_eq!(driver.mac.counters().interrupts, 4);
}

#[test]
fn a_queue_without_descriptors_does_not_block_others() {
    let mut driver = spreading(64);
    write(&mut driver, register_of_queue(2, "RX_COUNT"), 0);
    for number in 0..64u64 {
        driver.mac.deliver(segment(1000 + number as u16 % 32, &[1; 60]), Time::from_ps(number * 5_000_000));
    }
    driver.run();
    let (heads, counters) = (heads(&mut driver), *driver.mac.counters());
    assert!(heads[2] == 0 && counters.rx_starved > 0, "{heads:?}");
    assert_eq!(heads.iter().sum::<u64>() + counters.rx_starved, 64);
    assert_eq!((counters.rx_good, counters.rx_missed), (64 - counters.rx_starved, 0));
}

#[test]
fn a_wrong_checksum_is_reported_and_without_a_hash_all_frames_go_to_queue_0() {
    let mut driver = spreading(8);
    driver.set("CONTROL", 1 | 1 << 6);
    let mut damaged = segment(1001, &[3; 60]).payload().unwrap().to_vec();
    damaged[80] ^= 4;
    driver.mac.deliver(longma_devices::ethernet::Frame::new(&damaged), Time::from_ps(1));
    driver.mac.deliver(segment(1002, &[3; 60]), Time::from_ps(2));
    driver.run();
    assert_eq!(heads(&mut driver), [2, 0, 0, 0]);
    assert_eq!(driver.status(ring(0), 0) & !0xffff, WHOLE | RX_SUMMED | 1 << 22);
    assert_eq!(driver.status(ring(0), 1) & !0xffff, WHOLE | RX_SUMMED);
}

#[test]
fn send_queues_are_served_round_robin_and_assemble_frames_separately() {
    let mut driver = spreading(4);
    // The first half of a frame of queue 1, whose second half follows later, and complete frames of queue 3.
    let (first, last) = (1 << 30, 1 << 31);
    for (queue, count) in [(1u64, 2u64), (3, 3)] {
        write(&mut driver, register_of_queue(queue, "TX_BASE"), TX_RING + queue * 0x100);
        write(&mut driver, register_of_queue(queue, "TX_COUNT"), count);
    }
    driver.put(TX_RING + 0x100, 0, BUFFERS, 64 | first, OWN);
    for number in 0..3 {
        driver.put(TX_RING + 0x300, number, BUFFERS, (100 + number as u32) | first | last, OWN);
    }
    write(&mut driver, register_of_queue(1, "TX_POLL"), 1);
    write(&mut driver, register_of_queue(3, "TX_POLL"), 1);
    driver.run();
    driver.put(TX_RING + 0x100, 1, BUFFERS, 36 | last, OWN);
    write(&mut driver, register_of_queue(1, "TX_POLL"), 1);
    driver.run();
    let sent: Vec<usize> =
        std::iter::from_fn(|| driver.mac.take_sent()).map(|(_, frame)| frame.len() - 4).collect();
    assert_eq!(sent, [100, 101, 102, 100], "the last frame has two parts");
    assert_eq!(driver.mac.counters().tx_bad, 0);
}

#[test]
fn writes_to_a_missing_queue_are_ignored() {
    let mut driver = Driver::new(gigabit());
    write(&mut driver, register_of_queue(1, "RX_BASE"), RX_RING);
    write(&mut driver, register_of_queue(1, "TX_POLL"), 1);
    assert_eq!(driver.mac.read(register_of_queue(1, "RX_BASE"), 8, driver.now, &mut driver.bus).value, 0);
    assert_eq!((driver.get("QUEUES"), driver.mac.next_event()), (1, None));
}
