//! Any bytes as what a peer says while it connects: letters of the control socket, greetings and heads of messages in datagrams.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_via::provider::fuzzing::{read_control_message, read_datagram_message};

fuzz_target!(|data: &[u8]| {
    read_control_message(data);
    read_datagram_message(data);
    // Letters begin with a number of eight bytes: most random ones would fail there.
    if let Some((kind, rest)) = data.split_first() {
        let mut message = u64::from(kind % 12).to_le_bytes().to_vec();
        if kind % 12 == 1 {
            // The version that is read further.
            message.extend(5u64.to_le_bytes());
        }
        message.extend(rest);
        read_control_message(&message);
    }
});
