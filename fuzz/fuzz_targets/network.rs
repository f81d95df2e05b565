//! Sends frames of a guest to a network in user mode without access to the outside. Its answers must fit a NIC.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use longma_system::net::{Frames, MAX_FRAME_BYTES, Network, UserOptions};

fuzz_target!(|data: &[u8]| {
    let options = UserOptions { isolated: true, ..UserOptions::default() };
    let mut network = Network::user(&options).expect("it opens no port");
    let mut frames = Frames::default();
    let mut rest = data;
    let mut now_ns = 0;
    // Each frame is preceded by its length and the milliseconds that pass before the exchange.
    while let [low, high, milliseconds, behind @ ..] = rest {
        let bytes = usize::from(u16::from_le_bytes([*low, *high])).min(behind.len());
        let (frame, next) = behind.split_at(bytes);
        frames.send(frame.to_vec());
        now_ns += u64::from(*milliseconds) * 1_000_000;
        network.exchange(&mut frames, now_ns, Duration::ZERO);
        while let Some(answer) = frames.take() {
            assert!(answer.len() <= MAX_FRAME_BYTES);
        }
        rest = next;
    }
});
