//! With arbitrary contents of registers and rings, the MAC answers every access and accesses no memory except the
//! buffers it was given.

use crate::driver::*;
use longma_devices::Device;
use longma_devices::ethernet::Frame;
use longma_devices::ethernet::mac::{Mac, MacSpec};
use longma_sim::{Duration, Time};
use proptest::prelude::*;

fn access() -> impl Strategy<Value = (u64, u64)> {
    let value = prop_oneof![
        any::<u64>(),
        0u64..40,
        (0u64..0x400).prop_map(|n| MEMORY + n),
        Just(RX_RING),
        Just(TX_RING),
        Just(3),
        Just(0x63),
    ];
    let of_queues = (0u64..5, 0u64..13).prop_map(|(queue, register)| (0x1000 + queue * 0x80) / 8 + register);
    let spread = (0u64..40).prop_map(|word| 0xc00 / 8 + word);
    (prop_oneof![3 => 0u64..19, 2 => of_queues, 1 => spread], value)
}

/// A MAC with several queues.
fn wide() -> MacSpec {
    MacSpec { queues: 4, ..gigabit() }
}

proptest! {
    #[test]
    fn no_register_or_descriptor_makes_it_panic_or_hang(
        accesses in proptest::collection::vec((access(), 0u64..20_000_000), 1..60),
        memory in proptest::collection::vec(any::<u64>(), 256), latency in 0u64..1000, frames in 0u64..20,
    ) {
        let mut driver = Driver::new(wide());
        driver.bus.areas[0].latency = Duration::from_ps(latency);
        for (index, word) in memory.iter().enumerate() {
            for ring in [RX_RING, TX_RING] {
                // Half of the buffers are at random addresses in memory.
                let word = if index % 4 == 0 { MEMORY + word % MEMORY_BYTES as u64 } else { *word };
                driver.bus.bytes_mut(ring + index as u64 * 8, 8).unwrap().copy_from_slice(&word.to_le_bytes());
            }
        }
        for number in 0..frames {
            let frame = match number % 2 {
                0 => Frame::new(&content([0xff; 6], 60 + number as usize * 70, number)),
                _ => segment(number as u16, &[5; 60]),
            };
            driver.mac.deliver(frame, Time::from_ps(number * 15_000_000));
        }
        for ((register, value), ps) in accesses {
            driver.mac.write(register * 8, 8, value, driver.now, &mut driver.bus);
            driver.mac.read(value, 4, driver.now, &mut driver.bus);
            let until = driver.now.ps() + ps;
            let mut turns = 0;
            while let Some(at) = driver.mac.next_event().filter(|at| at.ps() <= until) {
                prop_assert!(at >= driver.now);
                driver.now = at;
                driver.mac.advance(at, &mut driver.bus);
                turns += 1;
                prop_assert!(turns < 100_000, "time passes");
            }
            driver.now = Time::from_ps(until);
            let text = serde_json::to_string(driver.mac.state()).unwrap();
            driver.mac = Mac::restore(wide(), serde_json::from_str(&text).unwrap());
        }
    }
}

#[test]
fn an_inaccessible_ring_disables_its_direction() {
    let mut driver = Driver::new(gigabit());
    driver.set("RX_BASE", 0x100);
    driver.set("RX_COUNT", 4);
    driver.set("ENABLE", 1 << 5);
    driver.set("CONTROL", 1);
    driver.mac.deliver(Frame::new(&content(STATION, 60, 1)), Time::from_ps(1000));
    driver.run();
    assert_eq!((driver.get("INTERRUPT"), driver.get("CONTROL")), (1 << 5, 0));
    assert!(driver.bus.asserted(0));
}

#[test]
fn an_inaccessible_receive_buffer_only_drops_its_frame() {
    let mut driver = Driver::new(gigabit());
    driver.receive_ring(3, 200);
    driver.put(RX_RING, 0, 0x40, 200, OWN);
    driver.put(RX_RING, 1, BUFFERS, 0, OWN);
    for number in 0..3 {
        driver.mac.deliver(Frame::new(&content(STATION, 60, number)), Time::from_ps(1000 * number));
    }
    driver.run();
    let error = 1u32 << 30 | 1 << 29 | 1 << 28;
    assert_eq!(driver.status(RX_RING, 0), error | 1 << 19);
    assert_eq!(driver.status(RX_RING, 1), error | 1 << 18);
    assert_eq!(driver.status(RX_RING, 2), 1 << 30 | 1 << 29 | 60);
    assert_eq!((driver.mac.counters().rx_good, driver.mac.counters().rx_bad_descriptor), (1, 2));
}
