//! Any bytes as what a peer says while it connects: letters of the control socket, greetings and heads of messages in datagrams.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_via::provider::fuzzing::{read_datagram_words, read_letter};

fuzz_target!(|data: &[u8]| {
    read_letter(data);
    read_datagram_words(data);
    // Letters begin with a number of eight bytes: most random ones would fail there.
    if let Some((kind, rest)) = data.split_first() {
        let mut letter = u64::from(kind % 12).to_le_bytes().to_vec();
        if kind % 12 == 1 {
            // The version that is read further.
            letter.extend(5u64.to_le_bytes());
        }
        letter.extend(rest);
        read_letter(&letter);
    }
});
