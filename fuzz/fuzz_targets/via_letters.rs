//! Parses random bytes as messages of a connecting peer: control socket messages, and connection parameters and message headers in
//! datagrams.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_via::provider::fuzzing::{read_control_message, read_datagram_message};

fuzz_target!(|data: &[u8]| {
    read_control_message(data);
    read_datagram_message(data);
    // Control messages start with an eight-byte type, where most random input would fail.
    if let Some((kind, rest)) = data.split_first() {
        let mut message = u64::from(kind % 12).to_le_bytes().to_vec();
        if kind % 12 == 1 {
            // The supported version, so that the rest is parsed.
            message.extend(5u64.to_le_bytes());
        }
        message.extend(rest);
        read_control_message(&message);
    }
});
